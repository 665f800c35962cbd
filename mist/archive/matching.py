"""Which rows carry all tags of one of some tag sets: a subscription's rule over a column."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.message import TagSet

__all__ = ["matching"]

_WORD: Final = 64  # tags that one word tells apart


def matching(tags: pa.Array, alternatives: Collection[TagSet]) -> Any:
    """Which rows of a column of tags are wanted by one of the alternatives.

    Every distinct tag of the alternatives is a bit; the bits of a row's tags are joined, and
    an alternative matches where all of its bits are there. O(tags of all rows), and O(hits)
    for what comes after the lookup.

    Args:
        tags: list<string> or large_list<string>, the strings perhaps dictionary encoded. No
            matter in which order, nor how often a tag stands in a row. A null row matches
            nothing.
        alternatives: empty wants everything.

    Returns:
        A numpy array of bool, one a row; None where all are wanted because nothing was asked.
    """
    if not alternatives:
        return None
    wanted = sorted(frozenset[str]().union(*alternatives))
    codes, rows = _hits(tags, wanted)
    words = _words(codes, rows, len(tags), -(-len(wanted) // _WORD))
    number = {tag: n for n, tag in enumerate(wanted)}
    found = np.zeros(len(tags), bool)
    for alternative in alternatives:
        found |= _has_all(words, [number[tag] for tag in alternative])
    return found


def _hits(tags: pa.Array, wanted: list[str]) -> tuple[Any, Any]:
    # For each tag that is one of the wanted: which one, and in which row; rows ascending.
    values = tags.flatten()  # honours slices, and leaves out what a null row may hide
    if pa.types.is_dictionary(values.type):
        places = pc.index_in(values.dictionary, pa.array(wanted, values.type.value_type))
        codes = pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
        codes = codes[values.indices.to_numpy(zero_copy_only=False)] if len(codes) else codes
    else:
        places = pc.index_in(values, pa.array(wanted, values.type))
        codes = pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
    lengths = pc.fill_null(pc.list_value_length(tags), 0).to_numpy(zero_copy_only=False)
    hit = np.flatnonzero(codes >= 0)
    rows = np.searchsorted(np.cumsum(lengths), hit, side="right")
    return codes[hit], rows


def _words(codes: Any, rows: Any, count: int, width: int) -> list[Any]:
    # For each word, the bits of each row. Hits stand by row, so one reduceat joins them.
    words = []
    for n in range(width):
        word = np.zeros(count, np.uint64)
        mine = codes // _WORD == n
        bits = np.left_shift(np.uint64(1), (codes[mine] % _WORD).astype(np.uint64))
        where = rows[mine]
        if len(where):
            starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
            word[where[starts]] = np.bitwise_or.reduceat(bits, starts)
        words.append(word)
    return words


def _has_all(words: list[Any], numbers: list[int]) -> Any:
    masks: dict[int, int] = {}
    for number in numbers:
        masks[number // _WORD] = masks.get(number // _WORD, 0) | 1 << number % _WORD
    parts = [words[n] & np.uint64(mask) == np.uint64(mask) for n, mask in masks.items()]
    return np.logical_and.reduce(parts)
