"""A task that waits for what is due next."""

import math
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.schedule import Schedule


class Clock:
    """Trio's time as Unix seconds, which can be set."""

    def __init__(self) -> None:
        self.ahead = 1_800_000_000.0

    def __call__(self) -> float:
        return trio.current_time() + self.ahead


class Wakes(trio.abc.Instrument):
    """Counts how often other tasks than the test's run."""

    def __init__(self) -> None:
        self.count = 0
        self._own = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio."""
        self.count += task is not self._own


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def taken(clock: Clock, nursery: trio.Nursery) -> Callable[[Schedule[str], int], list[object]]:
    """Takes what is due, with the seconds after which it was."""

    def start(schedule: Schedule[str], most: int = 10) -> list[object]:
        found: list[object] = []
        began = trio.current_time()

        async def take() -> None:
            while True:
                due = await schedule.due(most)
                found.append((round(trio.current_time() - began, 3), *due))

        nursery.start_soon(take)
        return found

    return start


async def test_each_is_due_at_its_time(
    clock: Clock, taken: Callable[..., list[object]], autojump_clock: MockClock
) -> None:
    schedule = Schedule[str](clock)
    found = taken(schedule)
    now = clock()
    schedule.set("late", now + 7.25)
    schedule.set("soon", now + 0.5)
    schedule.set("never", now + 1.0)
    schedule.set("moved", now + 1.0)
    schedule.set("moved", now + 3.0)
    await trio.sleep(0.75)
    schedule.remove("never")
    assert len(schedule) == 2
    schedule.set("past", now - 1.0)
    await trio.sleep(10)
    assert found == [(0.5, "soon"), (0.75, "past"), (3.0, "moved"), (7.25, "late")]


async def test_so_many_at_once_and_the_rest_at_once_after(
    clock: Clock, taken: Callable[..., list[object]], autojump_clock: MockClock
) -> None:
    schedule = Schedule[str](clock)
    for name in "abcde":
        schedule.set(name, clock() + 1)
    found = taken(schedule, 2)
    await trio.sleep(1.5)
    assert found == [(1.0, "a", "b"), (1.0, "c", "d"), (1.0, "e")]


async def test_a_clock_that_is_set_is_seen_within_a_second(
    clock: Clock, taken: Callable[..., list[object]], autojump_clock: MockClock
) -> None:
    schedule = Schedule[str](clock)
    found = taken(schedule)
    schedule.set("a", clock() + 86_400)
    await trio.sleep(10.5)
    clock.ahead += 86_400
    await trio.sleep(0.75)
    assert found == [(11.0, "a")]


async def test_nobody_wakes_while_nothing_is_set(
    clock: Clock, taken: Callable[..., list[object]], mock_clock: MockClock
) -> None:
    schedule = Schedule[str](clock)
    taken(schedule)
    schedule.set("a", clock() + 1)
    schedule.remove("a")
    await wait_all_tasks_blocked()
    mock_clock.jump(2)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


async def test_what_comes_and_goes_and_is_due_later_wakes_nobody(
    clock: Clock, taken: Callable[..., list[object]], autojump_clock: MockClock
) -> None:
    schedule = Schedule[str](clock)
    found = taken(schedule)
    schedule.set("first", clock() + 3600)
    await wait_all_tasks_blocked()
    wakes = Wakes()
    trio.lowlevel.add_instrument(wakes)
    try:
        for number in range(100):
            schedule.set(str(number), clock() + 1800 - number)  # each is the earliest
            await wait_all_tasks_blocked()
            schedule.remove(str(number))
        assert wakes.count == 0
        schedule.set("soon", clock() + 0.25)
        await trio.sleep(0.5)
        assert wakes.count > 0
    finally:
        trio.lowlevel.remove_instrument(wakes)
    assert found == [(0.25, "soon")]
