"""Figures of a server: what it answers now and answered before, to rates."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

__all__ = ["COUNTERS", "LATENCIES", "Figures", "Sample", "Series", "compare", "quantile"]

LATENCIES: Final = ("publish_to_write", "commit", "append")
_WINDOW: Final = 10.0  # seconds over which latencies are taken together

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
        latency: by name, the median and the 99th percentile, seconds, of what was observed in the
            last ten seconds; without those of which nothing was.
        connections: the slowest, each with `rate` (messages per second; None where it is new).
    """

    sample: Sample
    seconds: float
    rates: Mapping[str, float]
    cpu: float | None
    latency: Mapping[str, tuple[float, float]]
    connections: list[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """One object: what the server answered, and the rates."""
        return {
            "stats": dict(self.sample.stats),
            "nodes": list(self.sample.nodes),
            "seconds": round(self.seconds, 3),
            "rates": {name: round(rate, 3) for name, rate in self.rates.items()},
            "cpu": None if self.cpu is None else round(self.cpu, 4),
            "latency": {
                name: {"p50": round(median, 6), "p99": round(high, 6)}
                for name, (median, high) in self.latency.items()
            },
        }


class Series:
    """Samples of the last ten seconds, and the figures of the newest."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, now: Sample) -> Figures:
        """Figures of a sample that is newer than all before."""
        samples = self._samples
        if samples and _is_older(now, samples[-1]):
            samples.clear()
        while len(samples) > 1 and now.at - samples[1].at >= _WINDOW:
            samples.popleft()
        figures = compare(samples[-1] if samples else None, now, samples[0] if samples else None)
        samples.append(now)
        return figures


def compare(before: Sample | None, now: Sample, first: Sample | None = None) -> Figures:
    """Figures of `now`, with rates since `before`, and latencies since `first`, by default as well.

    A server that was started again in between has begun to count anew: then no rate is known.
    """
    stats = now.stats
    if before is None or _is_older(now, before):
        return Figures(now, 0.0, {}, None, {}, _connections(None, now, 0.0))
    seconds = max(now.at - before.at, 1e-3)
    rates = {name: _rate(before.stats, stats, name, seconds) for name in COUNTERS}
    lost = sum(_dropped(stats).values()) - sum(_dropped(before.stats).values())
    rates["dropped"] = max(lost, 0) / seconds
    cpu = _rate(before.stats, stats, "cpu_seconds", seconds)
    latency = _latencies(first or before, now)
    return Figures(now, seconds, rates, cpu, latency, _connections(before, now, seconds))


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """A quantile of a histogram, interpolated linearly in its bucket, as Prometheus does.

    Args:
        bounds: upper bounds of the buckets; one without a bound follows, whose values count as the
            highest bound.
        counts: observations of each bucket, at least one in all.
        part: from 0 to 1.
    """
    rank, below, low = part * sum(counts), 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return low + (bound - low) * (rank - below) / count
        below, low = below + count, bound
    return low


def _is_older(now: Sample, before: Sample) -> bool:
    """Whether the server was started again in between."""
    uptime: float = now.stats.get("uptime", 0.0)
    return bool(uptime < before.stats.get("uptime", 0.0))


def _latencies(before: Sample, now: Sample) -> Mapping[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name in LATENCIES:
        older, newer = [(each.stats.get("latency") or {}).get(name) for each in (before, now)]
        if older is None or newer is None or older["bounds"] != newer["bounds"]:
            continue
        counts = [b - a for a, b in zip(older["counts"], newer["counts"], strict=True)]
        if sum(counts) > 0:
            bounds = newer["bounds"]
            found[name] = quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)
    return found


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
