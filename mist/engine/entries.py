"""What a record says, as bytes: the same for every engine.

    Messages        what a group of publishers published, as blocks without ids or times
    StagedBatch     a writer's batch, of which the parts are staged
    ForgottenKeys   idempotency keys that are too old, or too many
    Erase           what is to be erased of all that was published before
    QueueSizes      how many members queue groups have at a node; see `mist.broker.queue_shares`
    QueueLeft       a node has none any more
    Void            ids of nothing: an epoch begins, see `mist.engine.contract.Record`

Every mirror does the same with the same records, in the same order. So whether a key was known, or
a batch was stored before, is so at all nodes, and the engine has no part in it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from mist.history import Key, Mark
from mist.history.arrivals import Piece
from mist.history.commits import PackedBlock, pack_block, unpack_block
from mist.history.erasure import Erasure
from mist.history.layout import Row

__all__ = [
    "Entry",
    "Erase",
    "ForgottenKeys",
    "Messages",
    "QueueLeft",
    "QueueSizes",
    "StagedBatch",
    "Void",
    "decode",
    "encode",
]


class _Piece(msgspec.Struct, array_like=True, frozen=True):
    count: int
    name: bytes  # of the key; empty where there is none
    digest: bytes
    blocks: list[PackedBlock]


class Messages(msgspec.Struct, array_like=True, frozen=True, tag="messages"):
    """What a group of publishers published. `of` makes it, and `pieces` reads it."""

    packed: list[_Piece]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> "Messages":
        """These pieces."""
        return cls(
            [
                _Piece(
                    piece.count,
                    b"" if piece.key is None else piece.key.name,
                    b"" if piece.key is None else piece.key.digest,
                    [pack_block(row) for row in piece.rows],
                )
                for piece in pieces
            ]
        )

    def pieces(self) -> list[Piece]:
        """The pieces.

        Raises:
            ValueError: a block is damaged.
        """
        pieces = []
        for piece in self.packed:
            rows: list[Row] = []
            for block in piece.blocks:
                row = unpack_block(block)
                rows.append(row.moved(rows[-1].head.last) if rows else row)
            key = Key(piece.name, piece.digest) if piece.name else None
            pieces.append(Piece(rows, piece.count, key))
        return pieces


class StagedBatch(msgspec.Struct, array_like=True, frozen=True, tag="batch"):
    """A writer's batch.

    Attributes:
        owner, writer, batch: see `mist.history.Mark`.
        staged: the name under which its parts are staged, each as `pack_blocks` packs it.
        parts: how many; numbered from 0 on.
    """

    owner: str
    writer: str
    batch: int
    staged: str
    parts: int

    @property
    def mark(self) -> Mark:
        """Which batch it is."""
        return Mark(self.owner, self.writer, self.batch)


class ForgottenKeys(msgspec.Struct, array_like=True, frozen=True, tag="keys"):
    """Keys to forget; see `History.forget_keys`.

    Attributes:
        before: Unix seconds.
        most, most_of_owner: keys that may be kept.
    """

    before: float
    most: int
    most_of_owner: int


class Erase(msgspec.Struct, array_like=True, frozen=True, tag="erase"):
    """What is to be erased.

    Attributes:
        tags, publisher: see `mist.history.erasure.Erasure`; tags are sorted.
    """

    tags: list[str] | None
    publisher: str | None

    @classmethod
    def of(cls, erasure: Erasure) -> "Erase":
        """This one."""
        return cls(None if erasure.tags is None else sorted(erasure.tags), erasure.publisher)

    @property
    def erasure(self) -> Erasure:
        """What it says.

        Raises:
            ValueError: nothing.
        """
        return Erasure(None if self.tags is None else frozenset(self.tags), self.publisher)


class QueueSizes(msgspec.Struct, array_like=True, frozen=True, tag="queues"):
    """How many members queue groups have at a node from here on.

    Attributes:
        node: see `mist.broker.queue_shares.QueueShares`.
        sizes: queue, tag list and site of each, with the number; 0 for none any more.
    """

    node: str
    sizes: list[tuple[str, str, str, int]]


class QueueLeft(msgspec.Struct, array_like=True, frozen=True, tag="left"):
    """No queue group has a member at a node from here on, which has gone."""

    node: str


class Void(msgspec.Struct, frozen=True):
    """Ids of nothing."""


_Encoded: TypeAlias = Messages | StagedBatch | ForgottenKeys | Erase | QueueSizes | QueueLeft

Entry: TypeAlias = _Encoded | Void

_decoder: msgspec.msgpack.Decoder[_Encoded] = msgspec.msgpack.Decoder(_Encoded)

encode = msgspec.msgpack.Encoder().encode
"""An entry as the body of a record."""


def decode(body: bytes) -> Entry:
    """The entry in a record.

    Raises:
        ValueError: it is none, perhaps one of a later version.
    """
    if not body:
        return Void()
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a record is of a later version of mist, or damaged: {error}") from None
