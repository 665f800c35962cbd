"""Making entries of latest values of the blocks of a log; see `tables`."""

from collections.abc import Container
from contextlib import closing

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import Block
from mist.history.block_store import BlockStore
from mist.history.latest.query import Patterns
from mist.history.latest.tables import Kind, LatestTables
from mist.history.layout import Row
from mist.history.tag_lists import TagLists

__all__ = ["Entries", "next_rows", "which_exist"]

# In one step: some 30 ms of a thread's work, and readers wait for no more.
_BLOCKS = 64
_BYTES = 256 * 1024


def next_rows(store: BlockStore, after: int, upto: int) -> tuple[list[Row], int]:
    """The next blocks with ids in `(after, upto]`, and up to which id these are all.

    What can't be read is left out: no reader gets it.
    """
    rows: list[Row] = []
    size = 0
    try:
        with store.snapshot(), closing(store.ascend(after, upto, None)) as found:
            for row in found:
                rows.append(row)
                size += row.head.size
                if len(rows) == _BLOCKS or size >= _BYTES:
                    return rows, min(row.head.last, upto)
    except HistoryDamaged as error:
        if rows:
            return rows, min(rows[-1].head.last, upto)
        if error.last <= after:
            raise
        return [], min(error.last, upto)
    return rows, upto


def which_exist(store: BlockStore, tag_lists: TagLists, ids: list[int]) -> set[int]:
    """Which of some ids, ascending, are of messages that are there, or in damaged blocks."""
    exist: set[int] = set()
    place = 0
    while place < len(ids):
        try:
            with closing(store.ascend(ids[place] - 1, ids[-1], None)) as rows:
                for row in rows:
                    block = Block(row, tag_lists)
                    asked = [each for each in ids if row.head.first <= each <= row.head.last]
                    exist.update(each for each in asked if block.runs.of_id(each) is not None)
            return exist
        except HistoryDamaged as error:
            if error.last < ids[place]:
                raise
            lost = [each for each in ids[place:] if error.first <= each <= error.last]
            exist.update(lost)
            while place < len(ids) and ids[place] <= error.last:
                place += 1
    return exist


@attrs.define
class Entries:
    """Entries that are made of some blocks, to be added to the tables.

    Attributes:
        ids: by key and kind.
        kinds: of these.
    """

    _tables: LatestTables
    _patterns: Patterns
    ids: dict[tuple[int, int], int] = attrs.field(factory=dict)
    kinds: dict[int, Kind] = attrs.field(factory=dict)
    _hashes: dict[tuple[bytes, str | None, str], int] = attrs.field(factory=dict)

    def add(self, block: Block) -> None:
        """Add a block, which has higher ids than those before. About 5 µs for each tag list with
        a key.

        Raises:
            HistoryDamaged: it isn't what was written. Nothing was added.
        """
        columns = block.columns
        keyed: dict[int, tuple[list[bytes], list[bytes]]] = {}
        for number, canonical in enumerate(columns.lists):
            tags = canonical.split(b",")
            keys = self._patterns.keys(tags)
            if keys:
                keyed[number] = tags, keys
        if not keyed:
            return
        for (number, audience, publisher), id_ in _newest(block, keyed).items():
            tags, keys = keyed[number]
            for key in keys:
                others = b",".join([tag for tag in tags if tag is not key])
                kind = self._kind(others, audience, publisher)
                self.ids[self._tables.hash(key), kind] = id_

    def _kind(self, others: bytes, audience: str | None, publisher: str) -> int:
        what = others, audience, publisher
        kind = self._hashes.get(what)
        if kind is None:
            for_whom = "" if audience is None else f"={audience}"
            text = b"\n".join((others, for_whom.encode(), publisher.encode()))
            kind = self._hashes[what] = self._tables.hash(text)
            self.kinds[kind] = others.decode(), audience
        return kind


def _newest(block: Block, keyed: Container[int]) -> dict[tuple[int, str | None, str], int]:
    """The highest id of each tag list, audience and publisher in a block."""
    columns = block.columns
    firsts, counts, lists = block.runs.firsts, columns.counts, columns.run_lists
    found: dict[tuple[int, str | None, str], int] = {}
    start = 0
    for section, end in enumerate(columns.section_ends):
        audience, _ = columns.extras[columns.section_extras[section]]
        publisher = columns.publishers[columns.section_publishers[section]]
        for run in range(start, end):
            if lists[run] in keyed:
                found[lists[run], audience, publisher] = firsts[run] + counts[run] - 1
        start = end
    return found
