"""Sharded dicts: many small ones in the place of a large one, so that no insertion pauses.

A dict that is full is copied into a larger one within a single insertion: 60 ms at a million
keys, and growing with them, during which a server does nothing else. A shard's copy takes a
256th of that. The key's hash tells the shard; where the lookup is hot, it is written out:

    table[hash(key) & MASK].get(key)
"""

from typing import Final, TypeAlias, TypeVar

__all__ = ["MASK", "Table", "make_table"]

K = TypeVar("K")
V = TypeVar("V")

MASK: Final = 255  # one less than the number of shards, which is a power of two

Table: TypeAlias = list[dict[K, V]]


def make_table() -> Table[K, V]:
    """Empty shards."""
    return [{} for _ in range(MASK + 1)]
