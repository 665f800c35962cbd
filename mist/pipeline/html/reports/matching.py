"""Report pages about matching: subscriptions and the messages they match."""

from collections.abc import Mapping, Sequence
from typing import Any

from mist.pipeline.html.page import Page, Section, Tile
from mist.pipeline.html.reports.about import UNSEALED, About
from mist.pipeline.html.scales import count, share, short
from mist.pipeline.html.tables import Bars, Column, Table

__all__ = ["coverage_page", "histogram", "match_page"]

NOT_LIVE = (
    "What was in fact delivered: this is what each subscription would have got, had it been there "
    "for all of the time."
)


def match_page(about: About, summary: Mapping[str, Any], rows: Sequence[tuple[str, int]]) -> Page:
    """What each subscription would have got.

    Args:
        summary: of `mist.pipeline.jobs.match`, of counts.
        rows: (subscription, messages).
    """
    ordered = sorted(rows, key=lambda row: (-row[1], row[0]))
    never = [row for row in ordered if not row[1]]
    total = int(summary["subscriptions"])
    tiles = [
        Tile("subscriptions", short(total), count(total)),
        Tile("matches", short(summary["matches"]), count(summary["matches"])),
        Tile("never matched", short(len(never)), share(len(never), total), alarm=bool(never)),
        Tile("a subscription", short(summary["matches"] / max(1, total)), "messages in the mean"),
    ]
    found = [(name, float(number)) for name, number in ordered if number]
    sections = [
        Section(
            "How many get how much",
            [
                Bars(
                    "Subscriptions by the messages they would have got",
                    "messages",
                    "subscriptions",
                    histogram((number, 1) for _, number in rows),
                    whole=total,
                    names=False,
                )
            ],
        ),
        Section("Those that get most", [Bars("Messages", "subscription", "messages", found)]),
        Section(
            "Those that never matched",
            [Table("Subscriptions", [Column("subscription", None)], [(r[0],) for r in never])],
        ),
    ]
    says = "Which messages would each subscription have got?"
    return about.page("Matches", says, tiles, sections, [NOT_LIVE, _for_others(summary), UNSEALED])


def coverage_page(
    about: About, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Page:
    """Coverage: subscriptions without messages, unmatched tags, and fan-out.

    Args:
        summary: of `mist.pipeline.jobs.coverage`.
        rows: of its table.
    """

    def of(kind: str) -> list[tuple[str, int]]:
        return [(row["name"], row["messages"]) for row in rows if row["kind"] == kind]

    never = [row for row in of("subscription") if not row[1]]
    unheard = [(tag, float(number)) for tag, number in of("tag")]
    fanout = [(int(name), number) for name, number in of("fanout")]
    total, nobody = int(summary["messages"]), int(summary["to_nobody"])
    given = int(summary["subscriptions"])
    tiles = [
        Tile("to nobody", share(nobody, total), f"{count(nobody)} of {count(total)} messages",
             alarm=nobody > 0),
        Tile("never matched", short(len(never)), f"of {count(given)} subscriptions",
             alarm=bool(never)),
        Tile("unheard tags", short(summary["unheard_tags"]), "that nobody asks for"),
        Tile("mean fan-out", short(summary["mean_fanout"]), "subscriptions a message"),
        Tile("largest fan-out", short(summary["largest_fanout"]), "of one message"),
    ]  # fmt: skip
    sections = [
        Section(
            "How far messages go",
            [
                Bars(
                    "Messages by the subscriptions they go to",
                    "subscriptions",
                    "messages",
                    histogram(fanout),
                    whole=total,
                    names=False,
                )
            ],
        ),
        Section(
            "Tags that nobody listens to",
            [
                Bars(
                    "Messages with them",
                    "tag",
                    "messages",
                    unheard,
                    whole=total,
                    rest=int(summary["unheard_tags"]) - len(unheard),
                    empty="Each tag is in some subscription.",
                )
            ],
            "No subscription asks for them. Messages with them may still go to someone, "
            "by other tags.",
        ),
        Section(
            "Subscriptions that never match",
            [
                Table(
                    "Subscriptions",
                    [Column("subscription", None)],
                    [(name,) for name, _ in never],
                    empty="Each got something.",
                )
            ],
        ),
    ]
    says = "Who hears nothing, what nobody listens to, and how far messages fan out."
    return about.page("Coverage", says, tiles, sections, [NOT_LIVE, _for_others(summary), UNSEALED])


def _for_others(summary: Mapping[str, Any]) -> str:
    who = summary.get("attributes")
    return f"Messages for others than {who}." if who else "Messages for some receivers only."


def histogram(values: Any) -> list[tuple[str, float]]:
    """(size, how many) put together into 0, 1, 2 to 3, 4 to 7, 8 to 15 …, by size."""
    found: dict[int, float] = {}
    for value, number in values:
        place = int(value).bit_length()
        found[place] = found.get(place, 0) + number
    if not found:
        return []
    return [(_stretch(place), found.get(place, 0)) for place in range(max(found) + 1)]


def _stretch(place: int) -> str:
    first, last = (1 << place) >> 1, (1 << place) - 1
    return count(first) if first >= last else f"{count(first)} to {count(last)}"
