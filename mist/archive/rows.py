"""Messages of a log as Arrow rows.

A log stores columns, and so does Arrow: `parts_to_batch` converts them with numpy, without Python
code for each message. Lists, sections and runs of a log become repeated numbers; line ends are
removed from the data, and their places become the offsets.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mist.archive.schema import MESSAGES, TIME
from mist.errors import HistoryDamaged
from mist.history import Part

__all__ = ["parts_to_batch"]

_TAGS: Final = MESSAGES.field("tags").type
_META: Final = MESSAGES.field("meta").type
_LF: Final = 10
_COMMA: Final = 44
_PIECE: Final = 256 * 1024  # bytes processed at a time while holding the interpreter lock
_MOST: Final = 2**31 - 1  # bytes of data in a batch: its offsets have 32 bits

Numbers = np.ndarray[Any, np.dtype[Any]]


def parts_to_batch(parts: Sequence[Part]) -> pa.RecordBatch:
    """Messages as rows of `MESSAGES`, in the order given.

    O(bytes + messages) in C, and O(runs) in Python where a part is not a stretch of its block
    or data in it may hold LF.

    Raises:
        HistoryDamaged: a block's columns disagree about how many messages there are.
        ValueError: more than 2 GiB of data.
    """
    if not parts:
        return pa.RecordBatch.from_pylist([], MESSAGES)
    stretches = [_Stretch(part) for part in parts]
    counts = np.concatenate([each.counts for each in stretches])
    ends = np.cumsum(counts)
    rows = int(ends[-1])

    def of_rows(of_runs: Numbers) -> Numbers:
        return of_runs if rows == len(counts) else np.repeat(of_runs, counts)

    ids = of_rows(np.concatenate([each.firsts for each in stretches]) - ends + counts)
    ids = ids + np.arange(rows)
    sections = _numbered(
        [each.sections for each in stretches], [len(part.columns.section_runs) for part in parts]
    )
    times = np.concatenate(
        [part.head.oldest + _numbers(part.columns.section_times) for part in parts]
    )
    lists = _numbered(
        [each.lists for each in stretches], [len(part.columns.lists) for part in parts]
    )
    extras, extra_numbers = _of_sections(parts, "extras", "section_extras")
    publishers, publisher_numbers = _of_sections(parts, "publishers", "section_publishers")

    def chosen(values: list[Any], of_sections: Numbers, kind: pa.DataType) -> pa.Array:
        if all(value is None for value in values):
            return pa.nulls(rows, kind)
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), rows)
        return pa.array(values, kind).take(pa.array(of_rows(of_sections[sections])))

    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(of_rows(times[sections])).cast(TIME),
            _tag_array(parts).take(pa.array(of_rows(lists))),
            _data_array(stretches, rows),
            chosen(publishers, publisher_numbers, pa.string()),
            chosen([audience for audience, _ in extras], extra_numbers, pa.string()),
            chosen([meta for _, meta in extras], extra_numbers, _META),
        ],
        schema=MESSAGES,
    )


class _Stretch:
    """A part's runs in numbers: an element each.

    Attributes:
        counts, firsts: messages, and the id of the first one.
        lists, sections: numbers in the block's columns.
        starts, ends: places in the block's data.
        size: bytes of data without what stands behind each message.
    """

    __slots__ = ("counts", "ends", "firsts", "lists", "part", "sections", "size", "starts")

    def __init__(self, part: Part) -> None:
        self.part = part
        columns, runs = part.columns, part.runs
        chosen: slice | Numbers = (
            slice(runs.start, runs.stop) if isinstance(runs, range) else np.asarray(runs)
        )
        counts = _numbers(columns.counts)
        firsts = np.cumsum(counts) - counts + part.head.start
        if not isinstance(columns.gaps, bytes):
            firsts += np.cumsum(_numbers(columns.gaps)) - columns.gaps[0]
        sizes = _numbers(columns.sizes)
        ends = np.cumsum(sizes)
        self.counts = counts[chosen]
        self.firsts = firsts[chosen]
        self.lists = _numbers(columns.run_lists)[chosen]
        self.starts = (ends - sizes)[chosen]
        self.ends = ends[chosen]
        section_runs = _numbers(columns.section_runs)
        self.sections = np.repeat(np.arange(len(section_runs)), section_runs)[chosen]
        if part.skip or part.beyond:
            self.counts[0] -= part.skip
            self.counts[-1] -= part.beyond
            self.firsts[0] += part.skip
            self.starts[0] += part.skipped
            self.ends[-1] -= part.unreached
        self.size = int(self.ends.sum() - self.starts.sum()) - part.count

    def write(self, out: Numbers) -> Numbers:
        """Put the messages' data into `out`, which has their size, end to end.

        Returns:
            The length of each.
        """
        if 0 not in self.part.columns.section_framable:
            lengths = self._write_lines(out)
            if lengths is not None:
                return lengths
        data = self.part.columns.data
        starts, ends, counts = self.starts.tolist(), (self.ends - 1).tolist(), self.counts.tolist()
        # Where a message stands alone, an LF in it is a part of it.
        found: list[bytes] = []
        for start, end, count in zip(starts, ends, counts, strict=True):
            if count == 1:
                found.append(data[start:end])
            else:
                found += data[start:end].split(b"\n")
        values = b"".join(found)
        if len(found) != self.part.count or len(values) != len(out):
            head = self.part.head
            raise HistoryDamaged(head.first, "its columns disagree", head.last)
        out[:] = np.frombuffer(values, np.uint8)
        return np.fromiter(map(len, found), np.int64, len(found))

    def _write_lines(self, out: Numbers) -> Numbers | None:
        """Likewise, where an LF can only be a message's end; None if that isn't so after all."""
        data = self._lines()
        alone = len(self.counts) == self.part.count
        place = 0
        found: list[Numbers] = []
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            if not alone:
                found.append(np.flatnonzero(np.frombuffer(piece, np.uint8) == _LF) + start)
            values = piece.replace(b"\n", b"")
            if place + len(values) > len(out):
                return None
            out[place : place + len(values)] = np.frombuffer(values, np.uint8)
            place += len(values)
        ends = np.cumsum(self.ends - self.starts) if alone else np.concatenate(found) + 1
        if place != len(out) or len(ends) != self.part.count:
            return None
        lengths: Numbers = np.diff(ends, prepend=0) - 1
        return lengths

    def _lines(self) -> bytes:
        """The data of all runs, LF behind each message: neighbours are taken at once."""
        data = self.part.columns.data
        if isinstance(self.part.runs, range):
            return data[int(self.starts[0]) : int(self.ends[-1])]
        breaks = np.flatnonzero(self.starts[1:] != self.ends[:-1])
        starts = [int(self.starts[0]), *self.starts[breaks + 1].tolist()]
        ends = [*self.ends[breaks].tolist(), int(self.ends[-1])]
        return b"".join([data[start:end] for start, end in zip(starts, ends, strict=True)])


def _numbers(column: Sequence[int]) -> Numbers:
    """A copy of a block's column; see `mist.history.columns.unpack` for what it may be."""
    if isinstance(column, bytes):
        return np.zeros(len(column), np.int64)
    numbers: Numbers = np.asarray(column).astype(np.int64)
    return numbers


def _numbered(columns: Sequence[Numbers], sizes: Sequence[int]) -> Numbers:
    """Columns as one: each one's numbers begin behind the `sizes` of those before it."""
    if len(columns) == 1:
        return columns[0]
    before = np.cumsum([0, *sizes[:-1]])
    bases = np.repeat(before, [len(each) for each in columns])
    numbers: Numbers = np.concatenate(columns) + bases
    return numbers


def _of_sections(parts: Sequence[Part], values: str, numbers: str) -> tuple[list[Any], Numbers]:
    """Distinct values of the parts' blocks, and each section's number in them."""
    known: dict[Any, int] = {}
    columns = []
    for part in parts:
        own = [known.setdefault(each, len(known)) for each in getattr(part.columns, values)]
        columns.append(np.asarray(own)[_numbers(getattr(part.columns, numbers))])
    return list(known), np.concatenate(columns)


def _tag_array(parts: Sequence[Part]) -> pa.Array:
    """The tag lists of all blocks, one after the other; they are stored as tags are sorted."""
    text = b"\n".join([part.columns.text for part in parts])
    letters = np.frombuffer(text, np.uint8)
    places = np.flatnonzero((letters == _COMMA) | (letters == _LF))
    ends = np.flatnonzero(letters[places] == _LF) + 1
    tags = len(places) + 1
    offsets = np.concatenate([[0], places - np.arange(tags - 1), [len(text) - tags + 1]])
    values = text.replace(b",", b"").replace(b"\n", b"")
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], ends, [tags]]), pa.int32()),
        _from_buffers(pa.string(), offsets, pa.py_buffer(values)),
        type=_TAGS,
    )


def _data_array(stretches: Sequence[_Stretch], rows: int) -> pa.Array:
    sizes = [each.size for each in stretches]
    if not 0 <= sum(sizes) <= _MOST:
        raise ValueError("more data than a batch can hold")
    # From Arrow's pool: it keeps the memory, and memory that is new costs more than the copy.
    values = pa.allocate_buffer(sum(sizes))
    out = np.frombuffer(values, np.uint8)
    offsets = np.zeros(rows + 1, np.int64)
    places = [0, *accumulate(sizes)]
    np.cumsum(
        np.concatenate(
            [
                each.write(out[start:end])
                for each, (start, end) in zip(stretches, pairwise(places), strict=True)
            ]
        ),
        out=offsets[1:],
    )
    return _from_buffers(pa.binary(), offsets, values)


def _from_buffers(kind: pa.DataType, offsets: Numbers, values: pa.Buffer) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), values]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
