"""The Python API, for programs that a server runs in.

    bus = Bus(server.hub)
    await bus.publish("/orders", {"id": 7}, user_ids=[3])
    async with bus.subscribe("/orders") as messages:
        async for message in messages:
            ...

Subscribers in the process get every message, whatever its audience.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from mist.audience import Audience
from mist.bus.feed import Feed, Reader
from mist.bus.messages import MARK, BusMessage, json_of, mark_of, written
from mist.bus.shown import BacklogLimits, Window, backlog_meta
from mist.bus.wakeups import WAKEUPS, WakeupOutbox
from mist.errors import HistoryOff, HistoryUnavailable, InvalidTag, NumberUnknown
from mist.history import Selection
from mist.history.visibility import envelope_of
from mist.message import ASK, PUBLISH, Envelope, check_tag
from mist.sessions.client_filters import ClientFilters
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer

__all__ = ["Bus", "check_channel"]

_TICK = 0.25  # seconds
_GLOBAL = "/global/"


def check_channel(channel: str) -> str:
    """Return `channel` unchanged where it can be one, and can be asked for.

    Raises:
        EmptyTag, InvalidTag: it can't.
    """
    if not check_tag(channel, PUBLISH).startswith("/"):
        raise InvalidTag
    check_tag(f"={channel}", ASK)
    return channel


class Bus:
    """See the module. Any number of them may be made over one hub.

    Args:
        hub: of the server; with a history, or every method but one raises `HistoryOff`.
        limits: how much of channels is shown here.
        clock: Unix seconds; None is the hub's.
    """

    def __init__(
        self,
        hub: Hub,
        limits: BacklogLimits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._hub = hub
        self._clock = clock or hub.now
        self._limits = limits or BacklogLimits()
        self._found_window: Window | None = None

    # publishing

    async def publish(
        self,
        channel: str,
        data: object,
        *,
        user_ids: Iterable[str | int] | None = None,
        group_ids: Iterable[str | int] | None = None,
        client_ids: Iterable[str | int] | None = None,
        site_id: str | int | None = None,
        max_backlog_age: int | None = None,
        max_backlog_size: int | None = None,
    ) -> int:
        """Publish a message, durably.

        Args:
            data: any JSON value; see `mist.bus.messages`.
            user_ids, group_ids: of those who get it; either suffices. None is everyone.
            client_ids: of the browsers that get it, besides.
            site_id: whose clients get it; means nothing in a channel of `/global/`.
            max_backlog_age: seconds after this message for which the channel is shown to those
                who ask for what was, unless another follows.
            max_backlog_size: how many messages up to this one are shown to them, from now on.

        Returns:
            Its number in the channel.

        Raises:
            EmptyTag, InvalidTag, InvalidAudience, ValueError, TypeError: nothing was published.
            HistoryOff, HistoryUnavailable: likewise. Cancelled, it may have been.
            NumberUnknown: it was published, and only its number can't be read.
        """
        check_channel(channel)
        content, mark = written(data)
        meta = backlog_meta(max_backlog_size, max_backlog_age)
        if mark is not None:
            meta[MARK] = mark
        site = None if channel.startswith(_GLOBAL) else site_id
        audience = None
        # An empty list is an error: it was meant for somebody.
        if any(each is not None for each in (user_ids, group_ids, client_ids, site)):
            others = None if site is None else {"site": site}
            audience = Audience.of(client_ids, user_ids, group_ids, None, others)
        history = self._sequencer.history
        id_ = await self._hub.store_all(
            [(frozenset({channel}), content)],
            envelopes=[Envelope(audience=audience, meta=meta or None)],
        )
        try:
            page = await history.read(
                Selection([frozenset({channel})]), after=id_ - 1, upto=id_, numbered=True
            )
            for stored in page.stored:
                assert stored.numbers is not None
                return stored.numbers[0][channel]
            return await self.last_id(channel)  # it is gone already
        except HistoryUnavailable as error:
            raise NumberUnknown(id_) from error

    # reading

    async def last_id(self, channel: str) -> int:
        """The number of a channel's last message; 0 where there was none."""
        positions = await self._sequencer.history.channels([check_channel(channel)])
        return positions[channel].last

    async def last_message(self, channel: str) -> BusMessage | None:
        """A channel's last message, where it is still there and shown."""
        found = await self._read(channel, -2)
        return found[-1] if found else None

    async def backlog(self, channel: str, last_id: int = 0) -> list[BusMessage]:
        """The messages of a channel behind a number, as far as they are shown."""
        return await self._read(channel, max(last_id, 0))

    async def _read(self, channel: str, place: int) -> list[BusMessage]:
        feed = self._feed(check_channel(channel), place)
        await feed.begin()
        found: list[BusMessage] = []
        more = True
        while more:
            more = await feed.read()
            found += feed.take()[0]
        return found

    async def global_backlog(self, last_id: int = 0) -> list[BusMessage]:
        """The messages of all channels behind an id of the history, as far as they are shown:
        one for each channel that a message was published to.
        """
        sequencer = self._sequencer
        history, newest = sequencer.history, sequencer.newest
        after = max(last_id, await self._window.after(newest, 0), 0)
        found: list[BusMessage] = []
        complete = False
        while not complete:
            page = await history.read(
                Selection.asked([frozenset({"/"})]), after=after, upto=newest, numbered=True
            )
            for stored in page.stored:
                audience = envelope_of(stored).audience
                mark = mark_of(stored.meta)
                for first, (tag_list, wire, count), numbers in zip(
                    stored.firsts, stored.entries, stored.numbers or (), strict=True
                ):
                    for offset, data in enumerate(tag_list.split(wire, count)):
                        raw = json_of(data, mark)
                        found += [
                            BusMessage(
                                first + offset, number + offset, channel, raw, stored.time, audience
                            )
                            for channel, number in sorted(numbers.items())
                        ]
            after, complete = page.after, page.complete
        positions = await history.channels({each.channel for each in found})
        now = self._clock()
        floors = {name: self._limits.floor(each, now) for name, each in positions.items()}
        return [each for each in found if each.message_id > floors[each.channel]]

    @asynccontextmanager
    async def subscribe(
        self, channel: str, last_id: int = -1
    ) -> AsyncIterator[AsyncIterator[BusMessage]]:
        """Get a channel's messages, from here to the end of the block.

        Args:
            last_id: behind which number; -1 is now, and -k the last k - 1. What was comes as far
                as it is shown.

        Raises:
            EmptyTag, InvalidTag, HistoryOff, HistoryUnavailable: and the iteration, the last.
        """
        sequencer = self._sequencer
        hub = self._hub
        outbox = WakeupOutbox(WAKEUPS, hub.outbox_limits, hub.broker.ready)
        group = hub.broker.subscribe(outbox, frozenset({f"={check_channel(channel)}"}))
        try:
            feed = self._feed(channel, last_id)
            await feed.begin()
            yield _Messages(feed, outbox, sequencer)
        finally:
            outbox.discard()
            hub.broker.unsubscribe(outbox, group)

    def register_client_message_filter(
        self, prefix: str, predicate: Callable[[BusMessage], bool]
    ) -> None:
        """Have clients given messages of the channels that begin with `prefix` only where
        `predicate` says so; see `ClientFilters`. Subscribers in the process get them all the same.
        """
        self._filters.register(prefix, predicate)

    # what it stands on

    @property
    def _filters(self) -> ClientFilters:
        return self._hub.client_filters

    @property
    def _sequencer(self) -> Sequencer:
        if self._hub.sequencer is None:
            raise HistoryOff
        return self._hub.sequencer

    @property
    def _window(self) -> Window:
        if self._found_window is None:
            self._found_window = Window(self._sequencer.history, self._limits.total)
        return self._found_window

    def _feed(self, channel: str, place: int) -> Feed:
        reader = Reader(lambda: (channel,))
        return Feed(
            self._sequencer, {channel: place}, reader, self._limits, self._window, self._clock
        )


class _Messages:
    """A channel's messages, as an async iterator. Cancellation loses none."""

    def __init__(self, feed: Feed, outbox: WakeupOutbox, sequencer: Sequencer) -> None:
        self._feed = feed
        self._outbox = outbox
        self._sequencer = sequencer
        self._found: deque[BusMessage] = deque()

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> BusMessage:
        await trio.lowlevel.checkpoint()
        while not self._found:
            self._outbox.arm()
            newest = self._sequencer.newest
            more = await self._feed.read()
            self._found += self._feed.take()[0]
            if more or self._found:
                continue
            # A message for some recipients wakes only those: so a look now and then, whether
            # there is any.
            while self._sequencer.newest == newest:
                if await self._outbox.wait(trio.current_time() + _TICK):
                    break
        return self._found.popleft()
