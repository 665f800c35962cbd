"""Subscription table: tag sets, the local subscriptions that share them, and their matching."""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from mist.addresses import EVERYTHING, compile_asked, expand
from mist.client.subscribe_request import SubscribeRequest
from mist.client.subscription import Subscription
from mist.message import TagSet

__all__ = ["SubscriptionTable", "TableEntry"]

_CACHED: Final = 4096  # messages' tag sets whose matches are cached


@attrs.define(eq=False)
class TableEntry:
    """A tag set subscribed to on the server, and the local subscriptions that share it.

    Attributes:
        server_count: how many times it is subscribed to on this connection.
    """

    tags: TagSet
    subscriptions: list[Subscription] = attrs.field(factory=list)
    server_count: int = 0


class SubscriptionTable:
    """All local subscriptions by their tag sets, in the order made."""

    def __init__(self) -> None:
        self._entries: dict[TagSet, TableEntry] = {}
        self._matches: dict[TagSet, Sequence[Subscription]] = {}

    def __iter__(self) -> Iterator[TableEntry]:
        return iter(list(self._entries.values()))

    def __getitem__(self, tags: TagSet) -> TableEntry:
        return self._entries[tags]

    def get(self, tags: TagSet) -> TableEntry | None:
        """The entry of exactly these tags."""
        return self._entries.get(tags)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""
        return [each for entry in self._entries.values() for each in entry.subscriptions]

    def matching(self, tags: TagSet) -> Sequence[Subscription]:
        """The subscriptions that a message with these tags matches. O(1) for tags seen before."""
        found = self._matches.get(tags)
        if found is None:
            if len(self._matches) >= _CACHED:
                self._matches.clear()
            carried = expand(tags)
            found = self._matches[tags] = [
                subscription
                for entry in self._entries.values()
                if entry.tags == EVERYTHING or compile_asked(entry.tags) <= carried
                for subscription in entry.subscriptions
            ]
        return found

    def add(self, subscription: Subscription) -> TableEntry:
        """Add a subscription. Returns its entry, a new one where its tag set has none."""
        entry = self._entries.get(subscription.tags)
        if entry is None:
            entry = self._entries[subscription.tags] = TableEntry(subscription.tags)
        entry.subscriptions.append(subscription)
        self._matches.clear()
        return entry

    def remove(self, subscription: Subscription) -> TableEntry | None:
        """Remove a subscription, also from its request. Returns the entry if that was its last."""
        entry = self._entries.get(subscription.tags)
        if entry is None or subscription not in entry.subscriptions:
            return None
        entry.subscriptions.remove(subscription)
        self._matches.clear()
        if isinstance(subscription.request, SubscribeRequest):
            subscription.request.subscriptions.remove(subscription)
            subscription.request = None
        if entry.subscriptions:
            return None
        return self._entries.pop(entry.tags)
