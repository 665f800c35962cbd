"""Targeted delivery of archived rows: which of them a session may get, by their audience.

What `mist.history.visibility` does for single messages, for columns.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.attribute_index import is_global, reaches
from mist.errors import InvalidAudience

__all__ = ["visible_rows"]


def visible_rows(audience: pa.Array, tags: pa.Array, attributes: Attributes) -> Any:
    """Which rows a session with these attributes may get.

    Each distinct audience is evaluated once. O(rows), and O(1) where no row has an audience and no
    site is given. An audience that can't be parsed admits nobody.

    Args:
        audience: string, perhaps dictionary encoded; null is everyone.
        tags: of the same rows, list<string>, the strings perhaps dictionary encoded.

    Returns:
        A numpy array of bool, one a row; None where it is all of them.
    """
    if audience.null_count == len(audience) and not attributes.site:
        return None
    if not pa.types.is_dictionary(audience.type):
        audience = audience.dictionary_encode()
    texts = [*audience.dictionary.to_pylist(), None]
    codes = pc.fill_null(audience.indices.cast(pa.int64()), len(texts) - 1).to_numpy()
    here, everywhere = np.array([_verdicts(text, attributes) for text in texts]).T
    found = here[codes]
    if (here != everywhere)[codes].any():
        found = np.where(_are_global(tags), everywhere[codes], found)
    return None if found.all() else found


def _verdicts(text: str | None, attributes: Attributes) -> tuple[bool, bool]:
    """Whether an audience admits the session, for a message of one site, and of every site."""
    try:
        audience = None if text is None else Audience.parse(text)
    except InvalidAudience:
        return False, False
    here = reaches(audience, attributes, False)
    # The two differ only where sites are named, and most audiences name none.
    if not attributes.site and (audience is None or not audience.others):
        return here, here
    return here, reaches(audience, attributes, True)


def _are_global(tags: pa.Array) -> Any:
    """Which rows are messages for every site."""
    values = tags.flatten()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    names, indices = values.dictionary, values.indices
    marked = np.zeros(len(names) + 1, bool)  # the last one is null's
    topics = pc.indices_nonzero(pc.starts_with(names, "/"))
    for place, name in zip(topics.to_pylist(), names.take(topics).to_pylist(), strict=True):
        marked[place] = is_global(frozenset((name,)))
    codes = pc.fill_null(indices.cast(pa.int64()), len(names)).to_numpy(zero_copy_only=False)
    lengths = pc.fill_null(pc.list_value_length(tags), 0).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(marked[codes])])
    ends = np.cumsum(lengths)
    return before[ends] > before[ends - lengths]
