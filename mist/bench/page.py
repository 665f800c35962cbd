"""Results as an HTML page: the figures of a run, with bars, to show to others.

Bars are of the figure that a kind of measurement is made for; the tables have all of them. What the
machine was doing otherwise is said first, since it is what figures depend on most.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mist.bench.report import Row
from mist.bench.tables import cells_of, table_of
from mist.pipeline.html import Bars, Column, Page, Section, Table, Tile, render
from mist.pipeline.html.scales import count

__all__ = ["Circumstances", "bench_page"]


@attrs.frozen
class Circumstances:
    """What figures depend on, beside the program.

    Attributes:
        began: Unix seconds.
        seconds: that all took.
        facts: (label, text), such as the processor.
        busy: what else the machine did, in a sentence; empty where that was little.
        complete: whether all was measured.
        by: the command.
    """

    began: float
    seconds: float
    facts: Sequence[tuple[str, str]]
    busy: str
    complete: bool
    by: str


@attrs.frozen
class _Plot:
    """Bars of one figure of a kind.

    Attributes:
        measure: the figure, with its unit.
        key: of a row.
        name: of a bar.
    """

    measure: str
    key: str
    name: Callable[[Row], str]


def _over(*parts: str) -> Callable[[Row], str]:
    """A name of some of a row's values: those that tell its bars apart."""
    return lambda row: ", ".join(str(row[part]) for part in parts if row[part] is not None)


def _stream(row: Row) -> str:
    return f"{row['transport']}, {row['publishers']} to {row['subscribers']}{_window(row)}"


def _window(row: Row) -> str:
    if row["tag_lists"] > 1:
        return f", {row['tag_lists']:,} tag lists"
    return "" if row["window_messages"] else ", without a window"


_LATENCIES: Final = tuple(
    _Plot(f"{part}, µs", f"{part}_us", _over("transport", "subscribers", "rate_per_second"))
    for part in ("p50", "p99", "max")
)
_PLOTS: Final[Mapping[str, tuple[_Plot, ...]]] = {
    "match": (_Plot("p50, µs", "p50_us", lambda row: f"{row['subscriptions']:,} subscriptions"),),
    "publish": (_Plot("messages/s", "messages_per_second", _stream),),
    "fanout": (_Plot("deliveries/s", "deliveries_per_second", _stream),),
    "latency": _LATENCIES,
    "idle": (_Plot("bytes for a connection", "bytes_per_connection", _over("transport")),),
    "slow_consumer": (
        _Plot("p99 without a stalled one, µs", "without_stalled_p99_us", _over("transport")),
        _Plot("p99 with one, µs", "with_stalled_p99_us", _over("transport")),
    ),
    "http_request": (
        _Plot(
            "CPU µs for a request",
            "server_cpu_us_per_request",
            _over("shape", "messages_per_request", "history", "durability"),
        ),
    ),
    "ws_connect": (
        _Plot(
            "CPU µs to connect",
            "server_cpu_us_per_connect",
            lambda row: "subscribe, close" if row["closed"] else "stay",
        ),
    ),
    "http_stream": (
        _Plot(
            "CPU µs for a delivery",
            "server_cpu_us_per_delivery",
            _over("transport", "subscribers", "rate_per_second", "tag_lists"),
        ),
    ),
    "history_append": (
        _Plot(
            "messages/s",
            "messages_per_second",
            _over("durability", "event_loop", "group_messages", "tag_lists"),
        ),
    ),
    "history_publish": (
        _Plot(
            "messages/s",
            "messages_per_second",
            _over("transport", "history", "durability", "publishers", "window_messages"),
        ),
    ),
    "history_replay": (_Plot("messages/s", "messages_per_second", _over("through", "tag_lists")),),
    "history_size": (_Plot("bytes for a message", "file_bytes_per_message", _over("tag_lists")),),
    "fairness": (_Plot("p99 while attacked, µs", "attacked_p99_us", _over("attack")),),
    "pipeline": (_Plot("messages/s", "messages_per_second", _over("job", "messages")),),
}
_TILES: Final = (
    # kind, figure, label, which of several
    ("publish", "messages_per_second", "published a second", max),
    ("fanout", "deliveries_per_second", "delivered a second", max),
    ("latency", "p50_us", "µs to deliver, p50", min),
    ("idle", "bytes_per_connection", "bytes for an idle connection", min),
)


def bench_page(results: Mapping[str, Sequence[Row]], about: Circumstances) -> str:
    """The page, as one self-contained document.

    Args:
        results: rows by kind; see `mist.bench.report`.
    """
    sections = [_section(kind, rows) for kind, rows in results.items() if rows]
    omits = [
        "How it would be on another machine, or over a network: client and server share this one.",
    ]
    if not about.complete:
        omits.insert(0, "What was still to be measured when it ended.")
    page = Page(
        "Benchmark",
        "What mist does on this machine, for each message and connection.",
        _tiles(results, about),
        sections,
        [*about.facts, ("took", f"{about.seconds:,.0f} s")],
        about.began,
        omits,
        about.by,
    )
    return render(page)


def _tiles(results: Mapping[str, Sequence[Row]], about: Circumstances) -> list[Tile]:
    tiles = [Tile("the machine", "busy", about.busy, alarm=True)] if about.busy else []
    for kind, key, label, choose in _TILES:
        values = [row[key] for row in results.get(kind, ()) if row[key] is not None]
        if values:
            tiles.append(Tile(label, count(round(choose(values))), f"of {len(values)} measured"))
    return tiles


def _section(kind: str, rows: Sequence[Row]) -> Section:
    title, headings = table_of(kind)
    parts: list[Any] = [
        Bars(
            plot.measure,
            "case",
            plot.measure,
            [(plot.name(row), row[plot.key]) for row in rows if row[plot.key] is not None],
            names=False,
        )
        for plot in _PLOTS.get(kind, ())
    ]
    # Values are text already, formatted as on a terminal.
    columns = [Column(heading, str) for heading in headings]
    table = Table(
        f"{title}: all figures", columns, [cells_of(kind, row) for row in rows], folded=bool(parts)
    )
    return Section(title, [*parts, table])
