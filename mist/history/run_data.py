"""The data of a block's runs, end to end: read as a whole, or in pieces where little is wanted."""

from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Final

from mist.history.layout import Head
from mist.history.part import Columns, pick
from mist.history.pieces import Pieces

__all__ = ["RunData"]

_FEW_IN_PARTS: Final = 16  # up to here, not all of the data is read for so many runs
_NEAR: Final = 16_384  # bytes of data that are read at once for runs that are near each other
_FEW_SUMS: Final = 4  # up to here, where the data of runs starts is added up for each


class RunData:
    """See the module. Of one block.

    Args:
        head: of the block.
        columns: of the block; their `data` is there once all of it has been read.
        pieces: what it is read from; None where it is there.
    """

    __slots__ = ("_columns", "_head", "_pieces", "_sums")

    def __init__(self, head: Head, columns: Columns, pieces: Pieces | None) -> None:
        self._head = head
        self._columns = columns
        self._pieces = pieces
        self._sums: list[int] | None = None  # where the data of each run starts

    @property
    def is_whole(self) -> bool:
        """Whether all of it has been read."""
        return self._pieces is None

    @property
    def source(self) -> bytes | Pieces:
        """What gives the bytes from one place up to another."""
        return self._columns.data if self._pieces is None else self._pieces

    def complete(self) -> None:
        """Read what has not been read yet.

        Raises:
            HistoryDamaged: it isn't what was written.
        """
        if self._pieces is None:
            return
        self._columns.data = self._pieces.all()
        self._pieces = None
        try:
            self._columns.check()
        except ValueError as error:
            raise self._head.undecoded(error) from error

    def read_ahead(self, runs: Sequence[int]) -> None:
        """Read at once what would else be read in many pieces. Raises as `complete`."""
        if self._pieces is None or len(runs) == 1:
            return
        if len(runs) > _FEW_IN_PARTS:
            self.complete()
            return
        (start, _), (_, end) = self.bounds([runs[0], runs[-1]])
        if end - start <= _NEAR:
            self._pieces.load(start, end)

    def of(self, run: int) -> bytes:
        """The data of a run's messages, LF behind each. Raises as `complete`."""
        (start,), (end,) = self.bounds(range(run, run + 1))
        return self.source[start:end]

    def bounds(self, runs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the data of some runs starts and ends."""
        sizes = self._columns.sizes
        if self._sums is None and len(runs) <= _FEW_SUMS:
            starts = [sum(sizes[:run]) for run in runs]
            return starts, list(map(add, starts, pick(sizes, runs)))
        sums = self.add_up()
        if isinstance(runs, range):
            return sums[runs.start : runs.stop], sums[runs.start + 1 : runs.stop + 1]
        return [sums[run] for run in runs], [sums[run + 1] for run in runs]

    def add_up(self) -> list[int]:
        """Where the data of each run starts, and the end; found once, for many `bounds`."""
        if self._sums is None:
            self._sums = list(accumulate(self._columns.sizes, initial=0))
        return self._sums
