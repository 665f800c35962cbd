"""An archive that is made to be measured: messages as a server would have sealed them.

Tags are drawn evenly from a vocabulary, 3 to 10 a message, so that hardly two messages have the
same list: the hardest case for everything that could be remembered. Data is 100 random letters.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from mist.archive import Archive
from mist.archive.schema import MESSAGES
from mist.archive.segments import write_segment

__all__ = ["DATA", "make_archive", "make_subscriptions"]

DATA: Final = 100  # bytes of a message
_BEGIN: Final = 1_795_219_200_000_000  # a midnight, in microseconds
_DAY: Final = 86_400_000_000  # microseconds
_FEWEST, _MOST = 3, 10  # tags of a message


def make_archive(folder: Path, messages: int, segments: int, vocabulary: int) -> Archive:
    """An archive of one day's messages, in segments of the same size.

    Args:
        messages: a multiple of `segments`.
    """
    archive = Archive.create(folder)
    random = np.random.default_rng(1)
    size = messages // segments
    words = _words(vocabulary)
    made = []
    for first in range(1, messages, size):
        rows = _rows(random, words, first, size, _DAY // (messages + 1))
        made.append(write_segment(archive.messages, rows, MESSAGES, first, first + size - 1))
    archive.messages.change(lambda manifest: manifest.plus(*made))
    return archive


def make_subscriptions(count: int, vocabulary: int) -> pa.Array:
    """So many distinct subscriptions of 1 to 4 tags."""
    random = np.random.default_rng(2)
    words = [str(word) for word in _words(vocabulary)]
    return pa.array(list(_distinct(random, words, count)), pa.string())


def _distinct(random: np.random.Generator, words: list[str], count: int) -> Iterator[str]:
    known: set[str] = set()
    while len(known) < count:
        size = int(random.integers(1, 5))
        text = ",".join(sorted({words[n] for n in random.integers(0, len(words), size)}))
        if text not in known:
            known.add(text)
            yield text


def _words(vocabulary: int) -> "list[str]":
    return [f"tag{n:06}" for n in range(vocabulary)]


def _rows(
    random: np.random.Generator, words: list[str], first: int, count: int, step: int
) -> pa.Table:
    lengths = random.integers(_FEWEST, _MOST + 1, count)
    drawn = random.integers(0, len(words), lengths.sum())
    # Sorted, and a tag that was drawn twice once, as the server has them.
    keys = np.unique(np.repeat(np.arange(count), lengths) * len(words) + drawn)
    numbers, codes = np.divmod(keys, len(words))
    starts = np.searchsorted(numbers, np.arange(count + 1)).astype(np.int32)
    tags = pa.ListArray.from_arrays(
        pa.array(starts), pa.array(words).take(pa.array(codes)), type=MESSAGES.field("tags").type
    )
    letters = random.integers(97, 123, count * DATA, np.uint8)
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(DATA)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(letters)]
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids),
            "time": pa.array(_BEGIN + ids * step).cast(MESSAGES.field("time").type),
            "tags": tags,
            "data": pa.Array.from_buffers(pa.binary(), count, buffers),
            "publisher": pa.array(["service"] * count),
            "audience": pa.nulls(count, pa.string()),
            "meta": pa.nulls(count, MESSAGES.field("meta").type),
        },
        schema=MESSAGES,
    )
