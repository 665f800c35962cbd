"""Nodes with little to do: what an idle one costs, and latency from one to the other."""

import time
from typing import Final

from mist.bench.errors import BenchError
from mist.bench.latency import measure_latency
from mist.bench.load import Target
from mist.bench.nodes.figure import Measured
from mist.bench.nodes.publishing import QUIET, SIZE
from mist.bench.nodes.realm import Realm

__all__ = ["measure_idle_node", "measure_latency_across"]

RATE: Final = 2_000  # messages a second
_SETTLE: Final = 1.0  # seconds for what a node does once it has started


def measure_idle_node(realm: Realm, *, seconds: float, rounds: int) -> list[Measured]:
    """CPU of a node without clients, while nothing is published."""
    time.sleep(_SETTLE)
    values = []
    for _ in range(rounds):
        start, before = time.perf_counter(), realm.other.cpu()
        time.sleep(seconds)
        after, end = realm.other.cpu(), time.perf_counter()
        if before is None or after is None:
            raise BenchError("this system does not tell the CPU time of a process")
        values.append(100 * (after - before) / (end - start))
    return [Measured("idle node", "% of a core", values)]


def measure_latency_across(realm: Realm, *, seconds: float, rounds: int) -> list[Measured]:
    """From the publisher's write at one node to the subscriber's read at the other.

    Messages go out one by one, at a rate that leaves all of them time.
    """
    target = Target(realm.one.line, realm.other.line, quiet=QUIET)
    messages = max(int(RATE * seconds), 100)
    found = [
        measure_latency(target, rate=RATE, messages=messages, size=SIZE) for _ in range(rounds)
    ]
    lost = sum(each.run.lost for each in found)
    note = f"{lost:,} lost" if lost else f"at {RATE:,} messages/s"
    return [
        Measured(f"latency, {name}", "ms", values, note)
        for name, values in (
            ("p50", [each.written.p50_us / 1e3 for each in found]),
            ("p99", [each.written.p99_us / 1e3 for each in found]),
        )
    ]
