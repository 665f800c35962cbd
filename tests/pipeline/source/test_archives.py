"""An archive as the origin: what a task does, in this process."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec
import pytest

from mist.archive.manifest import ArchiveMissing
from mist.archive.schema import MESSAGES
from mist.archive.segments import read_segment, write_segment
from mist.archive.table import Archive, Table
from mist.pipeline.selection import parse_alternatives
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.origins import LogPosition, Losses
from mist.pipeline.source.origins.archive import ArchiveOrigin
from mist.pipeline.source.splitting import OffsetRange
from tests.pipeline.source.fake import rows
from tests.pipeline.source.sealed import seal

STRICT, LAX = Losses(fatal=True), Losses(fatal=False)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Archive.create(tmp_path).messages


def origin(table: Table) -> ArchiveOrigin:
    return ArchiveOrigin(str(table.folder))


def ids(
    table: Table,
    after: int,
    upto: int,
    subscribe: str = "",
    losses: Losses = STRICT,
    size: int = 1000,
    epoch: str = "e1",
) -> list[int]:
    found: list[int] = []
    for batch in read(table, OffsetRange(epoch, after, upto), subscribe, losses, size):
        found += batch
    return found


def read(
    table: Table, offsets: OffsetRange, subscribe: str, losses: Losses, size: int
) -> Iterator[list[int]]:
    alternatives = parse_alternatives(subscribe)
    for batch in origin(table).read(offsets, alternatives, ["data"], size, losses):
        assert len(batch) <= size
        yield batch.column("id").to_pylist()


def test_a_stretch_goes_over_segments(table: Table) -> None:
    seal(table, (1, 30), (31, 31), (32, 100))
    assert ids(table, 0, 100) == list(range(1, 101))
    assert ids(table, 10, 40, size=7) == list(range(11, 41))
    assert ids(table, 10, 40, "odd,n11; n30; n32; n80") == [11, 30, 32]
    assert ids(table, 100, 200) == []


def test_where_an_archive_stands(table: Table) -> None:
    assert origin(table).position() == LogPosition("", 1, 0)
    assert origin(table).position(moment=0) == LogPosition("", 1, 0, None)
    seal(table, (11, 30), (31, 100))
    assert origin(table).position() == LogPosition("e1", 11, 100)
    for moment, after in [(0, 10), (11, 10), (12, 11), (31, 30), (50, 49), (1000, 100)]:
        assert origin(table).position(moment=moment * 1_000_000).after == after


def test_there_has_to_be_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match=f"no archive at {tmp_path}/none"):
        ArchiveOrigin(str(tmp_path / "none")).position()


def test_cuts_are_laid_between_the_segments_of_the_stretch(table: Table) -> None:
    made = seal(table, (1, 10), (11, 20), (21, 30))
    assert origin(table).segments(OffsetRange("e1", 10, 21)) == made[1:]
    assert origin(table).segments(OffsetRange("e1", 10, 20)) == made[1:2]


def test_what_was_retained_away_or_lost_is_told(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    seal(table, (11, 20), (31, 40))
    table.change(lambda manifest: msgspec.structs.replace(manifest, lost=((21, 30),)))
    with pytest.raises(DataLoss, match="messages 6 to 10 are no longer available"):
        ids(table, 5, 20)
    with pytest.raises(DataLoss, match="messages 21 to 25 are no longer available"):
        ids(table, 10, 25)
    assert ids(table, 10, 20) == list(range(11, 21))
    assert ids(table, 5, 40, losses=LAX) == [*range(11, 21), *range(31, 41)]
    assert "messages 21 to 30" in caplog.text


def test_what_was_erased_in_between_is_no_loss(table: Table) -> None:
    kept = rows(1, 20).filter([n % 2 == 1 for n in range(1, 21)])
    segment = write_segment(table, kept, MESSAGES, 1, 20)
    table.change(
        lambda manifest: msgspec.structs.replace(manifest.plus(segment), sealed=20, epoch="e1")
    )
    assert ids(table, 0, 20) == list(range(1, 21, 2))


def test_another_log_is_an_error_or_nothing(table: Table) -> None:
    seal(table, (1, 10))
    with pytest.raises(DataLoss, match="another log's archive"):
        ids(table, 0, 10, epoch="e0")
    assert ids(table, 0, 10, epoch="e0", losses=LAX) == []


def test_compaction_while_a_task_reads_changes_nothing(table: Table) -> None:
    made = seal(table, (1, 10), (11, 20), (21, 30))
    batches = read(table, OffsetRange("e1", 3, 27), "", STRICT, 4)
    found = next(batches)

    whole = [row for segment in made for row in read_segment(table, segment).to_batches()]
    one = write_segment(table, iter(whole), MESSAGES, 1, 30, day=date(1970, 1, 1))
    files = {segment.file for segment in made}
    table.change(lambda manifest: manifest.minus(files).plus(one))
    table.sweep(grace=0)
    assert not table.path(made[1]).exists()
    for batch in batches:
        found += batch
    assert found == list(range(4, 28))


@pytest.mark.parametrize(
    ("kept", "after", "gone"), [(1, 3, "11 to 20"), (0, 3, "11 to 27"), (1, 0, "11 to 20")]
)
def test_what_is_retained_away_while_a_task_reads_is_told(
    table: Table, caplog: pytest.LogCaptureFixture, kept: int, after: int, gone: str
) -> None:
    made = seal(table, (1, 10), (11, 20), (21, 30))

    def begun(losses: Losses) -> Iterator[list[int]]:
        batches = read(table, OffsetRange("e1", after, 27), "", losses, 100)
        assert next(batches)[-1] == 10
        return batches

    strict, lax = begun(STRICT), begun(LAX)
    files = {segment.file for segment in made[: 3 - kept]}
    table.change(lambda manifest: manifest.minus(files))
    table.sweep(grace=0)
    with pytest.raises(DataLoss, match=f"messages {gone} are no longer available"):
        next(strict)
    assert list(lax) == ([list(range(21, 28))] if kept else [])
    assert caplog.text.count("no longer available") == 1


def test_a_file_that_is_listed_and_not_there_is_an_error(table: Table) -> None:
    [segment] = seal(table, (1, 10))
    table.path(segment).unlink()
    with pytest.raises(DataLoss, match="is in the manifest and not there"):
        ids(table, 0, 10)


def test_a_damaged_segment_is_an_error_or_passed(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, _ = seal(table, (1, 10), (11, 20))
    path = table.path(damaged)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataLoss, match="can't be read"):
        ids(table, 0, 20)
    assert ids(table, 0, 20, losses=LAX) == list(range(11, 21))
    assert damaged.file in caplog.text


def test_row_groups_outside_of_the_stretch_are_not_decoded(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    batches = [rows(n, n + 9) for n in range(1, 51, 10)]  # a row group each
    day = date(1970, 1, 1)
    segment = write_segment(table, iter(batches), MESSAGES, 1, 50, day=day)
    table.change(
        lambda manifest: msgspec.structs.replace(manifest.plus(segment), sealed=50, epoch="e1")
    )
    asked = []
    plain = pq.ParquetFile.iter_batches

    def watched(self: object, size: int, groups: list[int], columns: list[str]) -> object:
        asked.append((groups, columns))
        return plain(self, size, groups, columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert ids(table, 15, 31) == list(range(16, 32))
    assert asked == [([1, 2, 3], ["data", "id"])]
