"""An archive is read through its manifest, in scan tasks that together cover it."""

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.archive.manifest import ArchiveMissing
from mist.archive.schema import MESSAGES
from mist.archive.segments import read_segment, write_segment
from mist.pipeline.errors import BadInput
from mist.pipeline.reading import plan, read_log, read_task, segments
from mist.pipeline.selection import Range, Selection, parse_alternatives
from tests.pipeline.archives import BEGIN, MINUTE, Told, make_archive


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    messages = [Told(f"a,t{n % 5}", after=MINUTE) for n in range(1, 501)]
    return make_archive(tmp_path_factory.mktemp("archive"), messages, segment=60)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return make_archive(tmp_path, [Told(f"a,t{n % 5}") for n in range(1, 201)], segment=50)


SELECTIONS = {
    "all": Selection(),
    "some ids": Selection(Range(after=100, upto=333)),
    "some hours": Selection(Range(since=BEGIN + 90 * MINUTE, until=BEGIN + 200 * MINUTE)),
    "some tags": Selection(Range(after=60), parse_alternatives("t1; t2,a")),
    "none": Selection(Range(after=900)),
}


@pytest.mark.parametrize("group", [7, 100_000], ids=["small row groups", "one row group"])
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_the_tasks_together_hold_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selection: Selection, cores: int, group: int
) -> None:
    monkeypatch.setattr("mist.archive.segments.ROW_GROUP", group)
    monkeypatch.setattr("mist.pipeline.reading.ROW_GROUP", 25)  # so that much is cut
    messages = [Told(f"a,t{n % 5}", after=MINUTE) for n in range(1, 501)]
    archive = make_archive(tmp_path, messages, segment=130)
    table = archive.messages
    tasks = plan(table, selection, cores)
    found = [
        number
        for task in tasks
        for batch in read_task(table, task, selection, ["id"])
        for number in batch.column("id").to_pylist()
    ]
    rows = [
        row
        for segment in table.current().segments
        for batch in read_segment(table, segment).to_batches()
        for row in selection.filter(batch).column("id").to_pylist()
    ]
    assert found == rows
    for one, other in itertools.pairwise(tasks):
        assert one.upto <= other.after


def test_tags_too_many_for_a_dictionary_are_read_all_the_same(tmp_path: Path) -> None:
    # 30,000 tags of 70 bytes: twice what Parquet takes into one.
    messages = [Told(f"a,{n:070}") for n in range(30_000)]
    table = make_archive(tmp_path, messages, segment=30_000).messages
    (task,) = plan(table, Selection(), 1)
    rows = read_task(table, task, Selection(), ["tags"])
    found = [tags for batch in rows for tags in batch.column("tags").to_pylist()]
    assert found == [sorted(told.tags.split(",")) for told in messages]


def test_a_task_gives_just_the_columns_asked_for(kept: Archive) -> None:
    selection = Selection(Range(after=100), parse_alternatives("t1"))
    (task,) = plan(kept.messages, selection, 1)
    batch = next(read_task(kept.messages, task, selection, ["data"]))
    assert batch.schema.names == ["data"]


def test_what_was_compacted_meanwhile_is_read_where_it_is_now(archive: Archive) -> None:
    table = archive.messages
    (task,) = plan(table, Selection(), 1)
    rows = read_task(table, task, Selection(), ["id"])
    found = next(rows).column("id").to_pylist()
    # All that is left, and what was given already, becomes one segment.
    old = table.current().segments
    joined = [read_segment(table, each) for each in old]
    new = write_segment(table, pa.concat_tables(joined), MESSAGES, 1, 200, part="-1")
    table.change(lambda manifest: manifest.minus({each.file for each in old}).plus(new))
    for each in old:
        table.path(each).unlink()
    for batch in rows:
        found += batch.column("id").to_pylist()
    assert found == list(range(1, 201))


def test_a_segment_that_is_listed_and_gone_is_an_error(archive: Archive) -> None:
    table = archive.messages
    (task,) = plan(table, Selection(), 1)
    table.path(table.current().segments[1]).unlink()
    with pytest.raises(BadInput, match="in the manifest and not there"):
        list(read_task(table, task, Selection(), ["id"]))


def test_a_damaged_segment_is_an_error_of_one_line(archive: Archive) -> None:
    table = archive.messages
    path = table.path(table.current().segments[1])
    path.write_bytes(path.read_bytes()[:100])
    (task,) = plan(table, Selection(), 1)
    with pytest.raises(BadInput, match=path.name) as caught:
        list(read_task(table, task, Selection(), ["id"]))
    assert "\n" not in str(caught.value)


def test_the_log_is_what_the_manifest_lists(spark: Any, archive: Archive) -> None:
    table = archive.messages
    gone = table.current().segments[1]
    table.change(lambda manifest: manifest.minus({gone.file}))
    assert table.path(gone).exists()
    ids = [row.id for row in read_log(spark, archive.folder).orderBy("id").collect()]
    assert ids == [*range(1, 51), *range(101, 201)]


def test_the_log_has_the_columns_of_the_page(spark: Any, kept: Archive) -> None:
    frame = read_log(spark, kept.folder)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("id", "bigint"),
        ("time", "timestamp"),
        ("tags", "array<string>"),
        ("data", "binary"),
        ("publisher", "string"),
        ("audience", "string"),
        ("meta", "map<string,binary>"),
    ]
    assert frame.count() == 500


def test_a_selection_of_the_log_is_that_of_the_tasks(spark: Any, kept: Archive) -> None:
    since, until = BEGIN + 90 * MINUTE, BEGIN + 400 * MINUTE
    frame = read_log(
        spark, kept.folder, subscribe="t1; t2,a", after=95, upto=380, since=since, until=until
    )
    selection = Selection(Range(95, 380, since, until), parse_alternatives("t1; t2,a"))
    expected = [
        number
        for task in plan(kept.messages, selection, 1)
        for batch in read_task(kept.messages, task, selection, ["id"])
        for number in batch.column("id").to_pylist()
    ]
    assert sorted(row.id for row in frame.select("id").collect()) == expected
    assert len(expected) > 50


def test_addresses_are_read_alike_by_spark_and_from_the_tasks(spark: Any, tmp_path: Path) -> None:
    published = [
        "/a",
        "/a/b,x",
        "/ab",
        "/",
        ".a.b",
        ".a.b.c,x",
        ".a+.b",
        ".a.\u2028",
        "x",
        "=",
        "a",
    ]
    archive = make_archive(tmp_path, [Told(each) for each in published])
    for subscribe, found in [
        ("/a", [1, 2]),
        ("=/a", [1]),
        ("/", [1, 2, 3, 4]),
        ("=/", [4]),
        ("/a,x", [2]),
        (".a.*", [5, 8]),
        (".a.>", [5, 6, 8]),
        (".a+.*", [7]),
        (".*.b", [5, 7]),
        (".>,x", [6]),
        (".a.b; =", [5, 10]),
        ("*", list(range(1, 12))),
    ]:
        chosen = read_log(spark, archive.folder, subscribe=subscribe).select("id")
        assert sorted(row.id for row in chosen.collect()) == found, subscribe
        selection = Selection(Range(), parse_alternatives(subscribe))
        (task,) = plan(archive.messages, selection, 1)
        rows = read_task(archive.messages, task, selection, ["id"])
        assert [n for batch in rows for n in batch.column("id").to_pylist()] == found, subscribe


def test_each_segment_is_a_partition_of_its_own(spark: Any, kept: Archive) -> None:
    frame = segments(spark, kept.folder, Selection(Range(after=100, upto=200)))
    assert frame.rdd.getNumPartitions() == 3
    rows = sorted(frame.collect(), key=lambda row: row.first)
    assert [(row[1], row[2], row[3]) for row in rows] == [
        (61, 120, 60),
        (121, 180, 60),
        (181, 240, 60),
    ]
    assert all(pq.read_metadata(row.file).num_rows == row.rows for row in rows)


def test_no_archive_is_said(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match="nowhere"):
        read_log(spark, tmp_path / "nowhere")


def test_an_empty_archive_is_an_empty_log(spark: Any, tmp_path: Path) -> None:
    Archive.create(tmp_path)
    assert read_log(spark, tmp_path).collect() == []
    assert segments(spark, tmp_path).collect() == []
