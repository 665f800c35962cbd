"""Block layout: publications as one row of bytes.

One SQL statement for each message would starve beside a busy event loop, since each waits for
the interpreter lock. So what is queued when the writer is free becomes one block, one row, one
statement. Inside it everything that repeats is stored once:

    lists        the distinct tag lists, canonical; messages name them by number
    sections     what a publication's messages share: time, publisher, audience, meta
    runs         tag list, number of messages, bytes, id
    postings     what is derived of tags -> tag lists; see `postings`
    data         the messages' data end to end, LF behind each

A run's wire is stored without its heads, `publish a,b `, and gets them back with one `replace`
in C: a thousand messages with one tag list are a handful of operations in both directions.

Numbers stand in columns (see `columns`), the whole is one MessagePack array, which takes
further fields at its end. Its CRC is in the row beside it, since disks may return other bytes than
were written.

Where there is much data, with many tag lists, it stands behind that array, which is then called
the index:

    mark, length of the index, its CRC
    index       the array; in the place of the data, a CRC of each 4 KB of it
    data

A search that wants a few messages reads the index and those pieces of the data that it needs, and
checks what it has read. See `pieces`.

Ids in a block ascend. As appended they are consecutive; what retention leaves may have gaps.
"""

import struct
from typing import Final
from zlib import crc32

import attrs
import msgspec
from msgspec.structs import replace

from mist.errors import HistoryDamaged
from mist.history.columns import INDEXES, fixed
from mist.history.numbering import ChannelCounts
from mist.history.postings import Packed

__all__ = [
    "DIFFERS",
    "MICROSECONDS",
    "NOT_THERE",
    "PIECE",
    "PREFIX",
    "Body",
    "Column",
    "Extra",
    "Head",
    "Row",
    "checksum",
    "decode_body",
    "decode_index",
    "encode_body",
    "index_size",
]

MICROSECONDS: Final = 1_000_000  # in a second

PIECE: Final = 4_096  # bytes of data; `crc32` of more than 5 KB gives up the interpreter lock
_MUCH: Final = 16_384  # bytes of data that stand behind an index
_MANY: Final = 16  # tag lists; of fewer, most of the messages are wanted, if any
_MARK: Final = b"\xc1"  # begins no MessagePack value
_prefix: Final = struct.Struct("<cII")
PREFIX: Final = _prefix.size  # bytes

Column = tuple[str, bytes]
"""See `mist.history.columns.pack`."""

Extra = tuple[str | None, tuple[tuple[str, bytes], ...] | None]
"""Audience and meta of a publication."""


# Why a block isn't what was written, as `Head.damaged` says it.
DIFFERS: Final = "its checksum differs"
NOT_THERE: Final = "the block is listed and not there"


@attrs.frozen
class Head:
    """The head of a block: what is known without reading it.

    Attributes:
        first: its key: no id in it is lower. Does not change when retention removes messages.
        last: no id in it is higher, and none of the next block's is lower or equal.
        start: the lowest id that is in it.
        messages: how many it holds.
        oldest, newest: times of the first and the last one, microseconds.
        size: bytes it takes, its hashes included.
    """

    first: int
    last: int
    start: int
    messages: int
    oldest: int
    newest: int
    size: int

    def damaged(self, reason: str) -> HistoryDamaged:
        """What is raised where the block isn't what was written."""
        return HistoryDamaged(self.first, reason, self.last)

    def undecoded(self, error: ValueError) -> HistoryDamaged:
        """What is raised where its body can't be decoded."""
        return self.damaged(f"it can't be decoded: {error}")


@attrs.frozen
class Row:
    """A block as stored.

    Attributes:
        hashes: of every tag in it, 32 bits each, see `postings`; tells without reading `body`
            whether it may hold a tag.
        checksum: CRC-32 of hashes and body.
        tally: what it adds to its channels, where it is appended; None where that is nothing.
        numbers: of its messages in their channels, where it replaces other blocks; see
            `numbering`. None where they have none.
    """

    head: Head
    hashes: bytes
    checksum: int
    body: bytes
    tally: ChannelCounts | None = None
    numbers: bytes | None = None

    def moved(self, by: int) -> "Row":
        """The same with every id higher by `by`."""
        if not by:
            return self
        head = self.head
        first, last, start = head.first + by, head.last + by, head.start + by
        # Not by `attrs.evolve`, which takes several times as long: every append does this.
        moved = Head(first, last, start, head.messages, head.oldest, head.newest, head.size)
        return Row(moved, self.hashes, self.checksum, self.body, self.tally, self.numbers)

    def placed(self, by: int, time: int) -> "Row":
        """The same with every id and every time higher."""
        row = self.moved(by)
        head = attrs.evolve(row.head, oldest=row.head.oldest + time, newest=row.head.newest + time)
        return attrs.evolve(row, head=head)


class Body(msgspec.Struct, array_like=True, frozen=True):
    """The fields of `Row.body`, in this order. New fields go to the end, with a default."""

    lists: bytes
    publishers: list[str]
    extras: list[Extra]
    sections: int
    runs: int
    section_runs: Column
    section_times: Column  # microseconds after the head's oldest
    section_publishers: Column
    section_extras: Column
    section_framable: Column
    run_lists: Column
    run_counts: Column
    run_sizes: Column
    run_gaps: Column  # ids left out before each run
    postings: Packed
    data: bytes
    posted: bytes | None = None  # hashes that have postings; None, of a former version, is all
    checks: bytes = b""  # in an index: the CRC-32 of each piece of the data, 32 bits


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


def encode_body(body: Body) -> bytes:
    """A body as bytes."""
    data = body.data
    if len(data) < _MUCH or body.lists.count(b"\n") < _MANY:
        return _encode(body)
    view = memoryview(data)
    checks = [crc32(view[start : start + PIECE]) for start in range(0, len(data), PIECE)]
    index = _encode(replace(body, data=b"", checks=fixed(INDEXES, checks)))
    return b"".join((_prefix.pack(_MARK, len(index), crc32(index)), index, data))


def decode_body(body: bytes) -> Body:
    """What `encode_body` encoded.

    Raises:
        ValueError: it is something else.
    """
    size = index_size(body)
    if size is None:
        return _decoded(body)
    return replace(decode_index(body[: PREFIX + size]), data=body[PREFIX + size :])


def index_size(body: bytes) -> int | None:
    """Bytes of the index of a body, by its first `PREFIX` bytes; None where it has none."""
    if body[:1] != _MARK or len(body) < PREFIX:
        return None
    _, size, _ = _prefix.unpack_from(body)
    return int(size)


def decode_index(index: bytes) -> Body:
    """An index with the prefix before it, as a body without its data.

    Raises:
        ValueError: it is something else, or damaged.
    """
    _, size, check = _prefix.unpack_from(index)
    encoded = memoryview(index)[PREFIX:]
    if len(encoded) != size or crc32(encoded) != check:
        raise ValueError("the checksum of its index differs")
    return _decoded(encoded)


def _decoded(encoded: bytes | memoryview) -> Body:
    try:
        return _decode(encoded)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def checksum(hashes: bytes, body: bytes) -> int:
    """The CRC-32 for `Row.checksum`."""
    return crc32(body, crc32(hashes))
