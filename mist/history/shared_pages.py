"""Pages for many readers at once: how often the log is read for them.

Who replays says so before its turn comes (`expecting`). So the one whose turn it is knows who comes
next, and has a walk (see `page_walk`) find their pages together with its own, where that
costs less than each of them would cost alone. The others find theirs in the cache (`page_cache`).

A page that was read alone is kept from the second time on that it is asked for: a client that comes
back by itself leaves nothing behind.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

import attrs
import trio

from mist.history.layout import Row
from mist.history.page_cache import KeptPage, PageCache, PageKey, Sums
from mist.history.page_readers import PAGE_BYTES, PAGE_MESSAGES, Keep, Wanted
from mist.history.record import Packed, Page, Stored
from mist.history.selection import Selection

__all__ = ["SharedPages"]

_MAX_BYTES: Final = 8 * 1024 * 1024
_TAGS: Final = 8  # of a selection, at most
_ASKED: Final = 4_096  # pages whose first reader is known

_READERS: Final = 256  # for whom one walk is made, at most
_LOOKED_AT: Final = 1_024  # of those who wait, to find them
_PAGE_COST: Final = 4_096  # bytes of a page in the cache, until one is known
_BLOCK_MESSAGES: Final = 1_024
# Milliseconds, roughly: to read a page alone, a block in which it finds something, and a block in a
# walk.
_ALONE: Final = 0.6
_HIT: Final = 0.15
_WALKED: Final = 0.35
_WEIGHT: Final = 0.2  # of what was seen last, in what is expected


class SharedPages:
    """See the module. Used by one thread, that of the event loop.

    Args:
        max_bytes: of all pages that are kept, roughly.
        clock: seconds; monotonic.
    """

    def __init__(
        self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = PageCache(max_bytes, clock)
        self._room = max_bytes * 3 // 4  # for the pages of one walk, with none of them lost
        self._asked: dict[int, None] = {}  # hashes of keys, the oldest first
        # In the order of their turns; no two have the same number, so nothing else is compared.
        self._expected: list[tuple[tuple[int, ...], int, Wanted]] = []
        self._numbers = 0
        self._page_cost = float(_PAGE_COST)
        self._hits = 0.0  # blocks of a page in which something is
        self._walking = trio.Lock()  # each takes some of every pass of the event loop

    def __len__(self) -> int:
        return len(self._cache)

    @contextmanager
    def expecting(
        self, selection: Selection, after: int, upto: int, order: tuple[int, ...] = ()
    ) -> Iterator[None]:
        """Say what will be asked for by the end of this context.

        Args:
            order: by which turns are had, the lowest first; equal ones as they came.
        """
        if not _is_few(selection) or after >= upto:
            yield
            return
        self._numbers = number = self._numbers + 1
        expected = order, number, Wanted(selection, after, upto)
        insort(self._expected, expected)
        try:
            yield
        finally:
            del self._expected[bisect_left(self._expected, expected)]

    async def read(
        self,
        read: Callable[[int, int, int], Awaitable[Page]],
        walk: Callable[[Sequence[Wanted], int, Keep], Awaitable[None]],
        selection: Selection,
        after: int,
        upto: int,
        limit: int,
        max_bytes: int,
    ) -> Page:
        """The page that is asked for: one that is kept, or as it is read now.

        Args:
            read: reads it, with `upto`, `limit` and `max_bytes`.
            walk: finds pages for some readers; see `PageWalk`.
            selection, after, upto, limit, max_bytes: see `History.read`. No id above `upto` was
                given, or `appended` has been told of it.

        Raises:
            Exception: what `read` raises.
        """
        if not _is_few(selection) or after >= upto:
            return await read(upto, limit, max_bytes)
        known = self._cache.look_up(selection, after, upto, limit, max_bytes)
        # A smaller page than a walk finds can't be taken from it.
        if known is None and limit > PAGE_MESSAGES and max_bytes >= 2 * PAGE_BYTES:
            own = Wanted(selection, after, upto)
            if self._together(own):
                async with self._walking:
                    known = self._cache.look_up(selection, after, upto, limit, max_bytes)
                    wanted = () if known else self._together(own)
                    if wanted:
                        await walk(wanted, self._room, self._keeping())
                        known = self._cache.look_up(selection, after, upto, limit, max_bytes)
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        return await self._read(read, (selection.alternatives, after), upto, limit, max_bytes)

    async def _read(
        self,
        read: Callable[[int, int, int], Awaitable[Page]],
        key: PageKey,
        upto: int,
        limit: int,
        max_bytes: int,
    ) -> Page:
        version = self._cache.version
        is_first = self._is_first(key)
        page = await read(upto, limit, max_bytes)
        # Many messages are as much work together as alone.
        self._note_hits(len(page.packed) if page.count <= PAGE_MESSAGES else 0)
        if is_first or not page.complete or page.count > PAGE_MESSAGES:
            return page

        def keep(steps: Sequence[Sequence[Stored]]) -> None:
            if version == self._cache.version:
                sums = Sums()
                for step in steps:
                    sums.add([entry for stored in step for entry in stored.entries], len(step))
                self._cache.keep(key, KeptPage.of(key, steps, sums, page.after))

        return Page([], page.after, True, [_ToBeKept(page, keep)])

    def _is_first(self, key: PageKey) -> bool:
        """Whether nobody has asked for a page lately."""
        hashed = hash(key)
        if hashed in self._asked:
            return False
        self._asked[hashed] = None
        if len(self._asked) > _ASKED:
            del self._asked[next(iter(self._asked))]
        return True

    # for many

    def _together(self, own: Wanted) -> Sequence[Wanted]:
        """Whose pages are to be read in one walk with that of `own`; none, where that is dearer.

        Those that begin behind it, or not so far before it that the walk were twice as long.
        """
        begin = own.after - (own.upto - own.after)
        room = min(_READERS, max(int(self._room / self._page_cost), 2)) - 1
        chosen = {own.key: own}
        known: set[PageKey] = set()
        for *_, each in islice(self._expected, _LOOKED_AT):
            key = each.key
            if key in chosen or key in known:
                continue
            if self._cache.find(key) is not None:  # and so it stays, for who comes before
                known.add(key)
            elif each.after >= begin:
                chosen[key] = each
            else:
                continue
            room -= 1
            if not room:
                break
        blocks = (own.upto - min(each.after for each in chosen.values())) / _BLOCK_MESSAGES
        alone = len(chosen) * (_ALONE + _HIT * self._hits)
        together = blocks * _WALKED + _ALONE
        return list(chosen.values()) if len(chosen) > 1 and together < alone else ()

    def _keeping(self) -> Keep:
        """What keeps the pages that a walk finds, unless it is overtaken by what removes some."""
        version = self._cache.version

        def keep(wanted: Wanted, page: KeptPage) -> None:
            if version == self._cache.version:
                self._cache.keep(wanted.key, page)
                self._note_hits(sum(map(len, page.steps)))
                self._page_cost += _WEIGHT * (page.cost - self._page_cost)

        return keep

    def _note_hits(self, blocks: int) -> None:
        self._hits += _WEIGHT * (blocks - self._hits)

    # what changes

    def appended(self, rows: Sequence[Row]) -> None:
        """Note blocks that were appended, behind all that there was."""
        self._cache.appended(rows)

    def clear(self) -> None:
        """Forget all pages, since messages were removed or replaced, or may have been."""
        self._cache.clear()


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


def _is_few(selection: Selection) -> bool:
    return selection.lookups is not None and sum(map(len, selection.lookups)) <= _TAGS
