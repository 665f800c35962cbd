"""Search: which blocks may hold a match, found by SQLite itself in a few statements.

Indexed blocks are found through their `directory`; the others, the newest few, by the hashes in
their rows.
"""

import heapq
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_

from mist.errors import HistoryDamaged
from mist.history.columns import MASKS, unpack_all
from mist.history.postings import part_of
from mist.history.sqlite.database import translated
from mist.history.sqlite.directory import mask_of, set_bits
from mist.history.sqlite.rows import fetch

__all__ = ["condition", "find", "settled"]


def settled(connection: sqlite3.Connection) -> int:
    """Blocks up to this id are in the directory."""
    ((last,),) = fetch(connection, "SELECT coalesce(max(last), 0) FROM segment")
    return int(last)


def condition(lookups: Sequence[Collection[int]] | None) -> tuple[str, list[bytes]]:
    """A condition on the hashes of a block that is true for every match, with few false positives.

    `instr` also finds four bytes that straddle two hashes; a false positive costs reading the
    block.

    Args:
        lookups: see `Selection`; None is no condition.
    """
    if lookups is None:
        return "TRUE", []
    parameters = [_bytes(wanted) for lookup in lookups for wanted in lookup]
    alternatives = [" AND ".join(["instr(hashes, ?)"] * len(lookup)) for lookup in lookups]
    return f"({' OR '.join(alternatives)})", parameters


def _bytes(wanted: int) -> bytes:
    return wanted.to_bytes(4, "little")


def find(
    connection: sqlite3.Connection,
    lookups: Sequence[Collection[int]],
    after: int,
    upto: int,
    *,
    descending: bool,
) -> Iterator[list[int]]:
    """Keys of the blocks in the directory that may match: of one segment after the other."""
    found = [_masks(connection, lookup, after, upto, descending=descending) for lookup in lookups]
    merged = heapq.merge(*found, key=itemgetter(0), reverse=descending)
    try:
        for segment, masks in groupby(merged, key=itemgetter(0)):
            mask = reduce(or_, [each for _, each in masks])
            blocks = _blocks(connection, segment, mask, after, upto)
            yield blocks[::-1] if descending else blocks
    except (ValueError, IndexError) as error:
        raise HistoryDamaged(0, f"its directory can't be read: {error}") from error


def _blocks(
    connection: sqlite3.Connection, segment: int, mask: int, after: int, upto: int
) -> list[int]:
    """Keys of a segment's blocks that are in `mask` and have ids in `(after, upto]`."""
    ((packed, last),) = fetch(
        connection, "SELECT blocks, last FROM segment WHERE first = ?", (segment,)
    )
    firsts = [*unpack_all(MASKS, packed), last + 1]
    # A block ends where the next begins, or before.
    return [
        firsts[number]
        for number in set_bits(mask)
        if firsts[number] <= upto and firsts[number + 1] > after + 1
    ]


def _masks(
    connection: sqlite3.Connection,
    lookup: Collection[int],
    after: int,
    upto: int,
    *,
    descending: bool,
) -> Iterator[tuple[int, int]]:
    """Segments in which some block may have all tags of `lookup`, and which blocks."""
    others = "".join(
        f" JOIN directory d{n} ON d{n}.part = ? AND d{n}.segment = d0.segment "
        f"AND instr(d{n}.hashes, ?)"
        for n in range(1, len(lookup))
    )
    columns = ", ".join(f"d{n}.hashes, d{n}.ends" for n in range(len(lookup)))
    statement = (
        f"SELECT d0.segment, {columns} FROM directory d0{others} WHERE d0.part = ? "  # noqa: S608
        "AND d0.segment >= coalesce((SELECT max(first) FROM segment WHERE first <= ?), 0) "
        "AND d0.segment <= ? AND instr(d0.hashes, ?) "
        f"ORDER BY d0.segment{' DESC' if descending else ''}"
    )
    first, *rest = lookup
    parameters: list[object] = []
    for wanted in rest:
        parameters += [part_of(wanted), _bytes(wanted)]
    parameters += [part_of(first), after + 1, upto, _bytes(first)]
    with translated(), closing(connection.execute(statement, parameters)) as cursor:
        for segment, *parts in cursor:
            mask = -1
            for wanted, hashes, ends in zip(lookup, parts[::2], parts[1::2], strict=True):
                mask &= mask_of(wanted, hashes, ends)
            if mask:
                yield segment, mask
