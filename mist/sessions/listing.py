"""Long lists for a peer: its subscriptions, and the tags of all, written in steps.

A service may have a million subscriptions. What it asks for fits into its outbox, or ends its
session, and in between the others have their turns.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.commands import Command
from mist.long_list import LongList
from mist.protocols import Protocol
from mist.replies import SortedTags, Subscriptions
from mist.sessions.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from mist.sessions.realm_tags import OtherTags

__all__ = ["Listing", "list_subscriptions", "list_tags"]

_STEP: Final = 2_000  # items, up to 1 ms
_TEXT: Final = 100  # tags of a slice that are looked at together
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
    slices = ([group.tag_list for group in groups] for groups in subscriptions.slices())
    tag_lists = LongList(len(subscriptions), slices)
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
    slices: list[Iterator[str]] = []
    count = size = 0
    if others is not None:
        slices.append(iter(others.tags))
        count = len(others.tags)
        size = others.size + _BETWEEN * len(others.tags)
    for some in broker.tags_in_steps():
        slices.append(_tags_of(_texts(sorted(some))))
        count += len(some)
        size += sum(map(len, some)) + _BETWEEN * len(some)
        if not outbox.has_room_for_reply(size):
            return None
        yield
    tags = LongList(count, _merged(slices))
    return (yield from protocol.reply_in_steps(command, SortedTags(tags)))


def _texts(tags: Sequence[str]) -> list[str]:
    """Tags for `_tags_of`: as texts, into which the collector doesn't look."""
    return [" ".join(tags[start : start + _TEXT]) for start in range(0, len(tags), _TEXT)]


def _tags_of(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from text.split(" ")


def _merged(slices: Iterable[Iterator[str]]) -> Iterator[Sequence[str]]:
    """All of some sorted tags, sorted, each once."""
    last = ""
    merged: Iterator[str] = heapq.merge(*slices)
    while some := list(islice(merged, _STEP)):
        distinct = [tag for tag in dict.fromkeys(some) if tag != last]  # nodes have the same ones
        last = some[-1]
        if distinct:
            yield distinct
