"""The rows that an erasure removes, batch by batch."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.archive.matching import carrying
from mist.history.erasing import Erasure

__all__ = ["columns_for", "doomed"]

_ALONE: Final = "(^|,)=/"


def columns_for(erasure: Erasure, names: Sequence[str]) -> list[str]:
    """Those of a table's columns that tell which rows are to go.

    Of messages (they have `data`) `tags` and `publisher`; of accounts `subscription`, which
    has to have all the tags, and `token`, the one that published. Tags are those published: an
    erasure of `/foo` takes what is on that topic, and nothing below it.

    Args:
        names: of all its columns.

    Raises:
        KeyError: one that would tell isn't there.
    """
    messages = "data" in names
    wanted = []
    if erasure.tags is not None:
        wanted.append("tags" if messages else "subscription")
    if erasure.publisher is not None:
        wanted.append("publisher" if messages else "token")
    for name in wanted:
        if name not in names:
            raise KeyError(name)
    return wanted


def doomed(erasure: Erasure, batch: pa.RecordBatch) -> Any:
    """The rows of a batch that are to go, as a numpy array of bool.

    Args:
        batch: of the columns that `columns_for` named, and no others.
    """
    found = np.ones(len(batch), bool)
    for name in batch.schema.names:
        found &= _judged(erasure, name, batch.column(name))
    return found


def _judged(erasure: Erasure, name: str, column: pa.Array) -> Any:
    if name == "tags":
        assert erasure.tags is not None
        return carrying(column, (erasure.tags,))
    if name == "subscription":
        assert erasure.tags is not None
        # A topic may be asked for with what is below it, or alone: both tell of it.
        asked = pc.replace_substring_regex(column, _ALONE, r"\1/")
        return carrying(pc.split_pattern(asked, ","), (erasure.tags,))
    same = pc.fill_null(pc.equal(column, erasure.publisher), False)
    return same.to_numpy(zero_copy_only=False)
