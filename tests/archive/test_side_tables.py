"""The tables beside the messages: every row of each minute, once, whatever fails."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mist.archive.manifest import ArchiveError
from mist.archive.schema import DELIVERIES, SUBSCRIPTIONS, TABLES, TOKENS
from mist.archive.segments import read_segment
from mist.archive.side_tables import OtherNodes, SideTables, SideTablesPolicy
from mist.archive.table import Archive, Table
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.usage import UsageAccounting
from mist.commands import AddTags, Register, Unregister
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch
from tests.servers import port_of, running
from tests.waiting import until

pytestmark = pytest.mark.trio
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


class Bench:
    """A broker, its side tables, and a clock that goes with trio's."""

    def __init__(self, folder: Path, policy: SideTablesPolicy | None = None) -> None:
        start = trio.current_time()
        self.offset = NOON
        self.archive = Archive.create(folder)
        self.registry = LocalRegistry(MemoryStore(), clock=self.now)
        self.broker = Broker()
        accounts = UsageAccounting(full=100)
        self.broker.observe(accounts)
        self.start = start
        self.side_tables = SideTables(self.archive, accounts, self.registry, policy, clock=self.now)

    def now(self) -> float:
        return self.offset + trio.current_time() - self.start

    def outbox(self, owner: str, tags: str) -> Outbox:
        outbox = Outbox(PLAIN, OutboxLimits(), self.broker.ready)
        self.broker.assign(outbox, owner, ())
        self.broker.subscribe(outbox, frozenset(tags.split(",")))
        return outbox

    def publish(self, tags: str, data: bytes) -> None:
        self.broker.publish(Batch.of(frozenset(tags.split(",")), data))

    async def minute(self) -> None:
        """Let one pass. The clock jumps while threads work, so wait for those."""
        await trio.sleep(60)
        async with self.side_tables._turn:
            pass

    def rows(self, name: str) -> list[tuple[object, ...]]:
        """All that a reader of the table sees; minutes since noon."""
        table = self.archive.table(name)
        if not table.exists:
            return []
        found: list[tuple[object, ...]] = []
        for segment in table.current().segments:
            rows = read_segment(table, segment)
            assert rows.schema.equals(TABLES[name])
            for row in rows.to_pylist():
                minute = (row.pop("minute").timestamp() - NOON) / 60
                assert minute == int(minute)
                assert segment.first <= minute + NOON / 60 <= segment.last
                found.append((int(minute), *row.values()))
        return found

    def segments(self, name: str) -> int:
        return len(self.archive.table(name).current().segments)


async def test_each_minute_is_a_row_and_ten_minutes_a_segment(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path)
    bench.outbox("t1", "b,a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.sleep(1)
        for minute in range(12):
            bench.publish("a,b", b"x" * minute)
            await bench.minute()
        assert bench.segments("deliveries") == 1
        assert len(bench.rows("deliveries")) == 10
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    assert bench.rows("deliveries") == [(n, "t1", "a,b", 1, 0, n) for n in range(12)]
    assert bench.rows("subscriptions") == [(0, "t1", "a,b", 1, 0)]
    assert bench.segments("deliveries") == 2


async def test_a_segment_holds_one_day(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = Bench(tmp_path)
    bench.offset += 12 * 3600 - 90  # half past 23:58
    bench.side_tables._minute = bench.side_tables._now()
    bench.outbox("t1", "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.sleep(1)
        for _ in range(3):
            bench.publish("a", b"x")
            await bench.minute()
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    assert [row[0] for row in bench.rows("deliveries")] == [718, 719, 720]
    files = [each.file for each in bench.archive.table("deliveries").current().segments]
    assert [file[:15] for file in files] == ["date=2026-11-21", "date=2026-11-22"]


async def test_many_accounts_do_not_wait_for_the_minute_nor_rows_for_ten(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path, SideTablesPolicy(rows=150))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.testing.wait_all_tasks_blocked()
        for n in range(300):
            bench.outbox("t1", f"tag{n}")
            await trio.lowlevel.checkpoint()
        async with bench.side_tables._turn:  # or the clock jumps while a thread writes
            pass
        assert len(bench.rows("subscriptions")) >= 150
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    assert sorted(bench.rows("subscriptions")) == sorted(
        (0, "t1", f"tag{n}", 1, 0) for n in range(300)
    )


async def test_what_is_to_be_sealed_soon_does_not_wait_though_all_was_sealed_meanwhile(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.outbox("t1", "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.testing.wait_all_tasks_blocked()
        await bench.side_tables.seal_now()
        bench.publish("a", b"x")
        bench.side_tables.seal_soon()
        await until(lambda: bench.rows("deliveries") == [(0, "t1", "a", 1, 0, 1)])
        nursery.cancel_scope.cancel()


async def test_tokens_are_listed_at_the_start_each_day_and_where_they_change(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path)
    (old,) = await bench.registry.execute([Register("old", frozenset("ab"))])
    (quiet,) = await bench.registry.execute([Register("quiet", frozenset("q"))])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.sleep(1)
        await bench.minute()  # minute 0: both
        (new,) = await bench.registry.execute([Register("new", frozenset(["c*"]))])
        await bench.registry.execute([AddTags("old", frozenset("c"))])
        await bench.minute()  # minute 1: what has come and what has changed
        await bench.registry.execute([Unregister("new")])
        await bench.minute()  # minute 2: what has gone
        for _ in range(12 * 60 - 2):
            await bench.minute()  # the next day: both that are left
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    ids = {record.id: name for name, record in (("old", old), ("quiet", quiet), ("new", new))}
    assert sorted((row[0], ids[str(row[1])], row[2]) for row in bench.rows("tokens")) == [
        (0, "old", ["a", "b"]),
        (0, "quiet", ["q"]),
        (1, "new", ["c*"]),
        (1, "old", ["a", "b", "c"]),
        (2, "new", []),
        (720, "old", ["a", "b", "c"]),
        (720, "quiet", ["q"]),
    ]


async def test_a_token_made_after_the_clock_was_set_back_is_listed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.sleep(1)
        await bench.minute()
        for back in (0, 3600, 20, -7200):
            bench.offset -= back
            await bench.registry.execute([Register(f"after{back}", frozenset([str(back)]))])
            await bench.minute()
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    tags = [row[2] for row in bench.rows("tokens")]
    assert {tag for (tag,) in tags} == {"0", "3600", "20", "-7200"}  # some of them again


async def test_a_token_made_by_the_slow_clock_of_another_node_is_listed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path)

    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    bench.side_tables._others = OtherNodes(lambda: True, nothing, nothing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.side_tables.run)
        await trio.sleep(1)
        await bench.minute()
        bench.offset -= 90
        await bench.registry.execute([Register("slow", frozenset("a"))])
        bench.offset += 90
        await bench.minute()
        nursery.cancel_scope.cancel()
    await bench.side_tables.aclose()
    assert [row[2] for row in bench.rows("tokens")] == [["a"]]


async def test_what_can_not_be_written_is_written_later_and_once(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(tmp_path)
    bench.outbox("t1", "a")
    table = bench.archive.table("deliveries")
    table.folder.parent.mkdir()
    table.folder.write_bytes(b"")  # a file where a folder should be
    with caplog.at_level(logging.INFO, "mist.archive"):
        for _ in range(3):
            bench.publish("a", b"x")
            await bench.side_tables.collect()
            with pytest.raises(ArchiveError):
                await bench.side_tables.flush()
        assert bench.side_tables.failures == 3
        table.folder.unlink()
        await bench.side_tables.aclose()
    told = [record.message for record in caplog.records]
    assert told == ["accounts can't be written", "accounts can be written again"]
    assert bench.rows("deliveries") == [(0, "t1", "a", 1, 0, 1)] * 3
    assert bench.rows("subscriptions") == [(0, "t1", "a", 1, 0)]
    assert bench.side_tables.waiting == 0


async def test_rows_are_written_once_where_old_files_can_not_be_deleted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(table: Table) -> None:
        raise ArchiveError("too many open files")

    monkeypatch.setattr(Table, "sweep", sweep)
    bench = Bench(tmp_path)
    bench.outbox("t1", "a")
    bench.publish("a", b"x")
    await bench.side_tables.seal_now()
    await bench.side_tables.aclose()
    assert bench.rows("deliveries") == [(0, "t1", "a", 1, 0, 1)]
    assert bench.rows("subscriptions") == [(0, "t1", "a", 1, 0)]
    assert bench.side_tables.waiting == 0


async def test_rows_that_wait_are_bounded_and_the_oldest_go(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path, SideTablesPolicy(most_rows=10))
    bench.outbox("t1", "a")
    for n in range(30):
        bench.publish("a", b"x" * n)
        await bench.side_tables.collect()
    assert bench.side_tables.waiting <= 10
    await bench.side_tables.aclose()
    rows = bench.rows("deliveries")
    assert [row[-1] for row in rows] == list(range(30 - len(rows), 30))
    assert bench.side_tables.lost == 31 - len(rows)


async def test_a_cancelled_task_has_lost_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = Bench(tmp_path)
    for n in range(2000):
        bench.outbox("t1", f"tag{n}")
    with trio.move_on_after(60):  # at the very moment of the minute's end
        await bench.side_tables.run()
    await bench.side_tables.aclose()
    assert len(bench.rows("subscriptions")) == 2000


async def test_the_manifest_says_up_to_when_accounts_are_complete(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path / "archive")
    bench.outbox("t", "a")

    def complete() -> int:
        return bench.archive.table("deliveries").current().sealed - int(NOON // 60)

    bench.publish("a", b"x")
    await bench.side_tables.seal_now()  # in the middle of the first minute
    assert bench.rows("deliveries") == [(0, "t", "a", 1, 0, 1)]
    assert complete() == 0
    bench.publish("a", b"y")
    await trio.sleep(150)
    await bench.side_tables.seal_now()
    assert complete() == 2
    await trio.sleep(600)  # nothing was delivered meanwhile, which is an account too
    await bench.side_tables.seal_now()
    assert complete() == 12
    assert len(bench.rows("deliveries")) == 2


async def test_accounts_that_are_not_written_are_not_said_to_be_complete(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = Bench(tmp_path)
    bench.outbox("t1", "a")
    bench.publish("a", b"x")
    await bench.side_tables.seal_now()
    deliveries, subscriptions = (
        bench.archive.table(name) for name in ("deliveries", "subscriptions")
    )
    complete = deliveries.current().sealed
    subscriptions.folder.rename(tmp_path / "elsewhere")
    subscriptions.folder.write_bytes(b"")  # a file where a folder should be
    bench.outbox("t2", "b")
    bench.publish("b", b"y")
    await trio.sleep(150)
    with pytest.raises(ArchiveError):
        await bench.side_tables.seal_now()
    assert deliveries.current().sealed == complete
    subscriptions.folder.unlink()
    (tmp_path / "elsewhere").rename(subscriptions.folder)
    await bench.side_tables.seal_now()
    assert deliveries.current().sealed == complete + 2
    assert [row[1] for row in bench.rows("subscriptions")] == ["t1", "t2"]


async def test_an_empty_server_writes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = Bench(tmp_path)
    with trio.move_on_after(1000):
        await bench.side_tables.run()
    await bench.side_tables.aclose()
    assert [bench.rows(name) for name in ("deliveries", "subscriptions", "tokens")] == [[]] * 3
    assert DELIVERIES.names[0] == SUBSCRIPTIONS.names[0] == TOKENS.names[0] == "minute"


async def test_a_server_with_an_archive_keeps_them(tmp_path: Path) -> None:
    async with running(
        tmp_path / "data", history=f"sqlite:///{tmp_path}/log.db", archive=tmp_path / "archive"
    ) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[0]))
        with trio.fail_after(10):
            await stream.send_all(b"subscribe a\n")
            await until(server.hub.broker.tag_sets)
            await server.hub.store(frozenset("ab"), b"12345")
        await stream.aclose()
    archive = Archive.open(tmp_path / "archive")
    (segment,) = archive.table("deliveries").current().segments
    (row,) = read_segment(archive.table("deliveries"), segment).to_pylist()
    assert (row["token"], row["subscription"], row["sent"], row["bytes"]) == ("", "a", 1, 5)


async def test_a_server_without_an_archive_keeps_no_accounts(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        assert server.hub.side_tables is None
        assert server.hub.broker.observer is None
