"""Occupancy: at which tags under presence anybody is, at any node, and telling when that changes.

    the first comes     occupied, at once
    the last leaves     vacated, once nobody has come back for `LINGER` seconds

Of many nodes each says in the log at which tags somebody is there, as it does of the members of
queue groups (`mist.broker.queue_shares`): so all know the same at the same place, and of a node
that dies the others say that it has gone. The node at which the first one came tells that. That the
last one has left every node would tell; they do it one after the other, until one has: the others
see the message. Should two be too quick, an idempotency key keeps one. Where there are no messages
but hooks only, the node tells at which the last one was, or for one that has died the first of all.
"""

import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from mist.broker.presence_view import LINGER
from mist.broker.queue_shares import QueueKey, QueueShares
from mist.engine.contract import EngineUnavailable
from mist.errors import HistoryUnavailable
from mist.message import Message
from mist.sessions.events import EventService
from mist.sessions.occasions import Kind, Occasion, tags_about

__all__ = ["OCCUPIED", "Occupancy"]

log = logging.getLogger("mist.events")

OCCUPIED: Final = "mist occupied"
"""In the place of a queue group's name. No client's has a space."""

_Living = Callable[[], Awaitable[Iterable[str]]]

_LOOK: Final = 0.25  # seconds
_APART: Final = 2.0  # seconds from one node's turn to the next one's
_AT_ONCE: Final = 50  # messages on their way


@attrs.frozen
class _Leaving:
    """A tag at which nobody is any more.

    Attributes:
        since: when that became so, by trio's clock.
        place: in the log, where all nodes heard it.
        node: at which the last one was.
    """

    since: float
    place: int
    node: str = ""


class Occupancy:
    """See the module.

    Args:
        events: tells.
    """

    def __init__(self, events: EventService) -> None:
        self._events = events
        self._shares: QueueShares | None = None
        self._living: _Living | None = None
        self._leaving: dict[str, _Leaving] = {}  # the first to leave first

    def join(self, shares: QueueShares, living: _Living) -> None:
        """Tell of all nodes. Before the first session.

        Args:
            shares: of the nodes.
            living: the nodes that are not silent, by the names that they have in `shares`. Raises
                `EngineUnavailable`.
        """
        self._shares, self._living = shares, living
        shares.watch(OCCUPIED, self._heard)

    # what happens

    def changed(self, tag: str, there: bool) -> None:
        """The first session has come to a tag at this server, or the last one has left it. O(1)."""
        if self._shares is not None:
            self._shares.count(QueueKey(OCCUPIED, tag, ""), 1 if there else -1)
        elif there:
            self._occupied(tag, own=True)
        else:
            self._leaving[tag] = _Leaving(trio.current_time(), 0)

    def _heard(self, tag: str, nodes: Collection[str], node: str, place: int) -> None:
        """As all nodes have heard at a place, somebody is at a tag from here on, or nobody is."""
        assert self._shares is not None
        if nodes:
            self._occupied(tag, own=node == self._shares.node)
        else:
            self._leaving[tag] = _Leaving(trio.current_time(), place, node)

    def _occupied(self, tag: str, *, own: bool) -> None:
        if self._leaving.pop(tag, None) is None and own:
            self._events.note(self._occasion(Kind.OCCUPIED, tag))

    def _occasion(self, kind: Kind, tag: str) -> Occasion:
        return Occasion(kind, self._events.now(), self._events.node, tag=tag)

    # what is told later

    async def run(self) -> None:
        """Tell of tags that nobody has come back to, until cancelled."""
        while True:
            await trio.sleep(_LOOK)
            if not self._leaving:
                continue
            try:
                await self._look()
            except EngineUnavailable:
                continue
            except Exception:
                # A mistake here costs events, and not the server its life.
                log.exception("tags that were left can't be told of")

    async def _look(self) -> None:
        wait = LINGER
        nodes: list[str] = []
        if self._shares is not None and self._living is not None:
            until = trio.current_time() - wait
            if not any(each.since <= until for each in self._leaving.values()):
                return
            nodes = sorted({*await self._living(), self._shares.node})
            if self._events.publishes:
                wait += _APART * nodes.index(self._shares.node)
        until = trio.current_time() - wait
        if nodes and not self._events.publishes:
            self._leave_to_others(until, nodes)
        due = [tag for tag, each in self._leaving.items() if each.since <= until]
        for start in range(0, len(due), _AT_ONCE):
            async with trio.open_nursery() as nursery:
                for tag in due[start : start + _AT_ONCE]:
                    nursery.start_soon(self._tell, tag)

    def _leave_to_others(self, until: float, nodes: Sequence[str]) -> None:
        """Forget the tags left before a moment that another of these nodes tells of."""
        assert self._shares is not None
        for tag, each in list(self._leaving.items()):
            teller = each.node if each.node in nodes else nodes[0]
            if each.since <= until and teller != self._shares.node:
                del self._leaving[tag]

    async def _tell(self, tag: str) -> None:
        leaving = self._leaving.get(tag)
        if leaving is None:
            return
        occasion = self._occasion(Kind.VACATED, tag)
        if self._shares is None:
            del self._leaving[tag]
            self._events.note(occasion)
            return
        if self._shares.holders(QueueKey(OCCUPIED, tag, "")):
            del self._leaving[tag]  # somebody came in a part of the log that was left out here
            return
        with suppress(HistoryUnavailable):  # then it is tried again
            await self._events.publish_once(occasion, f"{leaving.place} {tag}")
            if self._leaving.get(tag) is leaving:
                del self._leaving[tag]

    async def follow(self, messages: AsyncIterable[Message]) -> None:
        """Take in what was told, at whichever node.

        Args:
            messages: those of `Kind.VACATED`, in order.
        """
        shares = self._shares
        assert shares is not None
        async for message in messages:
            for tag in tags_about(message.tags):
                self._leaving.pop(tag, None)
                # Somebody has come while it was on its way: that has to be told again.
                nodes = shares.holders(QueueKey(OCCUPIED, tag, ""))
                if nodes and min(nodes) == shares.node:
                    self._events.note(self._occasion(Kind.OCCUPIED, tag))
