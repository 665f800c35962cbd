"""Retention drops whole days that are old enough, and nothing else."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.archive import Archive, ArchiveMissing
from mist.archive.segments import read_segment
from mist.pipeline.errors import BadInput
from mist.pipeline.jobs import retain
from tests.pipeline.archives import BEGIN, DAY, Told, add_accounts, make_archive

NOW = BEGIN / 1e6 + 10.5 * 86_400  # noon of 2026-12-01


def four_days(folder: Path) -> Archive:
    """A message at noon of each of the days 2026-11-21 to 24."""
    return make_archive(folder, [Told("a", after=DAY // 2), *[Told("a", after=DAY)] * 3])


def days(archive: Archive) -> list[str]:
    return [each.file[5:15] for each in archive.messages.current().segments]


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        (10, ["2026-11-21", "2026-11-22", "2026-11-23", "2026-11-24"]),
        (9, ["2026-11-22", "2026-11-23", "2026-11-24"]),
        (7, ["2026-11-24"]),
        (6, []),
        (1, []),
    ],
)
def test_days_that_ended_longer_ago_go(tmp_path: Path, kept: int, left: list[str]) -> None:
    archive = four_days(tmp_path)
    result = retain.run(archive, kept, now=NOW)
    assert days(archive) == left
    assert result.tables[0].dropped_rows == 4 - len(left)
    assert result.tables[0].kept_rows == len(left)


@settings(max_examples=20)  # each writes four files, and waits for the disk
@given(st.integers(1, 15), st.floats(0, 86_399))
def test_nothing_younger_than_that_goes_at_any_hour(kept: int, second: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = four_days(Path(folder))
        now = BEGIN / 1e6 + 10 * 86_400 + second
        before = archive.messages.current().segments
        retain.run(archive, kept, now=now)
        gone = set(before) - set(archive.messages.current().segments)
        assert all(each.newest / 1e6 < now - kept * 86_400 for each in gone)


@pytest.mark.parametrize("most", [1_000_000, 10**20])
def test_more_days_than_there_have_been_leave_everything(tmp_path: Path, most: int) -> None:
    result = retain.run(four_days(tmp_path), most, now=NOW)
    assert result.before == "0001-01-01"
    assert (result.tables[0].dropped_rows, result.tables[0].kept_rows) == (0, 4)


def test_files_stay_for_their_grace_and_go_then(tmp_path: Path) -> None:
    archive = four_days(tmp_path)
    files = sorted(tmp_path.glob("date=*/*.parquet"))
    assert retain.run(archive, 8, now=NOW).deleted == 0
    assert sorted(tmp_path.glob("date=*/*.parquet")) == files
    assert retain.run(archive, 8, now=NOW + 3601).deleted == 2
    assert sorted(tmp_path.glob("date=*/*.parquet")) == files[2:]
    for segment in archive.messages.current().segments:
        assert read_segment(archive.messages, segment).num_rows == 1


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    archive = four_days(tmp_path)
    retain.run(archive, 8, now=NOW)
    generation = archive.messages.current().generation
    retain.run(archive, 8, now=NOW)
    assert archive.messages.current().generation == generation


def test_what_was_sealed_stays_said(tmp_path: Path) -> None:
    archive = four_days(tmp_path)
    retain.run(archive, 1, now=NOW)
    assert archive.messages.current().sealed == 4


def test_accounts_go_with_the_messages_unless_told_otherwise(tmp_path: Path) -> None:
    archive = four_days(tmp_path)
    row = {"token": "t", "subscription": "a", "sent": 1, "dropped": 0, "bytes": 1}
    add_accounts(archive, "deliveries", [{"minute": 0, **row}, {"minute": 3 * 1440, **row}])
    retain.run(archive, 8, now=NOW, tables=["messages"])
    assert archive.table("deliveries").current().rows == 2
    retain.run(archive, 8, now=NOW)
    assert archive.table("deliveries").current().rows == 1


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    archive = four_days(tmp_path)
    with pytest.raises(BadInput, match="at least 1"):
        retain.run(archive, 0, now=NOW)
    with pytest.raises(BadInput, match="no table nonsense"):
        retain.run(archive, 1, now=NOW, tables=["nonsense"])
    with pytest.raises(ArchiveMissing):
        Archive.open(tmp_path / "nowhere")
