"""What the tests of publishing through a history share."""

from collections.abc import Sequence

import trio

from mist.errors import HistoryUnavailable
from mist.history import Bulk, History, Publication
from mist.history.commits import make_blocks
from mist.protocols.line import LineProtocol
from mist.sessions.dispatch import CommandSession
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer
from tests.history.messages import run


class Gate:
    """Stands before a history's appends: held back, counted, or refused."""

    def __init__(self, history: History) -> None:
        self.open = trio.Event()
        self.groups: list[int] = []  # messages in each append
        self.failing = False
        self._append = history.append
        history.append = self.append  # type: ignore[method-assign]

    async def append(self, publications: Sequence[Publication]) -> int:
        await self.open.wait()
        if self.failing:
            raise HistoryUnavailable("the disk is full")
        self.groups.append(sum(each.count for each in publications))
        return await self._append(publications)


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
