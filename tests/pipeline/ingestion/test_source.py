"""Lake ingestion: where it resumes, and what it reads of a log that was started anew."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.source.errors import DataLoss
from tests.pipeline.ingestion.batches import at, reader, rows_of, take
from tests.pipeline.source.fake import Fake, faking, rows

ALL = ReadAllAvailable()
SKIP = {"failOnDataLoss": "false"}


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


def test_a_lake_is_its_own_checkpoint(fake: Fake, lake: Lake) -> None:
    made = reader(fake, lake, startingOffsets="11")
    assert made.initialOffset() == at(10)
    take(fake, lake, at(10), at(60))
    assert made.initialOffset() == at(60)
    assert rows_of(lake).column("id").to_pylist() == list(range(11, 61))


def test_a_batch_is_bounded(fake: Fake, lake: Lake) -> None:
    assert reader(fake, lake).latestOffset(at(0), ReadMaxRows(30)) == at(30, began=0)


def test_another_log_is_an_error_unless_told(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(60))
    fake.epoch = "e2"
    with pytest.raises(DataLoss, match="started anew"):
        reader(fake, lake).latestOffset(at(60), ALL)


def test_a_log_that_goes_on_in_another_epoch_goes_on_in_the_lake(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(60))
    fake.epoch = "e2"
    made = reader(fake, lake, **SKIP)
    start, end = at(60), made.latestOffset(at(60), ALL)
    assert end == at(100, "e2", began=60)
    assert take(fake, lake, start, end, **SKIP).rows == 40
    assert take(fake, lake, start, end, **SKIP).repeated
    assert rows_of(lake).column("id").to_pylist() == list(range(1, 101))
    assert lake.table.current().epoch == "e2"


def test_a_batch_of_a_log_that_is_gone_is_lost_and_said_to_be(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(60))
    fake.epoch = "e2"  # when Spark has the batch up to 100 in its checkpoint
    with pytest.raises(DataLoss, match="has a new log: messages 61 to 100"):
        take(fake, lake, at(60), at(100))
    take(fake, lake, at(60), at(100), **SKIP)
    manifest = lake.table.current()
    assert (manifest.epoch, manifest.sealed, manifest.lost) == ("e1", 100, ((61, 100),))


@pytest.mark.parametrize(
    ("first", "last"), [(1, 200), (1, 59), (1, 0)], ids=["other", "shorter", "empty"]
)
def test_a_log_that_gives_ids_out_again_is_never_taken(
    fake: Fake, lake: Lake, first: int, last: int
) -> None:
    take(fake, lake, at(0), at(60), subscribe="odd")
    fake.epoch, fake.log = "e2", rows(first, last)
    if last > 60:
        place = fake.log.schema.get_field_index("data")
        fake.log = fake.log.set_column(place, "data", pa.array([b"other"] * last))
    made = reader(fake, lake, subscribe="odd", **SKIP)
    with pytest.raises(DataLoss, match=r"other messages than those in .*; --to another folder"):
        made.latestOffset(at(60), ALL)


def test_a_log_that_was_put_back_is_never_taken(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(100))
    fake.log = rows(1, 90)  # the epoch is in the backup, too
    with pytest.raises(DataLoss, match="ends at 90, before 100 that is in"):
        reader(fake, lake, **SKIP).latestOffset(at(100), ALL)


def test_a_log_with_higher_ids_only_goes_on_behind_the_lake(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(60))
    fake.epoch, fake.log, fake.first = "e2", rows(81, 100), 81
    end = reader(fake, lake, **SKIP).latestOffset(at(60), ALL)
    assert take(fake, lake, at(60), end, **SKIP).rows == 20


def test_a_lake_without_a_message_takes_all_of_another_log(fake: Fake, lake: Lake) -> None:
    take(fake, lake, at(0), at(100), subscribe="nobody")
    fake.epoch, fake.log = "e2", rows(1, 30)
    end = reader(fake, lake, **SKIP).latestOffset(at(100), ALL)
    assert end == at(30, "e2", began=0)
    assert take(fake, lake, at(100), end, **SKIP).rows == 30
