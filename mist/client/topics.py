"""Who listens to what: tag sets, and the local subscriptions that share them."""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from mist.addresses import EVERYTHING, compile_asked, expand
from mist.client.asking import Asking
from mist.client.subscription import Subscription
from mist.message import TagSet

__all__ = ["Topic", "Topics"]

_CACHED: Final = 4096  # tag sets whose listeners are remembered


@attrs.define(eq=False)
class Topic:
    """A tag set the server is to know of, and the local subscriptions that share it.

    Attributes:
        asked: how often it was subscribed to on this connection.
    """

    tags: TagSet
    subscriptions: list[Subscription] = attrs.field(factory=list)
    asked: int = 0


class Topics:
    """All topics of a client, by their tags, in the order made."""

    def __init__(self) -> None:
        self._topics: dict[TagSet, Topic] = {}
        self._listeners: dict[TagSet, Sequence[Subscription]] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __getitem__(self, tags: TagSet) -> Topic:
        return self._topics[tags]

    def get(self, tags: TagSet) -> Topic | None:
        """The topic of exactly these tags."""
        return self._topics.get(tags)

    def everyone(self) -> list[Subscription]:
        """All subscriptions."""
        return [each for topic in self._topics.values() for each in topic.subscriptions]

    def listeners(self, tags: TagSet) -> Sequence[Subscription]:
        """Those whom a message with these tags is for. O(1) for tags seen before."""
        found = self._listeners.get(tags)
        if found is None:
            if len(self._listeners) >= _CACHED:
                self._listeners.clear()
            carried = expand(tags)
            found = self._listeners[tags] = [
                subscription
                for topic in self._topics.values()
                if topic.tags == EVERYTHING or compile_asked(topic.tags) <= carried
                for subscription in topic.subscriptions
            ]
        return found

    def add(self, subscription: Subscription) -> Topic:
        """Let a subscription listen. Returns its topic, made where there was none."""
        topic = self._topics.get(subscription.tags)
        if topic is None:
            topic = self._topics[subscription.tags] = Topic(subscription.tags)
        topic.subscriptions.append(subscription)
        self._listeners.clear()
        return topic

    def remove(self, subscription: Subscription) -> Topic | None:
        """Let it listen no more, nor wait for an answer. Returns the topic that ends with it."""
        topic = self._topics.get(subscription.tags)
        if topic is None or subscription not in topic.subscriptions:
            return None
        topic.subscriptions.remove(subscription)
        self._listeners.clear()
        if isinstance(subscription.request, Asking):
            subscription.request.subscriptions.remove(subscription)
            subscription.request = None
        if topic.subscriptions:
            return None
        return self._topics.pop(topic.tags)
