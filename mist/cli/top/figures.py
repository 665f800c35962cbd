"""Figures of a server: what it answers now and answered before, to rates."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

__all__ = ["COUNTERS", "Figures", "Sample", "compare"]

COUNTERS: Final = (
    "published",
    "relayed",
    "matched",
    "replayed",
    "delivered",
    "delivered_bytes",
    "unmatched",
    "rejected",
)


@attrs.frozen
class Sample:
    """What a server answered.

    Attributes:
        at: seconds, of a clock that isn't set.
        stats: `GET /v1/stats`.
        nodes: of `GET /v1/nodes`; none without an engine.
    """

    at: float
    stats: Mapping[str, Any]
    nodes: list[Mapping[str, Any]]


@attrs.frozen
class Figures:
    """A sample, with rates per second since the one before.

    Attributes:
        seconds: between the two; 0 where there is none before, and no rate is known.
        rates: by counter, and `dropped`.
        cpu: of one core, from 0 to 1 and above with threads.
        connections: the slowest, each with `rate` (messages per second; None where it is new).
    """

    sample: Sample
    seconds: float
    rates: Mapping[str, float]
    cpu: float | None
    connections: list[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """One object: what the server answered, and the rates."""
        return {
            "stats": dict(self.sample.stats),
            "nodes": list(self.sample.nodes),
            "seconds": round(self.seconds, 3),
            "rates": {name: round(rate, 3) for name, rate in self.rates.items()},
            "cpu": None if self.cpu is None else round(self.cpu, 4),
        }


def compare(before: Sample | None, now: Sample) -> Figures:
    """Figures of `now`, with rates since `before`.

    A server that was started again in between has begun to count anew: then no rate is known.
    """
    stats = now.stats
    if before is None or stats.get("uptime", 0.0) < before.stats.get("uptime", 0.0):
        return Figures(now, 0.0, {}, None, _connections(None, now, 0.0))
    seconds = max(now.at - before.at, 1e-3)
    rates = {name: _rate(before.stats, stats, name, seconds) for name in COUNTERS}
    lost = sum(_dropped(stats).values()) - sum(_dropped(before.stats).values())
    rates["dropped"] = max(lost, 0) / seconds
    cpu = _rate(before.stats, stats, "cpu_seconds", seconds)
    return Figures(now, seconds, rates, cpu, _connections(before, now, seconds))


def _rate(before: Mapping[str, Any], now: Mapping[str, Any], name: str, seconds: float) -> float:
    # Deliveries of a connection that just ended may be counted a moment later.
    counted: float = max(now.get(name, 0) - before.get(name, 0), 0)
    return counted / seconds


def _dropped(stats: Mapping[str, Any]) -> Mapping[str, int]:
    found: Mapping[str, int] = stats.get("dropped", {})
    return found


def _connections(before: Sample | None, now: Sample, seconds: float) -> list[Mapping[str, Any]]:
    known = {} if before is None else {each["name"]: each for each in before.stats["slowest"]}
    found: list[Mapping[str, Any]] = []
    for each in now.stats.get("slowest", []):
        old = known.get(each["name"])
        rate = None if old is None else max(each["sent"] - old["sent"], 0) / seconds
        found.append({**each, "rate": rate})
    return found
