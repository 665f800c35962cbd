"""What a PostgreSQL must be, so that it is not refused at the start."""

import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trustme

from mist.engine.opening import open_engine
from mist.engine.postgres.requirements import problem_of
from mist.errors import StartupError
from mist.history import Durability
from tests.engine.postgres_server import HOST, PASSWORD, PostgresServer
from tests.engine.test_contract import fill, read_all
from tests.ports import free_port

Refusal = Callable[..., Awaitable[str]]


@pytest.fixture
def postgres_kind() -> str:
    return "system"


@pytest.fixture
def refusal(postgres: PostgresServer, realm: str, caplog: pytest.LogCaptureFixture) -> Refusal:
    """Why a server is refused, in one line that has no password in it, and nor has the log."""

    async def refusal(
        user: str = "postgres",
        password: str = PASSWORD,
        port: int | str = 0,
        durability: Durability = Durability.POWER,
        database: str = "postgres",
        seconds: float = 0.5,
    ) -> str:
        place = f"{user}:{password}@{HOST}:{port or postgres.port}/{database}"
        url = f"postgresql://{place}?realm={realm}&timeout={4 * seconds}&connect_timeout={seconds}"
        with trio.fail_after(10):
            with pytest.raises(StartupError) as error:
                await open_engine(url, durability=durability)
        text = str(error.value)
        assert text.startswith("engine: ")
        assert "\n" not in text
        assert password not in text
        assert caplog.text == ""  # what is refused is told once
        assert error.value.__cause__ is None
        return text

    return refusal


@contextmanager
def set_to(postgres: PostgresServer, **settings: str) -> Iterator[None]:
    """With other settings of the user for the length of the block."""
    for name, value in settings.items():
        postgres.ask(f"ALTER ROLE postgres SET {name} = '{value}'")
    try:
        yield
    finally:
        with postgres.connect() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER ROLE postgres RESET ALL")


async def test_a_server_that_is_not_there(refusal: Refusal) -> None:
    port = free_port()
    wanted = f"engine: can't connect to PostgreSQL at {HOST}:{port}: connection refused"
    assert await refusal(port=port) == wanted


async def test_a_server_that_says_nothing(refusal: Refusal) -> None:
    with socket.create_server((HOST, 0)) as sock:
        assert "no answer in 0.5 s" in await refusal(port=sock.getsockname()[1])


async def test_of_several_servers_each_is_said_why_not(
    postgres: PostgresServer, refusal: Refusal
) -> None:
    gone = free_port()
    with socket.create_server((HOST, 0)) as sock:
        ports = (postgres.port, gone, sock.getsockname()[1])
        first, second, third = [f"{HOST}:{each}" for each in ports]
        text = await refusal(password="another's", port=f"{ports[0]},{second},{third}", seconds=4)
    assert text.startswith(f"engine: can't connect to PostgreSQL at {first}, {second}, {third}: ")
    assert f'password authentication failed for user "postgres" ({first}); ' in text
    assert f"; connection refused ({second}); no answer in " in text
    assert text.endswith(f" s ({third})")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_server_that_is_not_postgresql(
    refusal: Refusal, answer: bytes, nursery: trio.Nursery
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)

    listeners = await trio.open_tcp_listeners(0, host=HOST)
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    text = await refusal(port=listeners[0].socket.getsockname()[1])
    assert "can't connect to PostgreSQL" in text


async def test_a_host_that_has_no_address() -> None:
    with pytest.raises(StartupError, match="can't connect to PostgreSQL at nowhere"):
        await open_engine("postgresql://me:hush-hush@nowhere.invalid/db")


async def test_another_password(refusal: Refusal) -> None:
    assert "password authentication failed" in await refusal(password="another's")
    assert "password authentication failed" in await refusal(user="nobody", password="x y'\\=")


async def test_another_database(refusal: Refusal) -> None:
    assert 'database "other" does not exist' in await refusal(database="other")


async def test_the_password_is_nowhere(
    postgres: PostgresServer, realm: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with await open_engine(postgres.url(realm)) as engine:
        await engine.enter("n")
        assert PASSWORD not in repr(vars(engine)) + caplog.text


def test_an_old_version() -> None:
    settings = {"fsync": "on", "full_page_writes": "on", "read_only": "off"}
    settings["isolation"] = "read committed"

    def problem(version: str) -> str:
        return problem_of(version, standby=False, durability=Durability.POWER, **settings)

    assert problem("12.22 (Debian)") == "is version 12.22 (Debian); 13 or later is needed"
    assert problem("9.6.24") == "is version 9.6.24; 13 or later is needed"
    assert problem("13.0") == problem("19beta1") == ""


async def test_durability(refusal: Refusal, postgres: PostgresServer, realm: str) -> None:
    postgres.stop()
    postgres.options[:] = ["fsync=off"]
    postgres.start()
    try:
        for each in (Durability.POWER, Durability.PROCESS):
            text = await refusal(durability=each)
            assert f"durability {each.value} needs fsync on" in text
        await (await open_engine(postgres.url(realm), durability=Durability.NOTHING)).close()
        postgres.stop()
        postgres.options[:] = ["full_page_writes=off"]
        postgres.start()
        assert "set full_page_writes on, or durability to process" in await refusal()
        await (await open_engine(postgres.url(realm), durability=Durability.PROCESS)).close()
    finally:
        postgres.stop()
        postgres.options.clear()
        postgres.start()


async def test_a_user_who_may_only_read(refusal: Refusal, postgres: PostgresServer) -> None:
    with set_to(postgres, default_transaction_read_only="on"):
        assert "set default_transaction_read_only off" in await refusal()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_another_isolation(refusal: Refusal, postgres: PostgresServer, level: str) -> None:
    with set_to(postgres, default_transaction_isolation=level):
        assert f"isolates transactions as {level}" in await refusal()


# What its user may do


@pytest.fixture
def user(postgres: PostgresServer, realm: str) -> Iterator[str]:
    """One who may connect, and no more; of the same password."""
    postgres.ask(f"CREATE ROLE \"u{realm}\" LOGIN PASSWORD '{PASSWORD}'")
    yield f"u{realm}"
    postgres.ask(f'DROP OWNED BY "u{realm}" CASCADE')
    postgres.ask(f'DROP ROLE "u{realm}"')


async def test_a_user_who_may_not_create_a_schema_is_told_how(
    refusal: Refusal, user: str, realm: str, postgres: PostgresServer
) -> None:
    text = await refusal(user=user)
    assert f'as an administrator, CREATE SCHEMA "mist_{realm}" AUTHORIZATION' in text
    postgres.ask(f'CREATE SCHEMA "mist_{realm}" AUTHORIZATION "{user}"')
    url = f"postgresql://{user}:{PASSWORD}@{HOST}:{postgres.port}/postgres?realm={realm}"
    async with await open_engine(url) as engine:
        await fill(engine, 3)
        assert len(await read_all(engine)) == 3


async def test_a_user_who_may_do_nothing_in_the_schema(
    refusal: Refusal, user: str, realm: str, postgres: PostgresServer
) -> None:
    async with await open_engine(postgres.url(realm)):
        pass
    assert "its user may not do this" in await refusal(user=user)


# A realm that is there, or is made by another


async def test_a_realm_is_made_once(postgres: PostgresServer, realm: str) -> None:
    """By many nodes that are started at once."""
    epochs: set[str] = set()

    async def start(number: int) -> None:
        async with await open_engine(postgres.url(realm)) as engine:
            epochs.add((await engine.enter(f"n{number}")).epoch)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(start, number)
    assert len(epochs) == 1


async def test_functions_that_are_missing_are_made(postgres: PostgresServer, realm: str) -> None:
    """Those of another version of mist, say."""
    async with await open_engine(postgres.url(realm)) as engine:
        await fill(engine, 3)
        names = postgres.ask(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = to_regnamespace(%s)",
            f'"mist_{realm}"',
        )
        for (name,) in names:
            postgres.ask(f"DROP FUNCTION {name}")
    async with await open_engine(postgres.url(realm)) as engine:
        await engine.enter("again")
        assert len(await read_all(engine)) == 3


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE {schema}.head SET format = format + 1", "is one of another version of mist"),
        ("DELETE FROM {schema}.head", "is damaged: it has tables, but no head"),
    ],
)
async def test_a_realm_that_is_not_this_programs(
    refusal: Refusal, postgres: PostgresServer, realm: str, statement: str, why: str
) -> None:
    async with await open_engine(postgres.url(realm)):
        pass
    postgres.ask(statement.replace("{schema}", f'"mist_{realm}"'))
    assert f"the realm {realm} {why}" in await refusal()


async def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("mist.engine.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StartupError) as error:
        await open_engine("postgresql://someone:hush-hush@host")
    wanted = "engine: psycopg is missing; pip install 'mist-pubsub[postgres]'"
    assert str(error.value) == wanted


# Over other ways than TCP


async def test_over_a_unix_socket(postgres: PostgresServer, realm: str) -> None:
    url = f"postgresql://postgres@:{postgres.port}/postgres?host={postgres.socket}&realm={realm}"
    async with await open_engine(url) as engine:
        await fill(engine, 3)
        assert len(await read_all(engine)) == 3


async def test_over_tls(postgres: PostgresServer, realm: str) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    postgres.write("ca.pem", authority.cert_pem.bytes())
    postgres.write("server.key", certificate.private_key_pem.bytes())
    postgres.write("server.crt", certificate.cert_chain_pems[0].bytes())
    postgres.ask("ALTER SYSTEM SET ssl = on")
    postgres.ask("SELECT pg_reload_conf()")
    trusting = {"sslmode": "verify-full", "sslrootcert": postgres.data / "ca.pem"}
    try:
        async with await open_engine(postgres.url(realm, **trusting)) as engine:
            epoch = (await engine.enter("n")).epoch
            body = bytes(range(256)) * 40_000
            await engine.append("n", 1, body, 1, epoch)
            assert [each.body for each in await engine.read(0)] == [body]
            assert postgres.ask("SELECT bool_or(ssl) FROM pg_stat_ssl") == [(True,)]
        with pytest.raises(StartupError, match="certificate"):
            other = {**trusting, "sslrootcert": postgres.data / "server.crt"}
            postgres.write("server.crt", trustme.CA().cert_pem.bytes())
            await open_engine(postgres.url(realm, **other))
    finally:
        postgres.ask("ALTER SYSTEM RESET ssl")
        postgres.ask("SELECT pg_reload_conf()")
