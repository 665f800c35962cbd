"""Lake ingestion: a batch is in the lake whole and once, whatever was done twice or cut short."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from mist.archive import ArchiveError
from mist.archive.generations import Generations
from mist.archive.segments import day_of
from mist.pipeline.errors import JobFailed
from mist.pipeline.ingestion.commit import StaleBatch, commit
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.source.errors import DataLoss, ServerRefused
from tests.pipeline.ingestion.batches import at, files, reader, rows_of, run_tasks, take
from tests.pipeline.source.fake import Fake, Handler, faking, rows

MIDNIGHT = 86_400  # the id of the first message of the second day: one a second since 1970


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path / "lake")
    with lake.exclusive_writer():
        yield lake


def test_a_batch_is_committed_whole_in_one_generation(fake: Fake, lake: Lake) -> None:
    committed = take(fake, lake, at(0), at(100), minPartitions="3")
    assert (committed.rows, committed.repeated) == (100, False)
    manifest = lake.table.current()
    assert (manifest.generation, manifest.epoch, manifest.sealed) == (1, "e1", 100)
    assert [(each.first, each.last) for each in manifest.segments] == [(1, 33), (34, 66), (67, 100)]
    assert rows_of(lake) == pa.Table.from_batches([fake.log])
    assert files(lake.folder) == [each.file for each in manifest.segments]


@pytest.mark.parametrize("partitions", ["1", "3", "7"])
def test_a_repeated_batch_adds_nothing_however_it_is_cut(
    fake: Fake, lake: Lake, partitions: str
) -> None:
    take(fake, lake, at(0), at(60), minPartitions="3")
    before = lake.table.current(), files(lake.folder)
    committed = take(fake, lake, at(0), at(60), minPartitions=partitions)
    assert (committed.rows, committed.repeated) == (0, True)
    assert (lake.table.current(), files(lake.folder)) == before
    take(fake, lake, at(60), at(100), minPartitions=partitions)
    assert rows_of(lake).column("id").to_pylist() == list(range(1, 101))


@pytest.mark.parametrize(("after", "upto"), [(40, 80), (59, 61), (61, 80)])
def test_a_batch_that_does_not_follow_is_an_error(
    fake: Fake, lake: Lake, after: int, upto: int
) -> None:
    take(fake, lake, at(0), at(60))
    before = lake.table.current(), files(lake.folder)
    with pytest.raises(JobFailed, match="has messages up to 60, and the checkpoint goes on from"):
        take(fake, lake, at(after), at(upto))
    assert (lake.table.current(), files(lake.folder)) == before


def test_a_batch_without_one_of_its_tasks_is_an_error(fake: Fake, lake: Lake) -> None:
    parts = run_tasks(reader(fake, lake, minPartitions="3"), at(0), at(100))
    with pytest.raises(JobFailed, match="a batch has a gap: 33 is followed by 66"):
        commit(lake, [parts[0], parts[2]])
    with pytest.raises(JobFailed, match="without the output of any task"):
        commit(lake, [])
    assert lake.table.current().generation == 0


def test_a_stretch_over_midnight_makes_a_segment_of_each_day(fake: Fake, lake: Lake) -> None:
    fake.log, fake.first = rows(MIDNIGHT - 10, MIDNIGHT + 9), MIDNIGHT - 10
    take(fake, lake, at(MIDNIGHT - 11), at(MIDNIGHT + 9), minPartitions="1")
    segments = lake.table.current().segments
    assert [(each.file[:15], each.first, each.last) for each in segments] == [
        ("date=1970-01-01", MIDNIGHT - 10, MIDNIGHT - 1),
        ("date=1970-01-02", MIDNIGHT, MIDNIGHT + 9),
    ]
    assert all(day_of(each.oldest) == day_of(each.newest) for each in segments)
    assert rows_of(lake) == pa.Table.from_batches([fake.log])


def test_what_matches_nothing_moves_the_lake_on(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(50), subscribe="nobody")
    manifest = lake.table.current()
    assert (manifest.sealed, manifest.segments) == (50, ())
    committed = take(fake, lake, at(50), at(100), subscribe="odd")
    assert committed.rows == 25
    assert rows_of(lake).column("id").to_pylist() == list(range(51, 101, 2))
    assert lake.table.current().sealed == 100


def test_what_the_server_lost_is_an_error_or_stands_in_the_manifest(fake: Fake, lake: Lake) -> None:
    fake.lost = [(3, 7), (50, 55)]
    with pytest.raises(DataLoss, match="messages 3 to 7 are no longer available"):
        run_tasks(reader(fake, lake), at(0), at(100))
    assert files(lake.folder) == []
    take(fake, lake, at(0), at(100), failOnDataLoss="false")
    assert lake.table.current().lost == ((3, 7), (50, 55))


def test_a_task_that_fails_leaves_nothing(fake: Fake, lake: Lake) -> None:
    fake.page = 10

    def refuse(handler: Handler) -> bool:
        if "after=50" not in handler.path:
            return False
        handler.answer(500, {"code": "broken"})
        return True

    fake.faults.append(refuse)
    with pytest.raises(ServerRefused, match="broken"):
        run_tasks(reader(fake, lake), at(0), at(100))
    assert list(lake.landing.glob("*")) == []


def test_tasks_done_twice_are_committed_once_and_leave_nothing(fake: Fake, lake: Lake) -> None:
    made = reader(fake, lake, minPartitions="3")
    loser = run_tasks(made, at(0), at(100))
    assert len(files(lake.folder)) == len(loser) == 3
    commit(lake, run_tasks(made, at(0), at(100)))
    assert files(lake.folder) == [each.file for each in lake.table.current().segments]


def test_what_was_read_before_an_erasure_is_not_committed(fake: Fake, lake: Lake) -> None:
    parts = run_tasks(reader(fake, lake), at(0), at(100))
    lake.fence()
    with pytest.raises(StaleBatch):
        commit(lake, parts)
    assert files(lake.folder) == []
    assert take(fake, lake, at(0), at(100)).rows == 100


def test_a_manifest_that_cannot_be_written_leaves_the_lake_as_it_was(
    fake: Fake, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(fake, lake, at(0), at(60))
    before = lake.table.current(), files(lake.folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Generations, "add", full)
        with pytest.raises(ArchiveError, match="No space left"):
            take(fake, lake, at(60), at(100))
    assert (lake.table.current(), files(lake.folder)) == before
    assert take(fake, lake, at(60), at(100)).rows == 40


def test_files_that_cannot_be_moved_leave_the_lake_as_it_was(fake: Fake, lake: Lake) -> None:
    parts = run_tasks(reader(fake, lake, minPartitions="2"), at(0), at(100))
    (lake.folder / parts[1].folder / parts[1].segments[0].file).unlink()
    with pytest.raises(ArchiveError, match="No such file"):
        commit(lake, parts)
    assert files(lake.folder) == []
    assert take(fake, lake, at(0), at(100)).rows == 100
