"""The sealer: what it moves, when, and what happens when something fails."""

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from trio.testing import MockClock

from mist.archive import Archive, ArchiveError
from mist.archive.open_segment import OpenSegment
from mist.archive.opening import open_sealer
from mist.archive.sealer import Sealer, SealPolicy
from mist.archive.segments import SegmentWriter, read_segment
from mist.errors import HistoryUnavailable
from mist.history import Durability, Erasure, History, Policy, Publication, Rule
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history
from mist.wire import record
from tests.waiting import until

NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC
DAY = 86_400.0


def some(count: int, text: str = "m", time: float = NOON, tag: str = "a") -> Publication:
    tag_list = tag.encode()
    runs = [(tag_list, record(tag_list, b"%b%d" % (text.encode(), n)), 1) for n in range(count)]
    return Publication.of_runs(runs, time, "tcp")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive")


@pytest.fixture(params=["memory", "sqlite"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[History]:
    memory = request.param == "memory"
    url = "memory://" if memory else f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        yield history


@asynccontextmanager
async def sealing(
    archive: Archive, history: History, policy: SealPolicy | None = None
) -> AsyncIterator[Sealer]:
    sealer = await open_sealer(archive, history, policy)
    try:
        yield sealer
    finally:
        await sealer.aclose()


def rows(archive: Archive, column: str = "id") -> list[object]:
    table = archive.messages
    return [
        value
        for segment in table.current().segments
        for value in read_segment(table, segment, [column]).column(column).to_pylist()
    ]


def files(archive: Archive) -> list[str]:
    return sorted(path.name for path in archive.folder.glob("date=*/*") if path.is_file())


async def test_what_the_log_holds_is_sealed(archive: Archive, history: History) -> None:
    await history.append([some(30)])
    async with sealing(archive, history) as sealer:
        assert await sealer.seal_now() == 30
        assert await sealer.seal_now() == 30
        await history.append([some(5)])
        assert await sealer.seal_now() == 35
    assert rows(archive) == list(range(1, 36))
    manifest = archive.messages.current()
    assert [(each.first, each.last) for each in manifest.segments] == [(1, 30), (31, 35)]
    assert (manifest.epoch, manifest.sealed) == ((await history.position()).epoch, 35)


async def test_it_goes_on_where_it_was(archive: Archive, history: History) -> None:
    await history.append([some(3)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    await history.append([some(2)])
    async with sealing(archive, history) as sealer:
        assert sealer.sealed == 3
        assert await sealer.seal_now() == 5
    assert rows(archive) == [1, 2, 3, 4, 5]


async def test_an_empty_log_leaves_an_empty_archive(archive: Archive, history: History) -> None:
    async with sealing(archive, history) as sealer:
        assert await sealer.seal_now() == 0
    assert archive.messages.current().segments == ()
    assert files(archive) == []


async def test_a_segment_has_no_more_than_its_rows(archive: Archive, history: History) -> None:
    for _ in range(5):
        await history.append([some(10_000)])
    async with sealing(archive, history, SealPolicy(rows=20_000)) as sealer:
        await sealer.seal_now()
    assert [each.rows for each in archive.messages.current().segments] == [20_000, 20_000, 10_000]
    assert rows(archive) == list(range(1, 50_001))


async def test_a_segment_ends_with_its_bytes(archive: Archive, history: History) -> None:
    for _ in range(3):
        runs = [(b"n", record(b"n", os.urandom(9_000).hex().encode()), 1) for _ in range(1_001)]
        await history.append([Publication.of_runs(runs, NOON, "tcp")])
    async with sealing(archive, history, SealPolicy(bytes=1 << 20)) as sealer:
        await sealer.seal_now()
    assert len(archive.messages.current().segments) >= 2
    assert rows(archive) == list(range(1, 3_004))


async def test_a_segment_ends_where_enough_waits(archive: Archive, history: History) -> None:
    for _ in range(6):
        await history.append([some(10_000)])
    async with sealing(archive, history, SealPolicy(unsealed=1_000_000)) as sealer:
        await sealer.seal_now()
    sizes = [each.rows for each in archive.messages.current().segments]
    assert len(sizes) >= 2
    assert sum(sizes) == 60_000


async def test_no_segment_spans_two_days(archive: Archive, history: History) -> None:
    await history.append([some(2), some(3, time=NOON + DAY), some(1, time=NOON + 3 * DAY)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    assert [each.file[:15] for each in archive.messages.current().segments] == [
        "date=2026-11-21",
        "date=2026-11-22",
        "date=2026-11-24",
    ]
    assert rows(archive) == [1, 2, 3, 4, 5, 6]


async def test_messages_wait_no_longer_than_they_may(
    archive: Archive, history: History, mock_clock: MockClock
) -> None:
    await history.append([some(3)])
    async with sealing(archive, history, SealPolicy(seconds=60.0)) as sealer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sealer.run)
            await trio.testing.wait_all_tasks_blocked(0.05)
            mock_clock.jump(50)
            await until(lambda: sealer._after == 3)
            assert sealer.sealed == 0
            mock_clock.jump(15)
            await until(lambda: sealer.sealed == 3)
            nursery.cancel_scope.cancel()
    assert rows(archive) == [1, 2, 3]


async def test_a_segment_is_cut_where_its_rows_are_full(archive: Archive, history: History) -> None:
    await history.append([some(10_000)])
    await history.append([some(10_000)])
    async with sealing(archive, history, SealPolicy(rows=7_000)) as sealer:
        await sealer.seal_now()
    assert [each.rows for each in archive.messages.current().segments] == [7_000, 7_000, 6_000]
    assert rows(archive) == list(range(1, 20_001))


async def test_row_groups_are_whole(archive: Archive, history: History) -> None:
    for count in (60_000, 70_000, 75_000):
        for _ in range(count // 5_000):
            await history.append([some(5_000)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    [segment] = archive.messages.current().segments
    metadata = pq.read_metadata(archive.messages.path(segment))
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sizes == [100_000, 100_000, 5_000]
    assert rows(archive) == list(range(1, 205_001))


async def test_what_was_trimmed_unsealed_is_told_as_lost(
    archive: Archive, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    await history.append([some(3)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
        await history.append([some(4)])
        while (await history.trim(Policy(None, 0, None), NOON)).more:
            pass
        await history.append([some(2)])
        assert await sealer.seal_now() == 9
    assert rows(archive) == [1, 2, 3, 8, 9]
    assert archive.messages.current().lost == ((4, 7),)
    assert "lost to the archive" in caplog.text


async def test_what_was_trimmed_before_there_was_an_archive_is_no_loss(
    archive: Archive, history: History
) -> None:
    await history.append([some(4)])
    while (await history.trim(Policy(None, 0, None), NOON)).more:
        pass
    await history.append([some(2)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    assert archive.messages.current().lost == ()
    assert rows(archive) == [5, 6]


async def test_gaps_that_rules_leave_are_lost_and_what_they_keep_is_sealed(
    archive: Archive, history: History
) -> None:
    rule = Policy(None, 0, None, (Rule("b", 1),))
    async with sealing(archive, history) as sealer:
        await history.append([some(3, tag="b"), some(3), some(2, tag="b"), some(4)])
        while (await history.trim(rule, NOON)).more:
            pass
        assert await sealer.seal_now() == 12
    assert rows(archive) == [8]
    assert archive.messages.current().lost == ((1, 7), (9, 12))


async def test_gaps_from_before_the_archive_are_no_loss(archive: Archive, history: History) -> None:
    rule = Policy(None, 0, None, (Rule("b", 2),))
    await history.append([some(1, tag="b"), some(3), some(1, tag="b"), some(4)])
    while (await history.trim(rule, NOON)).more:
        pass
    await history.append([some(2)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    assert rows(archive) == [1, 5, 10, 11]
    assert archive.messages.current().lost == ()


async def test_retention_leaves_what_is_not_sealed_as_far_as_the_bytes_go(
    archive: Archive, history: History
) -> None:
    policy = Policy(1.0, None, 0)
    async with sealing(archive, history) as sealer:
        await history.append([some(3)])
        await history.append([some(3)])
        await trim(history, attrs.evolve(policy, sealed=sealer.sealed))
        assert (await history.position()).first == 1
        assert await sealer.seal_now() == 6
        await history.append([some(3)])
        await trim(history, attrs.evolve(policy, sealed=sealer.sealed))
        assert (await history.position()).first == 7
        await trim(history, attrs.evolve(policy, max_bytes=0, sealed=sealer.sealed))
        assert (await history.position()).first == 10
        assert await sealer.seal_now() == 9
    assert rows(archive) == [1, 2, 3, 4, 5, 6]
    assert archive.messages.current().lost == ((7, 9),)


async def trim(history: History, policy: Policy) -> None:
    while (await history.trim(policy, NOON + 10)).more:
        pass


async def test_maintenance_asks_how_far_it_is_sealed(autojump_clock: MockClock) -> None:
    sealed = 0
    async with await open_history("memory://") as history:
        await history.append([some(3)])
        await history.append([some(3)])
        async with trio.open_nursery() as nursery:
            old = partial(run_maintenance, history, Policy(1.0), clock=lambda: NOON + DAY)
            nursery.start_soon(partial(old, sealed=lambda: sealed))
            await trio.sleep(25)
            assert (await history.position()).first == 1
            sealed = 6
            await trio.sleep(25)
            assert (await history.position()).first == 7
            nursery.cancel_scope.cancel()


async def test_what_is_erased_before_it_is_sealed_never_is(
    archive: Archive, history: History, mock_clock: MockClock
) -> None:
    await history.append([some(2), some(2, "secret", tag="b"), some(1)])
    async with sealing(archive, history) as sealer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sealer.run)
            await until(lambda: sealer._after == 5)  # and so it is in the open segment
            erased = await sealer.erase(Erasure(tags=frozenset({"b"})))
            nursery.cancel_scope.cancel()
        assert (erased.messages, erased.first, erased.last) == (2, 3, 4)
        assert files(archive) == []
        assert await sealer.seal_now() == 5
    assert rows(archive) == [1, 2, 5]
    assert archive.messages.current().lost == ()


async def test_an_erasure_does_not_wait_for_a_backlog(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr("mist.archive.sealer._PAGE", 1)
    await history.append([some(1) for _ in range(50)])
    async with sealing(archive, history) as sealer, trio.open_nursery() as nursery:
        nursery.start_soon(sealer.run)
        while not sealer._after:  # at once, before the backlog is sealed
            await trio.lowlevel.checkpoint()
        erased = await sealer.erase(Erasure(tags=frozenset({"nothing"})))
        assert (erased.messages, sealer._after < 50) == (0, True)

        def is_done() -> bool:
            mock_clock.jump(1.0)
            return sealer._after == 50

        await until(is_done)  # and from there it goes on
        nursery.cancel_scope.cancel()


async def test_an_erasure_of_what_is_sealed_leaves_the_open_segment(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([some(2, tag="b")])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
        await history.append([some(3)])
        async with sealer._attempt():
            await sealer._take()
        filling = sealer._open
        assert filling is not None
        assert (await sealer.erase(Erasure(tags=frozenset({"b"})))).messages == 2
        assert sealer._open is filling
        assert await sealer.seal_now() == 5
    assert rows(archive) == [1, 2, 3, 4, 5]


async def test_sealing_in_steps_gets_to_the_end(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.archive.sealer._PAGE", 10)
    await history.append([some(10) for _ in range(5)])
    async with sealing(archive, history) as sealer:
        steps = []
        while not steps or steps[-1] < 50:
            assert len(steps) < 10
            steps.append(await sealer.seal_now(seconds=0))
    assert steps == [0, 0, 0, 0, 50]
    assert rows(archive) == list(range(1, 51))


async def test_an_attempt_that_is_cancelled_leaves_nothing_twice(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([some(9_000), some(500, time=NOON + DAY)])
    real = OpenSegment.add
    scope = trio.CancelScope()
    added = 0

    def add(filling: OpenSegment, batch: pa.RecordBatch) -> int:
        nonlocal added
        added += 1
        if added == deadly:
            trio.from_thread.run_sync(scope.cancel)
        return real(filling, batch)

    monkeypatch.setattr(OpenSegment, "add", add)
    async with sealing(archive, history, SealPolicy(rows=700)) as sealer:
        for deadly in range(1, 5):  # noqa: B007  # `add` looks at it
            added, scope = 0, trio.CancelScope()
            with scope, trio.fail_after(60):
                await sealer.run()
            assert scope.cancelled_caught
        deadly = 0
        assert await sealer.seal_now() == 9_500
    assert rows(archive) == list(range(1, 9_501))


# archive and log that don't fit


async def test_a_log_that_was_put_back_goes_on_above_its_archive(
    archive: Archive, tmp_path: Path
) -> None:
    path, backup = tmp_path / "history.db", tmp_path / "backup.db"
    async with await open_history(f"sqlite:///{path}") as history:
        await history.append([some(4)])
    backup.write_bytes(path.read_bytes())
    async with await open_history(f"sqlite:///{path}") as history:
        await history.append([some(5, "late")])
        async with sealing(archive, history) as sealer:
            await sealer.seal_now()
    path.write_bytes(backup.read_bytes())
    async with await open_history(f"sqlite:///{path}") as history:
        before = (await history.position()).epoch
        async with sealing(archive, history) as sealer:
            epoch = (await history.position()).epoch
            assert epoch != before
            assert archive.messages.current().epoch == epoch
            assert await history.append([some(1, "later")]) == 10
            assert await sealer.seal_now() == 10
    assert rows(archive) == list(range(1, 11))
    assert rows(archive, "data")[-1] == b"later0"


async def test_a_log_that_was_put_back_and_went_on_is_refused(
    archive: Archive, tmp_path: Path
) -> None:
    path, backup = tmp_path / "history.db", tmp_path / "backup.db"
    async with await open_history(f"sqlite:///{path}") as history:
        await history.append([some(4)])
    backup.write_bytes(path.read_bytes())
    async with await open_history(f"sqlite:///{path}") as history:
        await history.append([some(5, "late")])
        async with sealing(archive, history) as sealer:
            await sealer.seal_now()
    path.write_bytes(backup.read_bytes())
    async with await open_history(f"sqlite:///{path}") as history:
        await history.append([some(50, "other")])  # with no archive, so nobody noticed
        with pytest.raises(ArchiveError, match="of another history; restore that one"):
            await open_sealer(archive, history)


@pytest.mark.parametrize("count", [0, 2, 3, 5])
async def test_an_archive_of_another_log_is_refused(
    archive: Archive, tmp_path: Path, count: int
) -> None:
    async with await open_history(f"sqlite:///{tmp_path}/one.db") as one:
        await one.append([some(3)])
        async with sealing(archive, one) as sealer:
            await sealer.seal_now()
    before = archive.messages.current()
    async with await open_history(f"sqlite:///{tmp_path}/two.db") as two:
        if count:  # the very same, but for the time
            await two.append([some(count, time=NOON + 1)])
        epoch = (await two.position()).epoch
        with pytest.raises(ArchiveError, match="of another history; restore that one") as caught:
            await open_sealer(archive, two)
        assert "\n" not in str(caught.value)
        assert (await two.position()).epoch == epoch
    assert archive.messages.current() == before


async def test_a_log_in_memory_needs_a_new_folder_each_time(archive: Archive) -> None:
    async with await open_history("memory://") as one:
        async with sealing(archive, one):
            pass
    async with await open_history("memory://") as two:  # there was nothing in it yet
        await two.append([some(3)])
        async with sealing(archive, two) as sealer:
            await sealer.seal_now()
    async with await open_history("memory://") as three:
        with pytest.raises(ArchiveError, match="memory:// is a new one at each start"):
            await open_sealer(archive, three)
    assert rows(archive) == [1, 2, 3]


async def test_an_archive_whose_newest_file_is_damaged_serves_its_own_log(
    archive: Archive, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    await history.append([some(3)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    [segment] = archive.messages.current().segments
    archive.messages.path(segment).write_bytes(b"PAR1")
    await history.append([some(2)])
    async with sealing(archive, history) as sealer:
        assert await sealer.seal_now() == 5
    assert "can't be compared" in caplog.text
    await history.new_epoch()
    with pytest.raises(ArchiveError, match=segment.file):
        await open_sealer(archive, history)


async def test_an_archive_that_was_exchanged_is_left_alone(
    archive: Archive, history: History, tmp_path: Path
) -> None:
    await history.append([some(3)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
        archive.folder.rename(tmp_path / "moved")
        Archive.create(archive.folder)
        await history.append([some(3)])
        for _ in range(2):
            with pytest.raises(ArchiveError, match="another one is in its place"):
                await sealer.seal_now()
        assert rows(archive) == []
        shutil.rmtree(archive.folder)
        with pytest.raises(ArchiveError, match="no archive at"):
            await sealer.seal_now()
        (tmp_path / "moved").rename(archive.folder)
        assert await sealer.seal_now() == 6
    assert rows(archive) == [1, 2, 3, 4, 5, 6]


async def test_nothing_is_entered_that_the_log_could_still_lose(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `process`, the log is brought to the disk between the segment and its entry."""
    url = f"sqlite:///{tmp_path}/history.db"
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    async with await open_history(url, durability=Durability.PROCESS) as history:
        await history.append([some(3)])
        async with sealing(archive, history) as sealer:
            monkeypatch.setattr(os, "fsync", fsync)
            await sealer.seal_now()
    log = synced.index(f"{tmp_path}/history.db-wal")
    entry = next(n for n, name in enumerate(synced) if name.endswith(".json"))
    assert log < entry


async def test_ids_that_went_on_above_are_read_past_the_hole(history: History) -> None:
    await history.append([some(2)])
    await history.new_epoch(10)
    assert await history.append([some(2)]) == 11
    page = await history.read()
    assert [each.id for each in page.messages()] == [1, 2, 11, 12]
    assert page.complete
    assert [each.id for each in (await history.read(after=5)).messages()] == [11, 12]
    assert await history.last(None, 3) == 1
    while await history.compact():
        pass
    assert [each.id for each in (await history.read()).messages()] == [1, 2, 11, 12]
    assert await history.verify() == []


async def test_a_new_epoch_of_the_same_log_is_welcome(archive: Archive, history: History) -> None:
    await history.append([some(3)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    epoch = await history.new_epoch()
    await history.append([some(2)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    assert archive.messages.current().epoch == epoch
    assert rows(archive) == [1, 2, 3, 4, 5]


async def test_one_server_at_a_time(archive: Archive, history: History) -> None:
    async with sealing(archive, history):
        with pytest.raises(ArchiveError, match="another server uses it"):
            await open_sealer(archive, history)
    async with sealing(archive, history):
        pass


async def test_a_full_disk_is_one_warning_and_tried_again(
    archive: Archive,
    history: History,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: MockClock,
) -> None:
    caplog.set_level(logging.INFO, "mist.archive")
    await history.append([some(3)])

    def full(*_: object) -> None:
        raise ArchiveError(f"archive: {os.strerror(errno.ENOSPC)}")

    async with sealing(archive, history, SealPolicy(seconds=0.0)) as sealer:
        with monkeypatch.context() as patch:
            patch.setattr(SegmentWriter, "finish", full)
            with pytest.raises(ArchiveError, match="No space"):
                await sealer.seal_now()
            assert sealer.failing
            with pytest.raises(ArchiveError, match="No space"):
                await sealer.seal_now()
        assert files(archive) == []
        assert sealer.failures == 2
        assert await sealer.seal_now() == 3
        assert not sealer.failing
    assert rows(archive) == [1, 2, 3]
    told = [each.getMessage() for each in caplog.records if "kept up" in each.getMessage()]
    assert told == ["the archive can't be kept up", "the archive is kept up again"]


async def test_what_failed_is_tried_again_before_it_is_said_to_work(
    archive: Archive,
    history: History,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not when it would be due by its age: that begins anew with each attempt."""
    caplog.set_level(logging.INFO, "mist.archive")
    monkeypatch.setattr("mist.archive.sealer._LOOK", 0.01)
    monkeypatch.setattr("mist.archive.sealer._RETRY", 0.01)
    await history.append([some(3)])

    def full(*_: object) -> None:
        raise ArchiveError(f"archive: {os.strerror(errno.ENOSPC)}")

    async with sealing(archive, history, SealPolicy(seconds=600.0)) as sealer:
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(SegmentWriter, "finish", full)
                with pytest.raises(ArchiveError, match="No space"):
                    await sealer.seal_now()
                nursery.start_soon(sealer.run)
                await until(lambda: sealer.failures > 3)
                assert "the archive is kept up again" not in caplog.messages
            await until(lambda: sealer.sealed == 3)
            await until(lambda: not sealer.failing)
            nursery.cancel_scope.cancel()
    assert rows(archive) == [1, 2, 3]
    assert caplog.messages.count("the archive is kept up again") == 1


async def test_a_log_that_fails_loses_nothing(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([some(3)])

    async def unwell(*_: object, **__: object) -> None:
        raise HistoryUnavailable

    async with sealing(archive, history) as sealer:
        with monkeypatch.context() as patch:
            patch.setattr(type(history), "columns", unwell)
            with pytest.raises(HistoryUnavailable):
                await sealer.seal_now()
        assert await sealer.seal_now() == 3
    assert rows(archive) == [1, 2, 3]


async def test_a_damaged_block_is_told_as_lost_and_the_rest_is_sealed(
    archive: Archive, tmp_path: Path
) -> None:
    path = tmp_path / "history.db"
    async with await open_history(f"sqlite:///{path}") as history:
        for _ in range(4):
            await history.append([some(3)])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE block SET body = zeroblob(length(body)) WHERE first = 4")
        async with sealing(archive, history) as sealer:
            assert await sealer.seal_now() == 12
    assert rows(archive) == [1, 2, 3, 7, 8, 9, 10, 11, 12]
    assert archive.messages.current().lost == ((4, 6),)


def test_the_manifest_is_all_that_counts(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path)
    (tmp_path / "date=2026-11-21").mkdir()
    (tmp_path / "date=2026-11-21" / "stray.parquet").write_bytes(b"")
    assert rows(archive) == []
