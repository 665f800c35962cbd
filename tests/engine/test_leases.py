"""Work under a lease: at one node at a time, and at another one where the first can't go on."""

import pytest
import trio
from trio.testing import MockClock

from mist.engine.leases import LEASE, run_under_lease
from mist.engine.memory import MemoryEngine
from tests.engine.test_beats import Clock, CountingMembers


class Worker:
    """A node that wants the lease.

    Attributes:
        log: what it did, and when.
        working: the fence that it works under now.
    """

    def __init__(self, name: str, engine: MemoryEngine) -> None:
        self.name = name
        self.members = CountingMembers(engine.members)
        self.fences: list[int] = []
        self.working: int | None = None
        self.ended_at = 0.0
        self.end = trio.Event()
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await run_under_lease(self.members, "x", lambda: self.name, self._work)

    async def _work(self, fence: int) -> None:
        self.fences.append(fence)
        self.working = fence
        try:
            await self.end.wait()
        finally:
            self.working, self.ended_at = None, trio.current_time()


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine(clock=Clock())


def working(workers: list[Worker]) -> list[str]:
    return [each.name for each in workers if each.working is not None]


async def watch(workers: list[Worker], seconds: float) -> None:
    """See to it that at most one works."""
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        assert len(working(workers)) <= 1
        await trio.sleep(0.05)


async def test_one_of_them_works_and_keeps_its_fence(
    engine: MemoryEngine, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    workers = [Worker(name, engine) for name in ("a", "b", "c")]
    for each in workers:
        nursery.start_soon(each.run)
    await watch(workers, 60)
    assert len(working(workers)) == 1
    assert [len(each.fences) for each in sorted(workers, key=lambda each: len(each.fences))] == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize("fault", ["down", "hanging", "gone"])
async def test_it_moves_where_the_holder_can_not_go_on(
    engine: MemoryEngine, autojump_clock: MockClock, nursery: trio.Nursery, fault: str
) -> None:
    one, two = Worker("one", engine), Worker("two", engine)
    nursery.start_soon(one.run)
    await trio.sleep(10)
    nursery.start_soon(two.run)
    await watch([one, two], 5)
    assert working([one, two]) == ["one"]
    began = trio.current_time()
    if fault == "gone":
        one.scope.cancel()
    else:
        setattr(one.members, fault, True)
    while two.working is None:
        assert len(working([one, two])) <= 1
        await trio.sleep(0.01)
    assert trio.current_time() - began <= LEASE + 1.1
    assert one.working is None
    assert one.ended_at < trio.current_time()
    assert two.fences > one.fences
    # It comes back, and does not get it while the other has it.
    one.members.down = one.members.hanging = False
    await watch([one, two], 10)
    assert working([one, two]) == ["two"]


async def test_a_holder_that_was_overtaken_stops(
    engine: MemoryEngine, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    one = Worker("one", engine)
    nursery.start_soon(one.run)
    await trio.sleep(1.5)
    # As where the process was stopped for so long, and the engine's clock has gone on.
    await engine.members.give_up("x", "one")
    fence = await engine.members.take("x", "two", 60.0)
    assert fence is not None
    assert not await engine.members.holds("x", one.fences[0])
    await trio.sleep(1)
    assert one.working is None
    assert await engine.members.holds("x", fence)


async def test_a_lease_whose_work_ends_is_given_up(
    engine: MemoryEngine, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    one = Worker("one", engine)
    nursery.start_soon(one.run)
    await trio.sleep(0.1)
    one.end.set()
    await trio.sleep(0.1)
    assert await engine.members.take("x", "two", 0.5) is not None
    one.end = trio.Event()
    await trio.sleep(2)
    assert len(one.fences) == 2
    assert one.working == one.fences[1] > one.fences[0]


async def test_what_the_work_raises_is_raised_and_the_lease_given_up(
    engine: MemoryEngine, autojump_clock: MockClock
) -> None:
    async def fail(fence: int) -> None:
        await trio.sleep(5)
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        await run_under_lease(engine.members, "x", lambda: "one", fail)
    assert await engine.members.take("x", "two", 1.0) is not None
