"""Seconds, and CPU seconds of all processes that take part.

Spark's work is done by Java and by Python processes below this one. What they took is read from
/proc, with that of their children that have ended; on a system without it, it isn't known.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs

from mist.pipeline.progress import Progress, silent

__all__ = ["Timed", "in_turns", "medians", "timed"]

T = TypeVar("T")

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second
_USED: Final = slice(11, 15)  # utime, stime, cutime, cstime, counted from the state on


@attrs.frozen
class Timed:
    """What something took.

    Attributes:
        cpu: seconds of CPU, of this process and all below it; None where it isn't known.
    """

    seconds: float
    cpu: float | None

    def __str__(self) -> str:
        cpu = "" if self.cpu is None else f" ({self.cpu:.1f} CPU s)"
        return f"{self.seconds:.1f} s{cpu}"


def timed(call: Callable[[], T]) -> tuple[T, Timed]:
    """Call it, and tell what it gave and took."""
    cpu, start = _cpu(), time.perf_counter()
    given = call()
    seconds, after = time.perf_counter() - start, _cpu()
    used = None if cpu is None or after is None else after - cpu
    return given, Timed(seconds, used)


def in_turns(
    one: Callable[[], object],
    other: Callable[[], object],
    rounds: int,
    progress: Progress = silent,
) -> tuple[Timed, Timed]:
    """Call both so many times, in turns, and tell what each took: medians.

    In turns, since a machine that others use is faster in one minute than in the next.

    Args:
        progress: told what both took in each round.
    """
    return medians(lambda: timed(one)[1], lambda: timed(other)[1], rounds, progress)


def medians(
    one: Callable[[], Timed],
    other: Callable[[], Timed],
    rounds: int,
    progress: Progress = silent,
) -> tuple[Timed, Timed]:
    """The same for calls that measure themselves."""
    took: tuple[list[Timed], list[Timed]] = ([], [])
    for number in range(1, rounds + 1):
        for call, found in zip((one, other), took, strict=True):
            found.append(call())
        progress(f"round {number} of {rounds}: {took[0][-1]}, plain {took[1][-1]}")
    return _median(took[0]), _median(took[1])


def _median(took: Sequence[Timed]) -> Timed:
    used = [each.cpu for each in took if each.cpu is not None]
    return Timed(
        statistics.median(each.seconds for each in took), statistics.median(used) if used else None
    )


def _cpu() -> float | None:
    """CPU seconds of this process and those below it, ever since."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[_USED]))
    if not used:
        return None
    return sum(used[pid] for pid in used if _below(pid, parents)) / _TICKS


def _below(pid: int, parents: dict[int, int]) -> bool:
    while pid != os.getpid():
        pid = parents.get(pid, 0)
        if not pid:
            return False
    return True
