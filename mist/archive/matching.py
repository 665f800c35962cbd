"""Matching over columns: which rows carry all tags of one of some tag sets."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.addresses import EVERYTHING, compile_asked, is_derived
from mist.archive.derived import find_derived
from mist.message import TagSet

__all__ = ["carrying", "matching"]

_WORD: Final = 64  # tags, one bit each, in a word


def matching(tags: pa.Array, alternatives: Collection[TagSet]) -> Any:
    """Which rows of a column of tags match one of the alternatives.

    Args:
        tags: see `carrying`.
        alternatives: as subscriptions name them; empty matches everything.

            {/foo}      matches rows with /foo, and with /foo/bar
            {=/foo}     those with /foo alone
            {.a.*}      those with .a.b
            {*}         all, also one without tags

    Returns:
        A numpy array of bool, one a row; None where all match because there is no alternative.
    """
    if not alternatives:
        return None
    if EVERYTHING in alternatives:
        return np.ones(len(tags), bool)
    return carrying(tags, list(map(compile_asked, alternatives)))


def carrying(tags: pa.Array, alternatives: Collection[TagSet]) -> Any:
    """Which rows of a column of tags carry all of one of the alternatives.

    Every distinct tag of the alternatives is a bit; the bits of a row's tags are joined, and
    an alternative matches where all of its bits are there. O(tags of all rows), and O(hits)
    for what comes after the lookup. Tags are derived from each distinct address once,
    and only where the alternatives have derived tags.

    Args:
        tags: list<string> or large_list<string>, the strings perhaps dictionary encoded; as
            published. No matter in which order, nor how often a tag stands in a row. A null
            row matches nothing.
        alternatives: compiled: `/foo` is that topic alone, `../foo` all below it, too. At least
            one, none empty.

    Returns:
        A numpy array of bool, one a row.
    """
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
    derives = any(map(is_derived, wanted))
    if derives and not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    lengths = pc.fill_null(pc.list_value_length(tags), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    derived = None
    if pa.types.is_dictionary(values.type):
        names, indices = values.dictionary, values.indices
        codes = _places(names, wanted)
        if indices.null_count:  # a tag that is null is one more, which nobody wants
            indices = indices.cast(pa.int64()).fill_null(len(names))
            names, codes = pa.concat_arrays([names, pa.nulls(1, names.type)]), np.append(codes, -1)
        indices = indices.to_numpy()
        if derives:
            number = {tag: n for n, tag in enumerate(wanted)}
            derived = find_derived(
                names, codes, lambda tags: np.array([number.get(tag, -1) for tag in tags], np.int64)
            )
            if derived is not None:
                hit = np.flatnonzero(derived.counts[indices])
                found, counts = derived.spread(indices[hit])
                return found, np.repeat(np.searchsorted(ends, hit, side="right"), counts)
        codes = codes[indices] if len(codes) else codes
    else:
        codes = _places(values, wanted)
    hit = np.flatnonzero(codes >= 0)
    return codes[hit], np.searchsorted(ends, hit, side="right")


def _places(values: pa.Array, wanted: list[str]) -> Any:
    # For each text its place in `wanted`, -1 where it isn't there.
    places = pc.index_in(values, pa.array(wanted, values.type))
    return pc.fill_null(places, -1).to_numpy(zero_copy_only=False)


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
