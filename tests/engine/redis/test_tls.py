"""Engines over TLS: a server, the master that Sentinels tell of, a cluster.

On Debian's Redis: the wheel's is built without.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trustme

from mist.engine.contract import Engine
from mist.engine.opening import open_engine
from mist.errors import StartupError
from mist.history import Durability
from tests.engine.redis.writers import insist
from tests.engine.redis_cluster import Cluster
from tests.engine.redis_sentinel import Watched
from tests.engine.redis_server import HOST, RedisServer
from tests.engine.test_contract import fill, read_all


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """A folder with a certificate for loopback, its key, and who has issued it."""
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    return folder


async def open_at(url: str, replicas: int = 0) -> Engine:
    return await open_engine(url, durability=Durability.PROCESS, replicas=replicas)


@pytest.mark.parametrize("redis", ["system"], indirect=True)
async def test_a_server(redis: RedisServer, tls: Path) -> None:
    redis.kill()
    redis.use_tls(tls)
    redis.start()
    async with await open_at(redis.url(connect_timeout=5, ca=tls / "ca.pem")) as engine:
        epoch = (await engine.enter("n")).epoch
        body = bytes(range(256)) * 10_000
        await engine.append("n", 1, body, 1, epoch)
        assert [each.body for each in await engine.read(0)] == [body]
    with pytest.raises(StartupError, match="certificate"):
        await open_at(redis.url(connect_timeout=5))
    with pytest.raises(StartupError, match="no answer"):  # from one that waits for a line's end
        await open_at(f"rediss://{HOST}:{redis.port}?connect_timeout=0.2")
    with pytest.raises(StartupError, match="No such file"):
        await open_at(redis.url(ca="/nowhere"))


async def check_failover(
    group: Watched | Cluster, find: Callable[[], RedisServer], tls: Path, *, back: bool
) -> None:
    """Nothing that was stored is lost where the server that has the realm is killed.

    Args:
        group: has started.
        find: the server that has the realm.
        back: whether the killed one has to come back, to confirm what is written.
    """
    with pytest.raises(StartupError, match="certificate"):
        await open_at(group.url())
    async with await open_at(group.url(ca=tls / "ca.pem"), 1) as engine:
        epoch = await fill(engine, 2)
        old = find()
        old.kill()
        await trio.to_thread.run_sync(group.until_replaced, old)
        if back:
            await trio.to_thread.run_sync(old.start)
        await insist(lambda: engine.append("n", 3, b"3", 1, epoch))
        assert [each.body for each in await read_all(engine)] == [b"1", b"2", b"3"]


async def test_a_master_that_sentinels_tell_of_and_the_next_one(tmp_path: Path, tls: Path) -> None:
    with Watched(tmp_path / "watched", "--appendfsync", "always", tls=tls) as watched:
        await check_failover(watched, watched.master, tls, back=False)


async def test_the_member_of_a_cluster_that_has_the_realm_and_the_next_one(
    tmp_path: Path, tls: Path
) -> None:
    with Cluster(tmp_path / "cluster", "--appendfsync", "always", tls=tls) as cluster:
        await check_failover(cluster, cluster.master_of, tls, back=True)
