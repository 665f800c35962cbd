"""Turns: a budget of time a pass of the loop, and who is next when it is used up."""

import functools
from collections.abc import Iterator

import pytest
import trio

from mist.turn_queue import TurnQueue
from mist.turns import Account, Turns, emptying
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def turns(clock: Clock, nursery: trio.Nursery) -> Turns:
    turns = Turns(clock)
    await nursery.start(turns.run)
    await trio.testing.wait_all_tasks_blocked()
    return turns


async def steps(
    turns: Turns,
    clock: Clock,
    account: Account,
    name: str,
    count: int,
    done: list[str],
    *,
    seconds: float = 0.01,
    late: bool = False,
) -> None:
    """Work that takes a whole budget a step."""
    for _ in range(count):
        await turns.wait(account, late=late)
        clock.work(seconds)
        done.append(name)


@pytest.mark.parametrize(("count", "steps"), [(0, 0), (200, 0), (201, 2), (1_000, 5)])
def test_long_lists_are_emptied_in_steps_and_short_ones_left(count: int, steps: int) -> None:
    some, others = [object()] * count, [object()] * count
    assert sum(1 for _ in emptying(some, others)) == steps
    assert len(some) == len(others) == (0 if steps else count)


async def test_a_pass_has_a_budget_and_the_next_has_another(turns: Turns, clock: Clock) -> None:
    await trio.lowlevel.checkpoint()
    assert not turns.over
    clock.work(0.0004)
    assert not turns.over
    clock.work(0.0002)
    assert turns.over
    await trio.lowlevel.checkpoint()
    assert not turns.over


async def test_what_is_short_does_not_wait_once_it_has_begun(turns: Turns, clock: Clock) -> None:
    def work(seconds: float) -> Iterator[None]:
        for _ in range(4):
            clock.work(seconds)
            yield

    await trio.lowlevel.checkpoint()
    clock.work(0.001)
    assert turns.over
    for _ in range(5):
        await turns.drive(work(0.00004), Account())
    assert turns.given == 0
    await turns.drive(work(0.0001), Account())
    assert turns.given > 0


async def test_what_has_waited_is_short_no_more(turns: Turns, clock: Clock) -> None:
    began = turns.now
    await trio.lowlevel.checkpoint()
    clock.work(0.001)
    assert turns.spent(began)
    assert not turns.spent(turns.now)


async def test_there_is_no_budget_before_run_and_after_it() -> None:
    clock = Clock()
    turns = Turns(clock)
    await trio.lowlevel.checkpoint()
    clock.work(1.0)
    assert not turns.over
    async with trio.open_nursery() as nursery:
        await nursery.start(turns.run)
        await trio.lowlevel.checkpoint()
        clock.work(1.0)
        assert turns.over
        nursery.cancel_scope.cancel()
    assert not turns.over
    await turns.wait(Account())
    assert turns.given == 0


async def test_accounts_take_turns_however_many_tasks_each_has(turns: Turns, clock: Clock) -> None:
    busy, quiet = Account(), Account()
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(steps, turns, clock, busy, "busy", 3, done)
        await trio.testing.wait_all_tasks_blocked(0.0)
        nursery.start_soon(steps, turns, clock, quiet, "quiet", 3, done)
    assert len(done) == 63
    assert turns.given == 63
    # Every second turn is its, from when it came, until it is done.
    places = [place for place, name in enumerate(done) if name == "quiet"]
    assert places[2] - places[0] <= 6


async def test_who_has_hardly_worked_comes_before_who_has_worked_long(
    turns: Turns, clock: Clock
) -> None:
    busy, quiet = Account(), Account()
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(steps, turns, clock, busy, "busy", 3, done)
        while len(done) < 10:
            await trio.lowlevel.checkpoint()
        before = len(done)
        await steps(turns, clock, quiet, "quiet", 1, done)
        assert done.index("quiet") - before <= 2


async def test_long_rest_earns_no_credit(turns: Turns, clock: Clock) -> None:
    one, other = Account(), Account()
    done: list[str] = []
    await steps(turns, clock, one, "one", 50, done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps, turns, clock, other, "other", 10, done)
        nursery.start_soon(steps, turns, clock, one, "one", 10, done)
    # It would have all of the first ten otherwise.
    assert done[50:60].count("one") >= 4


async def test_a_pass_gives_as_many_turns_as_fit_its_budget(turns: Turns, clock: Clock) -> None:
    passes = 0
    counting = True

    async def count() -> None:
        nonlocal passes
        while counting:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def short() -> None:
        await turns.wait(Account())
        clock.work(0.0001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as workers:
            for _ in range(100):
                workers.start_soon(short)
        counting = False
    assert 8 <= passes <= 80


async def test_a_pass_gives_one_turn_at_least(turns: Turns, clock: Clock) -> None:
    async def hog() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            clock.work(1.0)

    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hog)
        with trio.fail_after(5):
            await steps(turns, clock, Account(), "one", 10, done)
        nursery.cancel_scope.cancel()
    assert len(done) == 10


async def test_a_cancelled_task_gives_its_turn_up(turns: Turns, clock: Clock) -> None:
    with trio.move_on_after(0) as scope:
        await turns.wait(Account())
    assert scope.cancelled_caught
    assert turns.waiting == 0
    done: list[str] = []
    await steps(turns, clock, Account(), "one", 2, done)
    assert len(done) == 2


async def test_who_waits_goes_on_when_turns_end() -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as giving:
            await giving.start(turns.run)
            for _ in range(5):
                nursery.start_soon(steps, turns, clock, Account(), "one", 3, done)
            giving.cancel_scope.cancel()
        with trio.fail_after(5):
            while len(done) < 15:
                await trio.lowlevel.checkpoint()


async def test_an_idle_loop_sleeps(turns: Turns, autojump_clock: trio.testing.MockClock) -> None:
    wake = functools.partial(trio.sleep, 1000)
    before = turns.given
    with trio.fail_after(2000):
        await wake()  # the mock clock jumps only while no task can run
    assert turns.given == before


async def test_steps_are_driven_without_a_checkpoint_while_they_fit(
    turns: Turns, clock: Clock
) -> None:
    await trio.lowlevel.checkpoint()
    given = turns.given
    await turns.drive((clock.work(0.00005) for _ in range(9)), Account())
    assert turns.given == given
    await turns.drive((clock.work(0.0011) for _ in range(9)), Account())
    assert turns.given >= given + 8


def test_an_account_is_shared_while_it_is_kept() -> None:
    turns = Turns()
    one = turns.account("a")
    assert turns.account("a") is one
    assert turns.account("b") is not one
    one.turns = 7
    del one
    assert turns.account("a").turns == 0


async def test_an_account_may_pay_less_for_its_turns(turns: Turns, clock: Clock) -> None:
    one, other = Account(), Account(cost=1 / 4)
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps, turns, clock, one, "one", 40, done)
        nursery.start_soon(steps, turns, clock, other, "other", 40, done)
    assert done[:40].count("other") >= 30


async def test_what_is_short_begins_until_a_pass_is_crowded(turns: Turns, clock: Clock) -> None:
    await trio.lowlevel.checkpoint()
    clock.work(0.002)
    assert turns.over
    await turns.begin()
    assert turns.given == 0
    clock.work(0.003)
    await turns.begin()
    assert turns.given == 1
    await turns.begin()
    assert turns.given == 1


async def test_what_is_late_comes_behind_what_is_live_and_is_not_forgotten(
    turns: Turns, clock: Clock
) -> None:
    done: list[str] = []

    async def late() -> None:
        await turns.wait(Account(), late=True)
        clock.work(0.01)
        done.append("late")

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(late)
        while len(done) < 10:
            await trio.lowlevel.checkpoint()
        before = len(done)
        for name in ("one", "other"):  # who have an account each, so that one always waits
            nursery.start_soon(steps, turns, clock, Account(), name, 20, done)
        while done.count("one") + done.count("other") < 40:
            await trio.lowlevel.checkpoint()
        between = done[before : len(done)]
        assert between.count("late") <= 40
    assert done.count("late") == 200


async def test_late_ones_have_turns_beside_any_number_of_live_ones(
    turns: Turns, clock: Clock
) -> None:
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(steps, turns, clock, Account(), "live", 20, done)
        while len(done) < 5:
            await trio.lowlevel.checkpoint()
        await turns.wait(Account(), late=True)
        assert len(done) <= 20


async def late_steps(turns: Turns, clock: Clock, count: int, done: list[str]) -> None:
    await steps(turns, clock, Account(), "late", count, done, seconds=0.001, late=True)


async def passes(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def held(turns: Turns, clock: Clock, nursery: trio.Nursery, count: int) -> list[str]:
    """What late work does that has begun, and is held up: nothing by now."""
    done: list[str] = []
    nursery.start_soon(late_steps, turns, clock, count, done)
    await passes(20)
    assert done == []
    return done


async def test_what_is_late_waits_for_a_thread_that_all_wait_for(
    turns: Turns, clock: Clock, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    with turns.ahead_of_late():
        done = await held(turns, clock, nursery, 3)
        await steps(turns, clock, Account(), "live", 3, done, seconds=0.001)
        await passes(20)
        assert done == ["live"] * 3
    await passes(20)
    assert done == ["live"] * 3 + ["late"] * 3


async def test_one_late_turn_is_given_between_two_threads(
    turns: Turns, clock: Clock, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    done: list[str] = []
    nursery.start_soon(late_steps, turns, clock, 30, done)
    with turns.ahead_of_late():
        await passes(20)
        before = len(done)
    for number in range(1, 5):
        with turns.ahead_of_late():
            await passes(20)
            assert len(done) == before + number


async def test_what_is_late_does_not_wait_for_a_thread_that_is_stuck(
    turns: Turns, clock: Clock, nursery: trio.Nursery
) -> None:
    with turns.ahead_of_late():
        done = await held(turns, clock, nursery, 3)
        with trio.fail_after(5):
            while len(done) < 3:
                await trio.sleep(0.001)
                clock.work(0.001)


async def test_nobody_late_waits_once_all_threads_are_done(
    turns: Turns, clock: Clock, nursery: trio.Nursery
) -> None:
    done: list[str] = []
    with turns.ahead_of_late(), turns.ahead_of_late():
        await passes(5)
    nursery.start_soon(late_steps, turns, clock, 3, done)
    await passes(20)
    assert done == ["late"] * 3


async def test_who_has_left_takes_no_late_turn_from_others(
    turns: Turns, clock: Clock, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    with turns.ahead_of_late():
        with trio.move_on_after(0.001):
            await turns.wait(Account(), late=True)
        done = await held(turns, clock, nursery, 1)
    with turns.ahead_of_late():
        await passes(20)
        assert done == ["late"]


async def test_what_is_late_may_be_held_no_longer_by_when_it_begins_to_wait() -> None:
    times = iter([0.0, 0.009, 0.011])
    queue = TurnQueue(lambda: next(times))
    with queue.ahead_of_late():
        queue.enter(queue.place(Account(), late=True))
        with trio.fail_after(5):
            await queue.until_next()
