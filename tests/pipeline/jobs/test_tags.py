from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mist.archive import Archive
from mist.pipeline.jobs import tags
from mist.pipeline.reading import Archived, read_log
from tests.pipeline.archives import Told, make_archive


def test_the_most_used_come_first_and_ties_by_name(spark: Any, tmp_path: Path) -> None:
    messages = [Told("a,b"), Told("b,c"), Told("b,ä"), Told("c"), Told("d")]
    archive = make_archive(tmp_path / "archive", messages, segment=2)
    result = tags.run(spark, Archived(archive), top=3, out=tmp_path / "out")
    assert result.table.to_pylist() == [
        {"tag": "b", "messages": 3, "share": 0.6},
        {"tag": "c", "messages": 2, "share": 0.4},
        {"tag": "a", "messages": 1, "share": 0.2},
    ]
    assert result.summary == {"messages": 5, "tags": 5, "tags_per_message": 1.6, "listed": 3}
    assert pq.read_table(tmp_path / "out").equals(result.table)


def test_counts_equal_those_of_the_plain_form(spark: Any, tmp_path: Path) -> None:
    messages = [Told(f"a,t{n % 13},u{n % 5}") for n in range(300)]
    archive = make_archive(tmp_path, messages, segment=40)
    exploded = read_log(spark, tmp_path).selectExpr("explode(tags) as tag").groupBy("tag").count()
    found = tags.run(spark, Archived(archive)).table.to_pylist()
    assert {row["tag"]: row["messages"] for row in found} == {
        row["tag"]: row["count"] for row in exploded.collect()
    }


def test_an_empty_archive_has_no_tags(spark: Any, tmp_path: Path) -> None:
    result = tags.run(spark, Archived(Archive.create(tmp_path)))
    assert result.table.num_rows == 0
    assert result.summary["messages"] == 0
