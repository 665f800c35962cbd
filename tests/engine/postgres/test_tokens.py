"""Tokens in PostgreSQL: what is refused at the start, a server that stops or loses, secrets."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from mist.auth.codec import Codec
from mist.auth.shared import ForgottenVersion, StaleVersion, Version
from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, Unregister
from mist.engine.postgres import tokens
from mist.engine.postgres.tokens import PostgresTokens, open_postgres_tokens
from mist.errors import RegistryUnavailable, StartupError
from mist.history import Durability
from tests.engine.outages import QUICK
from tests.engine.postgres_server import HOST, PASSWORD, PostgresServer
from tests.engine.proxy import Proxy
from tests.waiting import until

KEY = b"s3cret-key".ljust(32)
FINGERPRINT = Codec(KEY).fingerprint
DIGEST = b"digest".ljust(32)
SOON = 10  # seconds

Open = Callable[..., Awaitable[PostgresTokens]]


@pytest.fixture
def postgres_kind() -> str:
    return "system"


@pytest.fixture
async def open_tokens_on(postgres: PostgresServer, realm: str) -> AsyncIterator[Open]:
    """Opens tokens, on a port in place of the server's; closed after the test."""
    opened: list[PostgresTokens] = []

    async def open_tokens_on(port: int = 0, **options: object) -> PostgresTokens:
        url = postgres.url(realm, **options).replace(
            f":{postgres.port}/", f":{port or postgres.port}/"
        )
        store = await open_postgres_tokens(url, Durability.POWER)
        opened.append(store)
        await store.enter(FINGERPRINT)
        return store

    yield open_tokens_on
    for each in opened:
        await each.aclose()


@pytest.fixture
async def store(open_tokens_on: Open) -> PostgresTokens:
    return await open_tokens_on()


@pytest.fixture
async def quick(open_tokens_on: Open) -> PostgresTokens:
    """A store that does not wait for long."""
    await open_tokens_on()  # makes the realm, which takes its time
    return await open_tokens_on(**QUICK)


def name() -> str:
    return secrets.token_hex(16)


async def write(store: PostgresTokens, value: bytes = b"value", digest: bytes = DIGEST) -> Version:
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


async def test_the_log_of_changes_is_bounded(
    store: PostgresTokens, postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "KEPT_CHANGES", 20)

    def kept() -> object:
        return postgres.ask(f"SELECT count(*) FROM {schema}.token_change")[0][0]

    versions = [await write(store, b"%d" % turn) for turn in range(100)]
    assert kept() == 21
    assert len(await store.news(versions[79])) == 20
    with pytest.raises(ForgottenVersion):
        await store.news(versions[78])
    # What one write pushes out goes in steps, with those that come behind it.
    await store.write({bytes([n]) * 32: b"many" for n in range(21)}, versions[-1], name())
    assert kept() == 12
    await write(store)
    await write(store)
    assert kept() == 3


async def test_ten_thousand_changes_are_one_write(store: PostgresTokens) -> None:
    before = (await store.load()).version
    values = {secrets.token_bytes(32): secrets.token_bytes(150) for _ in range(10_000)}
    version = await store.write(values, before, name())
    snapshot = await store.load()
    assert (snapshot.version, snapshot.values) == (version, values)
    (update,) = await store.news(before)
    assert update.changes == values
    version = await store.write(dict.fromkeys(values), version, name())
    assert (await store.load()).values == {}


async def test_news_are_found_where_no_notification_comes(
    open_tokens_on: Open, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await open_tokens_on(), await open_tokens_on()
    monkeypatch.setattr(other._database.pool, "_channel", "another")
    version = (await one.load()).version
    assert await other.news(version, wait=0.01) == []  # and has begun to listen
    found: list[Version] = []

    async def follow() -> None:
        last = version
        while len(found) < 3:
            for update in await other.news(last, wait=SOON):
                found.append(last := update.version)

    written: list[Version] = []
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for turn in range(3):
                await until(lambda turn=turn: len(found) == turn)  # type: ignore[misc]
                await trio.testing.wait_all_tasks_blocked(0.02)
                written.append(await write(one))
    assert found == written


async def test_waiting_for_news_takes_one_connection(open_tokens_on: Open, proxy: Proxy) -> None:
    store = await open_tokens_on(proxy.port)
    version = (await store.load()).version
    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: store.news(version, wait=0.02))
    assert proxy.connections <= 1 + 3  # to listen, and for those that ask at once


async def test_who_waits_for_tokens_is_not_woken_by_records(
    store: PostgresTokens, postgres: PostgresServer, realm: str
) -> None:
    version = (await store.load()).version
    asked = 0
    ask = store._database.pool.ask

    async def counted(statement: str, *values: object) -> object:
        nonlocal asked
        asked += 1
        return await ask(statement, *values)  # type: ignore[arg-type]

    store._database.pool.ask = counted  # type: ignore[method-assign,assignment]
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait() -> None:
            assert await store.news(version, wait=0.2) == []

        for _ in range(50):
            await trio.to_thread.run_sync(postgres.ask, f'NOTIFY "mist_{realm}"')
    assert asked <= 4


# What is refused at the start


async def test_a_url_and_a_server_that_cannot_be_used_are_told_in_one_line(
    postgres: PostgresServer, realm: str
) -> None:
    for url, why in [
        ("postgresql://user:hush@", "a host is missing"),
        ("postgresql://user:hush@here/db?host=/run/x", "its host is given twice"),
        (postgres.url("no such!"), "a realm is"),
        (f"postgresql://:hush@{HOST}:1", "can't connect to PostgreSQL"),
        (f"postgresql://postgres:hush@{HOST}:{postgres.port}", "password authentication failed"),
    ]:
        with pytest.raises(StartupError) as error:
            await open_postgres_tokens(url, Durability.POWER)
        line = str(error.value)
        assert line.startswith("token registry: ")
        assert why in line
        assert "\n" not in line
        assert "hush" not in line
        assert PASSWORD not in line


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE {schema}.head SET format = 99", "is one of another version of mist"),
        ("DELETE FROM {schema}.token_head", "the tokens are damaged: they have no head"),
    ],
)
async def test_tokens_that_are_not_this_programs_are_left_alone(
    store: PostgresTokens, postgres: PostgresServer, realm: str, statement: str, why: str
) -> None:
    await write(store)
    postgres.ask(statement.replace("{schema}", f'"mist_{realm}"'))
    with pytest.raises(StartupError) as error:
        await SharedRegistry.open(
            await open_postgres_tokens(postgres.url(realm), Durability.POWER), KEY
        )
    assert str(error.value).startswith("token registry: ")
    assert why in str(error.value)
    assert postgres.ask(f'SELECT count(*) FROM "mist_{realm}".token') == [(1,)]


# A server that is stopped, or has lost what it had


async def all_refused(store: PostgresTokens, version: Version) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        store.load,
        lambda: store.enter(FINGERPRINT),
        lambda: store.news(version),
        lambda: store.news(version, wait=0.3),
        lambda: store.write({DIGEST: b"other"}, version, name()),
    ]
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(refused, call)


async def test_a_stopped_server_keeps_nobody_waiting(
    quick: PostgresTokens, postgres: PostgresServer
) -> None:
    version = await write(quick)
    with postgres.frozen():
        await all_refused(quick, version)
        await all_refused(quick, version)
    await answered(quick.load)


async def test_a_network_that_swallows_keeps_nobody_waiting(
    open_tokens_on: Open, proxy: Proxy
) -> None:
    await open_tokens_on()
    store = await open_tokens_on(proxy.port, **QUICK)
    version = await write(store)
    with proxy.freeze():
        await all_refused(store, version)
    await answered(store.load)


async def test_a_lost_reply_is_no_lost_write(open_tokens_on: Open, proxy: Proxy) -> None:
    await open_tokens_on()
    store = await open_tokens_on(proxy.port, **QUICK)
    before = (await store.load()).version
    mine = name()
    with proxy.lose_replies():
        await refused(lambda: store.write({DIGEST: b"one"}, before, mine))
    await answered(store.load)
    after = await store.write({DIGEST: b"one"}, before, mine)
    assert after.number == before.number + 1
    with pytest.raises(StaleVersion):
        await store.write({DIGEST: b"two"}, before, name())
    assert len(await store.news(before)) == 1


@pytest.mark.parametrize("how", ["schema", "rows"])
async def test_tokens_that_are_gone_revoke_none_until_a_server_makes_them_anew(
    open_tokens_on: Open, postgres: PostgresServer, schema: str, nursery: trio.Nursery, how: str
) -> None:
    await open_tokens_on()
    registry = await SharedRegistry.open(await open_tokens_on(**QUICK), KEY)
    seen: list[object] = []
    registry.watch(lambda old, new: seen.append(new))
    nursery.start_soon(registry.run)
    await registry.execute([Register("t", frozenset("a"))])
    before = registry.version
    if how == "schema":
        postgres.ask(f"DROP SCHEMA {schema} CASCADE")
    else:
        postgres.ask(f"TRUNCATE {schema}.token_head, {schema}.token, {schema}.token_change")
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


# Secrets


async def test_a_token_is_nowhere_in_the_database(
    store: PostgresTokens, postgres: PostgresServer
) -> None:
    postgres.ask("ALTER SYSTEM SET log_statement = 'all'")
    postgres.ask("ALTER SYSTEM SET logging_collector = on")
    postgres.ask("SELECT pg_reload_conf()")
    registry = await SharedRegistry.open(store, KEY)
    await registry.execute([Register("s3cret-t0ken", frozenset("a"))])
    await registry.refresh("s3cret-guess")
    await registry.execute([AddTags("s3cret-t0ken", frozenset("b"))])
    await registry.execute([Unregister("s3cret-other")])
    postgres.ask("ALTER SYSTEM RESET ALL")
    postgres.ask("CHECKPOINT")
    postgres.kill()
    kept = b"".join([each.read_bytes() for each in postgres.data.rglob("*") if each.is_file()])
    assert b"token_head" in kept
    assert b"s3cret" not in kept
