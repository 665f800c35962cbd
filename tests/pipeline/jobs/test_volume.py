"""The roll-up equals plain DataFrame code."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.bench.pipeline import plain
from mist.pipeline.jobs import volume
from mist.pipeline.reading import Archived, read_log
from tests.pipeline.archives import BEGIN, MINUTE, Told, make_archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    messages = [Told(f"a,t{n % 7}", b"x" * (n % 11), after=MINUTE) for n in range(400)]
    return make_archive(tmp_path_factory.mktemp("archive"), messages, segment=70)


def test_messages_by_hour_and_tag_equal_the_plain_form(
    spark: Any, archive: Archive, tmp_path: Path
) -> None:
    result = volume.run(spark, Archived(archive), out=tmp_path / "out")
    expected = plain.count_by_hour_and_tag(read_log(spark, archive.folder))
    assert {(row.hour, row.tag, row.messages) for row in result.frame.collect()} == {
        (row.hour, row.tag, row.messages) for row in expected.collect()
    }
    assert pq.read_table(tmp_path / "out").num_rows == result.summary["rows"]


def test_totals_count_each_message_once(spark: Any, archive: Archive) -> None:
    summary = volume.run(spark, Archived(archive)).summary
    assert summary["messages"] == 400
    assert summary["bytes"] is None
    hours = [(row["hour"], row["messages"]) for row in summary["hours"]]
    begin = BEGIN // 1_000_000
    assert hours == [(begin + 3600 * n, 60 if n else 59) for n in range(6)] + [
        (begin + 6 * 3600, 41)
    ]


def test_bytes_are_those_of_the_data(spark: Any, archive: Archive) -> None:
    result = volume.run(spark, Archived(archive), sizes=True)
    rows = read_log(spark, archive.folder).collect()
    assert result.summary["bytes"] == sum(len(row.data) for row in rows)
    of_a = [row.bytes for row in result.frame.collect() if row.tag == "a"]
    assert sum(of_a) == result.summary["bytes"]
    of_t3 = [row.bytes for row in result.frame.collect() if row.tag == "t3"]
    assert sum(of_t3) == sum(len(row.data) for row in rows if "t3" in row.tags)


def test_an_empty_archive_has_no_hours(spark: Any, tmp_path: Path) -> None:
    result = volume.run(spark, Archived(Archive.create(tmp_path / "empty")))
    assert result.summary == {"messages": 0, "bytes": None, "rows": 0, "hours": []}
    assert result.frame.collect() == []
