"""Erasure: what somebody has a right to see gone is in no file any more; all else is."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.archive import Archive
from mist.archive.segments import read_segment
from mist.history import Publication
from mist.history.erasure import Erasure
from mist.history.opening import open_history
from mist.message import format_tags
from mist.pipeline.erasure.hot import erase_by_file
from mist.pipeline.exports import exports
from mist.pipeline.jobs import erase, export
from mist.pipeline.origin import Origin
from mist.wire import record
from tests.pipeline.archives import Told, add_accounts, make_archive

SECRET = b"the-data-that-has-to-go"


def messages() -> list[Told]:
    """Forty; every tenth is user:1's, and each of those says what nobody may read any more."""
    return [
        Told("order,user:1", SECRET + b" %d" % n) if n % 10 == 3 else Told("order,user:2")
        for n in range(40)
    ]


def holding(folder: Path, data: bytes = SECRET) -> list[str]:
    """All files below a folder in which the bytes stand, hidden ones too."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and data in path.read_bytes()
    )


def ids(archive: Archive) -> list[int]:
    table = archive.messages
    return [
        each
        for segment in table.current().segments
        for each in read_segment(table, segment, ["id"]).column("id").to_pylist()
    ]


def run(spark: Any, archive: Archive, erasure: Erasure, **options: Any) -> erase.Result:
    began = time.time()
    return erase.run(spark, archive, erasure, hot=None, began=began, now=time.time, **options)


BY_TAG = Erasure(tags=frozenset({"user:1"}))
LEFT = [n for n in range(1, 41) if n % 10 != 4]


@pytest.fixture(autouse=True)
def plain_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments whose bytes can be searched: compression would hide what has to be found."""
    from mist.archive import segments

    options = segments.writer_options
    monkeypatch.setattr(
        segments, "writer_options", lambda schema: {**options(schema), "compression": "none"}
    )


def test_only_the_segments_concerned_are_written_anew(spark: Any, tmp_path: Path) -> None:
    told = [*messages()[:20], *[Told("order,user:2")] * 20]
    archive = make_archive(tmp_path, told, segment=10)
    assert len(holding(tmp_path)) == 2
    before = archive.messages.current()
    result = run(spark, archive, BY_TAG)
    after = archive.messages.current()
    assert holding(tmp_path) == []
    assert ids(archive) == [n for n in range(1, 41) if n not in (4, 14)]
    assert after.segments[2:] == before.segments[2:]
    assert [(each.first, each.last) for each in after.segments] == [
        (each.first, each.last) for each in before.segments
    ]
    assert after.sealed == before.sealed
    assert after.retired == ()
    (table,) = result.tables
    assert (table.rows, len(table.files)) == (2, 2)
    assert (table.before, table.after) == (before.generation, after.generation)
    assert [each.file for each in table.files] == [each.file for each in before.segments[:2]]


def test_a_segment_of_which_nothing_is_left_goes(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, [Told("user:1", SECRET)] * 3 + [Told("a")], segment=3)
    run(spark, archive, BY_TAG)
    assert ids(archive) == [4]
    assert holding(tmp_path) == []


def test_by_publisher_and_by_several_tags(spark: Any, tmp_path: Path) -> None:
    told = [Told("a,b", SECRET, "p"), Told("a", b"stays", "p"), Told("a,b,c", SECRET, "q")]
    both = make_archive(tmp_path / "both", told)
    run(spark, both, Erasure(tags=frozenset({"a", "b"})))
    assert ids(both) == [2]
    one = make_archive(tmp_path / "one", told)
    run(spark, one, Erasure(publisher="p"))
    assert ids(one) == [3]


def test_what_waited_for_its_grace_and_what_a_crash_left_goes_too(
    spark: Any, tmp_path: Path
) -> None:
    archive = make_archive(tmp_path, messages(), segment=10)
    table = archive.messages
    first = table.current().segments[0]
    # A copy that compaction has replaced; one that a killed writer never entered; one unfinished.
    retired = table.path(first).with_name("00-old.parquet")
    stray = table.path(first).with_name("00-stray.parquet")
    half = table.path(first).with_name(".999999999-ab.parquet.tmp")
    for path in (retired, stray, half):
        path.write_bytes(table.path(first).read_bytes())
        os.utime(path, (time.time() - 600,) * 2)
    import msgspec

    from mist.archive import Retired

    table.change(
        lambda manifest: msgspec.structs.replace(
            manifest, retired=(Retired(f"{retired.parent.name}/{retired.name}", time.time()),)
        )
    )
    result = run(spark, archive, BY_TAG)
    assert holding(tmp_path) == []
    assert not retired.exists()
    assert not stray.exists()
    assert not half.exists()
    assert len(result.tables[0].removed) == 2
    assert result.complete


def test_a_file_that_another_process_is_writing_is_told_of(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, messages())
    folder = next(tmp_path.glob("date=*"))
    (folder / f".{os.getpid()}-ab.parquet.tmp").write_bytes(b"PAR1")
    result = run(spark, archive, BY_TAG)
    assert not result.complete
    assert result.receipt["complete"] is False
    assert result.tables[0].unfinished == [f"{folder.name}/.{os.getpid()}-ab.parquet.tmp"]


def test_a_segment_sealed_meanwhile_is_looked_at_in_another_round(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mist.pipeline.erasure import tables

    archive = make_archive(tmp_path, messages()[:10])
    real = tables._replace
    late = make_archive(tmp_path / "late", messages()[:10])

    def seal_then_replace(table: Any, done: Any) -> Any:
        monkeypatch.setattr(tables, "_replace", real)
        (segment,) = late.messages.current().segments
        name = segment.file.replace("00000000000000000001-", "00000000000000000011-")
        (tmp_path / name).write_bytes(late.messages.path(segment).read_bytes())
        import msgspec

        entered = msgspec.structs.replace(segment, file=name, first=11, last=20)
        table.change(lambda manifest: manifest.plus(entered))
        return real(table, done)

    monkeypatch.setattr(tables, "_replace", seal_then_replace)
    result = run(spark, archive, BY_TAG)
    assert result.tables[0].rows == 2
    for path in (tmp_path / "late").rglob("*.parquet"):
        path.unlink()
    assert holding(tmp_path) == []


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "delta"])
def test_exports_that_the_archive_knows_lose_it_as_well(
    spark: Any, tmp_path: Path, kind: Any
) -> None:
    archive = make_archive(tmp_path / "archive", messages(), segment=10)
    out = tmp_path / "out"
    spark.conf.set("spark.sql.parquet.compression.codec", "none")
    try:
        export.run(
            spark,
            Origin(archive=archive.folder),
            out,
            format=kind,
            now=1.0,
            known_to=archive,
        )
    finally:
        spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    assert [each.path for each in exports(archive)] == [str(out)]
    assert holding(out)
    result = run(spark, archive, BY_TAG)
    assert holding(tmp_path) == []
    assert result.complete
    assert [(each.state, each.rows) for each in result.exports] == [("done", 4)]
    assert read_export(spark, out, kind) == LEFT


def read_export(spark: Any, out: Path, kind: str) -> list[int]:
    match kind:
        case "parquet":
            found = [row["id"] for row in spark.read.parquet(str(out)).collect()]
        case "jsonl":
            lines = [line for path in out.glob("*.jsonl") for line in path.read_text().splitlines()]
            found = [json.loads(line)["id"] for line in lines]
        case _:
            from deltalake import DeltaTable

            found = DeltaTable(out).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    return sorted(found)


def test_exports_that_are_gone_or_broken_are_told_of(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "archive", messages()[:5])
    from mist.pipeline.exports import Export, record

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "part-0.parquet").write_bytes(b"no Parquet at all")
    for path in (tmp_path / "gone", broken):
        record(archive, Export(str(path), "parquet", 1.0, {}))
    result = run(spark, archive, BY_TAG)
    assert [each.state for each in result.exports] == ["gone", "failed"]
    assert not result.complete
    assert ids(archive) == [1, 2, 3, 5]


def test_accounts_stay_unless_they_are_meant(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, messages()[:5])
    counted = {"sent": 1, "dropped": 0, "bytes": 1}
    rows = [
        {"minute": 0, "token": "t", "subscription": "order,user:1", **counted},
        {"minute": 0, "token": "t", "subscription": "order,user:12", **counted},
    ]
    add_accounts(archive, "deliveries", rows)
    add_accounts(archive, "tokens", [{"minute": 0, "token": "t", "tags": ["user:1"]}])
    run(spark, archive, BY_TAG)
    assert archive.table("deliveries").current().rows == 2
    run(spark, archive, BY_TAG, accounts=True)
    table = archive.table("deliveries")
    (segment,) = table.current().segments
    assert read_segment(table, segment).column("subscription").to_pylist() == ["order,user:12"]
    run(spark, archive, Erasure(publisher="t"), accounts=True)
    assert archive.table("tokens").current().rows == 0


def test_a_second_run_finds_nothing(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, messages())
    run(spark, archive, BY_TAG)
    again = run(spark, archive, BY_TAG)
    assert again.tables[0].rows == 0
    assert again.tables[0].before == again.tables[0].after


def test_the_receipt_is_json_that_says_what_and_how_much(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, messages(), segment=20)
    receipt = json.loads(json.dumps(run(spark, archive, BY_TAG).receipt))
    assert receipt["erased"] == {"tags": ["user:1"]}
    assert receipt["complete"] is True
    (table,) = receipt["archive"]["tables"]
    assert [each["erased"] for each in table["files"]] == [2, 2]
    assert [each["kept"] for each in table["files"]] == [18, 18]
    assert all(len(each["removed"]) == len(each["written"]) == 64 for each in table["files"])


def test_the_hot_log_is_erased_in_its_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"

    async def fill() -> None:
        async with await open_history(url) as log:
            for told in messages():
                tags = format_tags(told.tags.split(",")).encode()
                wire = record(tags, told.data or b"x")
                await log.append([Publication.of_runs(((tags, wire, 1),), 1e9, "default")])

    trio.run(fill)
    assert holding(tmp_path)
    assert erase_by_file(url, BY_TAG) == {"where": url, "messages": 4, "first": 4, "last": 34}
    assert holding(tmp_path) == []
    assert erase_by_file(url, BY_TAG)["messages"] == 0
