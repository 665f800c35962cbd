"""Backlog limits: how much of channels is shown; and reads that all readers share.

They limit what this dialect shows, not what the log keeps.
"""

from typing import Final

import attrs
import trio

from mist.bus.sites import SitePositions
from mist.errors import HistoryUnavailable
from mist.history import ChannelPosition, History, Page, Selection
from mist.history.numbering import BACKLOG_AGE, BACKLOG_SIZE

__all__ = ["BacklogLimits", "Window", "backlog_meta"]

_MICROSECONDS: Final = 1_000_000
_EVERY_CHANNEL: Final = frozenset({"/"})  # and all below, which is each of them


@attrs.frozen
class BacklogLimits:
    """How much of channels is shown to readers that ask for the backlog.

    A publication's own limits for its channel (`max_backlog_size`, `max_backlog_age`) hold beside
    these: the lower one counts.

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
_MAX_PAGES: Final = 16
_PAGE_BYTES: Final = 1 << 20


@attrs.define(eq=False)
class _SharedPage:
    """A page that several readers want; where `page` is None once `read` is set, there is none."""

    page: Page | None = None
    read: trio.Event = attrs.field(factory=trio.Event)


class Window:
    """The last so many messages of all channels, and the very last: read once for all clients.

    The first client that asks reads them, and others wait for that: it may mean reading megabytes.

    Args:
        history: the log.
        total: messages.

    Attributes:
        sites: where channels are for the clients of one site.
        turns: held while a backlog is read: a thousand clients that reconnect at once, with a
            thousand channels each, wait for each other, and no other client for them.
    """

    def __init__(self, history: History, total: int) -> None:
        self._history = history
        self._total = total
        self._finding = trio.Lock()
        self.sites = SitePositions(history, total)
        self.turns = trio.CapacityLimiter(_TURNS)
        self._newest = -1
        self._after = 0
        self._pages: dict[tuple[int, int], _SharedPage] = {}
        self._latest = 0

    async def recent(self, after: int, upto: int) -> Page | None:
        """The messages in channels between two ids, read once for all that ask for the same.

        A message wakes all readers of its channel, and mostly they have read up to the same id.

        Returns:
            All of it, numbered; None where it is too much, or can't be read.
        """
        if upto - after > _RECENT:
            return None
        shared = self._pages.get((after, upto))
        if shared is None:
            if upto > self._latest:
                self._latest = upto
                self._pages.clear()  # a reader that asks for those is late, and reads for itself
            elif len(self._pages) >= _MAX_PAGES:
                return None
            shared = self._pages[after, upto] = _SharedPage()
            try:
                page = await self._history.read(
                    _in_channels(), after=after, upto=upto, max_bytes=_PAGE_BYTES, numbered=True
                )
                shared.page = page if page.complete else None
            except HistoryUnavailable:
                pass  # a client that reads for itself gets the error
            finally:
                shared.read.set()
        await shared.read.wait()
        return shared.page

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
                self._after = await self._history.last(_in_channels(), self._total, upto=newest)
                self._newest = newest
        return self._after


def _in_channels() -> Selection | None:
    """What is in any channel; made for each read, since it remembers each tag list it has seen."""
    return Selection.asked([_EVERY_CHANNEL])
