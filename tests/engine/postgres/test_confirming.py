"""A log in another process: all members say what they have of it, then it goes on, or it forks."""

import socket
from collections.abc import Iterator, Sequence

import pytest
import trio

from mist.engine.contract import Ancestor, EngineUnavailable, Forked, Known, Placed
from mist.engine.fence import VOTES
from mist.engine.opening import open_engine
from mist.engine.postgres.engine import PostgresEngine
from mist.errors import StartupError
from tests.engine.outages import answered
from tests.engine.postgres.conftest import Open
from tests.engine.postgres.snapshot import Snapshot
from tests.engine.postgres_server import HOST, PostgresServer
from tests.engine.proxy import Proxy
from tests.engine.test_contract import fill, read_all
from tests.waiting import until


async def beating(open_on: Open, *names: str) -> list[PostgresEngine]:
    """Members that have beaten once, by their connections."""
    engines = []
    for name in names:
        engine = await open_on()
        await engine.enter(name)
        await engine.members.beat(name, b"")
        engines.append(engine)
    return engines


async def catch_up(engines: Sequence[PostgresEngine]) -> None:
    for engine in engines:
        await read_all(engine)


def move(postgres: PostgresServer, schema: str) -> None:
    """Have the log be one that another process had before, as that of a new primary is."""
    postgres.ask(f"UPDATE {schema}.head SET run = 'another'")


def votes(postgres: PostgresServer, schema: str) -> int:
    """So many members have voted."""
    return len(postgres.ask(f"SELECT 1 FROM {schema}.vote WHERE epoch IS NOT NULL"))


async def told(engine: PostgresEngine, after: int) -> None:
    with pytest.raises(Forked):
        await engine.read(after, wait=30.0)


async def test_a_restart_that_loses_nothing_keeps_the_epoch(
    open_on: Open, postgres: PostgresServer
) -> None:
    a, b, c = await beating(open_on, "a", "b", "c")
    epoch = await fill(a, 3, "a")
    await catch_up([a, b])  # and the last one not
    postgres.kill()
    postgres.start()

    async def read(engine: PostgresEngine) -> None:
        assert len(await read_all(engine)) >= 3

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, b)
            nursery.start_soon(read, c)
            assert await a.append("a", 4, b"4", 1, epoch) == Placed(4, 4)
    assert (await b.standing()).epoch == epoch


async def test_nothing_is_appended_before_all_members_have_said_what_they_have(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    snapshot = Snapshot(postgres, schema)
    await a.append("a", 4, b"4", 6, epoch)
    await read_all(b)
    snapshot.restore()
    move(postgres, schema)
    appended = trio.Event()

    async def append() -> None:
        with pytest.raises(Forked):
            await a.append("a", 5, b"5", 1, epoch)
        appended.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await until(lambda: votes(postgres, schema) == 1)
            assert not appended.is_set()
            await told(b, 4)
    standing = await b.enter("again", Known(epoch, 4, 9))
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert (standing.offset, standing.newest) == (4, 9)
    assert await a.enter("a2") == standing
    assert [each.body for each in await read_all(a)] == [b"1", b"2", b"3", b""]


async def test_an_epoch_that_is_lost_with_its_records_gives_no_id_twice(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    """As two failovers in a row do: the second to a server that has not heard of the first."""
    a, b = await beating(open_on, "a", "b")
    first = await fill(a, 3, "a")
    snapshot = Snapshot(postgres, schema)
    second = (await b.enter("b2", Known(first, 5, 9))).epoch
    assert (await a.enter("a2", Known(first, 3, 3))).epoch == second
    await a.append("a2", 1, b"of the second", 1, second)
    await catch_up([a, b])
    snapshot.restore()
    move(postgres, schema)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told, a, 5)
            nursery.start_soon(told, b, 5)
    third = await a.enter("a3", Known(second, 5, 10))
    assert third.epoch not in (first, second)
    assert third.ancestors == (Ancestor(first, 3, 3),)
    assert (await a.append("a3", 1, b"", 1, third.epoch)).first == 11


async def test_a_member_that_has_less_is_asked_as_well(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    """The one that comes first has nothing that was lost; another has."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await catch_up([a, b])
    snapshot = Snapshot(postgres, schema)
    await a.append("a", 4, b"4", 6, epoch)
    snapshot.restore()
    move(postgres, schema)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told, b, 3)
            await until(lambda: votes(postgres, schema) == 1)
            nursery.start_soon(told, a, 4)
    assert (await b.enter("again")).ancestors == (Ancestor(epoch, 3, 3),)


async def test_a_record_in_place_of_another_is_lost_as_well(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await catch_up([a, b])
    postgres.ask(f'UPDATE {schema}.record_1 SET time = time + 1 WHERE "offset" = 3')
    move(postgres, schema)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told, b, 3)
            nursery.start_soon(told, a, 3)
    assert (await b.enter("again", Known(epoch, 2, 2))).ancestors == (Ancestor(epoch, 3, 3),)


async def test_a_member_that_does_not_answer_may_have_had_more(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    await b.close()
    move(postgres, schema)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told, a, 3)
            await until(lambda: votes(postgres, schema) == 1)
            assert (await a.standing()).epoch == epoch
            # It has been waited for.
            postgres.ask(f"UPDATE {schema}.vote SET since = since - %s", VOTES)
    standing = await a.enter("again", Known(epoch, 3, 3))
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert standing.shares(Known(epoch, 3, 3))
    assert await a.append("again", 1, b"", 1, standing.epoch) == Placed(5, 4)


async def test_one_that_has_left_or_was_silent_for_long_is_not_waited_for(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    a, b, _ = await beating(open_on, "a", "b", "c")
    epoch = await fill(a, 3, "a")
    await b.members.leave("b")
    postgres.ask(f"UPDATE {schema}.member SET beat = 1 WHERE name = 'c'")
    move(postgres, schema)
    with trio.fail_after(10):
        assert await a.append("a", 4, b"", 1, epoch) == Placed(4, 4)
    assert votes(postgres, schema) == 0


async def test_a_beat_at_another_process_counts_once_it_is_confirmed(
    open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    """However long the server was away: who comes back first is not taken for the only one."""
    a, b = await beating(open_on, "a", "b")
    epoch = await fill(a, 3, "a")
    postgres.ask(f"UPDATE {schema}.member SET beat = 1000000")  # long ago
    move(postgres, schema)
    await a.members.beat("a", b"")
    assert list(await a.members.all()) == []
    assert postgres.ask(f"SELECT count(*) FROM {schema}.member") == [(2,)]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.read, 0)
            await a.append("a", 4, b"", 1, epoch)
    await a.members.beat("a", b"")
    assert [each.node for each in await a.members.all()] == ["a"]


# Another server


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and its standby."""
    with PostgresServer("system") as primary:
        with PostgresServer("system", primary=primary) as standby:
            yield primary, standby


@pytest.fixture
async def proxy(pair: tuple[PostgresServer, PostgresServer], nursery: trio.Nursery) -> Proxy:
    """Leads to the primary, until a test says otherwise."""
    proxy = Proxy(pair[0].port)
    await nursery.start(proxy.run)
    return proxy


def through(proxy: Proxy, server: PostgresServer) -> str:
    """The server's URL, with the proxy in its place."""
    return server.url().replace(f"{HOST}:{server.port}", f"{HOST}:{proxy.port}")


def replayed(standby: PostgresServer, place: object) -> bool:
    return standby.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", place) == [(True,)]


async def test_a_standby_that_lacks_records_takes_over(
    pair: tuple[PostgresServer, PostgresServer], proxy: Proxy
) -> None:
    """It is refused as long as it is one; then what it has not is lost, and all nodes are told."""
    primary, standby = pair
    url = through(proxy, primary)
    async with await open_engine(url) as a, await open_engine(url) as b:
        await a.enter("a")
        await b.enter("b")
        for each, name in ((a, "a"), (b, "b")):
            await each.members.beat(name, b"")
        epoch = await fill(a, 3, "n")
        await a.enter("a")
        place = primary.ask("SELECT pg_current_wal_lsn()")[0][0]
        await until(lambda: replayed(standby, place))
        standby.stop()
        await a.append("n", 4, b"4", 6, epoch)
        assert len(await read_all(b)) == 4
        primary.kill()
        standby.start()
        proxy.to = standby.port
        for call in (lambda: a.append("n", 5, b"5", 1, epoch), lambda: b.read(4)):
            with pytest.raises(EngineUnavailable, match="a standby"):
                await call()
        with pytest.raises(StartupError, match="is a standby; name its primary"):
            await open_engine(url)
        standby.ask("SELECT pg_promote()")
        with trio.fail_after(20):
            async with trio.open_nursery() as both:
                both.start_soon(_forked, a, 3)
                both.start_soon(_forked, b, 4)
        standing = await b.enter("again", Known(epoch, 4, 9))
        assert standing.ancestors == (Ancestor(epoch, 3, 3),)
        assert (standing.offset, standing.newest) == (4, 9)
        await a.enter("a2", Known(epoch, 3, 3))
        await answered(lambda: a.append("a2", 1, b"goes on", 1, standing.epoch))
        assert [each.body for each in await read_all(b, 3)] == [b"", b"goes on"]


async def test_of_several_servers_the_primary_is_found_whichever_it_is(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, standby = pair
    with socket.create_server((HOST, 0), backlog=1) as silent:
        places = [f"{HOST}:{each}" for each in (silent.getsockname()[1], standby.port)]
        url = primary.url().replace("@", f"@{','.join(places)},", 1)
        async with await open_engine(url) as engine:
            await engine.enter("a")
            await engine.members.beat("a", b"")
            epoch = await fill(engine, 3, "a")
            place = primary.ask("SELECT pg_current_wal_lsn()")[0][0]
            await until(lambda: replayed(standby, place))
            primary.kill()
            with pytest.raises(EngineUnavailable, match="it is a standby, or read-only"):
                await engine.standing()
            with pytest.raises(StartupError, match=f"{places[1]}, {HOST}:{primary.port}: "):
                await open_engine(url)
            standby.ask("SELECT pg_promote()")
            await answered(lambda: engine.append("a", 4, b"4", 1, epoch))
            assert [each.body for each in await read_all(engine)][-1] == b"4"
            assert (await engine.standing()).epoch == epoch


async def test_a_standby_that_has_not_heard_of_the_realm_is_no_other_log(
    pair: tuple[PostgresServer, PostgresServer], proxy: Proxy
) -> None:
    """As one is that has been started again, while it is not as far as it was."""
    primary, standby = pair
    url = through(proxy, primary)
    standby.stop()
    async with await open_engine(url) as engine:
        await engine.enter("a")
        epoch = await fill(engine, 3, "n")
        primary.kill()
        standby.start()
        proxy.to = standby.port
        for call in (
            lambda: engine.append("n", 4, b"4", 1, epoch),
            lambda: engine.read(3),
            engine.standing,
            lambda: engine.trim(1),
        ):
            with pytest.raises(EngineUnavailable, match="a standby"):
                await call()
        standby.stop()
        primary.start()
        proxy.to = primary.port
        await answered(lambda: engine.append("n", 4, b"4", 1, epoch))
        assert [each.body for each in await read_all(engine)][-1] == b"4"


async def _forked(engine: PostgresEngine, after: int) -> None:
    while True:
        try:
            await engine.read(after, wait=1.0)
        except EngineUnavailable:
            await trio.sleep(0.01)
        except Forked:
            return
