"""Token audit: unused grants, and subscriptions that only just match their grant.

A grant is unused where no subscription of its token, in the time looked at, had a tag that it
covers. It can be taken back, and nobody would notice.

A subscription is near the edge where a tag of it lies outside of its token's grants: it is let
in by its other tags alone (see `mist.auth.grant`), and would be refused by a server that demands
a grant for every tag. It is beyond the edge where none is covered any more.

Addresses are judged as they were asked for: `/rooms` covers `/rooms/1` and `=/rooms`, and `.a.>`
covers `.a.*`.

Rights to publish (`>room:*`) are not looked at: the accounts don't say who published.
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
    """A grant that nothing used.

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
        inside: its tags that a grant covers; empty where it would be refused now.
        outside: the others.
        opened: how often it was opened.
    """

    token: str
    subscription: str
    inside: Sequence[str]
    outside: Sequence[str]
    opened: int


@attrs.frozen
class Result:
    """What the audit found; both by token."""

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
        when: minutes in which subscriptions count; the grants are those last known, until its
            end.
    """
    from pyspark.sql import functions as sf

    progress("comparing grants with subscriptions")
    when = when or Range()
    rows = read_side_table(spark, archive, "tokens", Range(until=when.until))
    newest = rows.groupBy("token").agg(sf.max_by("tags", "minute").alias("tags")).collect()
    grants = {row["token"]: row["tags"] for row in newest}
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
        grants: by token, as registered. A token without an entry is one that is gone, and
            nothing is said of its subscriptions.
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
