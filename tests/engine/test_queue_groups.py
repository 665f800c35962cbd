"""Queue groups whose members are at several nodes: of all of them one gets each message."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from mist.server import Server
from mist.sessions.node_sequencer import NodeSequencer
from tests.processes import token_key
from tests.servers import listeners, running
from tests.transports.lines import Lines, talk
from tests.waiting import until

START = b'CONNECT {"verbose":false,"headers":true}\r\n'

Nodes = Callable[..., AbstractAsyncContextManager[list[Server]]]


class Member:
    """A NATS client that takes what it gets."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.got: list[bytes] = []
        self._pongs = 0

    async def run(self) -> None:
        while line := await self._lines.line():
            if line.startswith(b"MSG "):
                self.got.append((await self._lines.line()).strip())
            elif line == b"PONG\r\n":
                self._pongs += 1

    async def send(self, commands: bytes) -> None:
        """Send, and return once the server has answered a ping behind it."""
        pongs = self._pongs
        await self._lines.send(commands + b"PING\r\n")
        await until(lambda: self._pongs > pongs)


@pytest.fixture
def nodes(realm: str, tmp_path: Path) -> Nodes:
    """Runs nodes of the realm with these numbers, for the length of a block."""
    key = None if realm.startswith("memory:") else token_key(tmp_path)

    @asynccontextmanager
    async def nodes(*numbers: int) -> AsyncIterator[list[Server]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    running(
                        tmp_path / f"n{number}",
                        listen=listeners("nats"),
                        history=f"sqlite:///{tmp_path}/n{number}.db",
                        engine=realm,
                        durability="process",
                        tokens=None,
                        token_key_file=key,
                    )
                )
                for number in numbers
            ]

    return nodes


@asynccontextmanager
async def member(server: Server) -> AsyncIterator[Member]:
    async with talk(server) as lines, trio.open_nursery() as nursery:
        found = Member(lines)
        await lines.send(START)
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


def pub(*data: int) -> bytes:
    return b"".join([b"PUB work.x %d\r\n%d\r\n" % (len(b"%d" % n), n) for n in data])


async def test_each_message_is_given_to_one_member_of_all(nodes: Nodes) -> None:
    async with nodes(1, 2, 3) as servers, AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(member(server))
            for server in (servers[0], servers[0], servers[1], servers[2])
        ]
        everything = await stack.enter_async_context(member(servers[2]))
        await everything.send(b"SUB work.* 1\r\n")
        for each in members:
            await each.send(b"SUB work.* q 1\r\n")
        publishers = [await stack.enter_async_context(member(server)) for server in servers]
        for n, each in enumerate(publishers):
            await each.send(pub(*range(1000 * n, 1000 * n + 400)))
        await until(lambda: sum(len(each.got) for each in members) >= 1200)
        await until(lambda: len(everything.got) >= 1200)
        got = Counter(data for each in members for data in each.got)
        assert set(got.values()) == {1}
        assert len(got) == 1200
        assert all(200 < len(each.got) < 400 for each in members)


async def test_two_queue_groups_of_one_subject_get_each_message_once_each(
    nodes: Nodes,
) -> None:
    async with (
        nodes(1, 2) as (one, two),
        member(one) as a,
        member(two) as b,
        member(two) as c,
    ):
        await a.send(b"SUB work.x q 1\r\n")
        await b.send(b"SUB work.x q 1\r\nSUB work.x r 2\r\n")
        await c.send(pub(*range(100)))
        await until(lambda: len(a.got) + len(b.got) >= 200)
        counts = Counter(a.got + b.got)
        assert set(counts.values()) == {2}


async def test_who_has_been_answered_is_counted_and_who_leaves_loses_nothing(
    nodes: Nodes,
) -> None:
    """Members come and go at two nodes while messages are published all the time."""
    published = 0
    async with (
        nodes(1, 2) as (one, two),
        member(one) as a,
        member(two) as b,
        member(one) as publisher,
    ):
        await a.send(b"SUB work.* q 1\r\n")
        done = False

        async def publish() -> None:
            nonlocal published
            while not done:
                await publisher.send(pub(*range(published, published + 20)))
                published += 20

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for n in range(15):
                before = len(b.got)
                await b.send(b"SUB work.* q %d\r\n" % (n + 2))
                await until(lambda before=before: len(b.got) > before + 5)
                # As a client that drains: what comes before the answer is taken.
                await b.send(b"UNSUB %d\r\n" % (n + 2))
                after = len(b.got)
                await trio.sleep(0.02)
                assert len(b.got) == after
            done = True
        await until(lambda: len(a.got) + len(b.got) >= published)
        assert Counter(a.got + b.got) == Counter(b"%d" % n for n in range(published))
        assert len(b.got) > 100
        dropped = one.hub.broker.dropped + two.hub.broker.dropped
        assert not dropped.total()


async def test_a_session_that_ends_leaves_its_share_to_the_others(
    nodes: Nodes,
) -> None:
    async with nodes(1, 2) as (one, two), member(one) as a, member(one) as publisher:
        async with member(two) as b:
            await a.send(b"SUB work.* q 1\r\n")
            await b.send(b"SUB work.* q 1\r\nSUB work.* q 2\r\nSUB work.* q 3\r\n")
        await until(lambda: len(counted(one)) == len(counted(two)) == 1)
        await publisher.send(pub(*range(50)))
        await until(lambda: len(a.got) == 50)
        # What was for those that had ended is counted, and nothing stays behind.
        assert two.hub.broker.find(frozenset({"work.x"})) is None
        assert two.hub.broker.tag_sets() == 0


async def test_a_server_that_drains_gives_its_share_away_before_any_session_ends(
    nodes: Nodes,
) -> None:
    async with (
        nodes(1, 2) as (one, two),
        member(one) as a,
        member(two) as b,
        member(one) as publisher,
    ):
        await a.send(b"SUB work.* q 1\r\n")
        await b.send(b"SUB work.* q 1\r\n")
        published = 0

        async def publish(count: int) -> None:
            nonlocal published
            for _ in range(count):
                await publisher.send(pub(*range(published, published + 10)))
                published += 10

        await publish(20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, 60)
            two.drain()
        await until(lambda: len(a.got) + len(b.got) >= published)
        assert Counter(a.got + b.got) == Counter(b"%d" % n for n in range(published))
        assert len(b.got) > 50


async def test_a_node_that_has_gone_and_starts_again_takes_its_share_again(nodes: Nodes) -> None:
    async with nodes(1) as (one,), member(one) as a, member(one) as publisher:
        await a.send(b"SUB work.* q 1\r\n")
        for _ in range(2):  # with nothing, and where it was
            async with nodes(2) as (two,):
                await until(lambda two=two: two.hub.sequencer.ready)
                async with member(two) as b:
                    await b.send(b"SUB work.* q 1\r\n")
                    before = len(a.got)
                    await publisher.send(pub(*range(90)))
                    await until(lambda b=b, before=before: len(a.got) + len(b.got) >= before + 90)
                    assert 30 < len(b.got) < 60
                    assert len(a.got) + len(b.got) == before + 90
            # It was cancelled, and has not said that it goes: this is seen by the other one.
            await until(lambda: len(counted(one)) == 1)


def counted(server: Server) -> list[str]:
    """The nodes that have members of queue groups."""
    sequencer = server.hub.sequencer
    assert isinstance(sequencer, NodeSequencer)
    return list(sequencer.shares.nodes)
