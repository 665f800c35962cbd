"""The sealer: what it moves, when, and what happens when something fails."""

import errno
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mist.archive import Archive, ArchiveError
from mist.archive.sealer import Sealer, SealPolicy, open_sealer
from mist.archive.segments import SegmentWriter, read_segment
from mist.errors import HistoryUnavailable
from mist.history import History, Policy, Publication, open_history
from mist.message import TagList

NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC
DAY = 86_400.0


def some(count: int, text: str = "m", time: float = NOON) -> Publication:
    tag_list = TagList(frozenset({"a"}))
    entries = [(tag_list, b"%b%b%d\n" % (tag_list.head, text.encode(), n), 1) for n in range(count)]
    return Publication(entries, time, "tcp")


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
    noise = TagList(frozenset({"n"}))
    for _ in range(3):
        entries = [(noise, noise.head + os.urandom(9_000).hex().encode() + b"\n", 1)] * 1
        blocks = [
            (noise, noise.head + os.urandom(9_000).hex().encode() + b"\n", 1) for _ in range(1_000)
        ]
        await history.append([Publication([*entries, *blocks], NOON, "tcp")])
    async with sealing(archive, history, SealPolicy(bytes=1 << 20)) as sealer:
        await sealer.seal_now()
    assert len(archive.messages.current().segments) >= 2
    assert rows(archive) == list(range(1, 3_004))


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


async def until(condition: object) -> None:
    """Wait for what a thread does, whatever the clock says."""
    for _ in range(2_000):
        if condition():  # type: ignore[operator]
            return
        await trio.to_thread.run_sync(lambda: os.sched_yield())
        await trio.testing.wait_all_tasks_blocked(0.001)
    raise AssertionError("it never came to that")


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


async def test_an_archive_that_knows_more_has_the_log_go_on_above(
    archive: Archive, history: History
) -> None:
    await history.append([some(9)])
    async with sealing(archive, history) as sealer:
        await sealer.seal_now()
    async with await open_history("memory://") as other:
        await other.append([some(2, "other")])
        before = (await other.position()).epoch
        async with sealing(archive, other) as sealer:
            assert (await other.position()).epoch != before
            assert await other.append([some(1, "later")]) == 10
            assert await sealer.seal_now() == 10
    assert rows(archive) == list(range(1, 11))
    assert rows(archive, "data")[-1] == b"later0"


async def test_ids_that_went_on_above_are_read_past_the_hole(history: History) -> None:
    await history.append([some(2)])
    await history.new_epoch(10)
    assert await history.append([some(2)]) == 11
    page = await history.read()
    assert [each.id for each in page.messages()] == [1, 2, 11, 12]
    assert page.complete
    assert [each.id for each in (await history.read(after=5)).messages()] == [11, 12]
    assert await history.last(None, 3) == 1
    while await history.tidy():
        pass
    assert [each.id for each in (await history.read()).messages()] == [1, 2, 11, 12]
    assert await history.verify() == []


async def test_an_archive_of_another_log_is_refused(archive: Archive) -> None:
    async with await open_history("memory://") as one:
        await one.append([some(3, "one")])
        async with sealing(archive, one) as sealer:
            await sealer.seal_now()
    async with await open_history("memory://") as two:
        await two.append([some(5, "two")])
        with pytest.raises(ArchiveError, match="of another history; use another folder"):
            await open_sealer(archive, two)
    assert rows(archive) == [1, 2, 3]


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
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in warnings] == ["the archive can't be kept up"]


async def test_a_log_that_fails_loses_nothing(
    archive: Archive, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([some(3)])

    async def unwell(*_: object, **__: object) -> None:
        raise HistoryUnavailable

    async with sealing(archive, history) as sealer:
        with monkeypatch.context() as patch:
            patch.setattr(type(history), "read", unwell)
            with pytest.raises(HistoryUnavailable):
                await sealer.seal_now()
        assert await sealer.seal_now() == 3
    assert rows(archive) == [1, 2, 3]


STEPS: Sequence[str] = ["write", "finish", "change", "_write"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_between_any_two_steps_loses_nothing_and_lists_nothing_twice(
    tmp_path: Path, step: str, moment: str
) -> None:
    """A process of its own, that ends at that step without a word."""
    script = f"""
import os, sys, trio
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.archive.test_sealer import some
from mist.archive import Archive, Table
from mist.archive.segments import SegmentWriter
from mist.archive.sealer import SealPolicy, open_sealer
from mist.history import open_history
owner = SegmentWriter if {step!r} in ("write", "finish") else Table
real = getattr(owner, {step!r})
def crash(*arguments):
    crash.calls += 1
    if crash.calls == 2 and {moment!r} == "before":
        os._exit(7)
    result = real(*arguments)
    if crash.calls == 2:
        os._exit(7)
    return result
crash.calls = 0
setattr(owner, {step!r}, crash)
async def main():
    async with await open_history("sqlite:///{tmp_path}/history.db") as history:
        await history.append([some(20)])
        sealer = await open_sealer(
            Archive.create(Path({str(tmp_path / "archive")!r})), history, SealPolicy(rows=10)
        )
        await sealer.seal_now()
        await history.append([some(5)])
        await sealer.seal_now()
trio.run(main)
"""
    code = (await trio.run_process([sys.executable, "-c", script], check=False)).returncode
    assert code == 7
    archive = Archive.open(tmp_path / "archive")
    async with await open_history(f"sqlite:///{tmp_path}/history.db") as history:
        newest = (await history.position()).newest
        async with sealing(archive, history) as sealer:
            assert await sealer.seal_now() == newest
    assert rows(archive) == list(range(1, newest + 1))
    listed = {Path(each.file).name for each in archive.messages.current().segments}
    archive.messages.sweep(grace=-1.0)
    assert set(files(archive)) == listed


def test_the_manifest_is_all_that_counts(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path)
    (tmp_path / "date=2026-11-21").mkdir()
    (tmp_path / "date=2026-11-21" / "stray.parquet").write_bytes(b"")
    assert rows(archive) == []
