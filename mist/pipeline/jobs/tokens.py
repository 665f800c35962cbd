"""Token audit: unused grants, and subscriptions that only just match their grant.

A grant is unused if no subscription of its token, in the period, had a tag that it covers. It can
be revoked without any effect.

A subscription is near the edge if one of its tags is not covered by the grants of its token: it is
authorized by its other tags only (see `mist.auth.grant`), and would be refused by a server that
requires a grant for every tag. It is beyond the edge if none is covered any more.

Addresses are compared as subscribed: `/rooms` covers `/rooms/1` and `=/rooms`, and `.a.>` covers
`.a.*`.

Rights to publish (`>room:*`) are not audited: the usage accounting doesn't record publishers.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mist.archive import Archive
from mist.auth import Grant
from mist.pipeline.progress import Progress, silent
from mist.pipeline.selection import Range
from mist.pipeline.side_tables import read_side_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Edge", "Result", "Unused", "audit", "run"]

PUBLISH = ">"


@attrs.frozen
class Unused:
    """An unused grant.

    Attributes:
        token: registry id.
        grant: `room:1`, `room:*`, `/rooms`, `.a.>`.
        idle: whether its token had no subscription at all.
    """

    token: str
    grant: str
    idle: bool


@attrs.frozen
class Edge:
    """A subscription with tags that its token isn't granted.

    Attributes:
        inside: its tags that a grant covers; empty if it would be refused now.
        outside: the other tags.
        opened: how often it was opened.
    """

    token: str
    subscription: str
    inside: Sequence[str]
    outside: Sequence[str]
    opened: int


@attrs.frozen
class Result:
    """The findings of the audit; both lists by token."""

    tokens: int
    grants: int
    subscriptions: int
    unused: Sequence[Unused]
    edges: Sequence[Edge]

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tokens": self.tokens,
            "grants": self.grants,
            "subscriptions": self.subscriptions,
            "unused_grants": len(self.unused),
            "idle_tokens": len({each.token for each in self.unused if each.idle}),
            "near_the_edge": sum(bool(each.inside) for each in self.edges),
            "beyond_the_edge": sum(not each.inside for each in self.edges),
        }


def run(
    spark: "SparkSession",
    archive: Archive,
    *,
    when: Range | None = None,
    progress: Progress = silent,
) -> Result:
    """Compare the table `tokens` with `subscriptions`.

    Args:
        when: period of the subscriptions; grants are the last known ones at its end.
    """
    from pyspark.sql import functions as sf

    progress("comparing grants with subscriptions")
    when = when or Range()
    rows = read_side_table(spark, archive, "tokens", Range(until=when.until), ordered=True)
    last = sf.max_by("tags", sf.struct("minute", "written"))
    newest = rows.groupBy("token").agg(last.alias("tags")).collect()
    grants = {row["token"]: row["tags"] for row in newest if row["tags"]}  # without: it was removed
    held = (
        read_side_table(spark, archive, "subscriptions", when)
        .filter("token != ''")
        .groupBy("token", "subscription")
        .agg(sf.sum("opened").alias("opened"))
        .orderBy("token", "subscription")
    )
    used = ((row["token"], row["subscription"], row["opened"]) for row in held.toLocalIterator())
    return audit(grants, used)


def audit(
    grants: dict[str, Sequence[str]], subscriptions: Iterable[tuple[str, str, int]]
) -> Result:
    """The comparison itself.

    Args:
        grants: by token, as registered. Subscriptions of other tokens, which were removed, are
            ignored.
        subscriptions: (token, canonical tag list, how often opened).
    """
    listening = {token: _subscribing(tags) for token, tags in grants.items()}
    known = {token: Grant(frozenset(tags)) for token, tags in listening.items()}
    single = {
        token: {tag: Grant(frozenset((tag,))) for tag in tags} for token, tags in listening.items()
    }
    unused = {token: set(tags) for token, tags in listening.items()}
    active = set()
    edges = []
    count = 0
    for token, subscription, opened in subscriptions:
        count += 1
        if token not in known:
            continue
        active.add(token)
        tags = subscription.split(",")
        rest = unused[token]
        rest -= {grant for grant in rest if any(map(single[token][grant].covers, tags))}
        inside = [tag for tag in tags if known[token].covers(tag)]
        if len(inside) < len(tags):
            outside = [tag for tag in tags if tag not in inside]
            edges.append(Edge(token, subscription, inside, outside, opened))
    return Result(
        len(grants),
        sum(map(len, listening.values())),
        count,
        [
            Unused(token, grant, token not in active)
            for token in sorted(unused)
            for grant in sorted(unused[token])
        ],
        edges,
    )


def _subscribing(tags: Iterable[str]) -> list[str]:
    return [tag for tag in tags if not tag.startswith(PUBLISH)]
