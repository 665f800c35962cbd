"""A selection: which messages a reader wants, as alternatives of tag sets.

{a} or {b, c} selects every message that holds a, and every one that holds both b and c. One
alternative is a subscription; several resume together, so that a message that satisfies two
of them is read once and everything comes in one order.
"""

from collections.abc import Iterable

from mist.history.postings import tag_hash, terms
from mist.index import Index
from mist.message import TagSet

__all__ = ["Selection"]

_FEW = 32  # alternatives that are looked up; above, it is cheaper to look at everything
_MAX_VERDICTS = 4 * 1024 * 1024  # bytes of tag lists remembered
_VERDICT_COST = 150  # bytes of one beside its text


class Selection:
    """Which tag lists are wanted. Holds no position, and may be used for any number of reads.

        {a, b}   selects a,b,c
        {a, b}   doesn't select a
        {a}      looks as if it should select ab, but doesn't: tags are compared whole

    Args:
        alternatives: tag sets, at least one, none empty.

    Attributes:
        lookups: for each alternative, the hashes of its tags; None where there are so many
            alternatives that looking each of them up would cost more than it saves.

    Raises:
        ValueError: no alternative, or an empty one.
    """

    __slots__ = ("_index", "_size", "_verdicts", "alternatives", "lookups")

    def __init__(self, alternatives: Iterable[TagSet]) -> None:
        self.alternatives = frozenset(alternatives)
        if not self.alternatives:
            raise ValueError("a selection needs an alternative")
        self._index: Index[None] = Index()
        for tags in self.alternatives:
            self._index.add(tags, None)
        self._verdicts: dict[bytes, bool] = {}
        self._size = 0  # of the verdicts, in bytes, roughly
        self.lookups: list[tuple[int, ...]] | None = None
        if len(self.alternatives) <= _FEW:
            self.lookups = [
                tuple(sorted({tag_hash(tag.encode()) for tag in tags}))
                for tags in self.alternatives
            ]

    def matches(self, canonical: bytes) -> bool:
        """Whether a message with this tag list is wanted. A lookup for one seen before."""
        verdict = self._verdicts.get(canonical)
        if verdict is None:
            found = self._index.match(frozenset(tag.decode() for tag in terms(canonical)))
            verdict = bool(found)
            if self._size >= _MAX_VERDICTS:
                self._verdicts.clear()
                self._size = 0
            self._size += _VERDICT_COST + len(canonical)
            self._verdicts[canonical] = verdict
        return verdict
