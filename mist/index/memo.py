"""`Memo`: what tag lists resolved to, forgotten exactly when that changes.

A publisher sends the same few tag lists over and over, so what a tag list resolves to is
kept under its wire bytes: a hit is one dict lookup. The question is when to forget. A new or
vanished subscription S changes the answer for exactly the messages whose tags contain S; the
memo keeps, for each tag, which entries carry it, looks only at the entries of the tag of S
that fewest entries carry, and forgets those that hold all of S.

A tag list is admitted when it is seen the second time, so that lists that are all different
(one tag of them a request number, say) leave nothing behind but a trace of bounded size.
"""

from typing import Final, Generic, TypeVar

__all__ = ["Memo"]

V = TypeVar("V")

_MAX_ENTRIES: Final = 65_536
_MAX_BYTES: Final = 64 * 1024 * 1024
_OVERHEAD: Final = 400  # bytes an entry takes beside its key: dict slots, the tag set, the value
_PER_TAG: Final = 120  # bytes in the reverse sets


class Memo(Generic[V]):
    """A bounded cache from tag lists to values, with exact invalidation by tag set.

    Args:
        max_entries: most entries kept.
        max_bytes: about how much memory they may take, keys and bookkeeping; a value's own
            size is not looked at.

    Attributes:
        entries: what is kept. Read it with `entries.get`; change it through the methods.
    """

    __slots__ = ("_by_tag", "_bytes", "_max_bytes", "_max_entries", "_seen", "_tags", "entries")

    def __init__(self, max_entries: int = _MAX_ENTRIES, max_bytes: int = _MAX_BYTES) -> None:
        self.entries: dict[bytes, V] = {}
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._tags: dict[bytes, frozenset[str]] = {}
        self._by_tag: dict[str, set[bytes]] = {}
        self._seen: set[int] = set()  # hashes of keys seen once; a collision admits early

    def admit(self, key: bytes, tags: frozenset[str], value: V) -> bool:
        """Keep `value` for `key` if the key was seen before. O(tags).

        Args:
            key: the tag list as written.
            tags: what it means.

        Returns:
            whether it was kept.
        """
        if key not in self.entries:
            trace = hash(key)
            if trace not in self._seen:
                if len(self._seen) >= self._max_entries:
                    self._seen.clear()
                self._seen.add(trace)
                return False
            self._seen.discard(trace)
            cost = _cost(key, tags)
            if cost > self._max_bytes:
                return False
            self._make_room(cost)
            self._bytes += cost
            self._tags[key] = tags
            for tag in tags:
                self._by_tag.setdefault(tag, set()).add(key)
        self.entries[key] = value
        return True

    def invalidate(self, subscription: frozenset[str]) -> None:
        """Forget every entry whose tags contain all of `subscription`.

        O(entries that carry the tag of it that fewest carry); nothing where one of its tags
        is carried by none.
        """
        smallest: set[bytes] | None = None
        for tag in subscription:
            keys = self._by_tag.get(tag)
            if keys is None:
                return
            if smallest is None or len(keys) < len(smallest):
                smallest = keys
        for key in [key for key in smallest or () if subscription <= self._tags[key]]:
            self._forget(key)

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self._tags.clear()
        self._by_tag.clear()
        self._seen.clear()
        self._bytes = 0

    def _make_room(self, cost: int) -> None:
        # Oldest first. A tag list still in use comes back at its next two sights.
        while self.entries and (
            len(self.entries) >= self._max_entries or self._bytes + cost > self._max_bytes
        ):
            self._forget(next(iter(self.entries)))

    def _forget(self, key: bytes) -> None:
        del self.entries[key]
        tags = self._tags.pop(key)
        self._bytes -= _cost(key, tags)
        for tag in tags:
            keys = self._by_tag[tag]
            keys.discard(key)
            if not keys:
                del self._by_tag[tag]


def _cost(key: bytes, tags: frozenset[str]) -> int:
    return 2 * len(key) + _OVERHEAD + _PER_TAG * len(tags)
