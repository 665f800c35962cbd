"""What messages are as rows, said as plainly as it can be: what the archive's own way, which
never looks at one message, is held against."""

from collections.abc import Iterable

import pyarrow as pa

from mist.archive.schema import MESSAGES
from mist.history import Stored

__all__ = ["to_batch"]


def to_batch(stored: Iterable[Stored]) -> pa.RecordBatch:
    """Rows of `MESSAGES`, in the order given."""
    rows = [
        {
            "id": message.id,
            "time": round(message.time * 1_000_000),
            "tags": sorted(message.tags),
            "data": message.data,
            "publisher": message.publisher,
            "audience": message.audience,
            "meta": None if message.meta is None else list(message.meta.items()),
        }
        for each in stored
        for message in each.messages()
    ]
    return pa.RecordBatch.from_pylist(rows, MESSAGES)
