"""Thinning: what retention rules keep of a block that is beyond the global limits.

The *floor* rises block by block: everything up to it is beyond the global limits. Without rules
those blocks are removed unread. With rules, a block that falls below the floor is read, and what
rules keep of it stays, as a thinner block under the same key. Such blocks are checked again
later, since a message that is among the last hundred of its tag today may not be tomorrow.
"""

from collections.abc import Callable, Sequence

import attrs

from mist.history.block_store import Totals
from mist.history.clock import Moment
from mist.history.layout import MICROSECONDS, Head
from mist.history.record import MAX_ID, Stored
from mist.history.retention import Policy
from mist.wire import TagList

__all__ = ["Thinned", "expired_blocks", "is_expired", "thin"]

Cutoff = Callable[[str, int], int]
"""The id after which the last n messages of a tag begin: `(tag, n) -> id`."""


@attrs.frozen
class Thinned:
    """The result of thinning a block.

    Attributes:
        kept: what stays of it.
        removed: how many messages are removed.
        highest: the highest id removed; 0 if none is.
        tracked: the same for each of their tags that a rule matches.
    """

    kept: Sequence[Stored]
    removed: int
    highest: int
    tracked: dict[str, int]


def expired_blocks(
    heads: Sequence[Head], above: Totals, policy: Policy, now: Moment
) -> Sequence[Head]:
    """The oldest blocks above the floor of which the global limits keep nothing.

    Args:
        heads: the first few above the floor.
        above: sums over all blocks above the floor.
    """
    for number, head in enumerate(heads):
        above = above.minus(head)
        if not is_expired(head, above, policy, now):
            return heads[:number]
    return heads


def is_expired(head: Head, newer: Totals, policy: Policy, now: Moment) -> bool:
    """Whether the global limits keep nothing of a block.

    Args:
        newer: sums over the blocks after it, or over some of them.
    """
    age, size, messages = policy.max_age, policy.max_bytes, policy.max_messages
    if size is not None and newer.size >= size:
        return True
    if policy.sealed is not None and head.last > policy.sealed:
        return False
    return (age is not None and now.age(head.newest) > age * MICROSECONDS) or (
        messages is not None and newer.messages >= messages
    )


def thin(stored_in_block: Sequence[Stored], policy: Policy, now: Moment, cutoff: Cutoff) -> Thinned:
    """Keep what some rule keeps of a block below the floor. O(entries · rules of their tags)."""
    ruled: dict[TagList, list[tuple[str, int | None, float | None]]] = {}
    kept: list[Stored] = []
    removed = highest = 0
    tracked: dict[str, int] = {}
    for stored in stored_in_block:
        taken: list[tuple[int, int]] = []
        age = now.age(round(stored.time * MICROSECONDS)) / MICROSECONDS
        pairs = zip(stored.firsts, stored.entries, strict=True)
        for place, (first, (tag_list, _, count)) in enumerate(pairs):
            limits = ruled.get(tag_list)
            if limits is None:
                limits = ruled[tag_list] = [
                    (tag, rule.count, rule.age)
                    for tag in tag_list.tags
                    for rule in policy.for_tag(tag)
                ]
            after = MAX_ID  # messages behind it are kept
            for tag, most, longest in limits:
                if longest is None or age <= longest:
                    after = min(after, 0 if most is None else cutoff(tag, most))
            gone = min(max(after + 1 - first, 0), count)
            if gone:
                removed += gone
                highest = first + gone - 1
                for tag, _, _ in limits:
                    tracked[tag] = highest
            if gone < count:
                taken.append((place, gone))
        left = stored.keep(taken)
        if left is not None:
            kept.append(left)
    return Thinned(kept, removed, highest, tracked)
