"""Who listens to what: tag sets the server is to know of, and the local subscriptions to them.

Outlives connections. Any number of local subscriptions share a tag set, of which the server
hears once. What has to be said to it for that goes out through `send`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs
import trio

from mist.client.dialect import Request
from mist.client.errors import Revoked
from mist.client.subscription import Subscription
from mist.commands import Failed, Reply, Subscribe, Unsubscribe
from mist.errors import ClientClosed, ClientError, RemoteError
from mist.message import Message, TagSet

__all__ = ["Topic", "Topics"]

_CACHED: Final = 4096  # tag sets whose listeners are remembered
_PATIENCE: Final = 0.5  # seconds that reading waits for a reader that has yet to catch up


@attrs.define(eq=False)
class Topic:
    """A tag set the server is to know of, and the local subscriptions that share it.

    Attributes:
        request: the subscribe on this connection; None while there is no connection.
        live: whether the server has confirmed it on this connection.
        settled: set once it was confirmed or refused for the first time.
    """

    tags: TagSet
    subscriptions: list[Subscription] = attrs.field(factory=list)
    request: Request | None = None
    live: bool = False
    settled: trio.Event = attrs.field(factory=trio.Event)
    error: ClientError | None = None


class Topics:
    """See the module.

    Args:
        send: queues a request on the connection that there is.
    """

    def __init__(self, send: Callable[[Request], None]) -> None:
        self._send = send
        self._online = False  # a connection takes requests
        self._topics: dict[TagSet, Topic] = {}
        self._targets: dict[TagSet, Sequence[Subscription]] = {}
        self._crowded: set[Subscription] = set()

    # what the program wants

    def join(self, subscription: Subscription) -> Topic:
        """Have a subscription's tag set subscribed to. Its topic says when that is so."""
        topic = self._topics.get(subscription.tags)
        if topic is None:
            topic = self._topics[subscription.tags] = Topic(subscription.tags)
            if self._online:
                topic.request = Request(Subscribe(topic.tags))
                self._send(topic.request)
        topic.subscriptions.append(subscription)
        self._targets.clear()
        return topic

    def leave(self, topic: Topic, subscription: Subscription) -> None:
        """End a subscription, and the server's with the last of its topic."""
        # Without an await, so that cancellation can't leave half of it undone. Nobody waits
        # for the answer: an unsubscribe can't fail.
        subscription.end()
        if subscription not in topic.subscriptions:
            return
        topic.subscriptions.remove(subscription)
        self._targets.clear()
        if not topic.subscriptions and self._topics.get(topic.tags) is topic:
            self._drop(topic)
            if self._online:
                self._send(Request(Unsubscribe(topic.tags)))

    def unsubscribe(self, tags: TagSet) -> None:
        """End all subscriptions of exactly these tags."""
        topic = self._topics.get(tags)
        if topic is not None:
            self._drop(topic, None if topic.settled.is_set() else ClientClosed("unsubscribed"))
            if self._online:
                self._send(Request(Unsubscribe(tags)))

    def _drop(self, topic: Topic, error: ClientError | None = None) -> None:
        del self._topics[topic.tags]
        self._targets.clear()
        topic.error = topic.error or error
        topic.settled.set()
        for subscription in topic.subscriptions:
            subscription.end(error)
        topic.subscriptions.clear()

    # what becomes of the connection

    def opening(self) -> Iterable[Request]:
        """What has to be asked on a fresh connection."""
        self._online = True
        for topic in self._topics.values():
            topic.request = Request(Subscribe(topic.tags))
        return [topic.request for topic in self._topics.values() if topic.request is not None]

    def broken(self) -> None:
        """The connection is gone."""
        self._online = False
        self._targets.clear()
        for topic in self._topics.values():
            topic.live = False
            topic.request = None

    def fail(self, error: ClientError) -> None:
        """There will be no connection any more."""
        for topic in list(self._topics.values()):
            closed = isinstance(error, ClientClosed) and topic.settled.is_set()
            self._drop(topic, None if closed else error)

    # what the server says

    def settle(self, request: Request, tags: TagSet, reply: Reply) -> None:
        """A subscribe was answered."""
        topic = self._topics.get(tags)
        if topic is None or topic.request is not request:
            return  # unsubscribed meanwhile
        if isinstance(reply, Failed):
            fresh = not topic.settled.is_set()
            self._drop(topic, RemoteError(str(reply.error)) if fresh else Revoked(tags))
            return
        topic.live = True
        self._targets.clear()
        if topic.settled.is_set():
            for subscription in topic.subscriptions:
                subscription.reconnected()
        topic.settled.set()

    def revoked(self, tags: TagSet) -> None:
        """The server ended a subscription."""
        topic = self._topics.get(tags)
        if topic is not None:
            self._drop(topic, Revoked(tags))

    def deliver(self, message: Message) -> None:
        """A message arrived."""
        targets = self._targets.get(message.tags)
        if targets is None:
            if len(self._targets) >= _CACHED:
                self._targets.clear()
            targets = self._targets[message.tags] = [
                subscription
                for topic in self._topics.values()
                if topic.live and topic.tags <= message.tags
                for subscription in topic.subscriptions
            ]
        for subscription in targets:
            subscription.deliver(message)
            if subscription.crowded:
                self._crowded.add(subscription)

    async def relieve(self) -> None:
        """Let readers catch up, for a bounded while."""
        # Whoever yields once a message would lose most of a burst to a reading loop that
        # yields once in thousands. Meanwhile the server's outbox holds the rest. The wait is
        # bounded, and not repeated for a reader that doesn't use it, so that one stalled
        # subscription costs the others a moment, once.
        await trio.lowlevel.checkpoint()
        crowded, self._crowded = self._crowded, set()
        if not crowded:
            return
        with trio.move_on_after(_PATIENCE):
            for subscription in crowded:
                await subscription.relieved()
        for subscription in crowded:
            subscription.give_up()
