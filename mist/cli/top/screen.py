"""The screen: figures as lines of text, of any width and height.

From the top: the server, its rates, then nodes, slow connections and tags, as far as there is room;
keys at the bottom. Nothing is wrapped: a line that is too long is cut.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from rich.cells import cell_len, set_cell_size

from mist.cli.top.figures import Figures

__all__ = ["SORTS", "Line", "Style", "View", "render"]

_MOST_NODES: Final = 6
_LATENCIES: Final = {"publish_to_write": "to write", "commit": "commit", "append": "append"}
_KEYS: Final = "q quit   b m d r sort by bytes, messages, dropped, rate   space pause"


class Style(enum.Enum):
    """How a line is shown."""

    PLAIN = ""
    TITLE = "title"
    HEADING = "heading"
    ALARM = "alarm"


@attrs.frozen
class Line:
    """One line of the screen."""

    text: str = ""
    style: Style = Style.PLAIN


@attrs.define
class View:
    """What the screen shows.

    Attributes:
        server: its name.
        figures: None before the first.
        problem: why the server doesn't answer now; empty while it does.
        sort: a key of `SORTS`.
        paused: whether figures are held.
    """

    server: str
    figures: Figures | None = None
    problem: str = ""
    sort: str = "b"
    paused: bool = False


# By what slow connections are sorted: the key that is pressed, its name, the value.
SORTS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]]] = {
    "b": ("bytes", lambda each: each["queued_bytes"]),
    "m": ("messages", lambda each: each["queued"]),
    "d": ("dropped", lambda each: each["dropped"]),
    "r": ("rate", lambda each: each["rate"] or 0.0),
}


def render(view: View, width: int, height: int, *, keys: bool = True) -> list[Line]:
    """The lines of the screen, `height` at most, none wider than `width`.

    Args:
        keys: whether the last line tells what can be pressed.
    """
    lines = _summary(view)
    left = height - len(lines) - keys
    if view.figures is not None:
        lines += _tables(view, view.figures, width, left)
    lines = lines[: max(height - keys, 0)]
    if keys:
        lines += [Line()] * (height - 1 - len(lines))
        lines.append(Line(_KEYS, Style.TITLE))
    return [Line(_fit(each.text, width), each.style) for each in lines]


def _fit(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width)


def _plain(text: object) -> str:
    # Tags and names are chosen by others. Control characters could control the reader's terminal.
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in str(text)])


def _summary(view: View) -> list[Line]:
    figures = view.figures
    if figures is None:
        return [Line(f"mist at {_plain(view.server)}", Style.TITLE), Line(view.problem)]
    stats, rates = figures.sample.stats, figures.rates
    head = f"mist {_plain(stats['version'])} at {_plain(view.server)}   up {_span(stats['uptime'])}"
    lines = [Line(head, Style.TITLE)]
    if view.problem:
        lines.append(Line(f"{view.problem}; trying again", Style.ALARM))
    elif view.paused:
        lines.append(Line("paused", Style.ALARM))
    dropped = {name: count for name, count in stats["dropped"].items() if count}
    reasons = ", ".join(f"{_plain(name)} {_count(count)}" for name, count in dropped.items())
    lost = f"dropped   {_rate(rates, 'dropped')}"
    if reasons:
        lost += f"   since the start: {reasons}"
    transports = ", ".join(
        f"{_plain(name)} {_count(count)}" for name, count in stats["connections"].items() if count
    )
    lines += [
        Line(
            f"process   CPU {_percent(figures.cpu)}   memory {_size(stats['resident_bytes'])}"
            f"   event loop lag {stats['loop_lag'] * 1e3:.1f} ms"
        ),
        Line(
            f"published {_rate(rates, 'published')}   matched {_rate(rates, 'matched')}"
            f"   delivered {_rate(rates, 'delivered')}   {_bytes_rate(rates)}"
        ),
        Line(lost, Style.ALARM if rates.get("dropped") else Style.PLAIN),
        Line(
            f"unmatched {_rate(rates, 'unmatched')}   rejected {_rate(rates, 'rejected')}"
            f"   replayed {_rate(rates, 'replayed')}   queued {_count(stats['queued'])}"
        ),
        Line(
            f"connected {_count(sum(stats['connections'].values()))} ({transports or 'none'})"
            f"   tag sets {_count(stats['tag_sets'])}"
        ),
    ]
    if stats.get("latency"):
        lines.append(Line(_latency(figures.latency)))
    history = stats.get("history")
    if history is not None:
        failing = bool(history["failing"])
        text = f"history   {_count(history['first'])} to {_count(history['newest'])}"
        if history["bytes"] is not None:
            text += f"   {_size(history['bytes'])}"
        text += "   FAILING: messages can't be stored" if failing else ""
        lines.append(Line(text, Style.ALARM if failing else Style.PLAIN))
    return lines


def _tables(view: View, figures: Figures, width: int, height: int) -> list[Line]:
    tables = []
    if figures.sample.nodes:
        tables.append(_nodes(figures.sample.nodes))
    tables += [_slow(view, figures.connections), _tags(figures.sample.stats.get("top_tags", []))]
    lines: list[Line] = []
    for index, table in enumerate(tables):
        # An equal share of what is left; what one doesn't need, those behind it have.
        share = (height - len(lines)) // (len(tables) - index)
        lines += [Line(), *table[: max(share - 1, 0)]]
    return lines[:height]


def _columns(
    titles: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]]
) -> list[Line]:
    """Lines of a table; a negative width is for text that stands at the right."""
    lines = [Line(_row(titles, widths), Style.HEADING)]
    return [*lines, *(Line(_row(row, widths)) for row in rows)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for text, width in zip(cells, widths, strict=True):
        fitted = _fit(text, abs(width))
        space = " " * (abs(width) - cell_len(fitted))
        parts.append(space + fitted if width < 0 else fitted + space)
    return " ".join(parts).rstrip()


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = [
        (
            _plain(each["name"]) + ("*" if each["here"] else ""),
            _plain(each["reason"] or each["status"]).replace("_", " "),
            f"{each['lag']:.1f} s",
            _count(each["newest"]),
            _count(each["sessions"]),
            _span(each["uptime"]),
        )
        for each in nodes[:_MOST_NODES]
    ]
    title = "NODE" if len(nodes) <= _MOST_NODES else f"NODE ({_MOST_NODES} of {len(nodes)})"
    titles = (title, "STATUS", "LAG", "NEWEST", "SESSIONS", "UP")
    return _columns(titles, (24, 14, -8, -13, -9, -9), rows)


def _slow(view: View, connections: Sequence[Mapping[str, Any]]) -> list[Line]:
    name, value = SORTS[view.sort]
    rows = [
        (
            _plain(each["name"]),
            _plain(each["peer"]),
            _plain(each["token"] or "service"),
            _count(each["queued"]) + ("+" if each["behind"] else ""),
            _size(each["queued_bytes"]),
            _count(each["dropped"]),
            "-" if each["rate"] is None else f"{_count(each['rate'])}/s",
        )
        for each in sorted(connections, key=value, reverse=True)
    ]
    if not rows:
        rows = [("none", "", "", "", "", "", "")]
    titles = (f"SLOW, BY {name.upper()}", "ADDRESS", "TOKEN", "QUEUED", "BYTES", "DROPPED", "RATE")
    return _columns(titles, (17, 15, 10, -8, -8, -8, -8), rows)


def _tags(tags: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = [(f"{each['published_rate']:,.1f}/s", _plain(each["tag"])) for each in tags]
    return _columns(("RATE", "TOP TAGS"), (-12, 66), rows)


# Numbers


def _rate(rates: Mapping[str, float], name: str) -> str:
    return f"{_count(rates[name])}/s" if name in rates else "-"


def _bytes_rate(rates: Mapping[str, float]) -> str:
    return f"{_size(rates['delivered_bytes'])}/s" if "delivered_bytes" in rates else "-"


def _count(number: float) -> str:
    """Whole up to six digits, then by thousands: `999,999`, `1.23M`."""
    if number < 1_000_000:
        return f"{number:,.0f}"
    for unit in ("M", "G", "T"):
        number /= 1_000 if unit != "M" else 1_000_000
        if number < 1_000:
            break
    return f"{number:.3g}{unit}" if number < 100 else f"{number:.0f}{unit}"


def _size(number: float) -> str:
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def _latency(latency: Mapping[str, tuple[float, float]]) -> str:
    """Those of which anything was observed in the last ten seconds."""
    found = [
        f"{name} p50 {_duration(latency[key][0])} p99 {_duration(latency[key][1])}"
        for key, name in _LATENCIES.items()
        if key in latency
    ]
    return "latency   " + ("   ".join(found) or "-")


def _duration(seconds: float) -> str:
    """Two digits or more: `0.25 ms`, `1.2 ms`, `340 ms`."""
    milliseconds = seconds * 1e3
    digits = 0 if milliseconds >= 9.95 else 1 if milliseconds >= 0.995 else 2
    return f"{milliseconds:,.{digits}f} ms"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _span(seconds: float) -> str:
    left, parts = max(int(seconds), 0), list[str]()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count or parts or size == 1:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
