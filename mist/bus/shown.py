"""How much of channels is shown, and what all who read them share.

The log keeps what it keeps; this is about what is told of it.
"""

from typing import Final

import attrs
import trio

from mist.errors import HistoryUnavailable
from mist.history import ChannelPosition, History, Page, Selection
from mist.history.numbering import BACKLOG_AGE, BACKLOG_SIZE

__all__ = ["BacklogLimits", "Window", "backlog_meta"]

_MICROSECONDS: Final = 1_000_000
_EVERY_CHANNEL: Final = frozenset({"/"})  # and all below, which is each of them


@attrs.frozen
class BacklogLimits:
    """How much of channels is shown to those who ask for what was.

    What a publication says of its own channel (`max_backlog_size`, `max_backlog_age`) holds
    beside these: whichever is less.

    Attributes:
        size: messages of a channel.
        total: messages of all channels together.
        age: seconds after its last message for which a channel is shown.
    """

    size: int = 1_000
    total: int = 2_000
    age: float = 7 * 86_400.0

    def floor(self, position: ChannelPosition, now: float) -> int:
        """Up to which number a channel's messages are not shown.

        Args:
            now: Unix seconds.
        """
        age = self.age if position.age is None else min(self.age, position.age)
        if now - position.time / _MICROSECONDS > age:
            return position.last
        return max(position.last - self.size, position.floor, 0)


def backlog_meta(size: int | None, age: int | None) -> dict[str, bytes]:
    """What a publication's meta says of how much of its channels is shown.

    Args:
        size, age: messages and seconds, positive; None says nothing.

    Raises:
        ValueError: not positive, or larger than anything.
    """
    meta = {}
    for name, value in ((BACKLOG_SIZE, size), (BACKLOG_AGE, age)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**12:
            raise ValueError(f"a backlog's size and age are positive integers, not {value!r}")
        meta[name] = b"%d" % value
    return meta


_TURNS: Final = 2  # of the history's readers, of which others need some
_RECENT: Final = 1_000  # ids
_GLANCES: Final = 16
_GLANCE: Final = 1 << 20  # bytes of one


@attrs.define(eq=False)
class _Glance:
    """What came lately; `page` is there, or never will be, when `read` is set."""

    page: Page | None = None
    read: trio.Event = attrs.field(factory=trio.Event)


class Window:
    """The last so many messages of all channels, and the very last: read once for all clients.

    The first client that asks reads them, and others wait for that: it may mean reading megabytes.

    Args:
        history: the log.
        total: messages.

    Attributes:
        turns: held while a backlog is read: a thousand clients that reconnect at once, with a
            thousand channels each, wait for each other, and no other client for them.
    """

    def __init__(self, history: History, total: int) -> None:
        self._history = history
        self._total = total
        self._selection = Selection.asked([_EVERY_CHANNEL])
        self._finding = trio.Lock()
        self.turns = trio.CapacityLimiter(_TURNS)
        self._newest = -1
        self._after = 0
        self._glances: dict[tuple[int, int], _Glance] = {}
        self._latest = 0

    async def recent(self, after: int, upto: int) -> Page | None:
        """What came in channels between two ids, read once for all who ask for the same.

        A message wakes everybody who waits for its channel, and mostly all of them have read up
        to the same id before.

        Returns:
            All of it, numbered; None where it is too much, or can't be read.
        """
        if upto - after > _RECENT:
            return None
        glance = self._glances.get((after, upto))
        if glance is None:
            if upto > self._latest:
                self._latest = upto
                self._glances.clear()  # who asks for those is late, and reads for itself
            elif len(self._glances) >= _GLANCES:
                return None
            glance = self._glances[after, upto] = _Glance()
            try:
                page = await self._history.read(
                    self._selection, after=after, upto=upto, max_bytes=_GLANCE, numbered=True
                )
                glance.page = page if page.complete else None
            except HistoryUnavailable:
                pass  # a client that reads for itself gets the error
            finally:
                glance.read.set()
        await glance.read.wait()
        return glance.page

    async def after(self, newest: int, lowest: int) -> int:
        """The id after which they begin; where that is no higher than `lowest`, perhaps a lower.

        Args:
            newest: the newest id.
            lowest: those behind this one are what is asked about.
        """
        if newest - lowest <= self._total:  # there aren't as many behind it, whatever they are
            return 0
        async with self._finding:
            if newest > self._newest:
                self._after = await self._history.last(self._selection, self._total, upto=newest)
                self._newest = newest
        return self._after
