"""The same work several times: its rate and its cost, as medians."""

import statistics
import time
from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["Round", "Rounds", "measure_round"]

_SETTLE: Final = 0.002  # seconds for the server to sleep, so that its CPU time is booked


@attrs.frozen
class Round:
    """What was done once.

    Attributes:
        count: of requests, say.
        seconds: that they took, one after the other.
        server_cpu, driver_cpu: seconds of CPU; None where the server's can't be told.
    """

    count: int
    seconds: float
    server_cpu: float | None
    driver_cpu: float


@attrs.frozen
class Rounds:
    """What was done several times.

    Attributes:
        rounds: at least one.
    """

    rounds: list[Round] = attrs.field(factory=list)

    @property
    def count(self) -> int:
        """In all rounds together."""
        return sum(each.count for each in self.rounds)

    @property
    def per_second(self) -> float:
        """The median round's rate."""
        return statistics.median(each.count / each.seconds for each in self.rounds)

    @property
    def server_cpu_us(self) -> list[float]:
        """Microseconds of server CPU for one, by round; empty where it can't be told."""
        return [
            each.server_cpu * 1e6 / each.count
            for each in self.rounds
            if each.server_cpu is not None
        ]

    @property
    def driver_cpu_us(self) -> float:
        """Microseconds of our own CPU for one, the median."""
        return statistics.median(each.driver_cpu * 1e6 / each.count for each in self.rounds)


def measure_round(count: int, work: Callable[[], None], cpu: Callable[[], float | None]) -> Round:
    """Do `work`, which does `count` of something.

    Args:
        cpu: the server's CPU time so far, in seconds.
    """
    time.sleep(_SETTLE)
    before, driver, start = cpu(), time.process_time(), time.perf_counter()
    work()
    seconds, spent = time.perf_counter() - start, time.process_time() - driver
    time.sleep(_SETTLE)
    after = cpu()
    server = None if before is None or after is None else after - before
    return Round(count, seconds, server, spent)
