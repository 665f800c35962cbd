"""The log in PostgreSQL: what it keeps, how much of it is asked for, what tells of a loss."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from mist.engine.contract import (
    Ancestor,
    Engine,
    EngineUnavailable,
    Forked,
    NotEntered,
    Placed,
    Trimmed,
)
from mist.engine.postgres.engine import PostgresEngine
from mist.engine.postgres.tokens import open_postgres_tokens
from mist.history import Durability
from tests.engine.postgres.conftest import Open
from tests.engine.postgres.snapshot import Snapshot
from tests.engine.postgres_server import PostgresServer
from tests.engine.proxy import Proxy
from tests.engine.test_contract import fill, read_all
from tests.waiting import until


async def forked(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(Forked):
        with trio.fail_after(10):
            await call()


async def begin_segment(engine: Engine, postgres: PostgresServer, schema: str) -> None:
    """Have the next record be the first of a segment."""
    postgres.ask(f"UPDATE {schema}.head SET filled = 1::bigint << 40")


def segments(postgres: PostgresServer, schema: str) -> list[int]:
    """The first offsets of those that there are, each of which has a table, and no others have."""
    firsts = [int(str(first)) for (first,) in postgres.ask(f"SELECT first FROM {schema}.segment")]
    tables = postgres.ask(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'record\\_%%'",
        schema.strip('"'),
    )
    assert sorted([f"record_{first}" for first in firsts]) == sorted(
        [str(each) for (each,) in tables]
    )
    return sorted(firsts)


# What it keeps


async def test_realms_are_apart(open_on: Open, realm: str) -> None:
    one, other = await open_on(), await open_on(realm=f"{realm}.other-1")
    assert await fill(one, 3) != await fill(other, 1)
    assert [len(await read_all(each)) for each in (one, other)] == [3, 1]


async def test_times_ascend_even_in_one_microsecond(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    await fill(engine, 50)
    times = [each.time for each in await read_all(engine)]
    assert times == sorted(set(times))
    ahead = times[-1] + 3_600_000_000  # as if the clock had gone back by an hour
    postgres.ask(f"UPDATE {schema}.head SET time = %s", ahead)
    other = await open_on()
    epoch = (await other.enter("other")).epoch
    await other.append("other", 1, b"", 0, epoch)
    ((time,),) = postgres.ask(f"SELECT time FROM {schema}.head")
    assert time == ahead + 1


async def test_the_longest_silent_node_is_forgotten_first(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    epoch = (await engine.enter("first")).epoch
    await engine.enter("second")
    postgres.ask(
        f"INSERT INTO {schema}.node (name, time) SELECT convert_to('n' || number, 'UTF8'), "
        f"(SELECT max(time) FROM {schema}.node) + 1 FROM generate_series(1, 997) AS number"
    )
    await engine.append("first", 1, b"1", 1, epoch)
    for name in ("one more", "and another"):  # that was the longest silent
        await engine.enter(name)
    assert postgres.ask(f"SELECT count(*) FROM {schema}.node") == [(1_000,)]
    with pytest.raises(NotEntered):
        await engine.append("second", 1, b"", 0, epoch)
    assert await engine.append("first", 2, b"2", 1, epoch) == Placed(2, 2)


async def test_a_node_may_have_any_name(engine: PostgresEngine) -> None:
    names = ["a b", "ä\n", "'; --", "\x00", "\\x00"]
    for name in names:
        epoch = (await engine.enter(name)).epoch
        await engine.append(name, 1, b"", 0, epoch)
    assert [each.node for each in await read_all(engine)] == names


async def test_a_database_of_another_encoding(
    open_on: Open, postgres: PostgresServer, realm: str
) -> None:
    postgres.ask(f"CREATE DATABASE \"{realm}\" ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    engine = await open_on(database=realm)
    epoch = (await engine.enter("\u20ac")).epoch  # which that encoding has not
    await engine.append("\u20ac", 1, "\u20ac".encode(), 1, epoch)
    (record,) = await engine.read(0)
    assert (record.node, record.body.decode()) == ("\u20ac", "\u20ac")


async def test_parts_expire_after_two_days(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    await engine.stage("old", 0, b"old")
    await engine.stage("young", 0, b"young")
    later = f"UPDATE {schema}.staged SET expires = expires - %s * interval '1 hour'"
    postgres.ask(f"{later} WHERE batch = 'old'", 49)
    postgres.ask(f"{later} WHERE batch = 'young'", 47)
    await engine.stage("another", 0, b"")
    assert await engine.staged("old", 0) is None
    assert await engine.staged("young", 0) == b"young"


async def test_records_are_stamped_with_the_version_of_the_tokens(
    engine: PostgresEngine, postgres: PostgresServer, realm: str
) -> None:
    epoch = await fill(engine, 1)
    store = await open_postgres_tokens(postgres.url(realm), Durability.POWER)
    await store.enter(b"k" * 32)
    before = (await store.load()).version
    await engine.append("n", 2, b"2", 1, epoch)
    after = await store.write({b"d" * 32: b"value"}, before, "e" * 32)
    await engine.append("n", 3, b"3", 1, epoch)
    await store.aclose()
    stamps = [each.tokens for each in await read_all(engine)]
    assert stamps == [0, before.number, after.number]


# How much of it is asked for


async def test_no_more_is_read_than_may_be(open_on: Open, proxy: Proxy) -> None:
    writer, reader = await open_on(), await open_on(proxy.port)
    epoch = (await writer.enter("n")).epoch
    for serial in range(1, 21):
        await writer.append("n", serial, bytes(1_000_000), 1, epoch)
    before = proxy.received
    assert len(await reader.read(0, max_bytes=3_000_000)) == 3
    assert proxy.received - before < 3_100_000
    assert await reader.read(20) == []
    for serial in range(21, 31):
        await writer.append("n", serial, bytes(1_000_000), 1, epoch)
    before = proxy.received
    assert len(await reader.read(20, wait=30.0, max_bytes=1)) == 1
    assert proxy.received - before < 1_100_000


async def test_what_is_read_in_turns_is_whole(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    """A reader that is woken, falls behind and catches up has each record once."""
    reader = await open_on()
    epoch = (await engine.enter("n")).epoch
    got: list[int] = []

    async def read() -> None:
        while len(got) < 300:
            some = await reader.read(got[-1] if got else 0, wait=5.0, max_bytes=50)
            got.extend([each.offset for each in some])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for serial in range(1, 301):
                if serial % 100 == 50:
                    await begin_segment(engine, postgres, schema)
                await engine.append("n", serial, b"0123456789", 1, epoch)
    assert got == list(range(1, 301))
    assert segments(postgres, schema) == [1, 50, 150, 250]


async def test_a_waiting_reader_is_told_of_a_trim(engine: PostgresEngine, open_on: Open) -> None:
    reader = await open_on()
    epoch = await fill(engine, 1)
    await reader.read(1)
    for serial in (2, 3):
        await engine.append("n", serial, b"", 0, epoch)
    await engine.trim(2)
    with pytest.raises(Trimmed) as error:
        await reader.read(1, wait=5.0)
    assert error.value.oldest == 3


async def test_records_that_others_removed_are_told(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    await fill(engine, 5)
    postgres.ask(f'DELETE FROM {schema}.record_1 WHERE "offset" = 3')
    assert [each.offset for each in await engine.read(0)] == [1, 2]
    with pytest.raises(Trimmed) as error:
        await engine.read(2)
    assert error.value.oldest == 4
    assert [each.offset for each in await engine.read(3)] == [4, 5]
    postgres.ask(f"DELETE FROM {schema}.record_1")
    with pytest.raises(Trimmed) as error:
        await engine.read(3)
    assert error.value.oldest == 6


# What is trimmed


async def test_segments_are_dropped_once_all_of_their_records_are_trimmed(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    epoch = (await engine.enter("n")).epoch
    for serial in range(1, 41):
        if serial % 10 == 0:
            await begin_segment(engine, postgres, schema)
        await engine.append("n", serial, b"%d" % serial, 1, epoch)
    assert segments(postgres, schema) == [1, 10, 20, 30, 40]
    await engine.trim(18)
    assert segments(postgres, schema) == [10, 20, 30, 40]
    with pytest.raises(Trimmed):
        await engine.read(17)
    assert [each.offset for each in await read_all(engine, 18)] == list(range(19, 41))
    await engine.trim(19)
    assert segments(postgres, schema) == [20, 30, 40]
    await engine.trim(100)
    assert segments(postgres, schema) == [40]  # the one that is written
    assert await engine.append("n", 41, b"", 0, epoch) == Placed(41, 41)
    assert [each.offset for each in await engine.read(40)] == [41]


async def test_trimming_many_records_costs_as_much_as_trimming_few(
    engine: PostgresEngine, postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log of 500,000 records: by statements, of which none is longer for more records."""
    epoch = await fill(engine, 1)
    for first in range(2, 500_002, 100_000):
        last = first + 99_999
        postgres.ask(
            f"CREATE TABLE {schema}.record_{first} (LIKE {schema}.record INCLUDING ALL);"
            f"INSERT INTO {schema}.segment VALUES ({first});"
        )
        # Few rows stand for many: no statement may touch them.
        postgres.ask(
            f"INSERT INTO {schema}.record_{first} SELECT n, n, 1, n, n - 1, 0, 0, '', '' "
            f"FROM generate_series({first}, {last}, 1000) AS n"
        )
        postgres.ask(
            f'UPDATE {schema}.head SET "offset" = {last}, newest = {last}, segment = {first}'
        )
    await begin_segment(engine, postgres, schema)
    await engine.append("n", 2, b"", 0, epoch)
    asked: list[str] = []
    ask = engine._database.pool.ask

    async def counted(statement: str, *values: object) -> object:
        asked.append(statement)
        return await ask(statement, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._database.pool, "ask", counted)
    await engine.trim(500_001)
    assert len(asked) == 1 + 6 + 1  # to trim, to drop each segment, and to find no more
    assert segments(postgres, schema) == [500_002]


async def test_a_segment_that_is_read_keeps_no_append_waiting(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    """A backup holds what it reads for as long as it takes."""
    epoch = await fill(engine, 10)
    await begin_segment(engine, postgres, schema)
    await engine.append("n", 11, b"", 0, epoch)
    with postgres.connect() as backup:
        backup.execute("BEGIN")
        backup.execute(f"SELECT FROM {schema}.record_1, {schema}.head, {schema}.record_11".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.trim, 10)
            with trio.fail_after(5):
                for serial in range(12, 40):
                    await engine.append("n", serial, b"", 0, epoch)
        assert segments(postgres, schema) == [1, 11]
        with pytest.raises(Trimmed):
            await engine.read(9)
        backup.execute("COMMIT")
    await engine.trim(10)
    assert segments(postgres, schema) == [11]


async def test_a_segment_that_is_dropped_while_it_is_read_was_trimmed(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    epoch = await fill(engine, 10)
    await begin_segment(engine, postgres, schema)
    await engine.append("n", 11, b"", 0, epoch)
    ended: list[int] = []

    async def read() -> None:
        with pytest.raises(Trimmed) as error:
            await engine.read(0)
        ended.append(error.value.oldest)

    with postgres.connect() as other, trio.fail_after(10):
        other.execute("BEGIN")
        # As the engine does it, in two transactions; the read has begun between them.
        other.execute(f"LOCK TABLE {schema}.record_1 IN ACCESS EXCLUSIVE MODE".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: _waits(postgres))
            postgres.ask(f"UPDATE {schema}.head SET trimmed = 10")
            other.execute(f"DROP TABLE {schema}.record_1".encode())
            other.execute(f"DELETE FROM {schema}.segment WHERE first = 1".encode())
            other.execute("COMMIT")
    assert ended == [11]


def _waits(postgres: PostgresServer) -> bool:
    """Whether a transaction waits for a lock."""
    return bool(postgres.ask("SELECT 1 FROM pg_locks WHERE NOT granted"))


async def test_a_lock_that_another_transaction_holds_is_not_waited_for_long(
    quick: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    epoch = await fill(quick, 1)
    with postgres.connect() as other, trio.fail_after(10):
        other.execute("BEGIN")
        other.execute(f"UPDATE {schema}.head SET format = format".encode())
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="another transaction holds a lock"):
                await quick.append("n", 2, b"2", 1, epoch)
        assert not _waits(postgres)
        other.execute("COMMIT")
    assert await quick.append("n", 2, b"2", 1, epoch) == Placed(2, 2)


# What tells that it was lost


async def test_a_dropped_schema_is_another_log(
    engine: PostgresEngine, postgres: PostgresServer, schema: str
) -> None:
    epoch = await fill(engine, 3)
    await read_all(engine)
    postgres.ask(f"DROP SCHEMA {schema} CASCADE")
    await forked(lambda: engine.append("n", 4, b"4", 1, epoch))
    await forked(lambda: engine.read(3))
    await forked(lambda: engine.read(3, wait=30.0))
    await forked(engine.standing)
    standing = await engine.enter("again")
    assert standing.epoch != epoch
    assert (standing.newest, standing.offset) == (3, 1)  # no id is given twice
    assert standing.ancestors == (Ancestor(epoch, 0, 0),)
    await forked(lambda: engine.append("again", 1, b"1", 1, epoch))
    assert await engine.append("again", 1, b"1", 1, standing.epoch) == Placed(2, 4)
    assert [(each.first, each.count, each.body) for each in await engine.read(0)] == [
        (1, 3, b""),
        (4, 1, b"1"),
    ]


@pytest.mark.parametrize("written", [0, 2, 20])
async def test_a_waiting_reader_is_told_of_another_log_and_never_reads_it(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, schema: str, written: int
) -> None:
    await fill(engine, 3)
    other = await open_on()
    ended = trio.Event()

    async def read() -> None:
        await forked(lambda: engine.read(3, wait=30.0))
        ended.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.02)
            postgres.ask(f"DROP SCHEMA {schema} CASCADE")
            epoch = (await other.enter("other")).epoch
            for serial in range(1, written + 1):
                await other.append("other", serial, b"another", 1, epoch)
            await ended.wait()


async def test_a_log_that_has_lost_its_end_is_not_gone_on_with(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    epoch = await fill(engine, 3)
    snapshot = Snapshot(postgres, schema)
    await engine.append("n", 4, b"4", 5, epoch)
    snapshot.restore()
    await forked(lambda: engine.append("n", 5, b"5", 1, epoch))
    standing = await engine.enter("again")
    assert standing.epoch != epoch
    assert (standing.newest, standing.offset) == (8, 4)  # no id is given twice
    assert standing.ancestors == (Ancestor(epoch, 3, 3),)
    assert await engine.append("again", 1, b"1", 1, standing.epoch) == Placed(5, 9)
    other = await open_on()
    assert (await other.enter("other")).epoch == standing.epoch


async def test_a_lost_end_that_was_replaced_is_told_by_the_record_behind_it(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, schema: str
) -> None:
    """Two nodes: one has read what the other never saw, and the other goes on writing."""
    epoch = await fill(engine, 3)
    reader, other = await open_on(), await open_on()
    await other.enter("other")
    snapshot = Snapshot(postgres, schema)
    await engine.append("n", 4, b"4", 1, epoch)
    assert len(await reader.read(0)) == 4
    assert await reader.read(4) == []
    snapshot.restore()
    await other.enter("other")
    await other.append("other", 1, b"in its place", 1, epoch)
    await forked(lambda: engine.append("n", 5, b"5", 1, epoch))  # as high, but another record
    await other.append("other", 2, b"behind it", 1, epoch)
    await forked(lambda: reader.read(4, wait=30.0))
    await forked(lambda: reader.append("n", 5, b"5", 1, epoch))


# Killed under load


KILLED = pytest.mark.parametrize(("postgres_kind", "setting"), [("wheel", "on"), ("system", "off")])


@KILLED
async def test_a_killed_server_loses_nothing_that_it_acknowledged(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, setting: str
) -> None:
    await kill_under_load(engine, await open_on(), postgres, setting, 1)


@pytest.mark.slow
@KILLED
async def test_a_server_that_is_killed_all_the_time_loses_nothing(
    engine: PostgresEngine, open_on: Open, postgres: PostgresServer, setting: str
) -> None:
    await kill_under_load(engine, await open_on(), postgres, setting, 60)


async def kill_under_load(
    engine: Engine, reader: Engine, postgres: PostgresServer, setting: str, times: int
) -> None:
    """Append and read while the server is killed and started; each record is there once.

    Args:
        setting: of `synchronous_commit`, which does not count.
    """
    postgres.ask(f"ALTER SYSTEM SET synchronous_commit = {setting}")
    postgres.ask("SELECT pg_reload_conf()")
    epoch = (await engine.enter("n")).epoch
    acknowledged: list[Placed] = []
    read: list[tuple[int, bytes]] = []
    stopping = stopped = False

    async def append() -> None:
        nonlocal stopped
        unanswered = False
        while not stopping or unanswered:
            serial = len(acknowledged) + 1
            try:
                body = b"%d" % serial
                acknowledged.append(await engine.append("n", serial, body, 1, epoch))
                unanswered = False
            except EngineUnavailable:
                unanswered = True
                await trio.sleep(0.001)
        stopped = True

    async def follow() -> None:
        while not stopped or len(read) < len(acknowledged):
            try:
                some = await reader.read(read[-1][0] if read else 0, wait=0.2)
            except EngineUnavailable:
                await trio.sleep(0.001)
            else:
                read.extend([(each.offset, each.body) for each in some])

    try:
        with trio.fail_after(30 + 5 * times):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                nursery.start_soon(follow)
                for _ in range(times):
                    enough = len(acknowledged) + 200
                    await until(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
                    await trio.to_thread.run_sync(postgres.kill)
                    await trio.to_thread.run_sync(postgres.start)
                stopping = True
    finally:
        postgres.ask("ALTER SYSTEM RESET synchronous_commit")
    assert [each.offset for each in acknowledged] == list(range(1, len(acknowledged) + 1))
    assert read == [(serial, b"%d" % serial) for serial in range(1, len(acknowledged) + 1)]
