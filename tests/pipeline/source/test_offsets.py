"""What a stream's reader answers to Spark, asked in this process."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mist.pipeline.source.errors import DataLoss, InvalidOption, SourceError
from mist.pipeline.source.options import ReadOptions
from mist.pipeline.source.schema import messages_schema
from mist.pipeline.source.stream import StreamReader
from tests.pipeline.source.fake import Fake, at, faking, rows

ALL = ReadAllAvailable()


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def reader(fake: Fake, **options: str) -> StreamReader:
    given = ReadOptions.parse({"url": fake.url, **options}, stream=True)
    return StreamReader(given, messages_schema())


def batch(made: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        n
        for part in made.partitions(start, end)
        for rows_ in made.read(part)
        for n in rows_.column("id").to_pylist()
    ]


@pytest.mark.parametrize(
    ("options", "after"),
    [
        ({}, 100),
        ({"startingOffsets": "latest"}, 100),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "11"}, 10),
        ({"startingOffsets": "101"}, 100),
        ({"startingTimestamp": "11000"}, 10),
        ({"startingTimestamp": "999000"}, 100),
    ],
)
def test_a_new_query_begins_where_it_is_told(
    fake: Fake, options: dict[str, str], after: int
) -> None:
    assert reader(fake, **options).initialOffset() == at(after)


def test_the_end_of_a_batch_says_where_it_began(fake: Fake) -> None:
    end = reader(fake, maxOffsetsPerTrigger="30").latestOffset(
        reader(fake, startingOffsets="11").initialOffset(), ReadMaxRows(30)
    )
    assert end == at(40, began=10)
    assert reader(fake).latestOffset(end, ALL) == at(100, began=40)
    fake.log = rows(1, 200)
    again = reader(fake)  # after a crash, with the same option
    assert batch(again, again.initialOffset(), end) == list(range(11, 41))


def test_a_query_does_not_wait_for_an_id_that_is_far_off(fake: Fake) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets: the log ends at 100"):
        reader(fake, startingOffsets="102").initialOffset()


def test_a_batch_ends_at_the_newest_or_the_limit(fake: Fake) -> None:
    made = reader(fake, maxOffsetsPerTrigger="30")
    assert made.getDefaultReadLimit() == ReadMaxRows(30)
    assert reader(fake).getDefaultReadLimit() == ALL
    assert made.latestOffset(at(10), ReadMaxRows(30)) == at(40, began=10)
    assert made.latestOffset(at(90), ReadMaxRows(30)) == at(100, began=90)
    assert made.latestOffset(at(10), ALL) == at(100, began=10)
    assert made.reportLatestOffset() == at(100)


def test_where_nothing_is_new_the_offset_is_the_very_same(fake: Fake) -> None:
    start = {"id": 100, "epoch": "e1"}  # as a checkpoint of another version might have it
    assert list(reader(fake).latestOffset(start, ALL)) == ["id", "epoch"]


def test_a_stream_may_have_an_end(fake: Fake) -> None:
    for options in ({"endingOffsets": "51"}, {"endingTimestamp": "51000"}):
        made = reader(fake, **options)
        assert made.latestOffset(at(10), ALL) == at(50, began=10)
        assert made.latestOffset(at(50), ALL) == at(50)


def test_available_now_takes_nothing_that_came_later(fake: Fake) -> None:
    made = reader(fake)
    made.prepareForTriggerAvailableNow()
    fake.log = rows(1, 200)
    assert made.latestOffset(at(10), ReadMaxRows(60)) == at(70, began=10)
    assert made.latestOffset(at(70), ReadMaxRows(60)) == at(100, began=70)
    assert made.latestOffset(at(100), ReadMaxRows(60)) == at(100)


def test_a_new_log_is_an_error_or_read_from_its_beginning(fake: Fake) -> None:
    fake.epoch, fake.log = "e2", rows(1, 20)
    with pytest.raises(DataLoss, match=r"started anew \(e1 is now e2\)"):
        reader(fake).latestOffset(at(50), ALL)
    lax = reader(fake, failOnDataLoss="false")
    assert lax.latestOffset(at(50), ReadMaxRows(5)) == at(5, "e2", began=0)
    assert lax.latestOffset(at(50), ALL) == at(20, "e2", began=0)
    assert batch(lax, at(50), at(20, "e2")) == list(range(1, 21))
    assert batch(lax, at(5), at(50)) == []  # planned before, tried again after

    available = reader(fake, failOnDataLoss="false")
    available.prepareForTriggerAvailableNow()
    fake.epoch = "e3"
    assert available.latestOffset(at(5, "e2"), ALL) == at(5, "e2")


def test_an_archive_that_had_nothing_yet_has_lost_nothing(fake: Fake) -> None:
    assert reader(fake).latestOffset(at(0, ""), ALL) == at(100, began=0)


def test_a_log_that_went_back_is_an_error_or_gone_on_from(fake: Fake) -> None:
    fake.log = rows(1, 40)
    with pytest.raises(DataLoss, match="the log ends at 40, before 50 that was read"):
        reader(fake).latestOffset(at(50), ALL)
    lax = reader(fake, failOnDataLoss="false")
    assert lax.latestOffset(at(50), ALL) == at(40)
    assert batch(lax, at(50), at(40)) == []


@pytest.mark.parametrize(
    "offset", [{}, {"id": 1}, {"epoch": "e", "id": "1"}, {"epoch": "e", "id": -1}, {"index": 3}]
)
def test_a_foreign_checkpoint_is_told(fake: Fake, offset: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="is it of another query"):
        reader(fake).latestOffset(offset, ALL)


def test_any_cuts_of_a_stream_give_each_message_once(fake: Fake) -> None:
    made = reader(fake, minPartitions="3", maxOffsetsPerTrigger="7", batchSize="2")
    start, found = at(0), []
    while (end := made.latestOffset(start, ReadMaxRows(7))) != start:
        found += batch(made, start, end)
        start = end
    assert found == list(range(1, 101))
