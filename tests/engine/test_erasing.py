"""Erasures at an engine: at all nodes, in what is kept of the log, and by those that come later."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from mist.engine.eraser import Eraser
from mist.engine.members import Member
from mist.errors import HistoryUnavailable
from mist.history import Mark
from mist.history.erasure import Erased, Erasure
from mist.sessions.known_nodes import NodeState
from mist.sessions.nodes import Nodes
from tests.engine.nodes import Server, Start, same
from tests.history.messages import one as message
from tests.history.messages import replay
from tests.sessions.storing import bulk
from tests.waiting import until

Watch = Callable[[Server], Awaitable[Nodes]]

SECRET = frozenset({"secret"})


async def published(server: Server, *texts: bytes) -> None:
    for text in texts:
        await server.hub.store(frozenset({"a", "secret"} if text.startswith(b"s") else "a"), text)


@pytest.fixture
def nodes(nursery: trio.Nursery) -> Watch:
    """What looks after a node; beating."""

    async def nodes(server: Server) -> Nodes:
        made = Nodes(
            server.node, server.sequencer, server.hub.broker, server.hub.sessions, NodeState
        )
        await nursery.start(made.run)
        return made

    return nodes


async def kept(server: Server) -> list[bytes]:
    return [each.data for each in await replay(server.node.history)]


async def in_engine(server: Server) -> list[bytes]:
    """All that the engine keeps, of which erased messages must be no part."""
    standing = await server.engine.standing()
    bodies = [each.body for each in await server.engine.read(standing.oldest - 1)]
    if standing.checkpoint is not None:
        parts = range(standing.checkpoint.parts)
        staged = [await server.engine.staged(standing.checkpoint.name, part) for part in parts]
        bodies += [each for each in staged if each is not None]
    return bodies


async def test_what_is_erased_is_nowhere(start: Start, nodes: Watch) -> None:
    one, two = await start(), await start()
    first, _ = await nodes(one), await nodes(two)
    await published(one, b"1", b"secret-2", b"3")
    await two.sequencer.commit(
        bulk(message("secret", "secret-4"), message("a", "5")), Mark("", "w", 1)
    )
    (_, staged) = one.node.batches[-1] if one.node.batches else (0, "")
    await same(one, two)
    with trio.fail_after(20):
        erased = await first.erase(Erasure(SECRET), after=0, seconds=None)
    assert (erased.messages, erased.first, erased.last, erased.after) == (2, 2, 4, None)
    for server in (one, two):
        assert await kept(server) == [b"1", b"3", b"5"]
        assert await server.node.history.verify() == []
    assert not [body for body in await in_engine(one) if b"secret-" in body]
    if staged:
        assert await one.engine.staged(staged, 0) is None
    await published(two, b"secret-6")
    three = await start()
    await same(one, two, three)
    assert await kept(three) == [b"1", b"3", b"5", b"secret-6"]


async def test_what_is_published_after_it_stays(start: Start) -> None:
    one = await start()
    await published(one, b"secret-1")
    await one.sequencer.erase(Erasure(SECRET))
    await published(one, b"secret-2")
    assert await kept(one) == [b"secret-1", b"secret-2"]
    eraser = Eraser(one.node)
    assert eraser.pending == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(eraser.run)
        assert await eraser.finished(2, lambda: None) == Erased(1, 1, 1)
        nursery.cancel_scope.cancel()
    assert eraser.pending == 0
    assert await kept(one) == [b"secret-2"]


async def test_an_erasure_is_carried_out_after_a_restart(start: Start, tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/mirror.db"
    one = await start(url)
    await published(one, b"secret-1", b"2")
    await one.sequencer.erase(Erasure(SECRET))
    await one.stop()
    one = await start(url)
    assert await kept(one) == [b"secret-1", b"2"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Eraser(one.node).run)
        await until(lambda: not one.node.mirror.erasures)
        nursery.cancel_scope.cancel()
    assert await kept(one) == [b"2"]


async def test_no_checkpoint_has_what_is_to_be_erased(start: Start) -> None:
    one = await start()
    await published(one, b"secret-1")
    await one.sequencer.erase(Erasure(SECRET))
    with pytest.raises(HistoryUnavailable, match="to be erased"):
        await one.node.mirror.dump(lambda part: None)


async def test_it_is_gone_on_with_where_time_was_over(start: Start, nodes: Watch) -> None:
    one, two = await start(), await start()
    first, _ = await nodes(one), await nodes(two)
    await published(one, b"secret-1")
    two.engine.deaf = True
    with trio.fail_after(20):
        erased = await first.erase(Erasure(SECRET), after=0, seconds=0.5)
        assert erased.after is not None
        two.engine.deaf = False
        erased = await first.erase(Erasure(SECRET), after=erased.after, seconds=15)
    assert erased == Erased(1, 1, 1)
    assert await kept(two) == []


@pytest.mark.parametrize("realm", ["memory"], indirect=True)
async def test_it_is_said_again_where_the_engine_has_lost_it(start: Start, nodes: Watch) -> None:
    one, two = await start(), await start()
    first, _ = await nodes(one), await nodes(two)
    await published(one, b"secret-1")
    await same(one, two)
    two.engine.deaf = True
    with trio.fail_after(20):
        erased = await first.erase(Erasure(SECRET), after=0, seconds=0.5)
        assert erased.after is not None
        before = one.sequencer.epoch
        one.engine.lose(1)
        two.engine.deaf = False
        await until(
            lambda: all(
                each.sequencer.epoch != before and each.sequencer.ready for each in (one, two)
            )
        )
        assert await kept(one) == [b"secret-1"]
        erased = await first.erase(Erasure(SECRET), after=erased.after, seconds=15)
    assert erased == Erased(1, 1, 1)
    await until(lambda: not two.node.mirror.erasures)
    assert (await kept(one), await kept(two)) == ([], [])


@pytest.mark.parametrize("realm", ["memory"], indirect=True)
async def test_it_is_refused_where_the_engine_loses_it_meanwhile(
    start: Start, nodes: Watch, nursery: trio.Nursery
) -> None:
    one, two = await start(), await start()
    first, _ = await nodes(one), await nodes(two)
    await published(one, b"secret-1")
    await same(one, two)
    two.engine.deaf = True
    mirror = one.node.mirror
    before = mirror.offset

    async def lose() -> None:
        await until(lambda: mirror.offset > before and not mirror.erasures)
        one.engine.lose(1)

    nursery.start_soon(lose)
    with trio.fail_after(20), pytest.raises(HistoryUnavailable):
        await first.erase(Erasure(SECRET), after=0, seconds=None)


async def test_a_node_that_is_silent_erases_once_it_is_back(
    start: Start, nodes: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    first = await nodes(one)
    await published(one, b"secret-1")
    await same(one, two)
    two.engine.deaf = True

    async def members() -> Sequence[Member]:
        return [Member("two", b"{}", 60.0)]

    monkeypatch.setattr(one.engine.members, "all", members)
    with trio.fail_after(20):
        assert (await first.erase(Erasure(SECRET), after=0, seconds=None)).messages == 1
    two.engine.deaf = False
    await nodes(two)
    await until(lambda: two.node.mirror.offset == one.node.mirror.offset)
    await until(lambda: not two.node.mirror.erasures)
    assert await kept(two) == []


async def test_without_the_engine_it_is_refused(start: Start, nodes: Watch) -> None:
    one = await start(timeout=0.1)
    first = await nodes(one)
    await published(one, b"secret-1")
    one.engine.down = True
    with trio.fail_after(20), pytest.raises(HistoryUnavailable):
        await first.erase(Erasure(SECRET), after=0, seconds=None)


@pytest.mark.parametrize("realm", ["memory"], indirect=True)
async def test_at_a_fork_it_is_refused_and_can_be_repeated(start: Start, nodes: Watch) -> None:
    one = await start()
    first = await nodes(one)
    await published(one, b"secret-1")
    one.engine.gone = True
    with trio.fail_after(20):
        with pytest.raises(HistoryUnavailable):
            await first.erase(Erasure(SECRET), after=0, seconds=None)
        one.engine.gone = False
        await first.erase(Erasure(SECRET), after=0, seconds=None)
    assert not [body for body in await in_engine(one) if b"secret-" in body]
