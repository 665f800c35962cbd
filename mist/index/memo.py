"""The memo, a cache with exact invalidation: a tag list as written → what it matched last time.

Publishers repeat themselves: a sensor sends the same tag list a thousand times an hour. For
a list seen before, one dict lookup replaces decoding, checking, and the walk of the tree.

    key (as it came)        value
    b"room:1,temperature"   what {room:1, temperature} matches
    b"temperature,room:1"   the same, kept a second time: keys are bytes, never parsed

*Exact.* A new tag set S changes the answer for the keys whose tags are a superset of S, and
for no other. Each tag knows the keys that have it, so those keys are the intersection of S's
tags' key sets, smallest first. Subscribing to what nobody publishes looks at nothing at all.
(Someone joining a tag set that has an entry changes the group, not the match: nothing to do,
as long as values lead to the group.)

*Bounded.* In entries, and in bytes, since a key may be 16 KB. The oldest goes first. A plain dict
finds its oldest by stepping over all that were deleted before it, 50 µs at 65,536 entries, so
an OrderedDict next to it keeps the order. Least *recently used* was refused: a write a hit.

*Not fooled by lists that never come back* (a request id among the tags). A list is admitted
when it is seen the second time. First sights are remembered as hashes, each in a place of a table
that it maps to. So the table takes 8 bytes a place from the first list to the last. (Two sets of
hashes, of which the older was dropped when the younger was full, took 0.1 to 6 MB in turns.) A new
sight takes its first place, and what was there goes on to its second one, if this was its first.
With one place each, lists that come in a fixed order and share it would push each other out for
ever: of 10,000 in turns, 14 % were never kept. A hash shared by two keys admits one of them early,
which is harmless: entries are found by the key itself.
"""

from array import array
from collections import OrderedDict
from typing import Generic, TypeVar

import attrs

__all__ = ["Memo", "MemoStatistics"]

K = TypeVar("K", bytes, str)
V = TypeVar("V")

# What CPython takes, roughly: a key's own objects and dict slots, and each tag's text (of the
# same length as in the key), place in the frozenset, and place in the tag's set of keys.
_ENTRY_COST = 500  # bytes
_TAG_COST = 250  # bytes

_SECOND = 24  # the bit of a hash at which its second place begins; `max_first_sights` has fewer


@attrs.frozen
class MemoStatistics:
    """What a memo holds, and what it did so far.

    Attributes:
        entries: keys kept now.
        size: estimated bytes of these, their values left out.
        admitted, evicted, invalidated: entries, ever since.
    """

    entries: int
    size: int
    admitted: int
    evicted: int
    invalidated: int


class Memo(Generic[K, V]):
    """A bounded dict from a tag list to `V`, which knows what a subscription changes.

    Attributes:
        entries: the live dict, for `memo.entries.get(key)` without a method in between. To
            be read only; it stays the same object.

    Args:
        max_entries: keys; at least 1.
        max_bytes: estimated bytes of keys and tags. Values are not counted: they are shared.
        max_first_sights: places for keys remembered for one sight; at least 1. After as many
            others, half of them are remembered still.
    """

    __slots__ = (
        "_admitted",
        "_clears",
        "_evicted",
        "_first_sights",
        "_invalidated",
        "_keys",
        "_max_bytes",
        "_max_entries",
        "_max_first_sights",
        "_size",
        "_tags",
        "entries",
    )

    def __init__(
        self,
        max_entries: int = 65_536,
        max_bytes: int = 64 * 1024 * 1024,
        max_first_sights: int = 65_536,
    ) -> None:
        self.entries: dict[K, V] = {}
        self._tags: OrderedDict[K, frozenset[str]] = OrderedDict()  # oldest first
        self._keys: dict[str, set[K]] = {}
        self._size = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_first_sights = max_first_sights
        self._first_sights = array("q", bytes(8))  # all of them with the first sight
        self._clears = 0  # makes hashes that were noted before a `clear` differ from those after
        self._admitted = self._evicted = self._invalidated = 0

    def admit(self, key: K, tags: frozenset[str], value: V) -> bool:
        """Offer what `key` was just resolved to; kept on second sight. O(len(tags)).

        A key that is there already gets the new value. A key that was forgotten, by whatever
        reason, has been seen, and is kept at once.

        Args:
            tags: what `key` says, parsed.
            value: valid now. Resolving, then subscribing, then admitting would keep an answer
                that `invalidate` never saw.

        Returns:
            Whether it is kept. Never, if it alone exceeds `max_bytes`.
        """
        entries = self.entries
        if key in entries:
            entries[key] = value
            return True
        if not self.sighted(key):
            return False
        cost = _cost(key, tags)
        if cost > self._max_bytes:
            return False
        entries[key] = value
        self._tags[key] = tags
        for tag in tags:
            self._keys.setdefault(tag, set()).add(key)
        self._size += cost
        self._admitted += 1
        while len(entries) > self._max_entries or self._size > self._max_bytes:
            self._forget(next(iter(self._tags)))
            self._evicted += 1
        return True

    def sighted(self, key: K) -> bool:
        """Whether a key has been seen, so that `admit` keeps it. Its sight is noted. O(1)."""
        sight = hash(key) ^ self._clears
        sights, places = self._first_sights, len(self._first_sights)
        place = sight % places
        there = sights[place]
        if there == sight or sights[(sight >> _SECOND) % places] == sight:
            return True
        if places < self._max_first_sights:
            sights = self._first_sights = array("q", bytes(8 * self._max_first_sights))
            place = sight % self._max_first_sights
        elif there % places == place:
            sights[(there >> _SECOND) % places] = there
        sights[place] = sight
        return False

    def invalidate(self, subscription: frozenset[str]) -> list[V]:
        """Forget every entry whose tags include all of `subscription`.

            {a}     forgets b"a", b"a,b" and b"b,a"
            {a, b}  forgets b"a,b", but not b"a"
            {a}     looks as if it should forget b"ab", but does not

        O(len(subscription) + keys of its least kept tag + tags of what is forgotten).

        Returns:
            The values forgotten, in no order.
        """
        keys = []
        for tag in subscription:
            having = self._keys.get(tag)
            if having is None:
                return []
            keys.append(having)
        keys.sort(key=len)
        # The empty set is a subset of all; `intersection` has no word for "of nothing".
        stale = keys[0].intersection(*keys[1:]) if keys else list(self.entries)
        self._invalidated += len(stale)
        return [self._forget(key) for key in stale]

    def clear(self) -> None:
        """Forget all entries and first sights. The counts go on."""
        self.entries.clear()
        self._tags.clear()
        self._keys.clear()
        self._size = 0
        self._clears += 1

    def statistics(self) -> MemoStatistics:
        """What it holds, and what it did so far. O(1)."""
        return MemoStatistics(
            entries=len(self.entries),
            size=self._size,
            admitted=self._admitted,
            evicted=self._evicted,
            invalidated=self._invalidated,
        )

    def _forget(self, key: K) -> V:
        tags = self._tags.pop(key)
        for tag in tags:
            having = self._keys[tag]
            having.discard(key)
            if not having:
                del self._keys[tag]
        self._size -= _cost(key, tags)
        self.sighted(key)  # and so it is admitted at its next sight
        return self.entries.pop(key)


def _cost(key: K, tags: frozenset[str]) -> int:
    return _ENTRY_COST + 2 * len(key) + _TAG_COST * len(tags)
