"""The master that Sentinels tell of: found, and left once it is another one."""

import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.engine.contract import Engine, EngineUnavailable, Forked, Known, Placed
from mist.engine.opening import open_engine
from mist.engine.redis.tokens import open_redis_tokens
from mist.errors import StartupError
from mist.history import Durability
from tests.engine.outages import answered
from tests.engine.redis.writers import Writer, follow, insist
from tests.engine.redis_sentinel import MASTER, Watched
from tests.engine.redis_server import HOST, RedisServer
from tests.engine.test_contract import fill, read_all
from tests.ports import free_port
from tests.waiting import until

Open = Callable[..., Coroutine[Any, Any, Engine]]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path / "watched", "--appendfsync", "always") as watched:
        yield watched


@pytest.fixture
async def open_at() -> AsyncIterator[Open]:
    """Opens an engine by its URL; closed after the test."""
    opened: list[Engine] = []

    async def open_at(url: str, replicas: int = 0) -> Engine:
        opened.append(await open_engine(url, durability=Durability.PROCESS, replicas=replicas))
        return opened[-1]

    yield open_at
    for each in opened:
        await each.close()


async def load(
    watched: Watched, open_at: Open, end: Callable[[RedisServer], object]
) -> tuple[Engine, dict[int, bytes]]:
    """What was acknowledged to two nodes while the master ends and another takes its place.

    Returns:
        A reader, too, which has waited for news in between.
    """
    url = watched.url()
    writers = [Writer(await open_at(url, 1), name) for name in ("a", "b")]
    reader = await open_at(url, 1)
    epoch = (await reader.enter("r")).epoch
    got: list[bytes] = []

    def acknowledged() -> dict[int, bytes]:
        return writers[0].acknowledged | writers[1].acknowledged

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, reader, got)
        for each in writers:
            nursery.start_soon(each.run)
        await until(lambda: len(acknowledged()) > 50)
        old = watched.master()
        end(old)
        await trio.to_thread.run_sync(watched.until_replaced, old)
        before = len(acknowledged())
        await until(lambda: len(acknowledged()) > before + 50)
        await until(lambda: len(got) > before + 50)
        nursery.cancel_scope.cancel()
    assert (await reader.standing()).epoch == epoch
    return reader, acknowledged()


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_with_a_replica_a_failover_loses_nothing(
    watched: Watched, open_at: Open, how: str
) -> None:
    def end(master: RedisServer) -> None:
        if how == "killed":
            master.kill()
        else:
            master.signal(signal.SIGSTOP)

    reader, acknowledged = await load(watched, open_at, end)
    if how == "stopped":  # back, as a master, until it learns that it is none
        watched.servers[0].signal(signal.SIGCONT)
    await answered(reader.standing)
    found = {each.offset: each.body for each in await read_all(reader)}
    assert acknowledged.items() <= found.items()


async def test_without_one_what_is_lost_is_told(watched: Watched, open_at: Open) -> None:
    engine = await open_at(watched.url())
    epoch = await fill(engine, 3)
    await trio.to_thread.run_sync(_until_replicated, watched)
    old = watched.master()
    old.without_replicas()
    assert await engine.append("n", 4, b"lost", 1, epoch) == Placed(4, 4)
    assert await engine.append("n", 5, b"lost", 1, epoch) == Placed(5, 5)
    old.kill()
    with pytest.raises(Forked):
        await insist(lambda: engine.append("n", 6, b"6", 1, epoch))
    standing = await engine.enter("again", Known(epoch, 5, 5))
    assert standing.epoch != epoch
    assert standing.newest >= 5
    placed = await insist(lambda: engine.append("again", 1, b"again", 1, standing.epoch))
    assert placed.first > 5  # no id is given twice
    assert not [each for each in await read_all(engine) if each.body == b"lost"]


def _until_replicated(watched: Watched) -> None:
    master = watched.servers[0]
    while master.ask("WAIT", "2", "1000") != b":2\r\n":
        pass


async def test_tokens_are_found_the_same_way(watched: Watched) -> None:
    store = await open_redis_tokens(watched.url(), Durability.PROCESS, 1)
    await store.enter(bytes(32))
    version = await store.write({bytes(32): b"value"}, (await store.load()).version, "a1")
    assert (await store.news(version)) == []
    await store.aclose()


# Sentinels that are of no use. One that is made up says what real ones say rarely.


class Told:
    """A Sentinel that tells what it is told to."""

    def __init__(self) -> None:
        self.port = 0
        self.master = 0
        self.epoch = 0
        self.asked = 0
        self.silent = False

    async def serve(self, stream: trio.SocketStream) -> None:
        async for _ in stream:
            self.asked += 1
            if self.silent:
                await trio.sleep_forever()
            port, epoch = b"%d" % self.master, b"%d" % self.epoch
            found = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
            state = b"*2\r\n$12\r\nconfig-epoch\r\n$%d\r\n%s\r\n" % (len(epoch), epoch)
            await stream.send_all(found + state if self.master else b"*-1\r\n-ERR no such\r\n")

    async def start(self, nursery: trio.Nursery) -> "Told":
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        self.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, self.serve, [listener])
        return self


def url_of(*sentinels: int, **options: object) -> str:
    hosts = ",".join([f"{HOST}:{port}" for port in sentinels])
    query = "&".join([f"{name}={value}" for name, value in options.items()])
    return f"redis+sentinel://{hosts}/{MASTER}?realm=test&{query}"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "other"
    folder.mkdir()
    with RedisServer(folder) as server:
        yield server


@pytest.mark.parametrize("redis", ["wheel"], indirect=True)
async def test_a_master_that_was_replaced_is_left_though_it_answers(
    redis: RedisServer, other: RedisServer, open_at: Open, nursery: trio.Nursery
) -> None:
    """As one that is cut off from the Sentinels, and not from this node."""
    one, two = [await Told().start(nursery) for _ in range(2)]
    one.master = two.master = redis.port
    engine = await open_at(url_of(one.port, two.port))
    epoch = await fill(engine, 3)
    one.master = two.master = other.port
    serial = 3
    with trio.fail_after(5), pytest.raises(Forked):  # nothing is there
        while True:
            serial += 1
            await engine.append("n", serial, b"", 1, epoch)
            await trio.sleep(0.05)
    standing = await engine.enter("again", Known(epoch, serial - 1, serial - 1))
    assert standing.newest == serial - 1


@pytest.mark.parametrize("redis", ["wheel"], indirect=True)
async def test_sentinels_that_are_gone_or_stand_still_are_passed_over(
    redis: RedisServer, open_at: Open, nursery: trio.Nursery
) -> None:
    silent, unknowing, knowing = [await Told().start(nursery) for _ in range(3)]
    silent.silent, knowing.master = True, redis.port
    url = url_of(free_port(), silent.port, unknowing.port, knowing.port)
    engine = await open_at(url)
    epoch = await fill(engine, 2)
    assert silent.asked == unknowing.asked == 1  # who answered is asked first from then on
    knowing.silent = True
    with trio.fail_after(10):
        for serial in range(3, 60):  # a master that answers does, whether a Sentinel does or not
            await engine.append("n", serial, b"", 1, epoch)
            await trio.sleep(0.02)
    assert (await engine.standing()).offset == 59


@pytest.mark.parametrize("redis", ["wheel"], indirect=True)
async def test_a_replica_of_which_a_sentinel_tells_is_not_used(
    redis: RedisServer, other: RedisServer, open_at: Open, nursery: trio.Nursery
) -> None:
    old, new = [await Told().start(nursery) for _ in range(2)]
    redis.ask("CONFIG", "SET", "appendfsync", "always")
    await trio.to_thread.run_sync(other.follow, redis.port)
    old.master, new.master = other.port, redis.port
    with pytest.raises(StartupError, match="is a replica"):
        await open_at(url_of(old.port))
    old.master = redis.port
    engine = await open_at(url_of(old.port, new.port))
    epoch = await fill(engine, 2)
    old.master = other.port  # from now on it is behind
    redis.kill()
    with pytest.raises(EngineUnavailable):
        await engine.standing()
    redis.start()
    assert await insist(lambda: engine.append("n", 3, b"", 1, epoch)) == Placed(3, 3)


@pytest.mark.parametrize("redis", ["wheel"], indirect=True)
async def test_a_sentinel_that_is_behind_does_not_lead_back(
    redis: RedisServer, other: RedisServer, open_at: Open, nursery: trio.Nursery
) -> None:
    old, new = [await Told().start(nursery) for _ in range(2)]
    old.master, new.master, new.epoch = other.port, redis.port, 1
    engine = await open_at(url_of(new.port, old.port))
    epoch = await fill(engine, 1)
    new.silent = True  # so that the one that is behind is asked
    began, serial = old.asked, 1
    with trio.fail_after(20):
        while old.asked < began + 2:
            serial += 1
            await engine.append("n", serial, b"", 1, epoch)
            await trio.sleep(0.05)
    assert (await engine.standing()).offset == serial


async def refusal(url: str) -> str:
    with trio.fail_after(10), pytest.raises(StartupError) as error:
        await open_engine(url, durability=Durability.PROCESS)
    text = str(error.value)
    assert text.startswith("engine: ")
    assert "\n" not in text
    assert "hush" not in text
    return text


async def test_what_is_wrong_at_the_start_is_told_in_one_line(
    nursery: trio.Nursery, redis: RedisServer
) -> None:
    nobody, port = free_port(), redis.port
    secret = "sentinel_password=hush-hush"
    text = await refusal(f"{url_of(nobody)}{secret}")
    assert text == f"engine: can't connect to Redis at {HOST}:{nobody}: connection refused"
    with socket.create_server((HOST, 0)) as sock:
        text = await refusal(url_of(sock.getsockname()[1], connect_timeout=0.3))
        assert "no answer in 0.3 s" in text
    told = await Told().start(nursery)
    text = await refusal(url_of(nobody, told.port))
    assert text == f"engine: Sentinel at {HOST}:{told.port} knows no master {MASTER}"
    assert await refusal(url_of(port)) == f"engine: Redis at {HOST}:{port} is not a Sentinel"
    assert "refuses the user or password" in await refusal(f"{url_of(port)}{secret}")
    told.master = nobody
    assert f"{HOST}:{nobody}: connection refused" in await refusal(url_of(told.port))


async def test_sentinels_may_want_a_password(watched: Watched, open_at: Open) -> None:
    for each in watched.sentinels:
        each.ask("ACL", "SETUSER", "mist", "on", ">hush-hush", "+@all")
        each.ask("ACL", "SETUSER", "default", "resetpass", "off")
    assert "wants a password" in await refusal(watched.url())
    url = watched.url(sentinel_user="mist", sentinel_password="hush-hush")
    await fill(await open_at(url), 1)
    assert "refuses" in await refusal(watched.url(sentinel_user="m", sentinel_password="hush"))
