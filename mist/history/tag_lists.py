"""Tag lists of what is read: those that come again are kept, as one object each."""

from collections.abc import Mapping, Sequence
from typing import Final

from mist.history.recent import Recent
from mist.wire import TagList

__all__ = ["TagLists"]

_MAX_BYTES: Final = 16 * 1024 * 1024  # some 14,000
_COST: Final = 1_000  # bytes of a tag list beside its text, which it holds four times
_FEW: Final = 16  # distinct ones among those of some runs, which are looked up anyway


class TagLists(Recent[bytes, TagList]):
    """A cache of tag lists by their canonical bytes, shared by blocks and by threads."""

    __slots__ = ()

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes)

    def cost(self, key: bytes, value: TagList) -> int:
        """See `Recent`."""
        return _COST + 4 * len(key)

    def get(self, canonical: bytes) -> TagList:
        """The tag list."""
        found = self.find(canonical)
        if found is None:
            found = self.add(canonical, TagList(None, canonical))
        return found

    def of_runs(
        self,
        lists: Mapping[int, bytes] | Sequence[bytes],
        numbers: Sequence[int],
        *,
        keep: bool = False,
    ) -> list[TagList]:
        """The tag list of each of some runs. Those that come once aren't kept: so the others are.

        Args:
            lists: of a block.
            numbers: of each run's list.
            keep: whether they come in other blocks, too, however often they do in this one.
        """
        distinct = set(numbers)
        if not keep and len(distinct) > _FEW and len(distinct) * 2 > len(numbers):
            return [TagList.passing(lists[number]) for number in numbers]
        known = {number: self.get(lists[number]) for number in distinct}
        return [known[number] for number in numbers]
