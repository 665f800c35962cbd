"""Long lists for a peer: its subscriptions, and the tags of all, written in steps.

A service may have a million subscriptions. What it asks for fits into its outbox, or ends its
session, and in between the others have their turns.
"""

import heapq
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.commands import Command
from mist.protocols import Protocol
from mist.replies import SortedTags, Subscriptions
from mist.sessions.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from mist.sessions.realm_tags import OtherTags

__all__ = ["Listing", "list_subscriptions", "list_tags"]

_STEP: Final = 2_000  # items, up to 1 ms
_BETWEEN: Final = 3  # bytes that an item takes beside its own

Listing = Generator[None, None, bytes | None]
"""Steps, and what they come to: the reply's wire form; None where it doesn't fit."""


def list_subscriptions(
    subscriptions: SubscriptionSet, outbox: Outbox, protocol: Protocol, command: Command
) -> Listing:
    """A session's subscriptions; of one that ends meanwhile it may say so or not."""
    # Checked before it is built: a list that can't be queued shouldn't be built either.
    if not outbox.has_room_for_reply(subscriptions.list_bytes + _BETWEEN * len(subscriptions)):
        return None
    tag_lists: list[bytes] = []
    for groups in subscriptions.slices():
        if tag_lists:
            yield
        tag_lists += [group.tag_list for group in groups]
    return (yield from protocol.reply_in_steps(command, Subscriptions(tag_lists)))


def list_tags(
    broker: Broker,
    outbox: Outbox,
    protocol: Protocol,
    command: Command,
    others: "OtherTags | None" = None,
) -> Listing:
    """Every tag that anyone is subscribed to, sorted.

    Args:
        others: those of other nodes.
    """
    slices: list[Sequence[str]] = []
    size = 0
    if others is not None:
        slices.append(others.tags)
        size = others.size + _BETWEEN * len(others.tags)
    for some in broker.tags_in_steps():
        slices.append(sorted(some))
        size += sum(map(len, some)) + _BETWEEN * len(some)
        if not outbox.has_room_for_reply(size):
            return None
        yield
    tags: list[str] = []
    merged: Iterator[str] = heapq.merge(*slices)
    while some := list(islice(merged, _STEP)):
        if tags:
            yield
        if others is not None:
            some = [tag for tag in dict.fromkeys(some) if not tags or tag > tags[-1]]
        tags += some
    return (yield from protocol.reply_in_steps(command, SortedTags(tags)))
