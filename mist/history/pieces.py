"""Reading a stored block in parts: its index, and those pieces of its data that are wanted.

A search that wants one message of each of a thousand blocks would otherwise read, copy and check
all of them, some 160 KB each. See `layout` for what is stored.
"""

from collections.abc import Callable
from zlib import crc32

import attrs

from mist.history.columns import INDEXES, unpack_all
from mist.history.layout import DIFFERS, PIECE, Head, Row

__all__ = ["AnyRow", "OpenRow", "Pieces"]

Read = Callable[[int, int], bytes]


@attrs.frozen
class OpenRow:
    """A stored block of which the index has been read, and more can be.

    Attributes:
        index: as in its body, with the prefix.
        read: returns the data from one place up to another, or to its end, where that comes first.
            Only until the block store is asked for anything else. Raises `HistoryDamaged`.
    """

    head: Head
    index: bytes
    read: Read


AnyRow = Row | OpenRow


class Pieces:
    """The data of a block, read in pieces when they are asked for. Keeps those read last.

    Args:
        head: of the block.
        checks: see `Body`.
        read: see `OpenRow`.

    Raises:
        ValueError: `checks` isn't that.
    """

    __slots__ = ("_begin", "_checks", "_head", "_kept", "_read")

    def __init__(self, head: Head, checks: bytes, read: Read) -> None:
        self._head = head
        self._checks = unpack_all(INDEXES, checks)
        self._read = read
        self._begin = 0
        self._kept = b""

    def __getitem__(self, wanted: slice) -> bytes:
        """The bytes from one place up to another, as of bytes; both have to be given.

        Raises:
            HistoryDamaged: they can't be read, or aren't what was written.
        """
        start, end = wanted.start, wanted.stop
        if not self._begin <= start <= end <= self._begin + len(self._kept):
            self.load(start, end)
        found = self._kept[start - self._begin : end - self._begin]
        if len(found) != end - start:
            raise self._head.damaged(DIFFERS)
        return found

    def load(self, start: int, end: int) -> None:
        """Read these bytes, for what is asked for next. Raises as indexing."""
        first = start // PIECE
        self._kept = self._checked(first, -(-end // PIECE))
        self._begin = first * PIECE

    def all(self) -> bytes:
        """All of it. Raises as indexing."""
        return self._checked(0, len(self._checks))

    def _checked(self, first: int, stop: int) -> bytes:
        """Some neighbouring pieces, by their numbers."""
        data = self._read(first * PIECE, stop * PIECE)
        view = memoryview(data)
        found = [crc32(view[start : start + PIECE]) for start in range(0, len(data), PIECE)]
        if found != list(self._checks[first:stop]):
            raise self._head.damaged(DIFFERS)
        return data
