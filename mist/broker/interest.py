"""Interest: whether anybody here asks for any of many messages, told by the hashes of their tags.

A node gets what is published at all of them, in blocks, and most of it may be for subscribers of
others. A block says which tags are in it by a hash of each. Where no tag set that is asked for has
all of its tags among these, none of the block's messages is for anybody here, and it need not be
taken apart.

    asked for   {a, b}, {c}
    has         a, b, d     may be: in one message, or in two
    has         a, d        no
    has         c           yes

The answer may be yes without such a message, and is never no with one.
"""

from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

from mist.index import Index
from mist.message import TagSet

__all__ = ["Interest"]

_MOST: Final = 64  # tags that are looked at together; a block that has more is taken apart
_KEPT: Final = 1_024  # answers


class Interest:
    """See the module. Told of each entry of an index that comes or goes from now on.

    One entry in a dict for each distinct tag. O(tags) to make.

    Args:
        index: what is asked for.
    """

    __slots__ = ("_answers", "_index", "_names")

    def __init__(self, index: Index[Any]) -> None:
        self._index = index
        # By hash; those of the same hash with commas between them, which no tag has.
        self._names: dict[int, str] = {}
        self._answers: dict[frozenset[int], bool] = {}
        for some in index.tag_slices():
            self._enter([tag.name for tag in some if tag.uses])

    def _enter(self, names: Iterable[str]) -> None:
        known = self._names
        for name in names:
            own = crc32(name.encode())
            other = known.setdefault(own, name)
            if other != name and name not in other.split(","):
                known[own] = f"{other},{name}"

    def opened(self, tags: TagSet) -> None:
        """A tag set is in the index now. O(tags)."""
        self._answers.clear()
        self._enter(tags)

    def closed(self, tags: TagSet) -> None:
        """A tag set isn't in it any more. O(tags)."""
        self._answers.clear()
        for name in tags.difference(self._index.known(tags)):
            own = crc32(name.encode())
            left = [each for each in self._names[own].split(",") if each != name]
            if left:
                self._names[own] = ",".join(left)
            else:
                del self._names[own]

    def asks_for(self, hashes: Iterable[int]) -> bool:
        """Whether the tags of an entry may all be among those of these hashes.

        O(hashes), in C. Where some are asked for, and were not before, as long as it takes to match
        a message that has these.

        Args:
            hashes: CRC-32 of each tag's UTF-8.
        """
        found = frozenset(filter(self._names.__contains__, hashes))
        if not found:
            return False
        if len(found) > _MOST:
            return True
        answer = self._answers.get(found)
        if answer is None:
            names = ",".join([self._names[each] for each in found]).split(",")
            answer = any(self._index.match_in_steps(frozenset(names)))
            if len(self._answers) >= _KEPT:
                self._answers.clear()
            self._answers[found] = answer
        return answer
