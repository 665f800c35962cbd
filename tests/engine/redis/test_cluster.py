"""A realm in a cluster: found, and followed through a failover and while its slot is moved.

The contract's tests, those of members and those of tokens run on a cluster, too.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.opening import open_engine
from mist.engine.redis.cluster import ClusterDiscovery, slot_of
from mist.engine.redis.engine import RedisEngine
from mist.engine.redis.location import Location
from mist.errors import StartupError
from mist.history import Durability
from tests.engine.outages import answered
from tests.engine.redis.writers import Writer, follow
from tests.engine.redis_cluster import Cluster
from tests.engine.redis_server import HOST, KINDS, RedisServer
from tests.engine.test_contract import fill, read_all
from tests.ports import free_port
from tests.waiting import until


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, "--appendfsync", "always", kind=request.param) as cluster:
        yield cluster


async def open_at(url: str, replicas: int = 0) -> RedisEngine:
    engine = await open_engine(url, durability=Durability.PROCESS, replicas=replicas)
    assert isinstance(engine, RedisEngine)
    return engine


async def test_a_realm_is_found_wherever_it_is(cluster: Cluster) -> None:
    """From a member that has it, and from those that do not."""
    found = set()
    for number in range(6):
        async with await open_at(cluster.url(f"r{number}")) as engine:
            await fill(engine, 2)
            assert len(await read_all(engine)) == 2
            found.add(cluster.master_of(f"r{number}").port)
    assert len(found) > 1
    some = cluster.servers[5]  # a replica
    async with await open_at(
        f"redis+cluster://{HOST}:{free_port()},{HOST}:{some.port}?realm=r0"
    ) as engine:
        assert len(await read_all(engine)) == 2


async def test_its_slot_is_that_of_redis(cluster: Cluster) -> None:
    for realm in ("mist", "a.b-c_1"):
        reply = cluster.servers[0].ask("CLUSTER", "KEYSLOT", f"{{mist:{realm}}}:head")
        assert reply == b":%d\r\n" % slot_of(f"mist:{realm}")


async def test_a_slot_that_is_moved_under_load_takes_nothing_away(cluster: Cluster) -> None:
    realm = "moved"
    async with (
        await open_at(cluster.url(realm), 1) as one,
        await open_at(cluster.url(realm), 1) as other,
        await open_at(cluster.url(realm), 1) as reader,
    ):
        epoch = (await reader.enter("r")).epoch
        writers = [Writer(one, "a"), Writer(other, "b")]
        got: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, reader, got)
            for each in writers:
                nursery.start_soon(each.run)
            await until(lambda: len(got) > 50)
            source = cluster.master_of(realm)
            target = next(each for each in cluster.servers[:3] if each is not source)
            await trio.to_thread.run_sync(cluster.move, source, target, realm)
            before = len(got)
            await until(lambda: len(got) > before + 50)
            assert cluster.master_of(realm) is target
            nursery.cancel_scope.cancel()
        assert (await reader.standing()).epoch == epoch
        found = {each.offset: each.body for each in await read_all(reader)}
    acknowledged = writers[0].acknowledged | writers[1].acknowledged
    assert acknowledged.items() <= found.items()
    assert got == list(found.values())[: len(got)]
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_failover_loses_nothing_that_a_replica_has(
    cluster: Cluster, how: signal.Signals
) -> None:
    realm = f"failover{how.value}"
    async with (
        await open_at(cluster.url(realm), 1) as writing,
        await open_at(cluster.url(realm), 1) as reader,
    ):
        epoch = (await reader.enter("r")).epoch
        writer, got = Writer(writing, "a"), list[bytes]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, reader, got)
            nursery.start_soon(writer.run)
            await until(lambda: len(got) > 50)
            old = cluster.master_of(realm)
            old.signal(how)
            await trio.to_thread.run_sync(cluster.until_replaced, old, realm)
            if how is signal.SIGKILL:
                old.kill()
                old.start()
            else:
                old.signal(signal.SIGCONT)
            before = len(writer.acknowledged)
            # There is a replica again, which is the one that was the master.
            await until(lambda: len(writer.acknowledged) > before + 50)
            nursery.cancel_scope.cancel()
        await answered(reader.standing)
        assert (await reader.standing()).epoch == epoch
        found = {each.offset: each.body for each in await read_all(reader)}
    assert writer.acknowledged.items() <= found.items()
    assert len(set(found.values())) == len(found)
    await trio.to_thread.run_sync(cluster.until_whole)


async def test_members_that_do_not_tell_their_hosts_are_asked_where_they_were() -> None:
    location = Location.parse(f"redis+cluster://{HOST}:7000?realm=x")
    discovery = ClusterDiscovery(location, None)
    (asked,) = location.servers
    for host in (None, b""):
        assert discovery._read(asked, [[[0, 16_383, [host, 7001, b"id"]]]]).port == 7001
    with pytest.raises(EngineUnavailable, match="nobody has the slot"):
        discovery._read(asked, [[]])


async def test_what_is_wrong_at_the_start_is_told_in_one_line(
    cluster: Cluster, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as alone:
        text = await refusal(f"redis+cluster://me:hush-hush@{HOST}:{free_port()}")
        assert "connection refused" in text
        text = await refusal(f"redis+cluster://{HOST}:{alone.port}")
        assert text == f"engine: Redis at {HOST}:{alone.port} is not part of a cluster"
    url = cluster.url().replace("//", "//me:hush-hush@")
    assert "refuses the user or password" in await refusal(url)
    states = [(each, each.ask("INFO", "replication")) for each in cluster.servers]
    master = next(each for each, state in states if b"role:master" in state)
    text = await refusal(f"redis://{HOST}:{master.port}")
    assert text.endswith("is part of a cluster; use redis+cluster://")


async def refusal(url: str) -> str:
    with trio.fail_after(10), pytest.raises(StartupError) as error:
        await open_at(url)
    text = str(error.value)
    assert text.startswith("engine: ")
    assert "\n" not in text
    assert "hush" not in text
    return text
