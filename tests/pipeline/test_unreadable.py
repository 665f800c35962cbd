"""A segment that is missing or damaged is named by every job, in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mist.archive import Archive, ArchiveDamaged, Segment, Table
from mist.pipeline.errors import SegmentUnreadable, explain
from mist.pipeline.exports import FOLDER, exports
from mist.pipeline.unreadable import check_segments
from tests.pipeline.archives import Told, add_accounts, make_archive
from tests.pipeline.test_commands import Mist, mist

__all__ = ["mist"]

DAY = "2026-11-21"


@pytest.mark.parametrize("text", [b"{", b'{"path": "\xfa"}'])
def test_a_damaged_record_of_an_export_is_named(tmp_path: Path, text: bytes) -> None:
    record = tmp_path / FOLDER / "1.json"
    record.parent.mkdir()
    record.write_bytes(text)
    with pytest.raises(ArchiveDamaged, match=str(record)):
        exports(Archive(tmp_path))


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def overwrite(path: Path) -> None:
    """Damage the pages, and leave the footer, which a file is opened by."""
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    path.write_bytes(raw[:4] + bytes(len(raw) - footer - 4) + raw[-footer:])


DAMAGES = [remove, cut, overwrite]
JOBS: dict[str, tuple[str, ...]] = {
    "compact": ("compact", "--rows", "60"),
    "match": ("match", "--subscriptions", "subscriptions"),
    "volume": ("report", "volume"),
    "sizes": ("report", "volume", "--sizes"),
    "tags": ("report", "tags"),
    "cooccurrence": ("report", "cooccurrence"),
    "coverage": ("report", "coverage", "--subscriptions", "subscriptions"),
    "export": ("export", "--out", "out"),
    "erase": ("erase", "--tag", "news", "--no-log"),
}
ACCOUNTS: dict[str, tuple[str, ...]] = {
    "deliveries": ("report", "billing"),
    "deliveries of drops": ("report", "drops"),
    "tokens": ("audit", "tokens"),
    "subscriptions": ("audit", "tokens"),
}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    told = [Told("order,eu" if n % 3 else "news", b"%d" % n * 50) for n in range(60)]
    archive = make_archive(tmp_path / "archive", told, segment=20)
    for name, row in {
        "deliveries": {"subscription": "news", "sent": 3, "dropped": 1, "bytes": 30},
        "subscriptions": {"subscription": "news", "opened": 1, "closed": 0},
        "tokens": {"tags": ["news"]},
    }.items():
        add_accounts(archive, name, [{"minute": 0, "token": "t", **row}])
    (tmp_path / "subscriptions").write_text("order\nnews\n")
    return archive


def damaged(table: Table, damage: Callable[[Path], None]) -> Segment:
    segment = table.current().segments[-1]
    damage(table.path(segment))
    return segment


def says(result: Result, segment: Segment) -> None:
    assert result.exit_code == 1, result.output
    line = result.stderr.splitlines()[-1]
    assert segment.file.partition("/")[2] in line
    assert DAY in line
    assert "is in the manifest and not there" in line or "can't be read: " in line
    assert "Traceback" not in result.stderr


# Each job meets one kind of damage: how a kind is read is the same for those that read alike.
WAYS = [(name, DAMAGES[n % len(DAMAGES)]) for n, name in enumerate([*JOBS, *ACCOUNTS])]


@pytest.mark.parametrize(("job", "damage"), WAYS[: len(JOBS)])
def test_a_job_over_messages_names_it(
    mist: Mist, archive: Archive, job: str, damage: Callable[[Path], None]
) -> None:
    segment = damaged(archive.messages, damage)
    says(mist(*JOBS[job], "--archive", "archive"), segment)


@pytest.mark.parametrize(("table", "damage"), WAYS[len(JOBS) :])
def test_a_job_over_accounts_names_it(
    mist: Mist, archive: Archive, table: str, damage: Callable[[Path], None]
) -> None:
    segment = damaged(archive.table(table.partition(" ")[0]), damage)
    says(mist(*ACCOUNTS[table], "--archive", "archive"), segment)


def test_segments_are_checked_before_spark_reads_them(archive: Archive) -> None:
    table = archive.messages
    check_segments(table, table.current().segments)
    segment = damaged(table, cut)
    with pytest.raises(SegmentUnreadable, match=rf"{segment.file} \(of {DAY}, 20 rows\) can't be"):
        check_segments(table, table.current().segments)


def test_a_file_that_spark_names_is_in_its_line() -> None:
    text = (
        "An error occurred while calling o1.collectToPython.\n"
        ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
        "reading file file:///a/date=2026-11-21/1-2.parquet.  SQLSTATE: KD001\n"
        "\tat org.apache.spark.Some.where(Some.scala:1)\n"
        "Caused by: java.io.IOException: can not read class PageHeader: Required field missing\n"
    )
    assert explain(text) == (
        "/a/date=2026-11-21/1-2.parquet can't be read: "
        "can not read class PageHeader: Required field missing"
    )
