"""The bitmap chunk: thousands of tag sets tested at once, a machine word of them at a time.

A chunk holds groups in numbered *slots*, and for each tag a *posting*: one bit per slot, set
where the slot's tag set has the tag. There are two ways to tell which slots have all their
tags in a message, and each match takes the one with fewer operations.

*Counting*, where the message has few of the chunk's tags. Each slot knows how many tags it
needs, written in binary across *planes*, plane i holding bit i of every slot's number:

    slot       0       1       2      3
    tags     {a,b}    {a}   {a,c,d}  vacant
    needs      2       1       3       1     <- a vacant slot needs a tag no message has
    plane 0    0       1       1       1
    plane 1    1       0       1       0

The postings of the tags that message and chunk share are added up in the same way, all slots
at once: flip the lowest plane where the posting is set, and where that made a 0 out of a 1,
carry into the plane above. Where the sum equals the need, it is a hit. With {a,b}: slots 0
and 1 have 2 and 1, as they need; slot 2 has one of three. Two operations for the second tag,
three for the third, then up to five for each.

*Excluding*, where it has most of them: a slot is out that has a tag which the message has
not. One operation for each tag of the chunk that isn't shared. At 100,000 entries over 100
tags, messages of 40 tags take 2.5 ms by counting, 1.6 by the better of both.

An operation is O(capacity/64), no matter how many candidates or hits. Planes number log2 of
the longest entry, three for up to 7 tags.

Nobody remembers who is in which slot. To free one, the postings of its tags are intersected
with the slots that need just as many: as tag sets are distinct, one slot remains.

Refused: Python ints as bitmaps. They need no growing and no copying, and read shorter, but an
operation allocates its result: 46 ns against 28 at 128 bits, 119 against 60 at 8192.
Refused: giving slots back one by one. A chunk keeps what its fullest moment needed, some 60
bytes a slot, until its last entry goes; renumbering would make one `remove` pay for many.
"""

from collections.abc import Collection, Iterator
from functools import reduce
from operator import and_, ior
from typing import Final, Generic, TypeVar

from bitarray import bitarray
from bitarray.util import ones, zeros

__all__ = ["Chunk"]

G = TypeVar("G")

_WORD: Final = 64  # slots that are gone over at once; what a chunk starts with
_STEP: Final = 1_024  # hits taken in a step, or slots gone through: up to 0.3 ms
_EXCLUDED: Final = 5  # tags that are excluded in the time it takes to count one


class Chunk(Generic[G]):
    """Groups by slot, and the bitmaps over them.

    Attributes:
        postings: tag -> one bit per slot; length `capacity`. Never all zero.
        planes: bit i of how many tags each slot needs; length `capacity` each.
        vacant: the slots nothing is in; length `capacity`.
        slots: the group in each slot; None where it was freed. Slots from `len(slots)` on
            were never used.
    """

    __slots__ = ("_length", "planes", "postings", "slots", "vacant")

    def __init__(self) -> None:
        self.postings: dict[str, bitarray] = {}
        self.planes = [ones(_WORD), zeros(_WORD), zeros(_WORD)]
        self.vacant = ones(_WORD)
        self.slots: list[G | None] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def capacity(self) -> int:
        return len(self.vacant)

    @property
    def _growth(self) -> int:
        # Every pass goes over what is vacant, too: 12 % more on average, 44 if this doubled.
        return max(_WORD, self.capacity // 4 // _WORD * _WORD)

    def has_room(self, tags: int, max_capacity: int, max_area: int) -> bool:
        """Whether an entry with `tags` tags may still go in. O(1).

        Args:
            max_capacity: slots. Bounds what one operation costs.
            max_area: slots x postings, in bits. Bounds the memory, and the pause when all
                postings grow. Wide or long, but not both.
        """
        capacity = self.capacity
        if self._length == capacity:
            capacity += self._growth
        return capacity <= max_capacity and capacity * (len(self.postings) + tags) <= max_area

    def insert(self, group: G, tags: Collection[str]) -> None:
        """Put `group` into a slot, to be a hit where all of `tags` are.

        `tags` may leave out those that every message coming here is known to have, but not
        all of them. O(len(tags) + planes), and O(postings x capacity/64) when it grows.
        """
        if self._length == self.capacity:
            self._grow()
        slot = self.vacant.find(1)
        self.vacant[slot] = 0
        self._length += 1
        if slot == len(self.slots):
            self.slots.append(group)
        else:
            self.slots[slot] = group
        postings = self.postings
        for tag in tags:
            posting = postings.get(tag)
            if posting is None:
                posting = postings[tag] = zeros(self.capacity)
            posting[slot] = 1
        need = len(tags)
        while need >> len(self.planes):
            # Vacant slots may stay zero here: they have their 1 in plane 0.
            self.planes.append(zeros(self.capacity))
        for plane in self.planes:
            plane[slot] = need & 1
            need >>= 1

    def discard(self, tags: Collection[str]) -> bool:
        """Free the slot that was inserted with just these tags.

        O((len(tags) + planes) x capacity/64): the bitmaps tell the slot, so that nobody has
        to remember it.

        Returns:
            Whether there was one.
        """
        slot = self._find(tags)
        if slot is None:
            return False
        postings = self.postings
        for tag in tags:
            posting = postings[tag]
            posting[slot] = 0
            if not posting.any():
                del postings[tag]
        first, *others = self.planes
        first[slot] = 1
        for plane in others:
            plane[slot] = 0
        self.slots[slot] = None
        self.vacant[slot] = 1
        self._length -= 1
        return True

    def _find(self, tags: Collection[str]) -> int | None:
        # Where a slot has all these tags, and needs no more, those are its tags.
        need = len(tags)
        postings = list(filter(None, map(self.postings.get, tags)))
        if len(postings) < need:
            return None
        candidates = reduce(and_, postings) if need > 1 else postings[0].copy()
        slot = candidates.find(1)
        if slot < 0:
            return None
        if self._need(slot) == need:  # as it mostly is, where tag sets are of similar length
            return slot
        if need >> len(self.planes):
            return None
        for plane in self.planes:
            if need & 1:
                candidates &= plane
            else:  # and not: in place, since inverting the plane first takes a copy
                candidates |= plane
                candidates ^= plane
            need >>= 1
        slot = candidates.find(1)
        return None if slot < 0 else slot

    def _need(self, slot: int) -> int:
        need = 0
        for plane in reversed(self.planes):
            need = need * 2 + plane[slot]
        return need

    def match(self, tags: frozenset[str], groups: list[G]) -> None:
        """Append the group of each slot whose tags are all in `tags`."""
        out = self._misses(tags)
        # all() costs 45 ns, starting a search 150, and most messages hit nothing.
        if out is not None and not out.all():
            slots = self.slots
            groups += [slots[slot] for slot in out.search(0)]  # type: ignore[misc]

    def match_in_steps(self, tags: frozenset[str]) -> Iterator[list[G]]:
        """As `match`, some groups at a time; entries may come and go between two steps.

        An entry that is there all the while is found, once. What is found is there, at that step.
        """
        start = 0
        # The bitmaps are gone over anew each time, which takes less than what they find.
        while start < self.capacity:
            out = self._misses(tags)
            if out is None:
                return
            few = start == 0 and out.count(0) <= _STEP
            end = len(out) if few else start + _STEP
            slots = self.slots
            yield [slots[slot] for slot in out.search(0, start, end)]  # type: ignore[misc]
            start = end

    def _misses(self, tags: frozenset[str]) -> bitarray | None:
        """The slots that are no hits; None where none is one."""
        postings = self.postings
        if len(postings) < len(tags):  # through the smaller of both
            shared = [posting for tag, posting in postings.items() if tag in tags]
        else:
            shared = list(filter(None, map(postings.get, tags)))
        if not shared:
            return None
        if len(postings) < _EXCLUDED * len(shared):
            others = [posting for tag, posting in postings.items() if tag not in tags]
            return reduce(ior, others, self.vacant.copy())
        return self._count(shared)

    def _count(self, shared: list[bitarray]) -> bitarray:
        """Where the sum of some postings isn't the need."""
        # Planes are written out as far as three, since a loop over them takes half as long
        # again. No sum is above its need, so there is nothing to carry beyond the planes.
        units = shared[0].copy()
        units_needed, twos_needed, fours_needed, *more_needed = self.planes
        if len(shared) == 1:
            units ^= units_needed
            units |= twos_needed
            units |= fours_needed
        elif len(shared) < 4:
            twos = units & shared[1]
            units ^= shared[1]
            for posting in shared[2:]:
                twos ^= units & posting
                units ^= posting
            units ^= units_needed
            twos ^= twos_needed
            units |= twos
            units |= fours_needed
        elif not more_needed:
            twos = units & shared[1]
            units ^= shared[1]
            twos ^= units & shared[2]
            units ^= shared[2]
            carry = units & shared[3]
            units ^= shared[3]
            fours = twos & carry
            twos ^= carry
            for posting in shared[4:]:
                carry = units & posting
                units ^= posting
                fours ^= twos & carry
                twos ^= carry
            units ^= units_needed
            twos ^= twos_needed
            fours ^= fours_needed
            units |= twos
            units |= fours
        else:
            return self._count_long(shared)
        for plane in more_needed:
            units |= plane
        return units

    def _count_long(self, shared: list[bitarray]) -> bitarray:
        sums = [zeros(self.capacity) for _ in self.planes]
        for posting in shared:
            carry = posting
            for plane in sums:
                over = plane & carry
                plane ^= carry
                carry = over
        out = zeros(self.capacity)
        for plane, needed in zip(sums, self.planes, strict=True):
            plane ^= needed
            out |= plane
        return out

    def _grow(self) -> None:
        # In place: a posting keeps its identity, and nothing is renumbered.
        more = self._growth
        empty = zeros(more)
        for posting in self.postings.values():
            posting += empty
        first, *others = self.planes
        first += ones(more)
        for plane in others:
            plane += empty
        self.vacant += ones(more)
