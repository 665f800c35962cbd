"""Subscribing from inside the process: for programs that embed mist.

    with subscribe(hub, {"orders"}) as messages:
        async for message in messages:
            ...

A local subscriber is an outbox like any other, with the same bounds; only that nobody writes what
it holds to a socket. There is no connection that could end, so one that is slow loses the newest
messages, whatever the policy for peers is.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

import attrs
import trio

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import SlowConsumer
from mist.change import Change
from mist.message import ASK, Message, TagSet, parse_tags
from mist.protocols.line.forms import NUMBERED_ESCAPED, read_escaped
from mist.sessions.hub import Hub

__all__ = ["LocalSubscription", "subscribe"]


class LocalSubscription:
    """Messages for one subscriber in this process, as an async iterator.

    Attributes:
        tags: what was asked for.
    """

    def __init__(self, hub: Hub, tags: TagSet) -> None:
        self.tags = tags
        self._outbox = Outbox(
            # Escaped lines are the form that keeps messages apart whatever their data holds.
            NUMBERED_ESCAPED,
            attrs.evolve(hub.outbox_limits, slow_consumer=SlowConsumer.DROP),
            hub.broker.ready,
            on_dropping=lambda outbox: hub.note_dropping("local", outbox),
        )
        self._outbox.flush = self._wake
        self._arrived = Change()
        self._messages: Iterator[Message] = iter(())

    @property
    def outbox(self) -> Outbox:
        """The queue behind it, with its counts."""
        return self._outbox

    @property
    def lost(self) -> int:
        """Messages dropped because nobody took them in time."""
        return self._outbox.dropped_full

    def _wake(self) -> None:
        self._arrived.notify()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message, waited for. Cancellation loses none."""
        await trio.lowlevel.checkpoint()
        while True:
            message = next(self._messages, None)
            if message is not None:
                return message
            while not self._outbox.size:
                await self._arrived.wait()
            data = bytes(self._outbox.peek())
            self._outbox.sent(len(data))
            self._messages = read_escaped(data)


@contextmanager
def subscribe(hub: Hub, tags: Iterable[str]) -> Iterator[LocalSubscription]:
    """Receive messages that carry all of `tags`, from here to the end of the block.

    Raises:
        EmptyTag, InvalidTag, TooManyTags: see `mist.message`.
    """
    found = parse_tags(tags, hub.limits.subscription_tags, ASK)
    subscription = LocalSubscription(hub, found)
    group = hub.broker.subscribe(subscription.outbox, found)
    try:
        yield subscription
    finally:
        hub.broker.unsubscribe(subscription.outbox, group)
        subscription.outbox.discard()
        hub.broker.settle(subscription.outbox)
