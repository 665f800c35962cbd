"""Report pages about tokens: deliveries, drops and grants."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

from mist.pipeline.html.page import Page, Section, Tile
from mist.pipeline.html.plots import Series, TimePlot
from mist.pipeline.html.reports.about import ACCOUNTS, About
from mist.pipeline.html.scales import DAY, count, share, short, size, size_ticks
from mist.pipeline.html.tables import Bars, Column, Table

__all__ = ["billing_page", "drops_page", "tokens_page"]

SERVICES: Final = "services (no token)"
NAMES: Final = "A token goes by its id in the registry, which tells nothing of the token itself."


def _token(name: str) -> str:
    return name or SERVICES


def _at(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _by(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row[key]] += row[value]
    return found


def _days(title: str, rows: Sequence[Mapping[str, Any]], value: str, **options: Any) -> TimePlot:
    points = [(_at(day), float(number)) for day, number in _by(rows, "day", value).items()]
    return TimePlot(title, [Series("all tokens", points)], step=DAY, **options)


def billing_page(
    about: About, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Page:
    """Deliveries by token and day.

    Args:
        summary, rows: of `mist.pipeline.jobs.billing`.
    """
    tokens = _by(rows, "token", "sent").most_common()
    tiles = [
        Tile("deliveries", short(summary["sent"]), count(summary["sent"])),
        Tile("data", size(summary["bytes"]), "delivered"),
        Tile("tokens", count(summary["tokens"]), "that got something"),
        Tile("days", count(summary["days"])),
    ]
    columns = [
        Column("token", None),
        Column("day", str),
        Column("deliveries"),
        Column("dropped"),
        Column("data", size),
        Column("subscriptions"),
    ]
    table = [
        (_token(r["token"]), r["day"], r["sent"], r["dropped"], r["bytes"], r["subscriptions"])
        for r in rows
    ]
    sections = [
        Section(
            "Over time",
            [
                _days("Deliveries", rows, "sent", unit="deliveries"),
                _days("Data", rows, "bytes", unit="bytes", show=size, brief=size, ticks=size_ticks),
            ],
            "Days are UTC.",
        ),
        Section(
            "By token",
            [
                Bars(
                    "Deliveries",
                    "token",
                    "deliveries",
                    [(_token(name), float(number)) for name, number in tokens],
                    whole=summary["sent"],
                ),
                Table("By token and day", columns, table, folded=True),
            ],
            NAMES,
        ),
    ]
    says = "Who was sent how much: deliveries by token and day."
    omits = [
        "What was dropped is not among the deliveries; the report drops has it.",
        ACCOUNTS,
    ]
    return about.page("Deliveries", says, tiles, sections, omits)


def drops_page(
    about: About,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    subscriptions: Sequence[Mapping[str, Any]],
) -> Page:
    """What was not delivered.

    Args:
        summary, rows, subscriptions: of `mist.pipeline.jobs.drops`.
    """
    sent, dropped = int(summary["sent"]), int(summary["dropped"])
    tiles = [
        Tile("dropped", short(dropped), count(dropped), alarm=dropped > 0),
        Tile("share", share(dropped, sent + dropped), "of all that matched"),
        Tile("tokens", count(summary["tokens"]), "that missed something"),
        Tile("subscriptions", count(summary["subscriptions"]), "that missed something"),
    ]
    tokens = _by(rows, "token", "dropped").most_common()
    listed = [
        (
            each["subscription"],
            _token(each["token"]),
            each["dropped"],
            each["dropped"] / (each["sent"] + each["dropped"]),
        )
        for each in subscriptions
    ]
    columns = [
        Column("subscription", None),
        Column("token", str),
        Column("dropped"),
        Column("share", lambda it: share(it, 1)),
    ]
    days = [(_token(r["token"]), r["day"], r["dropped"], r["sent"], r["minutes"]) for r in rows]
    heads = [
        Column("token", None),
        Column("day", str),
        Column("dropped"),
        Column("delivered"),
        Column("minutes with drops"),
    ]
    nothing = "Nothing was dropped."
    sections = [
        Section(
            "Over time", [_days("Dropped", rows, "dropped", unit="deliveries")], "Days are UTC."
        ),
        Section(
            "By token",
            [
                Bars(
                    "Dropped",
                    "token",
                    "deliveries",
                    [(_token(name), float(number)) for name, number in tokens],
                    whole=dropped,
                    empty=nothing,
                ),
                Table("By token and day", heads, days, folded=True, empty=nothing),
            ],
            NAMES,
        ),
        Section("By subscription", [Table("Dropped", columns, listed, empty=nothing)]),
    ]
    says = "What was matched and not delivered, since a subscriber was too slow."
    return about.page("Drops", says, tiles, sections, [ACCOUNTS])


def tokens_page(
    about: About,
    summary: Mapping[str, Any],
    unused: Sequence[tuple[str, str, bool]],
    edges: Sequence[tuple[str, str, Sequence[str], Sequence[str], int]],
) -> Page:
    """Grants never used, and subscriptions near the edge of theirs.

    Args:
        summary: of `mist.pipeline.jobs.tokens`.
        unused: (token, grant, whether the token is idle).
        edges: (token, subscription, tags inside, tags outside, how often opened).
    """
    near, beyond = int(summary["near_the_edge"]), int(summary["beyond_the_edge"])
    grants = int(summary["grants"])
    tiles = [
        Tile("unused grants", count(len(unused)), f"of {count(grants)}", alarm=bool(unused)),
        Tile("idle tokens", count(summary["idle_tokens"]), f"of {count(summary['tokens'])}"),
        Tile("near the edge", count(near), f"of {count(summary['subscriptions'])} subscriptions"),
        Tile("beyond the edge", count(beyond), "refused if opened now", alarm=beyond > 0),
    ]
    idle = [(token, grant) for token, grant, is_idle in unused if is_idle]
    busy = [(token, grant) for token, grant, is_idle in unused if not is_idle]
    heads = [Column("token", None), Column("grant", str)]
    rows = [
        (subscription, token, ", ".join(outside), ", ".join(inside) or None, opened)
        for token, subscription, inside, outside, opened in edges
    ]
    columns = [
        Column("subscription", None),
        Column("token", str),
        Column("tags not granted", str),
        Column("let in by", str),
        Column("opened"),
    ]
    sections = [
        Section(
            "Grants that nothing used",
            [
                Table("Of tokens in use", heads, busy, empty="Each was used."),
                Table("Of tokens without any subscription", heads, idle, empty="None."),
            ],
            "No subscription in this time had a tag that they cover: they could be taken back. "
            + NAMES,
        ),
        Section(
            "Subscriptions near the edge of their grant",
            [Table("Subscriptions", columns, rows, empty="All tags of all are granted.")],
            "A tag of theirs is not granted: they are let in by their other tags alone, and would "
            "be refused by a server that demands a grant for every tag. Those let in by nothing "
            "were opened under grants that have been taken back since.",
        ),
    ]
    says = "Rights that are not used, and subscriptions at the edge of what they may."
    omits = ["Rights to publish: the accounts don't say who published.", ACCOUNTS]
    return about.page("Tokens", says, tiles, sections, omits)
