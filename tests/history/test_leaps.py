"""A clock that jumps ahead makes nothing too old; time that has passed does."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mist.history import History, Policy, Trimmed
from mist.history.clock import Clock
from mist.history.leaps import Leap, Reading, find_leap
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history
from tests.history.messages import one

HOUR = 3600
DAY = 24 * HOUR
YEARS = 3650 * DAY
NOW = 1_800_000_000  # Unix seconds
KEEP = Policy(max_age=7 * DAY)


def reading(wall: float, steady: float = 0, boot: str = "b") -> Reading:
    return Reading(round(wall * 1e6), round(steady * 1e6), boot)


@pytest.mark.parametrize(
    ("before", "now", "leap"),
    [
        # The same boot: what the steady clock shows has passed.
        (reading(100, 10), reading(110, 20), None),
        (reading(100, 10), reading(100 + YEARS, 10 + YEARS), None),
        (reading(100, 10), reading(110 + HOUR, 20), None),
        (reading(100, 10), reading(120 + 2 * HOUR, 20), (110, 10 + 2 * HOUR)),
        (reading(100, 10), reading(50, 20), None),
        # Another: it may have been off for weeks, and not for years.
        (reading(100, 10), reading(100 + 30 * DAY, 5, "c"), None),
        (reading(100, 10), reading(100 + YEARS, 5, "c"), (100, YEARS)),
        (reading(100, 10, ""), reading(100 + 7 * DAY, 20, ""), None),
        (reading(100, 10, ""), reading(100 + YEARS, 20, ""), (100, YEARS)),
    ],
)
def test_what_the_clock_gained_on_one_that_is_never_set_is_a_leap(
    before: Reading, now: Reading, leap: tuple[int, int] | None
) -> None:
    expected = None if leap is None else Leap(leap[0] * 10**6, leap[1] * 10**6)
    assert find_leap(before, now) == expected


def test_what_came_before_a_leap_is_younger_by_it_unless_it_was_undone() -> None:
    clock = Clock()
    clock.leaps = (Leap(100_000_000, 1_000_000_000),)  # from 100 to 1,100 seconds
    ages = [
        [clock.moment(now).age(stamp * 1_000_000) // 1_000_000 for stamp in (90, 100, 1_100)]
        for now in (1_100, 1_200)
    ]
    assert ages == [[10, 0, 0], [110, 100, 100]]
    undone = Clock()
    undone.leaps = clock.leaps
    assert undone.moment(200).age(90_000_000) == 110_000_000


Passing = Callable[[float], Awaitable[int]]


@asynccontextmanager
async def maintained(history: History, wall: list[float]) -> AsyncIterator[Passing]:
    """Maintenance with a wall clock that is set by hand; its value is a pass of retention."""

    trim = history.trim
    passes = 0

    async def counted(*arguments: Any, **options: Any) -> Trimmed:
        nonlocal passes
        passes += 1
        return await trim(*arguments, **options)

    history.trim = counted  # type: ignore[method-assign]

    async def pass_(seconds: float) -> int:
        """Set the clock ahead, have a pass of retention, and say how many messages are left."""
        wall[0] += seconds
        enough = passes + 3  # of which the second was begun after this, and is over
        for _ in range(1_000):
            if passes >= enough:
                break
            await trio.sleep(0.25)
        return (await history.statistics()).messages

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: run_maintenance(history, KEEP, interval=0.2, clock=lambda: wall[0])
        )
        await trio.sleep(1)
        yield pass_
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_clock_that_jumps_ahead_expires_nothing(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    autojump_clock.autojump_threshold = 0.05  # threads are at work
    steady = [1_000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: steady[0])
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/history.db"
    wall = [float(NOW)]
    with caplog.at_level(logging.WARNING, "mist.history"):
        async with await open_history(url) as history:
            await history.append([one("a", time=wall[0])])
            async with maintained(history, wall) as pass_:
                assert await pass_(10) == 1
                assert await pass_(YEARS) == 1
                await history.append([one("a", time=wall[0])])
                steady[0] += 6 * DAY
                assert await pass_(6 * DAY) == 2
                steady[0] += 2 * DAY
                assert await pass_(2 * DAY) == 0  # so much time has passed since
    (record,) = caplog.records
    assert record.message.startswith("the clock is ahead")
    assert record.days == 3650.0  # type: ignore[attr-defined]


async def reopened(path: Path, wall: list[float]) -> int:
    async with (
        await open_history(f"sqlite:///{path}/history.db") as history,
        maintained(history, wall) as pass_,
    ):
        return await pass_(0)


async def test_a_restart_changes_nothing_about_a_leap(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    autojump_clock.autojump_threshold = 0.05
    boot = tmp_path / "boot"
    boot.write_text("one\n")
    monkeypatch.setattr("mist.history.leaps._BOOT_ID", boot, raising=False)
    wall = [float(NOW)]
    async with await open_history(f"sqlite:///{tmp_path}/history.db") as history:
        await history.append([one("a", time=wall[0])])
        async with maintained(history, wall) as pass_:
            assert await pass_(10) == 1
    boot.write_text("two\n")
    wall[0] += YEARS  # the battery of the machine's clock is empty
    assert await reopened(tmp_path, wall) == 1
    assert len(caplog.records) == 1
    boot.write_text("three\n")
    wall[0] += 3 * DAY
    assert await reopened(tmp_path, wall) == 1
    boot.write_text("four\n")
    wall[0] += 5 * DAY  # off for so long, in all for longer than messages are kept
    assert await reopened(tmp_path, wall) == 0
    assert len(caplog.records) == 1


async def test_a_machine_that_was_off_for_weeks_finds_its_messages_expired(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05
    async with await open_history(f"sqlite:///{tmp_path}/history.db") as history:
        await history.append([one("a", time=NOW)])
    assert await reopened(tmp_path, [NOW + 20.0 * DAY]) == 0


async def test_a_clock_that_was_behind_at_the_start_has_not_leapt(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with await open_history("memory://") as history:
        await history.append([one("a", time=NOW)])
        wall = [0.0]
        async with maintained(history, wall) as pass_:
            assert await pass_(0) == 1
            assert await pass_(NOW + 60.0) == 1
    assert caplog.records == []
