"""The pages that were read last, for the next reader who asks for the same.

Thousands of clients that come back at once ask for few pages: behind the same id, each for the
messages of one of some rooms. Reading a page takes a thread, some statements and a choice from each
block; here it takes a lookup, though messages were published since it was read, as long as none
of these may match.

    read        {room:7} behind 40, up to 90        58, 77
    published   91 to 240, with the tags            room:3, room:9
    asked for   {room:7} behind 40, up to 240       58, 77: nothing is read
                {room:7} behind 40, up to 60        it is read: one too many is kept
                {room:9} behind 40, up to 240       it is read: some of these may match

They are kept for some seconds; which are, `shared_pages` decides. Whatever may remove or replace
messages has all pages forgotten.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, Self

import attrs

from mist.history.layout import Row
from mist.history.recent import Recent
from mist.history.record import Packed, Page, Stored
from mist.history.selection import Selection
from mist.message import TagSet
from mist.wire import Entry

__all__ = ["KeptPage", "PageCache", "PageKey", "Sums"]

_PAGE_COST: Final = 900  # bytes of one, beside its publications
_STORED_COST: Final = 350  # of a publication, beside its runs
_ENTRY_COST: Final = 200  # of a run's objects, beside its wire
_TAG_COST: Final = 200  # bytes of one that is asked for, beside its text
_LIST_COST: Final = 400  # of a tag list that is in this page only, beside its text
_SECONDS: Final = 10.0  # for which a page is kept that nobody asks for

_NEWEST_BYTES: Final = 512 * 1024  # of hashes; to search them for a tag takes up to 2 ms
_JOINED: Final = 8  # blocks whose hashes are searched as one, but for the newest
_LEVELS: Final = 3  # of these, each searched as one with others, but for the newest
_CHUNK_COST: Final = 200  # bytes of what holds them

PageKey = tuple[frozenset[TagSet], int]
"""The alternatives of a selection, and the id behind which the page begins."""


@attrs.define(eq=False)
class Sums:
    """What some publications are together.

    Attributes:
        count, size: messages, and bytes of their wires.
        cost: bytes that they take in a page, roughly; their tag lists as if nobody else had them.
    """

    count: int = 0
    size: int = 0
    cost: int = 0
    _lists: set[int] = attrs.field(factory=set, init=False)  # `id` of each

    def add(self, entries: Sequence[Entry], publications: int) -> int:
        """Count so many publications with these entries. Returns what they cost. O(entries)."""
        known = self._lists
        new = {
            id(tag_list): len(tag_list.canonical)
            for tag_list, _, _ in entries
            if id(tag_list) not in known
        }
        known.update(new)
        size = sum([len(wire) for _, wire, _ in entries])
        cost = _STORED_COST * publications + _ENTRY_COST * len(entries) + size
        cost += _LIST_COST * len(new) + 4 * sum(new.values())
        self.count += sum([count for _, _, count in entries])
        self.size += size
        self.cost += cost
        return cost


@attrs.define(eq=False)
class KeptPage(Packed):
    """A page, unpacked.

    Attributes:
        steps: its messages.
        count, size: of them, and bytes of their wires.
        cost: bytes of all that, roughly.
        last: the highest id; 0 where there is none.
        known: up to this id, nothing else is selected.
        complete: whether nothing was left when it was read.
        used: when it was asked for last.
    """

    steps: Sequence[Sequence[Stored]]
    count: int
    size: int
    cost: int
    last: int
    known: int
    complete: bool
    used: float = 0.0

    @classmethod
    def of(
        cls,
        key: PageKey,
        steps: Sequence[Sequence[Stored]],
        sums: Sums,
        known: int,
        *,
        complete: bool = True,
    ) -> Self:
        """The page with these messages.

        Args:
            sums: of them.
        """
        last = 0
        if sums.count:
            newest = steps[-1][-1]
            last = newest.firsts[-1] + newest.entries[-1][2] - 1
        else:
            steps = ()
        tags = sum([_TAG_COST + len(tag) for tags in key[0] for tag in tags])
        cost = _PAGE_COST + tags + sums.cost
        return cls(steps, sums.count, sums.size, cost, last, known, complete)

    def unpack(self) -> Iterator[Sequence[Stored]]:
        yield from self.steps


class PageCache(Recent[PageKey, KeptPage]):
    """See the module. Used by one thread, that of the event loop.

    Args:
        max_bytes: of all pages that are kept, roughly.
        clock: seconds; monotonic.

    Attributes:
        version: another one whenever all pages were forgotten: what was read before is not to be
            kept.
    """

    __slots__ = ("_clock", "_newest", "version")

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(max_bytes)
        self.version = 0
        self._clock = clock
        self._newest = _Newest()

    def cost(self, key: PageKey, value: KeptPage) -> int:
        """See `Recent`."""
        return value.cost

    def look_up(
        self, selection: Selection, after: int, upto: int, limit: int, max_bytes: int
    ) -> Page | None:
        """The page that is asked for, where it is known.

        Args:
            selection, after, upto, limit, max_bytes: see `History.read`. No id above `upto` was
                given, or `appended` has been told of it.
        """
        kept = self.find((selection.alternatives, after))
        if kept is None or kept.count > limit or kept.size >= max_bytes or kept.last > upto:
            return None
        if upto > kept.known and kept.complete:
            if self._newest.may_match(selection, kept.known):
                return None
            kept.known = upto
        kept.used = self._clock()
        reached = min(kept.known, upto)
        return Page([], reached, reached == upto, (kept,) if kept.steps else ())

    def keep(self, key: PageKey, page: KeptPage) -> None:
        """Keep a page, in the place of one that is kept."""
        page.used = now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept))
            if now < self._kept[oldest].used + _SECONDS:
                break
            self.remove(oldest)
        self.remove(key)
        self.add(key, page)

    def appended(self, rows: Iterable[Row]) -> None:
        """Note blocks that were appended, behind all that there was."""
        self._newest.note(rows)

    def clear(self) -> None:
        """Forget all pages, since messages were removed or replaced, or may have been."""
        self.version += 1
        self._newest = _Newest()
        for key in list(self._kept):
            self.remove(key)


@attrs.frozen(eq=False)
class _Chunk:
    """A block, or some, one behind the other.

    Attributes:
        last: the highest id.
        hashes: of their tags; see `Row`.
    """

    last: int
    hashes: bytes


class _Newest:
    """The tags of the newest blocks, as their hashes: what can't have been published since.

    A message that is stored by itself is a block, and somebody looks through all of these. So all
    but the newest are joined, and of the joined ones all but the newest again.
    """

    def __init__(self) -> None:
        self._levels: list[deque[_Chunk]] = [deque() for _ in range(_LEVELS)]  # the newest first
        self._size = 0  # bytes of all
        self._after: int | None = None  # behind this id all blocks are here; None is none

    def note(self, rows: Iterable[Row]) -> None:
        newest = self._levels[0]
        for row in rows:
            if self._after is None:
                self._after = row.head.first - 1
            newest.append(_Chunk(row.head.last, row.hashes))
            self._size += _CHUNK_COST + len(row.hashes)
        for these, joined in pairwise(self._levels):
            while len(these) >= 2 * _JOINED:
                some = [these.popleft() for _ in range(_JOINED)]
                joined.append(_Chunk(some[-1].last, b"".join([each.hashes for each in some])))
                self._size -= (len(some) - 1) * _CHUNK_COST
        while self._size > _NEWEST_BYTES:
            gone = next(level for level in reversed(self._levels) if level).popleft()
            self._size -= _CHUNK_COST + len(gone.hashes)
            self._after = gone.last

    def may_match(self, selection: Selection, after: int) -> bool:
        """Whether one behind an id may be selected. O(bytes of their chunks), in C."""
        if self._after is None or after < self._after:
            return True
        for chunk in chain.from_iterable(map(reversed, self._levels)):
            if chunk.last <= after:
                return False
            if selection.may_match(chunk.hashes):
                return True
        return False
