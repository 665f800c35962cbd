"""Selections: which messages a read returns, as alternatives of tag sets.

{a} or {b, c} selects every message that holds a, and every one that holds both b and c. One
alternative is a subscription; several resume together, so that a message that satisfies two
of them is read once and everything comes in one order.
"""

from collections.abc import Iterable

from mist.addresses import EVERYTHING, compile_asked
from mist.history.postings import HASH_BYTES, tag_hash, terms
from mist.index import Index
from mist.message import TagSet

__all__ = ["Selection"]

_FEW = 32  # alternatives that are looked up; with more it is cheaper to scan everything
_MAX_VERDICTS = 4 * 1024 * 1024  # bytes of tag lists remembered
_VERDICT_COST = 150  # bytes of one beside its text
_FULL = 64  # alternatives under one tag that are compared one by one

_Bucket = TagSet | list[TagSet] | Index[None]


class Selection:
    """Which tag lists match. Holds no position, and may be used by any number of reads, also at
    once.

        {a, b}   selects a,b,c
        {a, b}   doesn't select a
        {a}      looks as if it should select ab, but doesn't: tags are compared whole

    Making one is cheap where the alternatives are a frozenset already. Their index takes 0.2 s
    for 100,000, and is built by the first `matches`, in the thread that reads: a session that
    recovers makes its selection on the event loop.

    Args:
        alternatives: compiled tag sets, at least one, none empty. `asked` takes them as
            subscriptions name them.

    Attributes:
        lookups: for each alternative, its tags by their hashes, ascending; None where there are so
            many alternatives that looking each of them up would cost more than it saves, or where
            two tags of one have the same hash.

    Raises:
        ValueError: no alternative, or an empty one.
    """

    __slots__ = ("_index", "_size", "_verdicts", "alternatives", "lookups")

    def __init__(self, alternatives: Iterable[TagSet]) -> None:
        self.alternatives = frozenset(alternatives)
        if not self.alternatives or frozenset() in self.alternatives:
            raise ValueError("a selection needs alternatives, and each of them tags")
        self._index: dict[str, _Bucket] | None = None
        self._verdicts: dict[bytes, bool] = {}
        self._size = 0  # of the verdicts, in bytes, roughly
        self.lookups: list[dict[int, bytes]] | None = None
        if len(self.alternatives) <= _FEW:
            lookups = [
                dict(sorted((tag_hash(tag), tag) for tag in map(str.encode, tags)))
                for tags in self.alternatives
            ]
            if all(
                len(each) == len(tags)
                for each, tags in zip(lookups, self.alternatives, strict=True)
            ):
                self.lookups = lookups

    @classmethod
    def asked(cls, alternatives: Iterable[TagSet]) -> "Selection | None":
        """The selection of what these subscriptions match; None is everything."""
        asked = frozenset(alternatives)
        if EVERYTHING in asked:
            return None
        return cls(frozenset(map(compile_asked, asked)))

    def may_match(self, hashes: bytes) -> bool:
        """Whether a message may match whose tags' hashes are among these, end to end.

        Four bytes that straddle two hashes are found, too: a false positive costs a read. O(bytes)
        for each tag, in C.
        """
        if self.lookups is None:
            return True
        return any(
            all(wanted.to_bytes(HASH_BYTES, "little") in hashes for wanted in lookup)
            for lookup in self.lookups
        )

    @property
    def is_large(self) -> bool:
        """Whether there are too many alternatives to match on the event loop."""
        return self.lookups is None

    def matches(self, canonical: bytes) -> bool:
        """Whether a message with this tag list matches.

        Cached: one lookup for a list seen before.
        """
        verdict = self._verdicts.get(canonical)
        if verdict is None:
            index = self._index or _build(self.alternatives)
            self._index = index  # two threads may both build it; either result will do
            tags = frozenset(tag.decode() for tag in terms(canonical))
            verdict = any(_holds(index[tag], tags) for tag in tags if tag in index)
            if self._size >= _MAX_VERDICTS:
                self._verdicts.clear()
                self._size = 0
            self._size += _VERDICT_COST + len(canonical)
            self._verdicts[canonical] = verdict
        return verdict


def _build(alternatives: frozenset[TagSet]) -> dict[str, _Bucket]:
    """Each alternative under the rarest of its tags.

    Mostly it is alone there, or with few others. An `Index` for all of them would take three times
    as long, and would make so many objects that the garbage collector stops the event loop for
    0.1 s to walk them, whatever thread they are made in.
    """
    counts: dict[str, int] = {}
    for tags in alternatives:
        # Not a Counter over all of them: one call in C would hold the interpreter lock.
        for tag in tags:
            counts[tag] = counts.get(tag, 0) + 1
    index: dict[str, _Bucket] = {}
    for tags in alternatives:
        rarest = min(tags, key=counts.__getitem__)
        bucket = index.get(rarest)
        if bucket is None:
            index[rarest] = tags
        elif isinstance(bucket, frozenset):
            index[rarest] = [bucket, tags]
        elif isinstance(bucket, list) and len(bucket) >= _FULL:
            grown: Index[None] = Index()
            index[rarest] = grown
            for each in [*bucket, tags]:
                grown.add(each, None)
        elif isinstance(bucket, list):
            bucket.append(tags)
        else:
            bucket.add(tags, None)
    return index


def _holds(bucket: _Bucket, tags: TagSet) -> bool:
    """Whether some alternative in a bucket is satisfied by a message's tags."""
    if isinstance(bucket, frozenset):
        return bucket <= tags
    if isinstance(bucket, list):
        return any(map(tags.issuperset, bucket))
    return bool(bucket.match(tags))
