"""Tokens in Redis: their keys, what is refused at the start, a Redis that stops or loses."""

import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from mist.auth.codec import Codec
from mist.auth.shared import ForgottenVersion, StaleVersion, Version
from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, Unregister
from mist.engine.redis import tokens
from mist.engine.redis.tokens import RedisTokens, open_redis_tokens
from mist.errors import RegistryUnavailable, StartupError
from mist.history import Durability
from tests.engine.proxy import Proxy
from tests.engine.redis.conftest import QUICK
from tests.engine.redis_server import HOST, RedisServer
from tests.waiting import until

KEY = b"s3cret-key".ljust(32)
FINGERPRINT = Codec(KEY).fingerprint
HASH, HEAD, LOG = (f"{{mist:test}}:tokens{each}" for each in ("", ":head", ":log"))
SOON = 10  # seconds

Open = Callable[..., Awaitable[RedisTokens]]


@pytest.fixture
async def open_tokens_on(redis: RedisServer) -> AsyncIterator[Open]:
    """Opens tokens, on a port in place of the server's; closed after the test."""
    opened: list[RedisTokens] = []

    async def open_tokens_on(port: int = 0, **options: object) -> RedisTokens:
        url = redis.url(**options).replace(f":{redis.port}/", f":{port or redis.port}/")
        store = await open_redis_tokens(url, Durability.PROCESS)
        opened.append(store)
        await store.enter(FINGERPRINT)
        return store

    yield open_tokens_on
    for each in opened:
        await each.aclose()


@pytest.fixture
async def store(open_tokens_on: Open) -> RedisTokens:
    return await open_tokens_on()


@pytest.fixture
async def quick(open_tokens_on: Open) -> RedisTokens:
    """A store that does not wait for long."""
    return await open_tokens_on(**QUICK)


def name() -> str:
    return secrets.token_hex(16)


async def write(store: RedisTokens, value: bytes = b"value", digest: bytes = KEY) -> Version:
    return await store.write({digest: value}, (await store.load()).version, name())


async def refused(call: Callable[[], Awaitable[object]]) -> str:
    """Why a call is refused, soon."""
    with trio.fail_after(SOON):
        with pytest.raises(RegistryUnavailable) as error:
            await call()
    return str(error.value.__cause__)


async def answered(call: Callable[[], Awaitable[object]]) -> None:
    """Wait until a call is answered."""
    with trio.fail_after(SOON):
        while True:
            try:
                await call()
            except RegistryUnavailable:
                await trio.sleep(0.01)
            else:
                return


# What it keeps


async def test_keys_are_those_of_the_realm_and_do_not_expire(
    store: RedisTokens, redis: RedisServer
) -> None:
    await write(store)
    keys = {HASH, HEAD, LOG}
    assert {each.decode() for each in redis.ask("KEYS", "*").split()[2::2]} == keys
    for key in keys:
        assert redis.ask("TTL", key) == b":-1\r\n"


async def test_realms_are_apart(open_tokens_on: Open) -> None:
    one, other = await open_tokens_on(), await open_tokens_on(realm="other")
    await write(one)
    assert len((await one.load()).values) == 1
    assert (await other.load()).values == {}


async def test_the_log_of_changes_is_bounded(
    store: RedisTokens, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "KEPT_CHANGES", 20)
    versions = [await write(store, b"%d" % turn) for turn in range(100)]
    assert int(redis.ask("XLEN", LOG)[1:]) == 21
    assert len(await store.news(versions[79])) == 20
    with pytest.raises(ForgottenVersion):
        await store.news(versions[78])
    # What one write pushes out goes in steps, with those that come behind it.
    await store.write({bytes([n]) * 32: b"many" for n in range(21)}, versions[-1], name())
    assert int(redis.ask("XLEN", LOG)[1:]) == 12
    await write(store)
    await write(store)
    assert int(redis.ask("XLEN", LOG)[1:]) == 3


async def test_ten_thousand_changes_are_one_write(store: RedisTokens) -> None:
    before = (await store.load()).version
    values = {secrets.token_bytes(32): secrets.token_bytes(150) for _ in range(10_000)}
    version = await store.write(values, before, name())
    snapshot = await store.load()
    assert (snapshot.version, snapshot.values) == (version, values)
    (update,) = await store.news(before)
    assert update.changes == values
    version = await store.write(dict.fromkeys(values), version, name())
    assert (await store.load()).values == {}


async def test_loading_takes_many_short_steps(store: RedisTokens, redis: RedisServer) -> None:
    version = (await store.load()).version
    for _ in range(5):
        values = {secrets.token_bytes(32): b"value" for _ in range(1_000)}
        version = await store.write(values, version, name())
    redis.ask("CONFIG", "RESETSTAT")
    assert len((await store.load()).values) == 5_000
    stats = redis.ask("INFO", "commandstats").decode()
    (scans,) = [line for line in stats.splitlines() if line.startswith("cmdstat_hscan:")]
    assert int(scans.partition("calls=")[2].partition(",")[0]) >= 5_000 / tokens._SCANNED / 2


# What is refused at the start


async def test_a_url_and_a_server_that_cannot_be_used_are_told_in_one_line(
    redis: RedisServer,
) -> None:
    for url, why in [
        ("redis://user:hush@", "a host is missing"),
        (redis.url(realm="no such!"), "a realm is"),
        (f"redis://:hush@{HOST}:1", "can't connect to Redis"),
        (f"rediss://:hush@{HOST}:{redis.port}?connect_timeout=2", "can't connect to Redis"),
    ]:
        with pytest.raises(StartupError) as error:
            await open_redis_tokens(url, Durability.PROCESS)
        line = str(error.value)
        assert line.startswith("token registry: ")
        assert why in line
        assert "\n" not in line
        assert "hush" not in line


async def test_a_server_that_would_lose_tokens_is_refused(redis: RedisServer) -> None:
    with pytest.raises(StartupError, match=r"^token registry: .*appendfsync everysec"):
        await open_redis_tokens(redis.url(), Durability.POWER)
    redis.ask("CONFIG", "SET", "maxmemory", "100mb")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StartupError, match=r"^token registry: .*would evict"):
        await open_redis_tokens(redis.url(), Durability.PROCESS)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("HSET", HEAD, "format", "99", "version", "1"), "those of another version of mist"),
        (("SET", HEAD, "1"), "a key of the realm is another program's"),
        (("HSET", HASH, "a", "b"), "they have no head"),
        (("XADD", LOG, "1", "a", "b"), "they have no head"),
    ],
)
async def test_tokens_that_are_not_this_programs_are_left_alone(
    redis: RedisServer, command: tuple[str, ...], why: str
) -> None:
    redis.ask(*command)
    before = redis.ask("DUMP", command[1])
    store = await open_redis_tokens(redis.url(), Durability.PROCESS)
    with pytest.raises(StartupError) as error:
        await SharedRegistry.open(store, KEY)
    assert str(error.value).startswith("token registry: ")
    assert why in str(error.value)
    assert redis.ask("DUMP", command[1]) == before


# A Redis that is stopped, or has lost what it had


async def all_refused(store: RedisTokens, version: Version) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        store.load,
        lambda: store.enter(FINGERPRINT),
        lambda: store.news(version),
        lambda: store.news(version, wait=0.3),
        lambda: store.write({KEY: b"other"}, version, name()),
    ]
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(refused, call)


async def test_a_stopped_server_keeps_nobody_waiting(
    quick: RedisTokens, redis: RedisServer
) -> None:
    version = await write(quick)
    with redis.frozen():
        await all_refused(quick, version)
        await all_refused(quick, version)
    await answered(quick.load)


async def test_a_network_that_swallows_keeps_nobody_waiting(
    open_tokens_on: Open, proxy: Proxy
) -> None:
    store = await open_tokens_on(proxy.port, **QUICK)
    version = await write(store)
    with proxy.freeze():
        await all_refused(store, version)
    with proxy.lose_replies():
        await all_refused(store, version)
    await answered(store.load)


async def test_a_wait_is_ended_by_a_server_that_stops_in_it(
    quick: RedisTokens, redis: RedisServer, nursery: trio.Nursery
) -> None:
    version = await write(quick)
    ended = trio.Event()

    async def wait() -> None:
        await refused(lambda: quick.news(version, wait=0.5))
        ended.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked(0.02)
    with redis.frozen():
        with trio.fail_after(SOON):
            await ended.wait()


async def test_a_lost_reply_is_no_lost_write(open_tokens_on: Open, proxy: Proxy) -> None:
    store = await open_tokens_on(proxy.port, **QUICK)
    before = (await store.load()).version
    mine = name()
    with proxy.lose_replies():
        await refused(lambda: store.write({KEY: b"one"}, before, mine))
    await answered(store.load)
    after = await store.write({KEY: b"one"}, before, mine)
    assert after.number == before.number + 1
    with pytest.raises(StaleVersion):
        await store.write({KEY: b"two"}, before, name())
    assert len(await store.news(before)) == 1


async def test_a_server_without_memory_changes_nothing(
    store: RedisTokens, redis: RedisServer
) -> None:
    version = await write(store)
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    assert "memory is full" in await refused(
        lambda: store.write({b"d" * 32: bytes(1_000)}, version, name())
    )
    redis.ask("CONFIG", "SET", "maxmemory", "0")
    snapshot = await store.load()
    assert (snapshot.version, list(snapshot.values)) == (version, [KEY])
    assert await store.news(version) == []


@pytest.mark.parametrize("how", ["FLUSHALL", "DEL"])
async def test_tokens_that_are_gone_revoke_none_until_a_server_makes_them_anew(
    open_tokens_on: Open, redis: RedisServer, nursery: trio.Nursery, how: str
) -> None:
    registry = await SharedRegistry.open(await open_tokens_on(**QUICK), KEY)
    seen: list[object] = []
    registry.watch(lambda old, new: seen.append(new))
    nursery.start_soon(registry.run)
    await registry.execute([Register("t", frozenset("a"))])
    before = registry.version
    redis.ask(how, *([HASH, HEAD, LOG] if how == "DEL" else []))
    with pytest.raises(RegistryUnavailable):
        await registry.sync()
    assert registry.statistics().tokens == 1
    assert seen == []
    async with await SharedRegistry.open(await open_tokens_on(), KEY) as other:
        await other.execute([Register("u", frozenset("a"))])
        await until(lambda: registry.version == other.version)
        assert seen == [None]
        assert other.version.number > before.number  # so no stamp is one from before
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("body", ["", "x", "x" * 36, "x" * 50])
@pytest.mark.parametrize("header", ["", "f" * 32, "f" * 32 + " 1", "no write"])
async def test_a_damaged_entry_of_the_log_ends_no_server(
    open_tokens_on: Open, redis: RedisServer, nursery: trio.Nursery, header: str, body: str
) -> None:
    registry = await SharedRegistry.open(await open_tokens_on(**QUICK), KEY)
    await registry.execute([Register("t", frozenset("a"))])
    number = registry.version.number + 1
    redis.ask("XADD", LOG, f"{number}-0", header, body)
    redis.ask("HSET", HEAD, "version", str(number), "write", "f" * 32)
    nursery.start_soon(registry.run)
    await until(lambda: registry.version.number == number)
    assert registry.tags("t") == {"a"}
    await registry.execute([AddTags("t", frozenset("b"))])
    assert registry.tags("t") == {"a", "b"}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "command",
    [
        ("HSET", HEAD, "version", "x"),
        ("HDEL", HEAD, "write"),
        ("HDEL", HEAD, "changes"),
        ("SET", HEAD, "x"),
        ("SET", LOG, "x"),
        ("SET", HASH, "x"),
        ("DEL", LOG),
    ],
)
async def test_damaged_keys_end_no_server(
    open_tokens_on: Open, redis: RedisServer, nursery: trio.Nursery, command: tuple[str, ...]
) -> None:
    store = await open_tokens_on(**QUICK)
    registry = await SharedRegistry.open(store, KEY, timeout=0.3)
    await registry.execute([Register("t", frozenset("a"))])
    redis.ask(*command)
    nursery.start_soon(registry.run)
    for call in (
        lambda: registry.execute([AddTags("t", frozenset("b"))]),
        registry.sync,
        store.load,
    ):
        with suppress(RegistryUnavailable):
            await call()
    assert "a" in registry.tags("t")
    nursery.cancel_scope.cancel()


async def test_a_server_that_has_lost_writes_is_followed_where_it_is(
    open_tokens_on: Open, redis: RedisServer, nursery: trio.Nursery
) -> None:
    """As a replica that was behind and took over."""
    redis.set_fsync("always")
    registry = await SharedRegistry.open(await open_tokens_on(**QUICK), KEY)
    nursery.start_soon(registry.run)
    await registry.execute([Register("t", frozenset("a"))])
    redis.kill()
    earlier = {each: each.read_bytes() for each in redis.folder.rglob("*.aof*") if each.is_file()}
    redis.start()
    with trio.fail_after(SOON):
        await registry.execute([AddTags("t", frozenset("b")), Register("u", frozenset("a"))])
    redis.kill()
    for path, content in earlier.items():
        path.write_bytes(content)
    redis.start()
    await until(lambda: registry.statistics().tokens == 1)
    assert registry.tags("t") == {"a"}
    await registry.execute([Unregister("t")])
    nursery.cancel_scope.cancel()


# Secrets


async def test_a_token_is_nowhere_in_redis(store: RedisTokens, redis: RedisServer) -> None:
    with socket.create_connection((HOST, redis.port), timeout=10) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        assert monitor.recv(5) == b"+OK\r\n"
        registry = await SharedRegistry.open(store, KEY)
        await registry.execute([Register("s3cret-t0ken", frozenset("a"))])
        await registry.refresh("s3cret-guess")
        await registry.execute([AddTags("s3cret-t0ken", frozenset("b"))])
        await registry.execute([Unregister("s3cret-other")])
        redis.ask("ECHO", "the end")
        heard = b""
        while b"the end" not in heard:
            heard += await trio.to_thread.run_sync(monitor.recv, 1 << 20)
    assert b"EVAL" in heard
    assert b"s3cret" not in heard
    redis.kill()
    kept = b"".join(each.read_bytes() for each in redis.folder.rglob("*") if each.is_file())
    assert b"s3cret" not in kept
