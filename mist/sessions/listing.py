"""Long lists for a peer: its subscriptions, and the tags of all, written in steps.

A service may have a million subscriptions. What it asks for fits into its outbox, or ends its
session, and in between the others have their turns.
"""

import heapq
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.commands import Command
from mist.protocols import Protocol
from mist.replies import SortedTags, Subscriptions
from mist.sessions.nodes import Nodes
from mist.sessions.questions import TagsAfter, decode_tags, encode_question
from mist.sessions.subscriptions import SubscriptionSet

__all__ = ["Listing", "collect_tags", "list_sorted", "list_subscriptions", "list_tags"]

_STEP: Final = 2_000  # items, up to 1 ms
_BETWEEN: Final = 3  # bytes that an item takes beside its own

Listing = Generator[None, None, bytes | None]
"""Steps, and what they come to: the reply's wire form; None where it doesn't fit."""


def list_subscriptions(
    subscriptions: SubscriptionSet, outbox: Outbox, protocol: Protocol, command: Command
) -> Listing:
    """A session's subscriptions, as they are when this begins."""
    # Checked before it is built: a list that can't be queued shouldn't be built either.
    if not outbox.has_room_for_reply(subscriptions.list_bytes + _BETWEEN * len(subscriptions)):
        return None
    tag_lists: list[bytes] = []
    groups = iter(list(subscriptions))
    while some := [group.tag_list for group in islice(groups, _STEP)]:
        if tag_lists:
            yield
        tag_lists += some
    return (yield from protocol.reply_in_steps(command, Subscriptions(tag_lists)))


async def collect_tags(nodes: Nodes, outbox: Outbox) -> list[str] | None:
    """Every tag that anyone is subscribed to at any node, sorted; None where it doesn't fit.

    Page by page, each with what all nodes have up to the end of the shortest page. Those of nodes
    that don't answer are missing; a log line names these.

    Raises:
        EngineUnavailable, TooManyQuestions: no node can be asked.
    """
    tags: list[str] = []
    size, after = 0, ""
    while True:
        answers, _ = await nodes.ask(encode_question(TagsAfter(after)))
        pages = [page for page in map(decode_tags, answers.values()) if page is not None]
        ends = [page.tags[-1] for page in pages if page.more and page.tags]
        upto = min(ends, default=None)
        merged = heapq.merge(*[page.tags for page in pages])
        while some := list(islice(merged, _STEP)):
            new = [tag for tag in dict.fromkeys(some) if not tags or tag > tags[-1]]
            if upto is not None:
                new = [tag for tag in new if tag <= upto]
            tags += new
            size += sum(map(len, new)) + _BETWEEN * len(new)
            await trio.lowlevel.checkpoint()
        if not outbox.has_room_for_reply(size):
            return None
        if upto is None or upto <= after:
            return tags
        after = upto


def list_tags(broker: Broker, outbox: Outbox, protocol: Protocol, command: Command) -> Listing:
    """Every tag that anyone is subscribed to, sorted."""
    slices: list[list[str]] = []
    size = 0
    for some in broker.tags_in_steps():
        slices.append(sorted(some))
        size += sum(map(len, some)) + _BETWEEN * len(some)
        if not outbox.has_room_for_reply(size):
            return None
        yield
    tags: list[str] = []
    distinct: Iterator[str] = heapq.merge(*slices)
    while some := list(islice(distinct, _STEP)):
        if tags:
            yield
        tags += some
    return (yield from protocol.reply_in_steps(command, SortedTags(tags)))


def list_sorted(tags: list[str] | None, protocol: Protocol, command: Command) -> Listing:
    """Tags that `collect_tags` has found."""
    if tags is None:
        return None
    return (yield from protocol.reply_in_steps(command, SortedTags(tags)))
