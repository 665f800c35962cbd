"""Leaps of the wall clock: telling a clock that was set ahead from time that has passed.

Retention by age removes what is too old, by the wall clock. Where that jumps ahead by years, as
with a broken battery or a wrong time server, everything would be too old at once. So the clock is
read at intervals together with one that can't be set, which also counts while the machine is
suspended, and what the wall clock has gained on it is no age:

    within one boot of the machine    more than an hour gained is a leap
    across boots                      nothing tells how long the machine was off; up to 30 days
                                      count as time that passed, and anything longer is a leap

What was stored before a leap is that much younger than its time says, and is kept for as long
after the leap as it would have been without it. Leaps are recorded in the log, so that a restart
changes nothing. A clock that is set right again undoes its leap: see `Moment.age`.
"""

import time
from pathlib import Path
from typing import Final

import attrs

from mist.history.layout import MICROSECONDS

__all__ = [
    "ClockRecord",
    "Leap",
    "Reading",
    "boot_id",
    "find_leap",
    "read_clock",
    "steady_seconds",
]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_GAINED: Final = 3_600 * MICROSECONDS
_PLAUSIBLE: Final = 30 * 86_400 * MICROSECONDS


@attrs.frozen
class Reading:
    """What clocks showed at one moment.

    Attributes:
        wall: microseconds since 1970.
        steady: microseconds since some moment of this boot, also while suspended.
        boot: of the machine; empty where it is not known.
    """

    wall: int
    steady: int = 0
    boot: str = ""


@attrs.frozen
class Leap:
    """The wall clock was set ahead.

    Attributes:
        after: its time just before, microseconds since 1970.
        by: microseconds.
    """

    after: int
    by: int


@attrs.frozen
class ClockRecord:
    """What a log knows of the clock.

    Attributes:
        reading: the last one recorded.
        leaps: those that matter to what is kept, oldest first.
    """

    reading: Reading
    leaps: tuple[Leap, ...] = ()


def read_clock(wall: float, boot: str) -> Reading:
    """The clocks as of now.

    Args:
        wall: Unix seconds.
        boot: the id of this boot of the machine; empty where it has none.
    """
    return Reading(round(wall * MICROSECONDS), round(steady_seconds() * MICROSECONDS), boot)


def steady_seconds() -> float:
    """Seconds since some moment of this boot, also while the machine is suspended."""
    # CLOCK_BOOTTIME is Linux's; elsewhere the monotonic clock may stand still while suspended.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def find_leap(before: Reading, now: Reading) -> Leap | None:
    """The leap between two readings; None where the time between has passed, as far as is known."""
    elapsed, allowed = 0, _PLAUSIBLE
    if now.boot and now.boot == before.boot and now.steady >= before.steady:
        elapsed, allowed = now.steady - before.steady, _GAINED
    gained = now.wall - before.wall - elapsed
    return Leap(before.wall + elapsed, gained) if gained > allowed else None


def boot_id() -> str:
    """The id of this boot of the machine; empty where the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
