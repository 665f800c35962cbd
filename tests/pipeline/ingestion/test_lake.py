"""A lake's folder: who owns it, who writes into it, and what is cleared up."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mist.archive import Archive
from mist.pipeline.errors import BadInput
from mist.pipeline.ingestion.lake import Lake
from tests.pipeline.ingestion.batches import at, files, take
from tests.pipeline.source.fake import faking, rows
from tests.pipeline.source.sealed import seal


def of_spark(folder: Path) -> None:
    (folder / "_spark_metadata").mkdir(parents=True)
    (folder / "_spark_metadata" / "0").write_text("v1\n")
    (folder / "date=2026-11-21").mkdir()


def of_a_server(folder: Path) -> None:
    seal(Archive.create(folder).messages, (1, 10))


def of_somebody(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "today").write_text("buy milk")


def a_file(folder: Path) -> None:
    folder.write_text("buy milk")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (of_spark, "was written by Spark's own sink"),
        (of_a_server, "is an archive and no lake"),
        (of_somebody, "holds other things"),
        (a_file, "is a file"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "lake"
    make(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=said), Lake(folder).exclusive_writer():
        pytest.fail("it was taken for a lake")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Lake(folder).exists


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_new_folder_becomes_a_lake_and_stays_one(tmp_path: Path, made: bool) -> None:
    lake = Lake(tmp_path / "deep" / "lake")
    if made:
        lake.folder.mkdir(parents=True)
    for _ in range(2):
        with lake.exclusive_writer():
            assert lake.exists
    assert lake.table.current().generation == 0


def test_a_folder_that_a_crash_left_half_made_becomes_a_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table.create()
    with lake.exclusive_writer():
        assert lake.exists


def test_one_query_at_a_time_fills_a_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert not lake.has_writer
    with lake.exclusive_writer():
        assert lake.has_writer
        with (
            pytest.raises(BadInput, match="another stream writes into it"),
            lake.exclusive_writer(),
        ):
            pytest.fail("two at a time")
        assert lake.has_writer
    assert not lake.has_writer


def test_what_a_crash_left_goes_when_the_lake_is_claimed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with faking() as fake, lake.exclusive_writer():
        fake.log = rows(1, 10)
        take(fake, lake, at(0), at(10))
    listed = files(lake.folder)
    day = lake.folder / "date=1970-01-01"
    (day / f"{11:020}-{20:020}.parquet").write_bytes(b"moved, and then not committed")
    (lake.landing / "ab" / "date=1970-01-01").mkdir(parents=True)
    (lake.landing / "ab" / "date=1970-01-01" / ".7-a.parquet.tmp").write_bytes(b"written to")
    # What compaction and erasure are at work on is theirs, and is swept when it is old.
    theirs, old = day / f"{1:020}-{10:020}-7.parquet", day / f"{1:020}-{10:020}-6.parquet"
    theirs.write_bytes(b"new")
    old.write_bytes(b"old")
    os.utime(old, (0, 0))
    with lake.exclusive_writer():
        pass
    assert files(lake.folder) == sorted([*listed, str(theirs.relative_to(lake.folder))])


def test_the_mark_changes_with_each_erasure_and_only_in_a_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.fence()
    assert not lake.folder.exists()
    with lake.exclusive_writer():
        tokens = [lake.fence_token()]
        for _ in range(2):
            lake.fence()
            tokens.append(lake.fence_token())
    assert len(set(tokens)) == 3
    assert lake.fence_token() == tokens[-1]
