"""A feed: one reader's replay of some channels, from its positions on, then live messages.

A reader's position is a number in each channel. First the feed finds out which channels have newer
messages, and how much of them is shown (the backlog). It reads those from the history in the order
of ids, some channels at a time and each from its position: so it reads only what is for this
reader, however busy other channels are. Then it reads all channels together, from the id that was
the newest when it began; messages that were told already are known by their numbers.

What is withheld (its audience is another, a filter says so, it isn't shown any more) is passed
over. Where that leaves a reader behind, it is told how far the channel is, in a *status*: it would
ask for the same again otherwise, for ever. A reader that is bound to a site is told nothing of what
other sites publish, not even how much: see `mist.bus.sites`.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Final

import attrs

from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.attribute_index import is_global, reaches
from mist.bus.messages import BusMessage, json_of, mark_of
from mist.bus.shown import BacklogLimits, Window
from mist.bus.sites import is_for_site
from mist.history import ChannelPosition, Page, Selection, Stored
from mist.history.cursor import Cursor
from mist.history.visibility import envelope_of
from mist.sessions.client_filters import ClientFilters
from mist.sessions.sequencer import Sequencer

__all__ = ["Feed", "Reader"]

_MOST: Final = 1_000  # messages told at a time
_MOST_BYTES: Final = 1 << 20  # of their JSON; one that is larger comes alone
_TOGETHER: Final = 32  # channels whose backlogs are read together; the history looks so many up
_NEAR: Final = 10_000  # ids; channels that are no further apart are read from the same place


@attrs.frozen
class Reader:
    """Who reads.

    Attributes:
        channels: those that may be read, asked again and again: a token may lose some.
        attributes: what an audience chooses by, likewise; None is told everything.
        filters: of clients; None for others.
    """

    channels: Callable[[], Collection[str]]
    attributes: Callable[[], Attributes] | None = None
    filters: ClientFilters | None = None


class Feed:
    """See the module.

    Args:
        sequencer: of the history.
        asked: channel to where the reader has been. Up to a number n that is at least 0; -1 is
            now, and -k the last k - 1. Beyond the last number is now.
        reader: who reads.
        limits, window: how much is shown.
        clock: Unix seconds.
        since: the id that was the newest when "now" was, of channels that are asked for from now
            on; else it is when the feed begins.

    Attributes:
        messages: to be told, in the order of their ids.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        asked: Mapping[str, int],
        reader: Reader,
        limits: BacklogLimits,
        window: Window,
        clock: Callable[[], float] = time.time,
        since: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.messages: list[BusMessage] = []
        self._sequencer = sequencer
        self._history = sequencer.history
        self._asked = asked
        self._reader = reader
        self._limits = limits
        self._window = window
        self._clock = clock
        self._since = since
        self._size = 0  # of the messages, in bytes
        self._status: dict[str, int] = {}
        self._seen: dict[str, int] = {}  # up to which number a channel has been looked at
        self._known: dict[str, int] = {}  # up to which number the reader will know that
        self._behind: list[tuple[str, ChannelPosition]] = []
        self._since_now: dict[str, int] = {}  # of which messages behind that id are told
        self._round: dict[str, ChannelPosition] = {}  # of which the backlog is being read
        self._stages: list[tuple[int, list[str]]] = []  # where to take in which; the first last
        self._reading: list[str] = []
        self._upto = 0
        self._backlog = Cursor(self._history)
        self._live = Cursor(self._history)
        self._selected: tuple[frozenset[str], Selection] | None = None

    @property
    def full(self) -> bool:
        """Whether what there is has to be taken before more is read."""
        return len(self.messages) >= _MOST or self._size >= _MOST_BYTES

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.messages or self._status)

    async def begin(self) -> None:
        """Find out where the channels stand.

        Raises:
            HistoryUnavailable: it can't be read; or a place is beyond it, and it is not known what
                other nodes have.
        """
        start = self._sequencer.newest  # ahead of the positions: what comes between is in both
        positions = await self._history.channels(list(self._asked))
        if any(place > positions[channel].last for channel, place in self._asked.items()):
            # Another node may have told that, which is not as far behind as this one.
            start = await self._sequencer.latest()
            positions = await self._history.channels(list(self._asked))
        if site := self._site:
            positions = await self._window.sites.of(site, positions)
        self._live.place = start
        for channel, place in self._asked.items():
            position = positions[channel]
            last = position.last
            since = self._since.get(channel, start)
            if place == -1 and position.id > since:
                self._seen[channel] = 0  # which number was the last one then, the history tells
                self._since_now[channel] = since
                self._behind.append((channel, position))
                continue
            if place == -1 or place > last:
                self._seen[channel] = self._known[channel] = self._status[channel] = last
                continue
            known = place if place >= 0 else max(last + place + 1, 0)
            self._seen[channel] = known
            if known < last:
                self._behind.append((channel, position))
                if place < 0:
                    continue  # which says nothing yet of where the reader is
            self._known[channel] = known

    async def read(self) -> bool:
        """Read a piece.

        Returns:
            Whether there is more to read now, of what there was when this was called.

        Raises:
            HistoryUnavailable: it can't be read.
        """
        if not self._round and not self._behind:
            return await self._read_live()
        async with self._window.turns:
            await (self._read_backlog() if self._round else self._begin_round())
        return True

    @property
    def place(self) -> int:
        """The id up to which all has been read that is live."""
        return self._live.place

    def skip(self) -> None:
        """Nothing for this reader has been published since all was read."""
        self._live.place = max(self._live.place, self._sequencer.newest)

    def take(self, *, final: bool = False) -> tuple[list[BusMessage], dict[str, int]]:
        """What is to be told: messages, and how far channels are, of which that has to be said.

        Args:
            final: whether the reader will ask anew; then it is also said where it has been
                left behind.
        """
        allowed = self._reader.channels()
        if final:
            self._catch_up(self._seen)
        messages = [each for each in self.messages if each.channel in allowed]
        status = {name: last for name, last in self._status.items() if name in allowed}
        self.messages, self._size, self._status = [], 0, {}
        return messages, status

    def _catch_up(self, channels: Iterable[str]) -> None:
        """Say how far those channels are that have been looked at further than was told."""
        for channel in channels:
            seen = self._seen[channel]
            if self._known.get(channel) != seen:
                self._status[channel] = self._known[channel] = seen

    # what was

    async def _begin_round(self) -> None:
        some = self._behind[:_TOGETHER]
        now = self._clock()
        floors = {
            channel: max(self._seen[channel], self._limits.floor(position, now))
            for channel, position in some
        }
        starts = [
            (await self._after(channel, floors[channel]), channel)
            for channel, position in some
            if floors[channel] < position.last
        ]
        newest = max([self._live.place, *(position.id for _, position in some)])
        shown = await self._window.after(newest, min(starts)[0]) if starts else 0
        # No await from here on: what is begun is begun with all of its channels.
        stages: list[tuple[int, list[str]]] = []
        for after, channel in sorted((max(after, shown), channel) for after, channel in starts):
            if stages and after - stages[-1][0] <= _NEAR:
                stages[-1][1].append(channel)
            else:
                stages.append((after, [channel]))
        self._behind = self._behind[_TOGETHER:]
        self._round = dict(some)
        self._seen |= floors
        self._stages = stages[::-1]
        self._reading = []
        self._upto = newest
        self._backlog = Cursor(self._history, stages[0][0] if stages else newest)
        if stages:
            self._take_in()

    async def _after(self, channel: str, number: int) -> int:
        """An id behind which all messages of a channel are that may be told, and few others."""
        after = await self._history.channel_after(channel, number)
        return max(after, self._since_now.get(channel, 0))

    def _take_in(self) -> None:
        after, channels = self._stages.pop()
        self._reading += channels
        self._backlog.place = max(self._backlog.place, after)

    async def _read_backlog(self) -> None:
        bound = self._stages[-1][0] if self._stages else self._upto
        if self._backlog.place < bound:
            if not await self._read_page(self._backlog, self._reading, bound):
                return
            self._backlog.place = bound
        if self._stages:
            self._take_in()
            return
        for channel, position in self._round.items():
            self._seen[channel] = max(self._seen[channel], position.last)
        self._catch_up(self._round)
        self._round = {}

    # what comes

    async def _read_live(self) -> bool:
        bound = self._sequencer.newest
        if self._live.place >= bound:
            return False
        if not self.full:
            page = await self._window.recent(self._live.place, bound)
            if page is not None:
                wanted = frozenset(self._asked).intersection(self._reader.channels())
                self._live.place = self._take(page, wanted)
                return self._live.place < bound
        return not await self._read_page(self._live, self._asked, bound)

    async def _read_page(self, cursor: Cursor, channels: Iterable[str], bound: int) -> bool:
        """Read a page of some channels; whether all up to `bound` has been taken."""
        wanted = frozenset(channels).intersection(self._reader.channels())
        if not wanted:
            cursor.place = bound
            return True
        if self._selected is None or self._selected[0] != wanted:
            # It learns as it goes, and is worth keeping until all is read.
            self._selected = wanted, Selection([frozenset([channel]) for channel in wanted])
        piece = await cursor.read(
            self._selected[1], bound, limit=_MOST, max_bytes=_MOST_BYTES, numbered=True
        )
        after = self._take(piece.page, wanted)
        cursor.take(piece, after)
        read = piece.page.complete and after == piece.page.after
        if read:
            self._selected = None
        return read

    def _take(self, page: Page, wanted: Set[str]) -> int:
        """Keep what there is room for, and say up to which id that is."""
        last = None
        site = self._site
        for stored in page.stored:
            audience = envelope_of(stored).audience
            assert stored.numbers is not None
            for place, numbers in enumerate(stored.numbers):
                here = sorted(wanted & numbers.keys())
                if not here:
                    continue
                tag_list, wire, count = stored.entries[place]
                if site and not is_for_site(audience, tag_list.tags, site):
                    continue
                may = self._may(audience, tag_list.tags)
                for offset, data in enumerate(tag_list.split(wire, count)):
                    if self.full:
                        return page.stored[0].firsts[0] - 1 if last is None else last
                    last = stored.firsts[place] + offset
                    for channel in here:
                        number = numbers[channel] + offset
                        self._look(stored, audience, channel, number, last, data, may=may)
        return page.after

    @property
    def _site(self) -> str:
        """The site that the reader is bound to; empty where it is bound to none."""
        attributes = self._reader.attributes
        return "" if attributes is None else attributes().site

    def _may(self, audience: Audience | None, tags: frozenset[str]) -> bool:
        attributes = self._reader.attributes
        return attributes is None or reaches(audience, attributes(), is_global(tags))

    def _look(
        self,
        stored: Stored,
        audience: Audience | None,
        channel: str,
        number: int,
        id_: int,
        data: bytes,
        *,
        may: bool,
    ) -> None:
        if number <= self._seen[channel]:  # told before, or not shown
            return
        self._seen[channel] = number
        if not may or id_ <= self._since_now.get(channel, 0):
            return  # the other is older than now, and read only for channels that are near
        raw = json_of(data, mark_of(stored.meta))
        message = BusMessage(id_, number, channel, raw, stored.time, audience)
        filters = self._reader.filters
        if filters is not None and filters.concerns(channel) and not filters.admit(message):
            return
        self._known[channel] = number
        if channel in self._status:  # which comes behind the messages, and takes no reader back
            self._status[channel] = number
        self.messages.append(message)
        self._size += len(message.raw) + 100 + len(channel)
