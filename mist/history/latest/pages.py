"""Pages of latest values: which of the messages that a subscription matches are the newest of a
key. See `tables`.

The entries come by ascending ids, and those blocks are read that have one of them and may match.
A message that is selected is the newest of its key unless another entry of that key is newer, and
is selected too. Of what would decide that, nothing has to be read: a kind tells all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import attrs

from mist.errors import HistoryDamaged
from mist.history.block import FewStored
from mist.history.block_cache import Blocks
from mist.history.block_store import BlockStore
from mist.history.latest.query import LatestQuery, Patterns
from mist.history.latest.tables import Kind, LatestTables
from mist.history.record import Page, Stored
from mist.history.selection import Selection
from mist.history.visibility import may_get, visible_to

__all__ = ["latest_page"]

# In one page: some 10 ms of a thread's work, and others' reads come in between.
_BLOCKS: Final = 32
_BYTES: Final = 1024 * 1024  # of blocks read
_STEP: Final = 256  # messages unpacked at a time, see `mist.history.block`
_MANY: Final = 100  # kinds of messages of a key that are compared once, and not for each page


def latest_page(
    store: BlockStore,
    blocks: Blocks,
    tables: LatestTables,
    query: LatestQuery,
    selection: Selection | None,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    *,
    packed: bool,
) -> Page:
    """See `History.latest`. A damaged block ends the page before it, or is raised."""
    most = min(limit, query.most)
    ids = tables.ids(after, upto, most)
    if not ids:
        return Page([], upto, True)
    found, place = _read(store, blocks, selection, ids, max_bytes)
    place = upto if place >= ids[-1] and len(ids) < most else min(place, upto)
    chosen = _Choice(tables, query, selection).of(found)
    if packed:
        parts = [FewStored([each]) for stored in chosen for each in _divided(stored)]
        return Page([], place, place >= upto, parts)
    return Page(chosen, place, place >= upto)


def _read(
    store: BlockStore,
    blocks: Blocks,
    selection: Selection | None,
    ids: Sequence[int],
    max_bytes: int,
) -> tuple[list[Stored], int]:
    """Those of some messages that are selected, and up to which id these are all."""
    found: list[Stored] = []
    read = size = looked_at = number = 0
    place = ids[0] - 1
    try:
        with store.snapshot():
            while number < len(ids):
                with closing(store.search(ids[number] - 1, ids[-1], selection)) as rows:
                    for row in rows:
                        head = row.head
                        low = bisect_left(ids, head.first, number)
                        number = bisect_right(ids, head.last, low)
                        if low < number:
                            block = blocks.decode(row)
                            several = block.single(selection, ids[low:number])
                            blocks.keep(row, block)
                            found += several
                            size += sum([each.size for each in several])
                            read += block.size_read
                        place = head.last
                        looked_at += 1
                        if number == len(ids):
                            return found, ids[-1]
                        if looked_at == _BLOCKS or read >= _BYTES or size >= max_bytes:
                            return found, place
                        if ids[number] > 2 * head.last - head.first:
                            break  # the next block is not needed, nor perhaps many others
                    else:
                        return found, ids[-1]
    except HistoryDamaged:
        if not found:
            raise
    return found, place


def _divided(stored: Stored) -> Iterator[Stored]:
    """The same in parts that the event loop takes at once."""
    entries, firsts = stored.entries, stored.firsts
    if len(entries) <= _STEP:
        yield stored
        return
    for start in range(0, len(entries), _STEP):
        part = slice(start, start + _STEP)
        yield attrs.evolve(stored, entries=entries[part], firsts=firsts[part])


class _Choice:
    """Which messages are the newest of a key, among those that are selected."""

    def __init__(
        self, tables: LatestTables, query: LatestQuery, selection: Selection | None
    ) -> None:
        self._tables = tables
        self._query = query
        self._patterns = Patterns([query.pattern])
        self._selection = selection
        self._attributes = query.attributes()
        self._known = query.known(selection, self._attributes)

    def of(self, found: Sequence[Stored]) -> list[Stored]:
        """Those that are."""
        attributes = self._attributes
        seen = list(found)
        if attributes is not None:
            may = [visible_to(each, attributes) for each in found]
            seen = [each for each in may if each is not None]
        keys: dict[bytes, list[bytes]] = {}
        for stored in seen:
            for tag_list, _, _ in stored.entries:
                canonical = tag_list.canonical
                if canonical not in keys:
                    keys[canonical] = self._patterns.keys(canonical.split(b","))
        newest = self._newest({key for each in keys.values() for key in each})
        chosen = []
        for stored in seen:
            pairs = zip(stored.firsts, stored.entries, strict=True)
            taken = [
                (place, 0)
                for place, (id_, (tag_list, _, _)) in enumerate(pairs)
                if any(newest[key] <= id_ for key in keys[tag_list.canonical])
            ]
            left = stored if len(taken) == len(stored.entries) else stored.keep(taken)
            if left is not None:
                chosen.append(left)
        return chosen

    def _newest(self, keys: Collection[bytes]) -> dict[bytes, int]:
        """The highest id of each key, among messages that are selected."""
        hashes = {self._tables.hash(key): key for key in keys}
        found = {key: self._known[each] for each, key in hashes.items() if each in self._known}
        counts: dict[int, int] = {}
        for entries in self._tables.of_keys([each for each in hashes if each not in self._known]):
            several: dict[int, list[tuple[int, int]]] = {}
            for key, kind, id_ in entries:
                several.setdefault(key, []).append((id_, kind))
            # Of a key that has one entry, that is the message which was found.
            alone = {key for key, each in several.items() if len(each) == 1 and key not in counts}
            kinds = self._tables.kinds(
                {kind for key, each in several.items() if key not in alone for _, kind in each}
            )
            for key, each in several.items():
                best = each[0][0] if key in alone else self._best(hashes[key], each, kinds)
                counts[key] = counts.get(key, 0) + len(each)
                found[hashes[key]] = max(found.get(hashes[key], 0), best)
        self._query.note(sum(counts.values()))
        for key, count in counts.items():
            if count >= _MANY:
                self._known[key] = found[hashes[key]]
        return {key: found.get(key, 0) for key in keys}

    def _best(self, key: bytes, entries: list[tuple[int, int]], kinds: Mapping[int, Kind]) -> int:
        """The highest id of those that are selected; 0 where none is."""
        for id_, kind in sorted(entries, reverse=True):
            if kind in kinds and self._is_selected(key, *kinds[kind]):
                return id_
        return 0

    def _is_selected(self, key: bytes, others: str, audience: str | None) -> bool:
        selection, attributes = self._selection, self._attributes
        rest = others.encode()
        if selection is not None and not (
            # Few kinds are many keys', and more tags don't match less.
            (rest and selection.matches(rest)) or selection.matches(_with(rest, key))
        ):
            return False
        if attributes is None or (audience is None and not attributes.site):
            return True
        return may_get(audience, frozenset(_with(rest, key).decode().split(",")), attributes)


def _with(rest: bytes, key: bytes) -> bytes:
    return b"%b,%b" % (rest, key) if rest else key
