"""Manifests: generations, what they refuse, and what a sweep may delete."""

import os
from pathlib import Path

import msgspec
import pytest

from mist.archive import Archive, ArchiveDamaged, ArchiveError, ArchiveMissing, Manifest, Segment


def segment(first: int, last: int, day: str = "2026-11-21", part: str = "") -> Segment:
    name = f"date={day}/{first:020}-{last:020}{part}.parquet"
    return Segment(name, first, last, last - first + 1, 10, first, last)


def put(archive: Archive, each: Segment, age: float = 0) -> Segment:
    path = archive.messages.path(each)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * each.bytes)
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return each


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive")


def test_a_new_table_has_an_empty_manifest(archive: Archive) -> None:
    assert archive.messages.current() == Manifest()
    assert Archive.open(archive.folder).messages.current() == Manifest()


def test_no_archive_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match=f"no archive at {tmp_path}/there"):
        Archive.open(tmp_path / "there")
    with pytest.raises(ArchiveMissing):
        Archive(tmp_path / "there").messages.current()
    with pytest.raises(ArchiveMissing):
        Archive(tmp_path / "there").messages.change(lambda manifest: manifest)


def test_a_change_is_the_next_generation_and_lists_by_id(archive: Archive) -> None:
    table = archive.messages
    table.change(lambda manifest: manifest.plus(segment(11, 20)))
    after = table.change(lambda manifest: manifest.plus(segment(1, 10), segment(21, 21)))
    assert after.generation == 2
    assert [each.first for each in after.segments] == [1, 11, 21]
    assert table.current() == after
    assert (after.rows, after.size) == (21, 30)


def test_no_change_makes_no_generation(archive: Archive) -> None:
    assert archive.messages.change(lambda manifest: manifest).generation == 0


def test_segments_that_overlap_are_refused_and_nothing_changes(archive: Archive) -> None:
    table = archive.messages
    before = table.change(lambda manifest: manifest.plus(segment(1, 10)))
    with pytest.raises(ArchiveError, match="overlap"):
        table.change(lambda manifest: manifest.plus(segment(10, 12)))
    assert table.current() == before


def test_old_generations_go(archive: Archive) -> None:
    for number in range(1, 31):
        archive.messages.change(lambda manifest, n=number: manifest.plus(segment(n, n)))
    names = sorted(path.name for path in (archive.folder / "_manifest").glob("*.json"))
    assert names[-1] == f"{30:020}.json"
    assert len(names) == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "truncated"),
        (b'{"table": "messages", "version": 2}', "version 2; this is 1"),
        (b'{"table": "deliveries"}', "the table 'deliveries', not 'messages'"),
        (b'{"table": "messages", "surprise": 1}', "surprise"),
        # In the words of msgspec before 0.23, and since.
        (b'{"table": "mess\xfages"}', "can't decode byte 0xfa|Invalid UTF-8 encoded string"),
    ],
)
def test_a_manifest_that_is_not_ours_is_one_line(archive: Archive, text: bytes, says: str) -> None:
    (archive.folder / "_manifest" / f"{5:020}.json").write_bytes(text)
    with pytest.raises(ArchiveDamaged, match=says) as caught:
        archive.messages.current()
    assert "\n" not in str(caught.value)


def test_what_is_no_generation_is_passed_over(archive: Archive) -> None:
    after = archive.messages.change(lambda manifest: manifest.plus(segment(1, 1)))
    for name in (f".{9:020}.json", "9.json", f"{9:020}.json.tmp"):
        (archive.folder / "_manifest" / name).write_text("{")
    assert archive.messages.current() == after


def test_a_sweep_takes_what_was_retired_long_enough(archive: Archive) -> None:
    table = archive.messages
    old, new = put(archive, segment(1, 10)), put(archive, segment(11, 20))
    table.change(lambda manifest: manifest.plus(old, new))
    table.change(lambda manifest: manifest.minus({old.file}, now=1000.0))
    assert table.sweep(now=1059.0, grace=60.0) == []
    assert table.path(old).exists()
    assert table.sweep(now=1060.0, grace=60.0) == [old.file]
    assert not table.path(old).exists()
    assert table.path(new).exists()
    assert table.current().retired == ()
    assert table.current().segments == (new,)


def test_a_sweep_takes_old_orphans_and_their_empty_days(archive: Archive) -> None:
    table = archive.messages
    orphan = put(archive, segment(1, 10, day="2026-01-01"), age=100)
    fresh = put(archive, segment(11, 20))
    half = archive.folder / "date=2026-01-01" / ".1-ff.parquet.tmp"
    half.write_bytes(b"")
    os.utime(half, (0, 0))
    now = table.path(fresh).stat().st_mtime
    assert set(table.sweep(now=now + 1, grace=60.0)) == {
        orphan.file,
        "date=2026-01-01/.1-ff.parquet.tmp",
    }
    assert not table.path(orphan).parent.exists()
    assert table.path(fresh).exists()


def test_tables_beside_the_messages_lie_where_spark_does_not_look(archive: Archive) -> None:
    table = archive.table("deliveries")
    assert table.folder == archive.folder / "_tables" / "deliveries"
    assert not table.exists
    table.create()
    # Two servers may have had the same minutes.
    minutes = [segment(5, 9), segment(7, 9, part="-b")]
    assert table.change(lambda manifest: manifest.plus(*minutes)).rows == 8
    assert table.current().table == "deliveries"


def test_a_manifest_is_readable_by_people(archive: Archive) -> None:
    archive.messages.change(lambda manifest: manifest.plus(segment(1, 2)))
    [path] = (archive.folder / "_manifest").glob("*.json")
    assert len(path.read_text().splitlines()) > 10
    assert msgspec.json.decode(path.read_bytes())["segments"][0]["rows"] == 2
