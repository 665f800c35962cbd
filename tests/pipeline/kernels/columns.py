"""Columns of tags in each form that an archive or Spark hands them over."""

from collections.abc import Collection, Sequence

import pyarrow as pa
from hypothesis import strategies as st

TAGS = st.sampled_from(["a", "b", "c", "d", "e", "ab", "ä", "z:1"])
TEXTS = pa.list_(pa.field("element", pa.string()))
NUMBERS = pa.list_(pa.field("element", pa.dictionary(pa.int32(), pa.string())))

messages = st.lists(st.sets(TAGS, max_size=6), max_size=40)
subscriptions = st.sets(st.frozensets(TAGS, min_size=1, max_size=4), min_size=1, max_size=30)


def column(rows: Sequence[Collection[str]], kind: pa.DataType = TEXTS) -> pa.Array:
    """Rows of tags; in order where they come as sets, else as they are."""
    lists = [sorted(row) if isinstance(row, set | frozenset) else list(row) for row in rows]
    if kind == TEXTS:
        return pa.array(lists, TEXTS)
    texts = pa.array(lists, TEXTS)
    return pa.ListArray.from_arrays(texts.offsets, texts.values.dictionary_encode(), type=NUMBERS)


def written(tags: Collection[str]) -> str:
    """The canonical text of a subscription."""
    return ",".join(sorted(tags))
