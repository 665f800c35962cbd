"""A PostgreSQL that fails: calls end in time, and go on once it is back; nothing is lost."""

import os
from contextlib import ExitStack

import psycopg
import pytest
import trio
import trio.testing

from mist.engine.contract import Placed
from mist.engine.postgres.engine import PostgresEngine
from mist.engine.postgres.location import Location
from mist.engine.postgres.pool import Pool
from tests.engine.outages import QUICK, SOON, all_refused, answered, refused
from tests.engine.postgres.conftest import Open
from tests.engine.postgres_server import HOST, PostgresServer
from tests.engine.proxy import Proxy
from tests.engine.test_contract import fill, read_all
from tests.waiting import until


@pytest.fixture
def postgres_kind() -> str:
    return "system"


async def test_a_stopped_server_keeps_nobody_waiting(
    quick: PostgresEngine, postgres: PostgresServer
) -> None:
    engine = quick
    epoch = await fill(engine, 2)
    with postgres.frozen():
        await all_refused(engine, epoch)
        await all_refused(engine, epoch)  # none of whose connections was open before
    await answered(lambda: engine.append("n", 4, b"4", 0, epoch))
    assert (await engine.append("n", 5, b"5", 0, epoch)).offset == (await engine.standing()).offset


async def test_a_network_that_swallows_keeps_nobody_waiting(open_on: Open, proxy: Proxy) -> None:
    await open_on()
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 2)
    with proxy.freeze():
        await all_refused(engine, epoch)
    with proxy.lose_replies():
        await all_refused(engine, epoch)
    await answered(engine.standing)


async def test_a_wait_is_ended_by_a_server_that_stops_in_it(
    quick: PostgresEngine, postgres: PostgresServer, nursery: trio.Nursery
) -> None:
    await fill(quick, 1)
    ended = trio.Event()

    async def read() -> None:
        await refused(lambda: quick.read(1, wait=30.0))
        ended.set()

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked(0.02)
    with postgres.frozen():
        with trio.fail_after(SOON):
            await ended.wait()


async def test_a_lost_reply_is_no_lost_record(open_on: Open, proxy: Proxy) -> None:
    await open_on()
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 1)
    with proxy.lose_replies():
        await refused(lambda: engine.append("n", 2, b"two", 3, epoch))
    await answered(engine.standing)
    assert await engine.append("n", 2, b"two", 3, epoch) == Placed(2, 2)
    with proxy.lose_requests():
        await refused(lambda: engine.append("n", 3, b"three", 1, epoch))
    await answered(engine.standing)
    assert await engine.append("n", 3, b"three", 1, epoch) == Placed(3, 5)
    assert [each.body for each in await read_all(engine)] == [b"1", b"two", b"three"]


async def test_a_slow_network_is_waited_for(open_on: Open, proxy: Proxy) -> None:
    direct = await open_on()
    engine = await open_on(proxy.port, timeout=1)
    epoch = await fill(engine, 2)
    body = os.urandom(12 << 20)
    proxy.delay = 0.007  # for each 64 kB
    began = trio.current_time()
    await engine.append("n", 3, body, 1, epoch)
    assert trio.current_time() - began > 1  # longer than what is small may take
    assert [each.body for each in await read_all(direct)] == [b"1", b"2", body]


async def test_connections_that_are_cut_are_not_noticed(
    open_on: Open, proxy: Proxy, postgres: PostgresServer, nursery: trio.Nursery
) -> None:
    engine = await open_on(proxy.port)
    epoch = await fill(engine, 2)
    got: list[bytes] = []
    read = trio.Event()

    async def wait() -> None:
        got.extend([each.body for each in await engine.read(2, wait=30.0)])
        read.set()

    nursery.start_soon(wait)
    await trio.sleep(0.5)  # its connection is open: one that is cut while it is made is noticed
    await trio.testing.wait_all_tasks_blocked(0.02)
    proxy.cut()
    assert await engine.append("n", 3, b"3", 1, epoch) == Placed(3, 3)
    with trio.fail_after(SOON):
        await read.wait()
    assert got == [b"3"]


async def test_a_server_that_is_started_again_is_found_again(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    epoch = await fill(engine, 3)
    postgres.kill()
    for _ in range(5):
        reason = await refused(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert "connection refused" in reason
    postgres.start()
    await answered(lambda: engine.append("n", 4, b"4", 1, epoch))
    assert await engine.append("n", 4, b"4", 1, epoch) == Placed(4, 4)
    assert [each.body for each in await read_all(engine)] == [b"1", b"2", b"3", b"4"]


async def test_connections_are_tried_with_a_backoff(
    postgres: PostgresServer, open_on: Open
) -> None:
    engine = await open_on()
    postgres.kill()
    attempts = 0
    with trio.move_on_after(1.0):
        while True:
            await refused(engine.standing)
            attempts += 1
    assert 2 <= attempts <= 15


async def test_an_idle_server_is_not_asked_much(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    await fill(engine, 1)
    for _ in range(50):
        await engine.read(0)
    assert proxy.connections == 1  # one after another needs no more


async def test_a_cancelled_call_leaves_nothing_to_the_next(engine: PostgresEngine) -> None:
    epoch = await fill(engine, 3)
    for after in (0, 1, 2):
        with trio.move_on_after(0.0):
            await engine.read(after)
        with trio.move_on_after(0.002):
            await engine.read(3, wait=10.0)
        assert len(await engine.read(after)) == 3 - after
        assert (await engine.standing()).epoch == epoch


async def test_connections_that_are_open_at_one_end_are_not_tried_one_by_one(
    open_on: Open, proxy: Proxy
) -> None:
    await open_on()
    engine = await open_on(proxy.port, **QUICK)
    epoch = await fill(engine, 2)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(engine.read, 0)
    assert proxy.connections > 2
    proxy.forget()
    await refused(lambda: engine.append("n", 3, b"3", 1, epoch))
    assert await engine.append("n", 3, b"3", 1, epoch) == Placed(3, 3)


async def test_closing_does_not_wait_for_a_server(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port, timeout=60)
    await fill(engine, 2)
    with proxy.freeze(), trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, engine.standing)
            nursery.start_soon(refused, lambda: engine.read(2, wait=30.0))
            await trio.testing.wait_all_tasks_blocked(0.02)
            await engine.close()


async def test_a_cancelled_close_closes_all_connections(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    await fill(engine, 1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(engine.read, 0)
    assert proxy.open > 1
    with trio.CancelScope() as scope:
        scope.cancel()
        await engine.close()
    await until(lambda: proxy.open == 0)


async def test_many_tasks_may_wait(open_on: Open, proxy: Proxy) -> None:
    engine = await open_on(proxy.port)
    epoch = await fill(engine, 1)
    assert await engine.read(1) == []
    got: list[int] = []

    async def read() -> None:
        got.extend([each.offset for each in await engine.read(1, wait=30.0)])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert proxy.connections <= 2
            await engine.append("n", 2, b"2", 1, epoch)
    assert got == [2] * 200


async def test_the_server_ends_what_a_network_has_swallowed(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    await fill(engine, 1)
    await engine.read(1, wait=0.01)
    settings = ("idle", "interval", "count")
    names = [f"current_setting('tcp_keepalives_{each}')" for each in settings]
    for listening in (False, True):
        rows = await engine._database.pool.call(
            lambda connection, scope: connection.ask(f"SELECT {', '.join(names)}", (), scope),
            listening=listening,
        )
        assert [list(each) for each in rows] == [["10", "5", "4"]]


async def test_a_connection_that_an_administrator_ends_is_not_noticed(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    epoch = await fill(engine, 1)
    for serial in range(2, 6):
        postgres.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mist'"
        )
        assert await engine.append("n", serial, b"", 0, epoch) == Placed(serial, 2)


async def test_a_server_with_too_many_connections_is_told(
    open_on: Open, postgres: PostgresServer
) -> None:
    await open_on()
    engine = await open_on(**QUICK)
    epoch = await fill(engine, 1)
    engine._database.pool._drop()
    with ExitStack() as stack:
        with pytest.raises(psycopg.OperationalError):
            while True:
                stack.enter_context(postgres.connect())
        assert "too many clients" in await refused(lambda: engine.append("n", 2, b"", 0, epoch))
    await answered(lambda: engine.append("n", 2, b"", 0, epoch))


async def test_the_primary_is_found_while_others_find_it(
    postgres: PostgresServer, nursery: trio.Nursery
) -> None:
    (silent,) = await trio.open_tcp_listeners(0, host=HOST)
    url = postgres.url().replace("@", f"@{HOST}:{silent.socket.getsockname()[1]},", 1)
    pool = Pool(Location.parse(url), "channel")
    answers = [trio.Event(), trio.Event()]

    async def ask(answer: trio.Event) -> None:
        assert await pool.ask("SELECT 1::int8") == [[1]]
        answer.set()

    streams = []
    async with silent:
        for answer in answers:
            nursery.start_soon(ask, answer)
            streams.append(await silent.accept())
        for stream, answer in zip(streams, answers, strict=True):
            await stream.aclose()
            await answer.wait()
    pool.close()
