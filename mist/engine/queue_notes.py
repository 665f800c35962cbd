"""How many members queue groups have at each node, as notes of a mirror.

Records of the log say it, so it is the same at all mirrors at the same place, and goes with
checkpoints; see `mist.broker.queue_shares`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from mist.broker.queue_shares import QueueKey
from mist.engine.entries import QueueLeft, QueueSizes

__all__ = ["noted", "sizes_of"]

_encode: Final = msgspec.msgpack.Encoder().encode
_name: Final = msgspec.msgpack.Decoder(tuple[str, str, str, str]).decode
_size: Final = msgspec.msgpack.Decoder(int).decode


def noted(
    entry: QueueSizes | QueueLeft, notes: Mapping[bytes, bytes]
) -> Mapping[bytes, bytes | None]:
    """What an entry changes.

    Args:
        notes: those that there are.
    """
    if isinstance(entry, QueueLeft):
        return {name: None for name in notes if _name(name)[0] == entry.node}
    return {
        _encode((entry.node, *key)): _encode(size) if size else None for *key, size in entry.sizes
    }


def sizes_of(notes: Mapping[bytes, bytes]) -> dict[str, dict[QueueKey, int]]:
    """The members of each queue group, by node.

    Raises:
        ValueError: the notes are damaged.
    """
    sizes: dict[str, dict[QueueKey, int]] = {}
    for name, value in notes.items():
        try:
            node, *key = _name(name)
            sizes.setdefault(node, {})[QueueKey(*key)] = _size(value)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
    return sizes
