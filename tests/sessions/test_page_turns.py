"""Whose page is next: groups of replays, long ones behind, and rests while there is a crowd."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.sessions import page_turns
from mist.sessions.page_turns import PageTurns, Replay


@pytest.fixture
def turns() -> PageTurns:
    return PageTurns()


async def read(turns: PageTurns, replay: Replay, pages: int, seen: list[tuple[int, int]]) -> None:
    """Read so many pages; notes whose they were, and which."""
    for _ in range(pages):
        async with turns.turn(replay):
            seen.append((replay.number, replay.pages))
            await trio.lowlevel.checkpoint()


async def all_read(turns: PageTurns, *pages: int) -> list[tuple[int, int]]:
    """Have replays read so many pages each, which begin in this order while a page is read."""
    seen: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            for each in pages:
                nursery.start_soon(read, turns, turns.begin(), each, seen)
                await wait_all_tasks_blocked()
            assert turns.waiting == len(pages)
    assert turns.waiting == 0
    return seen


async def test_one_page_is_read_at_a_time(turns: PageTurns) -> None:
    reading = 0

    async def one() -> None:
        nonlocal reading
        async with turns.turn(turns.begin()):
            reading += 1
            assert reading == 1
            await trio.lowlevel.checkpoint()
            reading -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert turns.waiting == 0


async def test_all_pages_of_a_group_come_before_the_next_group(
    turns: PageTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_turns, "_GROUP", 4)
    seen = await all_read(turns, *[3] * 10)
    assert len(seen) == 30
    assert seen == sorted(seen, key=lambda one: (one[0] // 4, one[1], one[0]))


async def test_a_long_replay_comes_behind_and_has_one_turn_of_four(turns: PageTurns) -> None:
    seen = await all_read(turns, 12, *[1] * 12)
    numbers = [number for number, _ in seen]
    # First pages of all, then those behind: nobody else is left by then.
    assert numbers == [*range(2, 15), *[2] * 11]

    long = turns.begin()
    long.pages = 100
    order: list[int] = []

    async def one(replay: Replay) -> None:
        async with turns.turn(replay):
            order.append(replay.number)

    async def every(replay: Replay, count: int) -> None:
        for _ in range(count):
            await one(replay)

    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            nursery.start_soon(every, long, 3)
            await wait_all_tasks_blocked()
            for _ in range(9):
                nursery.start_soon(one, turns.begin())
                await wait_all_tasks_blocked()
    places = [n for n, number in enumerate(order) if number == long.number]
    assert len(order) == 12
    assert places[0] <= 3
    assert [after - before for before, after in pairwise(places)] == [4, 4]


async def test_a_replay_is_long_behind_few_pages_or_many_messages(turns: PageTurns) -> None:
    few, many, first = turns.begin(), turns.begin(), turns.begin()
    many.messages = page_turns._MANY + 1
    assert turns.order(few) < turns.order(first) < turns.order(many)
    for _ in range(page_turns._FEW - 1):
        assert not few.is_long
        turns.order(few)
    assert turns.order(first) < turns.order(few)
    assert few.is_long
    assert not first.is_long


async def test_long_replays_take_turns(turns: PageTurns) -> None:
    replays = [turns.begin() for _ in range(3)]
    for each in replays:
        each.pages = 100
    seen: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            for each in replays:
                nursery.start_soon(read, turns, each, 2, seen)
                await wait_all_tasks_blocked()
    assert [number for number, _ in seen] == [1, 2, 3, 1, 2, 3]


async def test_who_leaves_is_passed_over(turns: PageTurns) -> None:
    seen: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            scopes = [trio.CancelScope() for _ in range(3)]
            for scope in scopes:
                await nursery.start(_read_in, scope, turns, seen)
                await wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[1].cancel()
            await wait_all_tasks_blocked()
            assert turns.waiting == 1
    assert [number for number, _ in seen] == [4]
    assert await all_read(turns, 1) == [(6, 1)]


async def test_those_who_come_and_go_leave_nothing_behind(turns: PageTurns) -> None:
    seen: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            nursery.start_soon(read, turns, turns.begin(), 1, seen)
            await wait_all_tasks_blocked()
            for _ in range(500):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await read(turns, turns.begin(), 1, seen)
            assert turns.waiting == 1
            assert len(turns._short) <= 2 + page_turns._CROWD
    assert [number for number, _ in seen] == [2]
    assert len(await all_read(turns, 1, 1)) == 2


@pytest.mark.parametrize(("before", "read_by"), [(True, [3]), (False, [2, 3])])
async def test_a_turn_that_is_given_to_who_leaves_in_that_moment_is_passed_on(
    turns: PageTurns, before: bool, read_by: list[int]
) -> None:
    seen: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        async with turns.turn(turns.begin()):
            scope = trio.CancelScope()
            await nursery.start(_read_in, scope, turns, seen)
            await nursery.start(_read_in, trio.CancelScope(), turns, seen)
            await wait_all_tasks_blocked()
            if before:
                scope.cancel()
        scope.cancel()
    assert [number for number, _ in seen] == read_by
    assert turns.waiting == 0
    assert len(await all_read(turns, 1)) == 1


async def _read_in(
    scope: trio.CancelScope,
    turns: PageTurns,
    seen: list[tuple[int, int]],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    task_status.started()
    with scope:
        await read(turns, turns.begin(), 1, seen)


async def many(turns: PageTurns, *seconds: float) -> float:
    """Have replays read a page each, which takes so long. How long all take beside that."""

    async def one(page: float) -> None:
        async with turns.turn(turns.begin()):
            await trio.sleep(page)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for each in seconds:
            nursery.start_soon(one, each)
            await wait_all_tasks_blocked()
    return trio.current_time() - began - sum(seconds)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_turns, "_PACE", 0.00075)


@pytest.mark.usefixtures("pace")
@pytest.mark.parametrize(
    ("page", "rest"),
    [
        pytest.param(0.0002, 0.0032, id="half of the time"),
        pytest.param(0.0005, 0.004, id="at a pace"),
        pytest.param(0.001, 0.0, id="behind"),
    ],
)
async def test_in_a_crowd_what_is_live_has_time_for_itself(
    turns: PageTurns, autojump_clock: MockClock, page: float, rest: float
) -> None:
    alone = await many(turns, *[page] * page_turns._CROWD)
    assert alone == pytest.approx(0.0, abs=1e-9), "no crowd"
    crowd = await many(turns, *[page] * (page_turns._CROWD + 10 * page_turns._ROW))
    assert crowd == pytest.approx(10 * rest, abs=rest + 1e-9)


@pytest.mark.usefixtures("pace")
async def test_what_a_walk_takes_is_made_up_for(
    turns: PageTurns, autojump_clock: MockClock
) -> None:
    # The walk is 40 ms behind the pace, and each row of pages brings back 4 ms.
    pages = page_turns._CROWD + 30 * page_turns._ROW
    rested = await many(turns, 0.04, *[0.0005] * pages)
    assert rested == pytest.approx((30 - 10) * 0.004, abs=0.009)
