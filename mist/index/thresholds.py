"""When one shape of the index gives way to the next."""

import attrs

__all__ = ["Thresholds"]


@attrs.frozen
class Thresholds:
    """When one shape gives way to the next. Tests shrink them to reach every path.

    Attributes:
        leaf: entries in a list under the root, or below a full chunk, before it is a node. To
            compare an entry is two misses of the processor's caches, and a node that has
            nothing for a message three: 700,000 sets over 100,000 tags take 28 µs p50 at
            lists of 8, 22 at 4, 20 at 2, and no more memory.
        light: entries under one tag of a node before the tag turns heavy.
        capacity: slots in a chunk; a power of two, at least 64. Going down costs a visit to
            every child a message has a tag of, so where it has many, wide chunks win: 300,000
            sets of 5 tags out of 64, messages of 32, take 8.1 ms at 16,384, 3.6 at 65,536.
        area: slots x postings in a chunk, in bits.
        lookup: slots x tags of a message gone through in the time it takes to look up one
            subset of them. At 100,000 entries it is about 4,100, as more of the table is in
            the processor's caches, at a million 8,000 to 10,000.
        near: nodes whose tags' strings are all in the processor's caches, as good as always.
            With more, a match looks its tags up in a node rather than the node's in them.
        filtered: entries from which there is a `PairFilter`; fewer are in these caches, too.
    """

    leaf: int = 2
    light: int = 4
    capacity: int = 65_536
    area: int = 1 << 23  # 1 MiB
    lookup: int = 7168
    near: int = 20_000
    filtered: int = 4_096
