"""The bitmap chunk: thousands of tag sets tested at once, a machine word of them at a time.

A chunk holds entries in numbered *slots*, and for each tag a *posting*: one bit per slot, set
where the slot's entry has the tag. Whether all of a slot's tags are in a message is counted,
not searched. Each slot starts with the number of tags it misses, written in binary across
*planes*, plane i holding bit i of every slot's number:

    slot       0       1       2      3
    tags     {a,b}    {a}   {a,c,d}  free
    misses     2       1       3       1     <- a free slot misses a tag no message has
    plane 0    0       1       1       1
    plane 1    1       0       1       0

For each tag the message shares with the chunk, its posting is subtracted from all numbers at
once, by the borrow rule of school: flip the lowest plane where the posting is set; wherever
that made a 1 out of a 0, borrow from the plane above. What stands at zero at the end misses
nothing: a hit. With {a,b}: slots 0 and 1 fall to zero, slot 2 to two, slot 3 stays.

The cost is O(shared tags x planes x capacity/64), no matter how many candidates or hits.
Planes number log2 of the longest entry, three for up to 7 tags.

Refused: Python ints as bitmaps. They need no growing and no copying, and read shorter, but an
operation allocates its result: 46 ns against 28 at 128 bits, 119 against 60 at 8192.
Refused: giving slots back one by one. A chunk keeps what its fullest moment needed, some 60
bytes a slot, until its last entry goes; renumbering would make one `remove` pay for many.
"""

from typing import Generic, TypeVar

from bitarray import bitarray
from bitarray.util import ones, zeros

__all__ = ["Chunk"]

G = TypeVar("G")

_FIRST_CAPACITY = 64  # slots: one machine word


class Chunk(Generic[G]):
    """Entries by slot, and the bitmaps over them.

    Attributes:
        postings: tag -> one bit per slot; length `capacity`. Never all zero.
        planes: bit i of how many tags each slot misses; length `capacity` each.
        slots: the group in each slot; None where it was freed. Slots from `len(slots)` on
            were never used.
        free: numbers of freed slots, to be used first.
    """

    __slots__ = ("free", "planes", "postings", "slots")

    def __init__(self) -> None:
        self.postings: dict[str, bitarray] = {}
        self.planes = [ones(_FIRST_CAPACITY), zeros(_FIRST_CAPACITY), zeros(_FIRST_CAPACITY)]
        self.slots: list[G | None] = []
        self.free: list[int] = []

    def __len__(self) -> int:
        return len(self.slots) - len(self.free)

    @property
    def capacity(self) -> int:
        return len(self.planes[0])

    def has_room(self, tags: int, max_capacity: int, max_area: int) -> bool:
        """Whether an entry with `tags` tags may still go in. O(1).

        Args:
            max_capacity: slots. Bounds what one subtraction costs.
            max_area: slots x postings, in bits. Bounds the memory, and the pause when all
                postings grow. Wide or long, but not both.
        """
        capacity = self.capacity
        if not self.free and len(self.slots) == capacity:
            capacity *= 2
        return capacity <= max_capacity and capacity * (len(self.postings) + tags) <= max_area

    def insert(self, group: G, tags: list[str]) -> int:
        """Put `group` into a slot, to be a hit where all of `tags` are. Returns the slot.

        `tags` may leave out those that every message coming here is known to have, but not
        all of them. O(len(tags) + planes), and O(postings x capacity/64) when it grows.
        """
        slots = self.slots
        if self.free:
            slot = self.free.pop()
            slots[slot] = group
        else:
            slot = len(slots)
            if slot == self.capacity:
                self._grow()
            slots.append(group)
        postings = self.postings
        for tag in tags:
            posting = postings.get(tag)
            if posting is None:
                posting = postings[tag] = zeros(self.capacity)
            posting[slot] = 1
        missing = len(tags)
        while missing >> len(self.planes):
            # Free slots may stay zero here: they have their 1 in plane 0.
            self.planes.append(zeros(self.capacity))
        for plane in self.planes:
            plane[slot] = missing & 1
            missing >>= 1
        return slot

    def discard(self, slot: int, tags: tuple[str, ...]) -> None:
        """Free `slot`; `tags` are at least those it was inserted with. O(len(tags))."""
        postings = self.postings
        for tag in tags:
            posting = postings.get(tag)
            if posting is None:  # one of those left out by `insert`
                continue
            posting[slot] = 0
            if not posting.any():
                del postings[tag]
        first, *others = self.planes
        first[slot] = 1
        for plane in others:
            plane[slot] = 0
        self.slots[slot] = None
        self.free.append(slot)

    def match(self, tags: frozenset[str], groups: list[G]) -> None:
        """Append the group of each slot whose tags are all in `tags`."""
        # Three planes are written out, since a loop over them takes half as long again:
        # 1.6 µs against 1.0 for five postings of 128 bits.
        postings = self.postings
        shared = postings.keys() & tags
        if not shared:
            return
        units, twos, fours, *more = [plane.copy() for plane in self.planes]
        for tag in shared:
            posting = postings[tag]
            units ^= posting
            borrow = posting & units
            twos ^= borrow
            borrow &= twos
            fours ^= borrow
            if more:
                borrow &= fours
                for plane in more:
                    plane ^= borrow
                    borrow &= plane
        units |= twos
        units |= fours
        for plane in more:
            units |= plane
        # all() costs 45 ns, starting a search 150, and most messages hit nothing.
        if not units.all():
            slots = self.slots
            groups += [slots[slot] for slot in units.search(0)]  # type: ignore[misc]

    def _grow(self) -> None:
        # In place: a posting keeps its identity, and nothing is renumbered.
        more = self.capacity
        empty = zeros(more)
        for posting in self.postings.values():
            posting += empty
        first, *others = self.planes
        first += ones(more)
        for plane in others:
            plane += empty
