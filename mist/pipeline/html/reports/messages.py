"""Report pages about messages: volume, tags, and tags that occur together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mist.pipeline.html.page import Page, Section, Tile
from mist.pipeline.html.plots import Series, TimePlot
from mist.pipeline.html.reports.about import UNSEALED, About
from mist.pipeline.html.scales import HOUR, count, moment, share, short, size, size_ticks
from mist.pipeline.html.tables import Bars, Column, Heat, Table

__all__ = ["LINES", "cooccurrence_page", "tags_page", "volume_page"]

LINES: Final = 5  # tags with a line of their own
HOTTEST: Final = 20  # tags of the heat map

OVERLAP: Final = "A message counts for each of its tags, so that the tags add up to more than all."


def volume_page(
    about: About,
    summary: Mapping[str, Any],
    tags: Sequence[tuple[str, int]],
    lines: Sequence[tuple[str, Sequence[tuple[float, int]]]],
) -> Page:
    """How much was published, and when.

    Args:
        summary: of `mist.pipeline.jobs.volume`.
        tags: (tag, messages), the most used first.
        lines: for some of them, (Unix seconds of the hour, messages).
    """
    hours = [(float(row["hour"]), float(row["messages"])) for row in summary["hours"]]
    total = int(summary["messages"])
    busiest = max(hours, key=lambda point: point[1], default=(0.0, 0.0))
    tiles = [Tile("messages", short(total), count(total))]
    if summary.get("bytes") is not None:
        mean = summary["bytes"] / max(1, total)
        tiles.append(Tile("data", size(summary["bytes"]), f"{size(mean)} a message"))
    if hours:
        begin, end = hours[0][0], hours[-1][0] + HOUR
        mean = total / ((end - begin) / HOUR)
        tiles += [
            Tile("busiest hour", short(busiest[1]), moment(busiest[0])),
            Tile("mean", short(mean), "messages an hour"),
            Tile("hours with messages", count(len(hours)), f"of {count((end - begin) / HOUR)}"),
        ]
    parts = [TimePlot("Messages", [Series("all messages", hours)])]
    if summary.get("bytes") is not None:
        data = [(float(row["hour"]), float(row["bytes"])) for row in summary["hours"]]
        parts.append(
            TimePlot(
                "Data",
                [Series("all messages", data)],
                "bytes",
                show=size,
                brief=size,
                ticks=size_ticks,
            )
        )
    sections = [
        Section("Over time", parts, "Times are UTC."),
        Section(
            "The most used tags",
            [
                TimePlot("Messages by tag", [Series(tag, points) for tag, points in lines]),
                Bars("Messages with each", "tag", "messages", tags, whole=total),
            ],
            OVERLAP,
        ),
    ]
    return about.page(
        "Volume", "How much was published, when, and with which tags.", tiles, sections, [UNSEALED]
    )


def tags_page(about: About, summary: Mapping[str, Any], tags: Sequence[tuple[str, int]]) -> Page:
    """Which tags are used most.

    Args:
        summary: of `mist.pipeline.jobs.tags`.
        tags: (tag, messages), the most used first.
    """
    total, distinct = int(summary["messages"]), int(summary["tags"])
    tiles = [
        Tile("tags", short(distinct), count(distinct)),
        Tile("messages", short(total), count(total)),
        Tile("tags a message", short(summary["tags_per_message"]), "in the mean"),
    ]
    if tags:
        tiles.append(Tile("most used", share(tags[0][1], total), tags[0][0]))
    bars = Bars(
        "Messages with each tag", "tag", "messages", tags, whole=total, rest=distinct - len(tags)
    )
    rows = [(tag, number, number / total if total else 0) for tag, number in tags]
    columns = [Column("tag", None), Column("messages"), Column("share", lambda it: share(it, 1))]
    table = Table("The figures", columns, rows, whole=distinct, folded=True)
    sections = [Section("The most used tags", [bars, table], OVERLAP)]
    return about.page("Tags", "Which tags are used most.", tiles, sections, [UNSEALED])


def cooccurrence_page(
    about: About, summary: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]
) -> Page:
    """Co-occurrence: which tags are on the same messages.

    Args:
        summary: of `mist.pipeline.jobs.cooccurrence`.
        pairs: rows of its table.
    """
    weight: defaultdict[str, int] = defaultdict(int)
    for pair in pairs:
        for tag in (pair["tag"], pair["other"]):
            weight[tag] += pair["messages"]
    names = sorted(weight, key=lambda tag: (-weight[tag], tag))[:HOTTEST]
    chosen = set(names)
    near: dict[tuple[str, str], float] = {}
    for pair in pairs:
        one, other = pair["tag"], pair["other"]
        if one in chosen and other in chosen:
            near[one, other] = near[other, one] = pair["jaccard"]
    heat = Heat(
        "How often one comes with the other",
        names,
        near,
        show=lambda value: f"{100 * value:.0f}" if value >= 0.005 else "<1",
        note="Of the messages that carry one or the other, how many in a hundred carry both; the "
        "more, the deeper the colour. An empty field is a pair that never met, or too seldom to "
        "be listed.",
        empty="No two tags ever came together.",
    )
    labels = [(f"{pair['tag']} + {pair['other']}", float(pair["messages"])) for pair in pairs]
    rows = [(f"{p['tag']} + {p['other']}", p["messages"], p["jaccard"], p["lift"]) for p in pairs]
    table = Table(
        "Pairs: the figures",
        [
            Column("pair", None),
            Column("messages"),
            Column("share with both", lambda it: share(it, 1)),
            Column("times as often as by chance"),
        ],
        rows,
        whole=int(summary["pairs"]),
        folded=True,
    )
    tiles = [
        Tile("pairs of tags", short(summary["pairs"]), f"of {count(summary['among'])} tags"),
        Tile("messages", short(summary["messages"]), count(summary["messages"])),
        Tile("tags", short(summary["tags"]), count(summary["tags"])),
    ]
    bars = Bars(
        "Pairs that met most", "pair", "messages", labels, rest=int(summary["pairs"]) - len(labels)
    )
    omits = [UNSEALED]
    if summary["floor"]:
        omits.append(
            f"Pairs with a tag that is not among the {count(summary['among'])} most used; none of "
            f"these met more than {count(summary['floor'])} times."
        )
    sections = [
        Section("Which come together", [heat]),
        Section("The pairs that met most", [bars, table]),
    ]
    says = "Which tags travel together: on the same message."
    return about.page("Tags together", says, tiles, sections, omits)
