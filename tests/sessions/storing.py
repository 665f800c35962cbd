"""What the tests of publishing through a history share."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import trio

from mist.broker.broker import Broker
from mist.engine.contract import EngineUnavailable, Placed
from mist.engine.node import Node
from mist.errors import HistoryUnavailable
from mist.history import Bulk, History, Publication
from mist.history.commits import make_blocks
from mist.protocols.line import LineProtocol
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.hub import Hub
from mist.sessions.node_sequencer import NodeSequencer
from mist.sessions.receiving import CommandSession
from mist.sessions.sequencer import Sequencer
from tests.history.messages import run

NODES: WeakKeyDictionary[History, Node] = WeakKeyDictionary()
"""The nodes of those histories that are mirrors."""


async def sequence(
    broker: Broker, history: History, scheduler: FlushScheduler | None = None
) -> Sequencer:
    """A sequencer over a history: a server's alone, or a node's where it is a mirror."""
    if history not in NODES:
        return await Sequencer.over(broker, history, scheduler)
    return await NodeSequencer.following(broker, NODES[history], scheduler, timeout=0.5)


class Gate:
    """Stands before the appends to a history or its engine: held back, counted, or refused."""

    def __init__(self, history: History) -> None:
        self.open = trio.Event()
        self.groups: list[int] = []  # messages in each append
        self.failing = False
        if history in NODES:
            engine = NODES[history].engine
            self._place = engine.append
            engine.append = self.place  # type: ignore[method-assign]
        else:
            self._append = history.append
            history.append = self.append  # type: ignore[method-assign]

    async def append(self, publications: Sequence[Publication]) -> int:
        await self.open.wait()
        if self.failing:
            raise HistoryUnavailable("the disk is full")
        self.groups.append(sum(each.count for each in publications))
        return await self._append(publications)

    async def place(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        await self.open.wait()
        if self.failing:
            raise EngineUnavailable
        self.groups.append(count)
        return await self._place(node, serial, body, count, epoch)


def sequencer_of(hub: Hub) -> Sequencer:
    assert hub.sequencer is not None
    return hub.sequencer


def join(hub: Hub, *tags: str) -> CommandSession:
    """A service on a line, subscribed to tag lists."""
    session = CommandSession(hub, LineProtocol(hub.limits), transport="tcp")
    hub.sessions.attach(session)
    for each in tags:
        session.subscribe(frozenset(each.split(",")))
    return session


def take(session: CommandSession) -> bytes:
    """What its peer reads next."""
    data = bytes(session.outbox.peek())
    session.outbox.sent(len(data))
    return data


def bulk(*publications: Publication) -> Bulk:
    """A writer's batch."""
    rows = make_blocks(publications)
    return Bulk(lambda: iter(rows), sum(each.count for each in publications))


def numbers(tags: str, count: int, framable: bool = True) -> Publication:
    texts = [str(n) if framable else f"{n}\n" for n in range(count)]
    return Publication.of_runs([run(tags, each) for each in texts], 0.0, "", framable)
