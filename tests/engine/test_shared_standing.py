"""Where a log stands, asked by many at once."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mist.engine.contract import Engine, EngineUnavailable, Standing
from mist.engine.memory import MemoryEngine
from mist.engine.shared_standing import SharedStanding
from tests.engine.flaky import FlakyEngine


class Slow(FlakyEngine):
    """Answers when it is told to.

    Attributes:
        asked: how often.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked = 0
        self.answer = trio.Event()

    async def standing(self) -> Standing:
        self.asked += 1
        answer = self.answer
        standing = await super().standing()  # as of now, and told later
        await answer.wait()
        return standing


@pytest.fixture
async def engine() -> AsyncIterator[Slow]:
    async with Slow(MemoryEngine()) as engine:
        await engine.enter("n")
        yield engine


async def test_who_asks_meanwhile_shares_the_next_answer(engine: Slow) -> None:
    shared = SharedStanding(engine)
    offsets: list[int] = []

    async def ask() -> None:
        offsets.append((await shared.ask()).offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        # What is under way may have been answered before this.
        epoch = (await super(Slow, engine).standing()).epoch
        await engine.append("n", 1, b"x", 1, epoch)
        for _ in range(1_000):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        engine.answer.set()
    assert offsets == [0, *[1] * 1_000]
    assert engine.asked == 2


async def test_a_failure_is_shared_and_forgotten(engine: Slow) -> None:
    shared = SharedStanding(engine)
    engine.down = True
    failures = 0

    async def ask() -> None:
        nonlocal failures
        with pytest.raises(EngineUnavailable):
            await shared.ask()
        failures += 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert (failures, engine.asked) == (10, 1)
    engine.down = False
    engine.answer.set()
    assert (await shared.ask()).offset == 0


async def test_one_that_gives_up_leaves_the_others_theirs(engine: Slow) -> None:
    shared = SharedStanding(engine)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await shared.ask()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(shared.ask)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert engine.asked == 2
        engine.answer.set()
