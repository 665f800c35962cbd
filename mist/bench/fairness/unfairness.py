"""What came of one attack: the probes' waits, quiet and attacked, over some rounds."""

import statistics
from collections.abc import Callable, Sequence

import attrs

from mist.bench.fairness.probe import Waits
from mist.bench.latency import Quantiles

__all__ = ["Phase", "Unfairness"]


@attrs.frozen
class Phase:
    """A stretch of time, attacked or not.

    Attributes:
        waits: the probe's.
        elsewhere: those of a probe of another server on this machine, which is not attacked.
        seconds: how long it took.
        held: seconds of CPU of the longest pass of the server's event loop.
        server_cpu: seconds of the server, all threads; None where it can't be told.
        played: how many times the attack was played.
        refused: what the server refused of it.
    """

    waits: Waits
    elsewhere: Waits
    seconds: float
    held: float
    server_cpu: float | None
    played: int = 0
    refused: int = 0

    def plus(self, other: "Phase") -> "Phase":
        """Both as one."""
        cpu = None
        if self.server_cpu is not None and other.server_cpu is not None:
            cpu = self.server_cpu + other.server_cpu
        return Phase(
            self.waits.plus(other.waits),
            self.elsewhere.plus(other.elsewhere),
            self.seconds + other.seconds,
            max(self.held, other.held),
            cpu,
            self.played + other.played,
            self.refused + other.refused,
        )


@attrs.frozen
class Unfairness:
    """What an attack did to the others.

    Attributes:
        attack: its name.
        about: what it was, with its numbers.
        rounds: quiet, then attacked.
        finished: whether the server got through with it in time.
    """

    attack: str
    about: str
    rounds: Sequence[tuple[Phase, Phase]]
    finished: bool

    @property
    def quiet(self) -> Quantiles:
        """Medians over the rounds, and the longest wait of all; of messages over TCP."""
        return self._over_rounds(0, lambda phase: phase.waits.line)

    @property
    def elsewhere(self) -> Quantiles:
        """As `quiet`, on the other server while this one was attacked.

        What the load of the machine does, that of the attackers and of a server that is busy.
        """
        return self._over_rounds(1, lambda phase: phase.elsewhere.line)

    @property
    def attacked(self) -> Quantiles:
        """As `quiet`, while the server was attacked."""
        return self._over_rounds(1, lambda phase: phase.waits.line)

    @property
    def http_quiet(self) -> Quantiles:
        """As `quiet`, of requests."""
        return self._over_rounds(0, lambda phase: phase.waits.http)

    @property
    def http_elsewhere(self) -> Quantiles:
        """As `elsewhere`, of requests."""
        return self._over_rounds(1, lambda phase: phase.elsewhere.http)

    @property
    def http_attacked(self) -> Quantiles:
        """As `attacked`, of requests."""
        return self._over_rounds(1, lambda phase: phase.waits.http)

    @property
    def late(self) -> Quantiles:
        """As `attacked`, of how late the probe itself wrote."""
        return self._over_rounds(1, lambda phase: phase.waits.late)

    @property
    def times(self) -> list[float]:
        """How often the p99 elsewhere goes into that of the attacked server, by round."""
        return [
            Quantiles.of(attacked.waits.line).p99_us / Quantiles.of(attacked.elsewhere.line).p99_us
            for _, attacked in self.rounds
        ]

    def _over_rounds(self, which: int, waits: Callable[[Phase], list[float]]) -> Quantiles:
        found = [Quantiles.of(waits(each[which])) for each in self.rounds]
        return Quantiles(
            statistics.median(each.p50_us for each in found),
            statistics.median(each.p90_us for each in found),
            statistics.median(each.p99_us for each in found),
            max(each.max_us for each in found),
        )
