"""Figures as rows: flat, with stable keys and the unit in the name; and tables of them.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from mist.bench.idle import Idle
from mist.bench.latency import Latency, Quantiles
from mist.bench.load import Run
from mist.bench.match import Matched
from mist.bench.slow_consumer import SlowConsumer
from mist.bench.throughput import Throughput

__all__ = ["Result", "Row", "print_tables", "row_of", "show_progress"]

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


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; call what it gives with the name of each step that begins."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task("", total=total)
        steps = iter(range(total))
        yield lambda label: progress.update(task, description=label, completed=next(steps))


# Tables

_Cell = Callable[[Row], str]


def _plain(key: str) -> _Cell:
    return lambda row: str(row[key])


def _number(key: str, places: int = 0) -> _Cell:
    def cell(row: Row) -> str:
        value = row[key]
        return "?" if value is None else f"{value:,.{places}f}"

    return cell


def _shape(row: Row) -> str:
    return f"{row['publishers']}→{row['subscribers']}"


def _wrong(row: Row) -> str:
    """What arrived otherwise than it should, in few words."""
    words = [f"{row[key]:,} {key}" for key in ("lost", "repeated", "reordered") if row[key]]
    return ", ".join(words) or "nothing"


def _window(row: Row) -> str:
    return f"{row['window_messages']:,}" if row["window_messages"] else "none"


_THROUGHPUT: Final[list[tuple[str, _Cell]]] = [
    ("over", _plain("transport")),
    ("shape", _shape),
    ("tag lists", _number("tag_lists")),
    ("window", _window),
    ("messages", _number("messages")),
]

_TABLES: Final[dict[str, tuple[str, list[tuple[str, _Cell]]]]] = {
    "match": (
        "Matching a message",
        [
            ("subscriptions", _number("subscriptions")),
            ("vocabulary", _number("vocabulary")),
            ("p50 µs", _number("p50_us", 1)),
            ("p99 µs", _number("p99_us", 1)),
            ("memo ns", _number("memo_ns")),
            ("matches", _number("matches", 2)),
            ("add µs", _number("add_us", 1)),
            ("remove µs", _number("remove_us", 1)),
        ],
    ),
    "publish": (
        "Publishing; the server's CPU seconds are those of a million messages",
        [
            *_THROUGHPUT,
            ("messages/s", _number("messages_per_second")),
            ("CPU s", _number("server_cpu_seconds_per_million_messages", 3)),
            ("wrong", _wrong),
        ],
    ),
    "fanout": (
        "Delivering; the server's CPU seconds are those of a million deliveries",
        [
            *_THROUGHPUT,
            ("deliveries/s", _number("deliveries_per_second")),
            ("CPU s", _number("server_cpu_seconds_per_million_deliveries", 3)),
            ("wrong", _wrong),
        ],
    ),
    "latency": (
        "Latency in µs",
        [
            ("over", _plain("transport")),
            ("messages/s", _number("rate_per_second")),
            ("subscribers", _number("subscribers")),
            ("p50", _number("p50_us")),
            ("p90", _number("p90_us")),
            ("p99", _number("p99_us")),
            ("max", _number("max_us")),
            ("intended p50", _number("intended_p50_us")),
            ("intended p99", _number("intended_p99_us")),
            ("lost", _number("lost")),
        ],
    ),
    "idle": (
        "Memory of idle connections",
        [
            ("over", _plain("transport")),
            ("connections", _number("connections")),
            ("bytes each", _number("bytes_per_connection")),
        ],
    ),
    "slow_consumer": (
        "Healthy subscribers beside a stalled one, latency in µs",
        [
            ("over", _plain("transport")),
            ("healthy", _number("healthy")),
            ("messages/s", _number("rate_per_second")),
            ("p99 without", _number("without_stalled_p99_us")),
            ("with", _number("with_stalled_p99_us")),
            ("lost", _number("healthy_lost")),
            ("stalled: sent", _number("sent_to_stalled")),
            ("dropped", _number("dropped")),
            ("cut off", _number("disconnected")),
        ],
    ),
}


def print_tables(console: Console, results: Mapping[str, Sequence[Row]]) -> None:
    """A table for each kind that has rows."""
    for kind, rows in results.items():
        if not rows:
            continue
        title, columns = _TABLES[kind]
        table = Table(
            title=title,
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for header, _ in columns:
            table.add_column(header, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*[cell(row) for _, cell in columns])
        console.print(table)
