"""What a person sees: a bar while it is measured, tables at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from mist.bench.report import Row

__all__ = ["cells_of", "print_tables", "show_progress", "table_of"]


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
    return lambda row: "?" if row[key] is None else str(row[key])


def _number(key: str, places: int = 0) -> _Cell:
    def cell(row: Row) -> str:
        value = row[key]
        return "?" if value is None else f"{value:,.{places}f}"

    return cell


def _count(key: str, places: int = 0) -> _Cell:
    """A number, where there is such a thing."""
    return lambda row: "" if row[key] is None else _number(key, places)(row)


def _shape(row: Row) -> str:
    return f"{row['publishers']}→{row['subscribers']}"


def _pace(row: Row) -> str:
    return "flat out" if row["rate_per_second"] is None else f"{row['rate_per_second']:,.0f}"


def _wrong(row: Row) -> str:
    """What arrived otherwise than it should, in few words."""
    words = [f"{row[key]:,} {key}" for key in ("lost", "repeated", "reordered") if row[key]]
    return ", ".join(words) or "nothing"


def _share(row: Row) -> str:
    return f"{row['share']:.0%}"


def _milliseconds(key: str) -> _Cell:
    """Of microseconds."""
    return lambda row: f"{row[key] / 1e3:,.1f}"


def _attacked(key: str, of: str = "") -> _Cell:
    """Of microseconds: quiet and attacked."""
    quiet, attacked = _milliseconds(f"{of}quiet_{key}"), _milliseconds(f"{of}attacked_{key}")
    return lambda row: f"{quiet(row)} → {attacked(row)}"


def _times_p99(row: Row) -> str:
    """The median, and the highest of the rounds."""
    median, highest = [f"{row[f'{which}times_p99']:,.1f}" for which in ("", "highest_")]
    return median if median == highest else f"{median}, {highest}"


def _finished_seconds(row: Row) -> str:
    seconds = f"{row['seconds']:,.1f}"
    return seconds if row["finished"] else f"> {seconds}"


def _figure(key: str) -> _Cell:
    """A number of any size, where there is one."""

    def cell(row: Row) -> str:
        value = row[key]
        return "" if value is None else f"{value:,.0f}" if value >= 1_000 else f"{value:,.2f}"

    return cell


def _asked(row: Row) -> str:
    least, most = row["asked_at_least"], row["asked_at_most"]
    if least is not None:
        return f"≥ {least:,.4g}" if least < 1_000 else f"≥ {least:,.0f}"
    return "" if most is None else f"≤ {most:,g}"


_SHAPES: Final = {
    "repeated": "one list, one connection",
    "unique": "lists never seen, one connection",
    "fresh": "one list, a connection each",
    "list": "one list, one connection",
    "lines": "one list, one connection, NDJSON",
    "lines_unique": "lists never seen, one connection, NDJSON",
}


def _history(row: Row) -> str:
    if row["durability"] is None:
        return str(row["history"])
    return f"{row['history']}, {row['durability']}"


def _disk(row: Row) -> str:
    return "" if row["durability"] is None else _plain("file_system")(row)


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
    "http_request": (
        "POST /v1/messages, one at a time",
        [
            ("tag lists and connections", lambda row: _SHAPES[row["shape"]]),
            ("messages", _number("messages_per_request")),
            ("history", _history),
            ("on", _disk),
            ("requests", _number("requests")),
            ("requests/s", _number("requests_per_second")),
            ("CPU µs", _number("server_cpu_us_per_request")),
            ("lowest", _number("lowest_server_cpu_us_per_request")),
            ("highest", _number("highest_server_cpu_us_per_request")),
        ],
    ),
    "ws_connect": (
        "WebSockets connecting with a token",
        [
            ("then", lambda row: "subscribe, close" if row["closed"] else "stay"),
            ("connects", _number("connects")),
            ("connects/s", _number("connects_per_second")),
            ("CPU µs", _number("server_cpu_us_per_connect")),
            ("lowest", _number("lowest_server_cpu_us_per_connect")),
            ("highest", _number("highest_server_cpu_us_per_connect")),
        ],
    ),
    "http_stream": (
        "Event streams beside WebSockets and lines; CPU µs a delivery",
        [
            ("over", _plain("transport")),
            ("subscribers", _number("subscribers")),
            ("messages/s", _pace),
            ("tag lists", _number("tag_lists")),
            ("messages", _number("messages")),
            ("CPU µs", _number("server_cpu_us_per_delivery", 2)),
            ("over tcp", _number("over_tcp_us", 2)),
            ("times ws", _number("times_ws", 2)),
            ("without publishing", _number("alone_us_per_delivery", 2)),
            ("times ws", _number("alone_times_ws", 2)),
            ("lost", _number("lost")),
        ],
    ),
    "history_append": (
        "Appending to the log alone; beside it SQLite's bare appends of as many bytes",
        [
            ("on", _plain("file_system")),
            ("loop", _plain("event_loop")),
            ("durability", _plain("durability")),
            ("group", _number("group_messages")),
            ("tag lists", _number("tag_lists")),
            ("messages/s", _number("messages_per_second")),
            ("slowest ms", _number("slowest_ms", 1)),
            ("bare", _number("bare_messages_per_second")),
            ("slowest ms", _number("bare_slowest_ms", 1)),
            ("share", _share),
        ],
    ),
    "history_publish": (
        "Publishing 1→1 over TCP with a history and without, in turns; CPU of a million messages, "
        "and after them",
        [
            ("history", _history),
            ("on", _disk),
            ("tag lists", _number("tag_lists")),
            ("window", _window),
            ("messages/s", _number("messages_per_second")),
            ("lowest", _number("lowest_messages_per_second")),
            ("highest", _number("highest_messages_per_second")),
            ("CPU s", _number("server_cpu_seconds_per_million_messages", 3)),
            ("after", _number("housekeeping_cpu_seconds_per_million_messages", 3)),
            ("wrong", _wrong),
        ],
    ),
    "history_size": (
        "Bytes of the log's file for a message; beside it a bare row in SQLite",
        [
            ("tag lists", _number("tag_lists")),
            ("messages", _number("messages")),
            ("data", _number("size_bytes")),
            ("bytes", _number("file_bytes_per_message", 1)),
            ("bare", _number("bare_file_bytes_per_message", 1)),
            ("times", _number("times", 2)),
        ],
    ),
    "history_replay": (
        "Replaying all that is stored to one reader; CPU of a million messages",
        [
            ("through", _plain("through")),
            ("tag lists", _number("tag_lists")),
            ("messages", _number("messages")),
            ("replays", _number("replays")),
            ("messages/s", _number("messages_per_second")),
            ("first ms", _number("first_ms", 1)),
            ("bytes stored", _number("stored_bytes_per_message")),
            ("CPU s", _number("server_cpu_seconds_per_million_messages", 3)),
        ],
    ),
    "history_search": (
        "Looking for messages by their tags",
        [
            ("through", _plain("through")),
            ("loop", _plain("event_loop")),
            ("messages", _number("messages")),
            ("tag lists", _number("tag_lists")),
            ("matches", _number("matches")),
            ("where", _plain("where")),
            ("searches", _number("searches")),
            ("first ms", _number("first_ms", 1)),
            ("slowest", _number("slowest_first_ms", 1)),
            ("all ms", _number("all_ms", 1)),
            ("µs a match", _count("us_per_match", 1)),
        ],
    ),
    "fairness": (
        "Others beside an attack, ms, quiet → attacked; elsewhere: p99 meanwhile on another "
        "server, which the times are of; held: CPU of the loop's longest pass",
        [
            ("attack", _plain("attack")),
            ("p50", _attacked("p50_us")),
            ("p99", _attacked("p99_us")),
            ("elsewhere", _milliseconds("elsewhere_p99_us")),
            ("times", _times_p99),
            ("longest", _attacked("max_us")),
            ("HTTP p99", _attacked("p99_us", "http_")),
            ("held", _number("held_ms", 1)),
            ("seconds", _finished_seconds),
        ],
    ),
    "nodes": (
        "Two nodes on an engine; medians of rounds",
        [
            ("engine", lambda row: f"{row['engine']} {row['setting']}"),
            ("figure", _plain("figure")),
            ("median", _figure("median")),
            ("lowest", _figure("lowest")),
            ("highest", _figure("highest")),
            ("asked", _asked),
            ("unit", _plain("unit")),
            ("note", _plain("note")),
        ],
    ),
    "pipeline": (
        "Jobs on Spark, and plain DataFrame code; cpu: seconds for a million messages",
        [
            ("job", _plain("job")),
            ("messages", _number("messages")),
            ("subscriptions", _count("subscriptions")),
            ("messages/s", _number("messages_per_second")),
            ("cpu", _number("cpu_seconds_per_million_messages", 2)),
            ("server", _count("server_cpu_seconds_per_million_messages", 2)),
            ("plain/s", _count("plain_messages_per_second")),
            ("plain cpu", _count("plain_cpu_seconds_per_million_messages", 2)),
            ("times", _count("times", 1)),
            ("cpu times", _count("cpu_times", 1)),
            ("must", _count("must")),
            ("aim", _count("aim")),
        ],
    ),
}


def table_of(kind: str) -> tuple[str, list[str]]:
    """The title of a kind's table, and its headings."""
    title, columns = _TABLES[kind]
    return title, [heading for heading, _ in columns]


def cells_of(kind: str, row: Row) -> list[str]:
    """A row's values, formatted, in the order of the headings."""
    return [cell(row) for _, cell in _TABLES[kind][1]]


def print_tables(console: Console, results: Mapping[str, Sequence[Row]]) -> None:
    """A table for each kind that has rows."""
    for kind, rows in results.items():
        if not rows:
            continue
        title, headings = table_of(kind)
        table = Table(
            title=title,
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*cells_of(kind, row))
        console.print(table)
