"""Figures as rows: flat, with stable keys and the unit in the name.

A row is what `mist bench --json` prints one list of for each kind. Keys are only ever added.

match           subscriptions, vocabulary, width (fewest and most tags of a message), p50_us,
                p99_us, memo_ns, matches, add_us, remove_us
publish, fanout transport, publishers, subscribers, size_bytes, tag_lists, window_messages (0:
                unthrottled), messages, deliveries, lost, repeated, reordered, seconds,
                messages_per_second, deliveries_per_second, server_cpu_seconds,
                server_cpu_seconds_per_million_messages,
                server_cpu_seconds_per_million_deliveries, driver_cpu_seconds
latency         transport, subscribers, size_bytes, rate_per_second, messages, lost, p50_us,
                p90_us, p99_us, max_us, and the same as intended_…, server_cpu_seconds,
                server_cpu_seconds_per_million_messages, driver_cpu_seconds
idle            transport, connections, bytes_per_connection
slow_consumer   transport, healthy, rate_per_second, without_stalled_p50_us (p90, p99, max),
                with_stalled_p50_us (p90, p99, max), healthy_lost, sent_to_stalled, dropped,
                disconnected

Server CPU is null where the process isn't known, or the system doesn't tell.
"""

from typing import Any

import attrs

from mist.bench.idle import Idle
from mist.bench.latency import Latency, Quantiles
from mist.bench.load import Run
from mist.bench.match import Matched
from mist.bench.slow_consumer import SlowConsumer
from mist.bench.throughput import Throughput

__all__ = ["Result", "Row", "row_of"]

Result = Matched | Throughput | Latency | Idle | SlowConsumer
Row = dict[str, Any]


def row_of(result: Result) -> Row:
    """A result as a flat row; without `transport`, which it doesn't know."""
    match result:
        case Matched() | Idle():
            return attrs.asdict(result)
        case Throughput(run=run):
            shape = attrs.asdict(result, filter=lambda field, _: field.name != "run")
            return shape | _counts(run) | _rates(run) | _costs(run)
        case Latency(run=run):
            costs = _costs(run)
            del costs["server_cpu_seconds_per_million_deliveries"]
            return {
                "subscribers": result.subscribers,
                "size_bytes": result.size_bytes,
                "rate_per_second": result.rate,
                "messages": run.messages,
                "lost": run.lost,
                **attrs.asdict(result.written),
                **_prefixed("intended_", result.intended),
                **costs,
            }
        case SlowConsumer():
            return {
                "healthy": result.healthy,
                "rate_per_second": result.rate,
                **_prefixed("without_stalled_", result.without_stalled),
                **_prefixed("with_stalled_", result.with_stalled),
                "healthy_lost": result.healthy_lost,
                "sent_to_stalled": result.sent_to_stalled,
                "dropped": result.dropped,
                "disconnected": result.disconnected,
            }


def _counts(run: Run) -> Row:
    names = ("messages", "deliveries", "lost", "repeated", "reordered", "seconds")
    return {name: getattr(run, name) for name in names}


def _rates(run: Run) -> Row:
    return {
        "messages_per_second": run.messages / run.seconds,
        "deliveries_per_second": run.deliveries / run.seconds,
    }


def _costs(run: Run) -> Row:
    return {
        "server_cpu_seconds": run.server_cpu,
        "server_cpu_seconds_per_million_messages": run.cpu_per_million_messages,
        "server_cpu_seconds_per_million_deliveries": run.cpu_per_million_deliveries,
        "driver_cpu_seconds": run.driver_cpu,
    }


def _prefixed(prefix: str, quantiles: Quantiles) -> Row:
    return {prefix + key: value for key, value in attrs.asdict(quantiles).items()}
