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

Only whole pages of little are kept, from the second time on that they are asked for, and for some
seconds: a client that comes back alone leaves nothing behind. Whatever may remove or replace
messages has all pages forgotten.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import attrs
import trio

from mist.history.layout import Row
from mist.history.recent import Recent
from mist.history.record import Packed, Page, Stored
from mist.history.selection import Selection
from mist.message import TagSet

__all__ = ["PageCache"]

_MAX_BYTES: Final = 4 * 1024 * 1024
_MESSAGES: Final = 1_024  # of a page that is kept, at most
_PAGE_COST: Final = 900  # bytes of one, and of a publication in it, beside its messages
_ENTRY_COST: Final = 200  # of a run's objects, beside its wire
_TAG_COST: Final = 200  # bytes of one that is asked for, beside its text
_LIST_COST: Final = 400  # of a tag list that is in this page only, beside its text
_TAGS: Final = 8  # of a selection, at most
_SECONDS: Final = 10.0  # for which a page is kept that nobody asks for
_ASKED: Final = 4_096  # pages whose first reader is known

_NEWEST_BYTES: Final = 512 * 1024  # of hashes; to search them for a tag takes up to 2 ms
_JOINED: Final = 64  # blocks whose hashes are searched as one, but for the newest
_CHUNK_COST: Final = 200  # bytes of what holds them

_Key = tuple[frozenset[TagSet], int]
"""The alternatives of a selection, and the id behind which the page begins."""


@attrs.define(eq=False)
class _Kept(Packed):
    """A page, unpacked.

    Attributes:
        steps: its messages.
        count, size: of them, and bytes of their wires.
        cost: bytes of all that, roughly.
        last: the highest id; 0 where there is none.
        known: up to this id, nothing else is selected.
        used: when it was asked for last.
    """

    steps: Sequence[Sequence[Stored]]
    count: int
    size: int
    cost: int
    last: int
    known: int
    used: float

    def unpack(self) -> Iterator[Sequence[Stored]]:
        yield from self.steps


@attrs.frozen(eq=False)
class _ToBeKept(Packed):
    """A page that is unpacked for its reader, and is kept once that has been done."""

    _page: Page
    _keep: Callable[[Sequence[Sequence[Stored]]], None]

    @property
    def count(self) -> int:
        return self._page.count

    def unpack(self) -> Iterator[Sequence[Stored]]:
        steps = []
        for step in self._page.unpack():
            steps.append(step)
            yield step
        self._keep(steps)


class PageCache(Recent[_Key, _Kept]):
    """See the module. Used by one thread, that of the event loop.

    Args:
        max_bytes: of all pages that are kept, roughly.
        clock: seconds; monotonic.
    """

    __slots__ = ("_asked", "_clock", "_newest", "_version")

    def __init__(
        self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(max_bytes)
        self._clock = clock
        self._asked: dict[int, None] = {}  # hashes of keys, the oldest first
        self._newest = _Newest()
        self._version = 0  # of what there was before that which is published now

    def cost(self, key: _Key, value: _Kept) -> int:
        """See `Recent`."""
        return value.cost

    async def read(
        self,
        read: Callable[[int, int, int], Awaitable[Page]],
        selection: Selection,
        after: int,
        upto: int,
        limit: int,
        max_bytes: int,
    ) -> Page:
        """The page that is asked for: the one that is kept, or as it is read now.

        Args:
            read: with `upto`, `limit` and `max_bytes`.
            selection, after, upto, limit, max_bytes: see `History.read`. No id above `upto` was
                given, or `appended` has been told of it.

        Raises:
            Exception: what `read` raises.
        """
        few = selection.lookups is not None and sum(map(len, selection.lookups)) <= _TAGS
        if not few or after >= upto:
            return await read(upto, limit, max_bytes)
        known = self._look_up(selection, after, upto, limit, max_bytes)
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        key = selection.alternatives, after
        version = self._version
        is_first = self._is_first(key)
        page = await read(upto, limit, max_bytes)
        if is_first or not page.complete or page.count > _MESSAGES:
            return page

        def keep(steps: Sequence[Sequence[Stored]]) -> None:
            if version == self._version:
                self._keep(key, steps, page.after)

        return Page([], page.after, True, [_ToBeKept(page, keep)])

    def _look_up(
        self, selection: Selection, after: int, upto: int, limit: int, max_bytes: int
    ) -> Page | None:
        kept = self.find((selection.alternatives, after))
        if kept is None or kept.count > limit or kept.size >= max_bytes or kept.last > upto:
            return None
        if upto > kept.known:
            if self._newest.may_match(selection, kept.known):
                return None
            kept.known = upto
        kept.used = self._clock()
        return Page([], upto, True, (kept,) if kept.steps else ())

    def _is_first(self, key: _Key) -> bool:
        """Whether nobody has asked for a page lately."""
        hashed = hash(key)
        if hashed in self._asked:
            return False
        self._asked[hashed] = None
        if len(self._asked) > _ASKED:
            del self._asked[next(iter(self._asked))]
        return True

    def _keep(self, key: _Key, steps: Sequence[Sequence[Stored]], upto: int) -> None:
        now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept))
            if now < self._kept[oldest].used + _SECONDS:
                break
            self.remove(oldest)
        every = [stored for step in steps for stored in step]
        last = every[-1].firsts[-1] + every[-1].entries[-1][2] - 1 if every else 0
        count, size = (sum([getattr(each, name) for each in every]) for name in ("count", "size"))
        self.remove(key)
        cost = (
            size
            + _objects_of(every)
            + sum([_TAG_COST + len(tag) for tags in key[0] for tag in tags])
        )
        self.add(key, _Kept(steps if every else (), count, size, cost, last, upto, now))

    def appended(self, rows: Iterable[Row]) -> None:
        """Note blocks that were appended, behind all that there was."""
        self._newest.note(rows)

    def clear(self) -> None:
        """Forget all pages, since messages were removed or replaced, or may have been."""
        self._version += 1
        self._newest = _Newest()
        for key in list(self._kept):
            self.remove(key)


def _objects_of(every: Sequence[Stored]) -> int:
    """Bytes of a page's objects, roughly; of its tag lists as if nobody else had them."""
    entries = [entry for stored in every for entry in stored.entries]
    lists = {id(tag_list): len(tag_list.canonical) for tag_list, _, _ in entries}
    return (
        _PAGE_COST * (1 + len(every))
        + _ENTRY_COST * len(entries)
        + sum(_LIST_COST + 4 * size for size in lists.values())
    )


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
    """The tags of the newest blocks, as their hashes: what can't have been published since."""

    def __init__(self) -> None:
        self._blocks: deque[_Chunk] = deque()  # the newest, each by itself
        self._joined: deque[_Chunk] = deque()  # those before
        self._size = 0  # bytes of both
        self._after: int | None = None  # behind this id all blocks are here; None is none

    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if self._after is None:
                self._after = row.head.first - 1
            self._blocks.append(_Chunk(row.head.last, row.hashes))
            self._size += _CHUNK_COST + len(row.hashes)
        while len(self._blocks) >= 2 * _JOINED:
            some = [self._blocks.popleft() for _ in range(_JOINED)]
            self._joined.append(_Chunk(some[-1].last, b"".join([each.hashes for each in some])))
            self._size -= (len(some) - 1) * _CHUNK_COST
        while self._size > _NEWEST_BYTES:
            gone = (self._joined or self._blocks).popleft()
            self._size -= _CHUNK_COST + len(gone.hashes)
            self._after = gone.last

    def may_match(self, selection: Selection, after: int) -> bool:
        """Whether one behind an id may be selected. O(bytes of their chunks), in C."""
        if self._after is None or after < self._after:
            return True
        for chunk in chain(reversed(self._blocks), reversed(self._joined)):
            if chunk.last <= after:
                return False
            if selection.may_match(chunk.hashes):
                return True
        return False
