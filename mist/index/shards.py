"""Sharded dicts: many small ones in the place of a large one, so that no insertion pauses.

A dict that is full is copied into a larger one within a single insertion: 60 ms at a million
keys, and growing with them, during which a server does nothing else. And one that is emptied from
its front is walked through from there each time, over all that is gone: 45 s of CPU for a million
keys. A shard's copy, or walk, takes a 256th of that.

Where the lookup is hot, it is written out; the key's hash tells the shard:

    table[hash(key) & MASK].get(key)

Where it isn't, and where mostly there are few keys, take a `ShardedDict`.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = ["MASK", "ShardedDict", "Table", "make_table"]

K = TypeVar("K")
V = TypeVar("V")

MASK: Final = 255  # one less than the number of shards, which is a power of two
_FLAT: Final = 1_024  # keys in one dict; to shard them takes 0.2 to 0.8 ms, and one step may do 3

Table: TypeAlias = list[dict[K, V]]


def make_table() -> Table[K, V]:
    """Empty shards."""
    return [{} for _ in range(MASK + 1)]


class ShardedDict(Generic[K, V]):
    """A dict that is sharded once it is large.

    Iteration gives the keys: in the order added while they are few, in no order that matters
    once they are sharded.
    """

    __slots__ = ("_length", "_shards")

    def __init__(self) -> None:
        self._shards: Table[K, V] = [{}]
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def __contains__(self, key: object) -> bool:
        return key in self._shard(key)

    def __getitem__(self, key: K) -> V:
        return self._shard(key)[key]

    def __setitem__(self, key: K, value: V) -> None:
        shard = self._shard(key)
        before = len(shard)
        shard[key] = value
        self._length += len(shard) - before
        if self._length > _FLAT and len(self._shards) == 1:
            self._split()

    def __delitem__(self, key: K) -> None:
        shard = self._shard(key)
        del shard[key]
        self._length -= 1
        if not shard:
            shard.clear()  # which gives the table back, that else is walked through still

    def get(self, key: K) -> V | None:
        """The value of a key; None where there is none."""
        return self._shard(key).get(key)

    def pop(self, key: K) -> V | None:
        """Take out a key with its value; None where there is none."""
        shard = self._shard(key)
        before = len(shard)
        value = shard.pop(key, None)
        self._length += len(shard) - before
        if not shard:
            shard.clear()
        return value

    def values(self) -> Iterator[V]:
        """The values, in the order of their keys."""
        for shard in self._shards:
            yield from shard.values()

    def slices(self) -> Iterator[list[K]]:
        """All keys, some thousand at a time, between which others may come and go.

        What comes or goes meanwhile may be among them or not.
        """
        for shard in self._shards:
            if shard:
                yield list(shard)

    def _shard(self, key: object) -> dict[K, V]:
        shards = self._shards
        return shards[0] if len(shards) == 1 else shards[_place(key)]

    def _split(self) -> None:
        shards: Table[K, V] = make_table()
        for key, value in self._shards[0].items():
            shards[_place(key)][key] = value
        self._shards = shards


def _place(key: object) -> int:
    number = hash(key)
    return (number ^ number >> 8) & MASK  # addresses of one kind share their last bits
