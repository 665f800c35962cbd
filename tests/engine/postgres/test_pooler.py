"""Behind a connection pooler that pools by transaction: notifications do not come through it."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mist.engine.contract import Record
from mist.engine.opening import open_engine
from mist.engine.postgres.engine import PostgresEngine
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from tests.engine.postgres.conftest import Open
from tests.engine.postgres_server import (
    HOST,
    PASSWORD,
    PostgresServer,
    PostgresServers,
    server_user,
)
from tests.engine.test_contract import fill, read_all
from tests.ports import free_port
from tests.waiting import until


@pytest.fixture
def postgres_kind() -> str:
    return "system"


def find_pgbouncer() -> str:
    """Its path. Skips the test where it is missing, but never in CI."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        missing = "no pgbouncer; Debian: apt-get install pgbouncer"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}; in CI it has to be there")
        pytest.skip(missing)
    return found


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[int]:
    """Its port."""
    program, port = find_pgbouncer(), free_port()
    folder = Path(postgres.socket)
    (folder / "users").write_text(f'"postgres" "{PASSWORD}"\n')
    (folder / "pooler.ini").write_text(
        f"[databases]\n* = host={folder} port={postgres.port}\n"
        f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = plain\nauth_file = {folder}/users\npool_mode = transaction\n"
        "default_pool_size = 3\n"
    )
    for name in ("users", "pooler.ini"):
        (folder / name).chmod(0o644)
    command = [program, str(folder / "pooler.ini")]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=server_user(), cwd="/"
    )
    give_up = time.monotonic() + 10
    while not _listens(port):
        assert time.monotonic() < give_up, "pgbouncer does not answer"
        time.sleep(0.01)
    yield port
    process.kill()
    process.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture
async def pooled(pooler: int, open_on: Open) -> PostgresEngine:
    """An engine that has only the pooler."""
    return await open_on(pooler)


async def test_a_reader_finds_what_it_is_not_notified_of(
    pooled: PostgresEngine, postgres: PostgresServer
) -> None:
    """Also where no notification comes through, as when what listened has ended."""
    epoch = (await pooled.enter("n")).epoch
    got: list[Record] = []

    async def read() -> None:
        while len(got) < 4:
            got.extend(await pooled.read(len(got), wait=5.0))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for serial in range(1, 5):
                await until(lambda serial=serial: len(got) >= serial - 1)  # type: ignore[misc]
                postgres.ask(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query LIKE 'LISTEN%'"
                )
                await pooled.append("n", serial, b"%d" % serial, 1, epoch)
    assert [each.offset for each in got] == [1, 2, 3, 4]


async def test_what_was_appended_here_is_read_at_once(pooled: PostgresEngine) -> None:
    epoch = (await pooled.enter("n")).epoch
    got: list[Record] = []

    async def read() -> None:
        while True:
            got.extend(await pooled.read(len(got), wait=5.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        began = trio.current_time()
        for serial in range(1, 41):
            await pooled.append("n", serial, b"x", 1, epoch)
            await until(lambda serial=serial: len(got) == serial)  # type: ignore[misc]
        # A quarter of a second each, if it were looked for as what others append.
        assert trio.current_time() - began < 5.0
        nursery.cancel_scope.cancel()


async def test_a_log_is_shared_with_nodes_that_do_not_use_it(
    pooled: PostgresEngine, open_on: Open
) -> None:
    direct = await open_on()
    epoch = await fill(pooled, 20, "a")
    await direct.enter("b")
    body = os.urandom(1_000_000)
    assert (await direct.append("b", 1, body, 1, epoch)).offset == 21
    records = await read_all(pooled)
    assert records == await read_all(direct)
    assert records[-1].body == body
    await pooled.stage("batch", 0, body)
    assert await direct.staged("batch", 0) == body


async def test_another_password_is_refused(pooler: int, pooled: PostgresEngine) -> None:
    url = f"postgresql://postgres:another@{HOST}:{pooler}/postgres"
    with pytest.raises(Exception, match="password authentication failed"):
        await open_engine(url)


async def test_what_only_reads_behind_a_pooler_is_the_primary_no_more(
    pooler: int, postgres: PostgresServer, postgres_servers: PostgresServers
) -> None:
    """The pooler keeps its clients' connections, and tells new ones what the server once said."""
    other = postgres_servers.get("wheel")
    url = postgres.url().replace(f"{HOST}:{postgres.port}", f"{HOST}:{pooler},{HOST}:{other.port}")
    pool = Pool(Location.parse(url), "channel")

    async def write() -> int:
        """The port of the server that has taken it."""
        await pool.ask("COMMENT ON SCHEMA public IS 'standard public schema'")
        ((port,),) = await pool.ask("SELECT current_setting('port')::int8")
        assert isinstance(port, int)
        return port

    assert await write() == postgres.port
    postgres.ask("ALTER SYSTEM SET default_transaction_read_only = on")
    postgres.ask("SELECT pg_reload_conf()")
    try:
        await until(lambda: postgres.ask("SHOW default_transaction_read_only") == [("on",)])
        with trio.fail_after(20):
            assert await write() == other.port
    finally:
        with postgres.connect() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")
        pool.close()
