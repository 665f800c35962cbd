"""Commits: batches that are stored exactly once, from writers that may retry.

A writer such as a Spark query numbers its batches, and each must be in the log once, whatever
crashes on the way. So the number of a batch is stored in the same transaction; a batch whose
number is not higher was stored before, and is ignored. The number of the last batch is all that
has to be kept of a writer. Unlike a publication's key (see `idempotency`) it does not expire; but
an owner has a bounded number of writers, and the one idle for longest is forgotten first.

    Mark        identifies a batch
    Commit      the result of a writer's last batch
    Bulk        the messages of a batch, encoded as blocks before their ids are known
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final

import attrs
import msgspec

from mist.history.encoding import encode, with_channel_counts
from mist.history.layout import DIFFERS, Head, Row, checksum
from mist.history.record import Publication
from mist.wire import Batch, Run, record, split_run

__all__ = [
    "MAX_WRITERS",
    "Bulk",
    "Commit",
    "Mark",
    "PackedBlock",
    "make_blocks",
    "pack_block",
    "pack_blocks",
    "place_bulk",
    "unpack_block",
    "unpack_blocks",
]

MAX_WRITERS: Final = 10_000  # of an owner, of which the last batch is known

_BLOCK_MESSAGES: Final = 2_500  # so few that the event loop can fan them out in a turn or two
_BLOCK_BYTES: Final = 256 * 1024


@attrs.frozen
class Mark:
    """The identity of a batch.

    Attributes:
        owner: the writer's owner, as in `Publication.publisher`: no other can use its numbers.
        writer: its name.
        batch: number of the batch; ascending for each writer.
    """

    owner: str
    writer: str
    batch: int


@attrs.frozen
class Commit:
    """The result of a writer's last batch.

    Attributes:
        batch: its number.
        first, last: ids of its first and last message; 0 where it had none.
        count: its messages.
        time: when it was stored, microseconds.
    """

    batch: int
    first: int
    last: int
    count: int
    time: int


@attrs.frozen
class Bulk:
    """The messages of a batch.

    Attributes:
        blocks: called in a thread, perhaps several times; returns the blocks as `make_blocks` makes
            them. What it raises ends the commit, with nothing stored, and is passed on.
        count: how many messages they hold.
    """

    blocks: Callable[[], Iterable[Row]]
    count: int


def make_blocks(publications: Iterable[Publication]) -> list[Row]:
    """Encode publications as small blocks, in each of which ids begin at 1 and time is 0.

    `Row.placed` gives them their ids and time in a log.
    """
    rows: list[Row] = []
    block: list[tuple[Publication, Run]] = []
    count = size = 0
    for publication in publications:
        for run in _cut_long(publication.batch.runs):
            if block and (count + run[2] > _BLOCK_MESSAGES or size + len(run[1]) > _BLOCK_BYTES):
                rows.append(_make_block(block))
                block, count, size = [], 0, 0
            block.append((publication, run))
            count += run[2]
            size += len(run[1])
    if block:
        rows.append(_make_block(block))
    return rows


def _cut_long(runs: Iterable[Run]) -> Iterable[Run]:
    """The same runs, split into single messages where one exceeds a block."""
    for run in runs:
        tag_list, wire, count = run
        if count == 1 or (count <= _BLOCK_MESSAGES and len(wire) <= _BLOCK_BYTES):
            yield run
            continue
        for data in split_run(tag_list, wire, count):
            yield tag_list, record(tag_list, data), 1


def _make_block(block: Iterable[tuple[Publication, Run]]) -> Row:
    pieces: list[Publication] = []
    for _, items in groupby(block, key=lambda item: id(item[0])):
        group = list(items)
        publication = group[0][0]
        batch = Batch.of_runs([run for _, run in group], framable=publication.batch.framable)
        pieces.append(attrs.evolve(publication, batch=batch))
    return encode(pieces, [0] * len(pieces))


def place_bulk(bulk: Bulk, newest: int, moment: int, heads: list[Head]) -> Iterator[Row]:
    """The blocks of a batch with their ids and time, behind the id `newest`.

    Args:
        heads: emptied; the heads of the blocks are added to it.

    Raises:
        ValueError: they hold another number of messages than the batch says, or can't be read.
    """
    heads.clear()
    end = newest + bulk.count
    for row in bulk.blocks():
        placed = with_channel_counts(row).placed(newest, moment)
        newest = placed.head.last
        heads.append(placed.head)
        yield placed
    if newest != end:
        raise ValueError("another number of messages than was said")


PackedBlock = tuple[int, bytes, int, bytes]
"""A block without ids and times: its messages, hashes, checksum and body."""

_decode: Final = msgspec.msgpack.Decoder(list[PackedBlock]).decode


def pack_block(row: Row) -> PackedBlock:
    """A block that was encoded without ids and times."""
    return row.head.messages, row.hashes, row.checksum, row.body


def unpack_block(packed: PackedBlock) -> Row:
    """What `pack_block` packed; its ids begin at 1.

    Raises:
        ValueError: it is damaged.
    """
    messages, hashes, check, body = packed
    if messages < 1 or checksum(hashes, body) != check:
        raise ValueError(DIFFERS)
    size = len(hashes) + len(body)
    return Row(Head(1, messages, 1, messages, 0, 0, size), hashes, check, body)


def pack_blocks(rows: Iterable[Row]) -> bytes:
    """What `make_blocks` made, as bytes."""
    return msgspec.msgpack.encode([pack_block(row) for row in rows])


def unpack_blocks(packed: bytes | memoryview) -> list[Row]:
    """What `pack_blocks` packed.

    Raises:
        ValueError: it is something else, or damaged.
    """
    try:
        blocks = _decode(packed)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    return [unpack_block(block) for block in blocks]
