"""Compaction keeps every row and loses none to what interferes."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.archive.generations import Generations
from mist.archive.manifest import ArchiveError
from mist.archive.segments import read_segment
from mist.pipeline.jobs import compact
from mist.pipeline.reading import read_log
from mist.pipeline.selection import Range, Selection
from tests.pipeline.archives import DAY, Told, make_archive


def rows_of(archive: Archive) -> list[dict[str, Any]]:
    table = archive.messages
    return [
        row
        for segment in table.current().segments
        for row in read_segment(table, segment).to_pylist()
    ]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    messages = [
        Told(
            f"a,t{n % 7}",
            publisher=f"p{n % 2}",
            audience="x" if n % 5 == 0 else None,
            meta={"k": b"v"} if n % 3 == 0 else None,
            after=DAY if n == 120 else 1000,
        )
        for n in range(200)
    ]
    return make_archive(tmp_path / "archive", messages, segment=10)


def test_few_segments_hold_the_same_rows_in_the_same_order(spark: Any, archive: Archive) -> None:
    before = rows_of(archive)
    result = compact.run(spark, archive, rows=60)
    assert rows_of(archive) == before
    found = archive.messages.current()
    assert [(each.first, each.last, each.rows) for each in found.segments] == [
        (1, 60, 60),
        (61, 120, 60),
        (121, 160, 40),
        (161, 200, 40),
    ]
    assert [row.id for row in read_log(spark, archive.folder).orderBy("id").collect()] == list(
        range(1, 201)
    )
    assert len(found.retired) == 20
    assert result.summary["segments_before"] == 20
    assert result.summary["segments_after"] == 4
    assert sum(result.table.column("segments").to_pylist()) == 20


def test_no_segment_spans_two_days(spark: Any, archive: Archive) -> None:
    compact.run(spark, archive)
    segments = archive.messages.current().segments
    assert [each.oldest // DAY == each.newest // DAY for each in segments] == [True, True]
    assert [each.file.startswith("date=2026-11-2") for each in segments] == [True, True]


def test_doing_it_again_changes_nothing(spark: Any, archive: Archive) -> None:
    compact.run(spark, archive, rows=60)
    generation = archive.messages.current().generation
    result = compact.run(spark, archive, rows=60)
    assert result.summary["generation"] == generation
    assert result.table.num_rows == 0


def test_only_segments_within_the_range_are_touched(spark: Any, archive: Archive) -> None:
    compact.run(spark, archive, Selection(Range(after=20, upto=55)))
    firsts = [each.first for each in archive.messages.current().segments]
    assert firsts == [1, 11, 21, 51, *range(61, 200, 10)]


def test_files_are_of_the_form_that_the_server_writes(spark: Any, archive: Archive) -> None:
    table = archive.messages
    schema = pq.read_schema(table.path(table.current().segments[0]))
    compact.run(spark, archive)
    for segment in table.current().segments:
        assert pq.read_schema(table.path(segment)).equals(schema)


def test_a_group_that_others_changed_meanwhile_is_left_alone(
    spark: Any, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archive.messages
    third = table.current().segments[2]
    merge = compact._merge

    def interfere(*arguments: Any) -> Any:
        made = merge(*arguments)
        table.change(lambda manifest: manifest.minus({third.file}))  # as erasure does
        return made

    monkeypatch.setattr(compact, "_merge", interfere)
    result = compact.run(spark, archive)
    assert result.summary["left_as_they_are"] == 1
    assert [row["id"] for row in rows_of(archive)] == [
        n for n in range(1, 201) if not third.first <= n <= third.last
    ]
    listed = {each.file for each in table.current().segments + table.current().retired}
    assert {str(path.relative_to(table.folder)) for path in table.folder.glob("date=*/*")} == listed


def test_a_crash_before_the_commit_leaves_the_old_generation(
    spark: Any, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, generation = rows_of(archive), archive.messages.current().generation

    def crash(*_: Any, **__: Any) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(Generations, "add", crash)
        with pytest.raises(ArchiveError):
            compact.run(spark, archive)
    assert archive.messages.current().generation == generation
    assert rows_of(archive) == before
    compact.run(spark, archive)  # over the files that are left
    assert rows_of(archive) == before
    assert archive.messages.sweep(grace=0.0)
    assert rows_of(archive) == before


def test_lost_ranges_stay_told(spark: Any, archive: Archive) -> None:
    archive.messages.change(lambda manifest: msgspec.structs.replace(manifest, lost=((500, 600),)))
    compact.run(spark, archive)
    assert archive.messages.current().lost == ((500, 600),)
