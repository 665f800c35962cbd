"""Whose page is next: the order in which replays read the log.

One page is read at a time. That bounds the memory of any number of replays, and their share of the
interpreter. With two, a thread reads a page while the event loop unpacks another, and each waits
for the other.

Thousands of clients that come back at once need a few pages each. If all had their first before
anyone had a second one, all would be live in the end, and nearly nobody before. If one had all of
its pages before the next one, each would read the log by itself, which is found for many together
(`mist.history.shared_pages`). So they have their pages in groups, by when they came:

    group 1     first pages, second pages, third pages: live
    group 2     first pages, ...

A replay of more pages than a few, or of many messages, is *long*, and comes behind, in the order in
which pages are asked for; of four turns one is for these, if any wait. So a group is soon through.

While there is a crowd of them, what is live has as much time for itself as their pages take. But
they have a pace, and as much as they are behind that, since the machine is slow or busy, they go on
without a rest: else all that come back would be late.
"""

import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Final

import attrs
import trio

__all__ = ["Order", "PageTurns", "Replay"]

_GROUP: Final = 1_024  # replays
_FEW: Final = 4  # pages
_MANY: Final = 1_024  # messages
_SHORT: Final = 3  # turns in a row that are not long ones', where some of these wait

_CROWD: Final = 64  # replays that wait
_ROW: Final = 16  # pages, behind which there is a rest
_PACE: Final = 0.003  # seconds a page, with its rest and its share of a walk

Order = tuple[int, ...]
"""Of a page, among all that are waited for: the lowest comes first."""


@attrs.define(eq=False)
class Replay:
    """One replay. Made by `PageTurns.begin`.

    Attributes:
        number: in the order in which they began.
        pages: that it has asked for.
        messages: that it has had.
    """

    number: int
    pages: int = 0
    messages: int = 0

    @property
    def is_long(self) -> bool:
        """Whether it has asked for more than a few pages, or had many messages."""
        return self.pages > _FEW or self.messages > _MANY


@attrs.define(eq=False)
class _Place:
    """Of who waits. No two have the same order.

    Attributes:
        order: see there.
        woken: set when its turn has come.
        left: whether it was cancelled, and waits no more.
    """

    order: Order
    woken: trio.Event = attrs.field(factory=trio.Event)
    left: bool = False

    def __lt__(self, other: "_Place") -> bool:
        return self.order < other.order


class PageTurns:
    """See the module. For one event loop."""

    def __init__(self) -> None:
        self._taken = False
        self._short: list[_Place] = []  # a heap
        self._long: list[_Place] = []  # another
        self._waiting = 0  # of those, who have not left
        self._left = 0  # of those, who have
        self._since_long = 0  # turns given since the last long one
        self._given = 0
        self._row_began = 0.0  # when, on trio's clock
        self._due = 0.0  # when the next row is to begin, by the pace
        self._begun = 0
        self._asked = 0  # pages of long ones

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting

    @property
    def crowded(self) -> bool:
        """Whether there is a crowd of them."""
        return self._waiting >= _CROWD

    def begin(self) -> Replay:
        """Say that a replay begins."""
        self._begun += 1
        return Replay(self._begun)

    def order(self, replay: Replay) -> Order:
        """The order of a replay's next page, which counts as asked for by this."""
        replay.pages += 1
        if replay.is_long:
            self._asked += 1
            return 1, self._asked
        return 0, replay.number // _GROUP, replay.pages, replay.number

    @asynccontextmanager
    async def turn(
        self,
        replay: Replay,
        expecting: Callable[[Order], AbstractContextManager[object]] = nullcontext,
    ) -> AsyncIterator[None]:
        """Wait for the turn of a replay's next page, and have it until the end of this context.

        A checkpoint.

        Args:
            expecting: given the page's order, what to be in from before the wait to the end.
        """
        order = self.order(replay)
        with expecting(order):
            await self._take(order)
            try:
                if self._given % _ROW == 0:
                    await self._rest()
                yield
            finally:
                self._give()

    async def _rest(self) -> None:
        """Rest between two rows, where there is a crowd and a rest is due. A checkpoint then."""
        now = trio.current_time()
        if self.crowded:
            self._due += _ROW * _PACE
            rest = min(self._due - now, now - self._row_began)
            if rest > 0.0:
                await trio.sleep(rest)
        self._row_began = trio.current_time()

    async def _take(self, order: Order) -> None:
        if not self._taken:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._taken = True
            self._given += 1
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        place = _Place(order)
        heapq.heappush(self._long if order[0] else self._short, place)
        self._waiting += 1
        if self._waiting == _CROWD:
            self._row_began = self._due = trio.current_time()
        try:
            await place.woken.wait()
        except BaseException:
            if place.woken.is_set():  # after it was cancelled, and before this ran
                self._give()
            else:
                self._leave(place)
            raise

    def _leave(self, place: _Place) -> None:
        place.left = True
        self._waiting -= 1
        self._left += 1
        if self._left > self._waiting + _CROWD:  # while a page takes long, many may come and go
            for queue in (self._short, self._long):
                queue[:] = [each for each in queue if not each.left]
                heapq.heapify(queue)
            self._left = 0

    def _give(self) -> None:
        """Give the turn to who is next, if anybody waits."""
        self._taken = False
        while not self._taken and (self._short or self._long):
            is_long = bool(self._long) and (not self._short or self._since_long >= _SHORT)
            place = heapq.heappop(self._long if is_long else self._short)
            if place.left:
                self._left -= 1
                continue
            self._since_long = 0 if is_long else self._since_long + 1
            self._taken = True
            self._waiting -= 1
            self._given += 1
            place.woken.set()
