"""Matching on Spark gives what the plain join gives."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.bench.pipeline import plain
from mist.pipeline.errors import BadInput
from mist.pipeline.jobs import match
from mist.pipeline.jobs.result import LargeResult, Result
from mist.pipeline.kernels.subscriptions import parse_subscriptions
from mist.pipeline.reading import Archived, Framed, read_log
from mist.pipeline.selection import Range, Selection, parse_alternatives
from tests.pipeline.archives import Told, make_archive

TAGS = [f"t{n}" for n in range(12)]


def drawn(seed: int, count: int, most: int) -> list[str]:
    rng = random.Random(seed)
    return [",".join(rng.sample(TAGS, rng.randint(1, most))) for _ in range(count)]


SUBSCRIPTIONS = parse_subscriptions([text.encode() for text in [*drawn(1, 60, 4), "nobody"]])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    messages = [Told(tags) for tags in drawn(2, 900, 7)]
    return make_archive(tmp_path_factory.mktemp("archive"), messages, segment=100)


def pairs_of(frame: Any) -> list[tuple[int, str]]:
    return sorted((row.id, row.subscription) for row in frame.collect())


@pytest.mark.parametrize("block", [1000, 25], ids=["one pass", "three passes"])
def test_counts_equal_those_of_the_plain_join(
    spark: Any, archive: Archive, tmp_path: Path, block: int
) -> None:
    out = tmp_path / "out"
    result = match.run(spark, Archived(archive), SUBSCRIPTIONS, out=out, block=block)
    assert isinstance(result, Result)
    plainly = plain.match(spark, read_log(spark, archive.folder), SUBSCRIPTIONS)
    counts = {
        row["subscription"]: row["count"]
        for row in plainly.groupBy("subscription").count().collect()
    }
    assert result.table.to_pylist() == [
        {"subscription": name, "messages": counts.get(name, 0)}
        for name in SUBSCRIPTIONS.to_pylist()
    ]
    assert pq.read_table(out).equals(result.table)
    assert result.summary == {
        "subscriptions": len(SUBSCRIPTIONS),
        "passes": -(-len(SUBSCRIPTIONS) // block),
        "matches": sum(counts.values()),
        "matched": len(counts),
        "never_matched": len(SUBSCRIPTIONS) - len(counts),
    }


@pytest.mark.parametrize("block", [1000, 25], ids=["one pass", "three passes"])
def test_pairs_equal_those_of_the_plain_join(
    spark: Any, archive: Archive, tmp_path: Path, block: int
) -> None:
    out = tmp_path / "out"
    result = match.run(spark, Archived(archive), SUBSCRIPTIONS, pairs=True, out=out, block=block)
    assert isinstance(result, LargeResult)
    expected = pairs_of(plain.match(spark, read_log(spark, archive.folder), SUBSCRIPTIONS))
    assert pairs_of(result.frame) == expected
    assert result.summary["matches"] == len(expected)
    assert pq.read_table(out).num_rows == len(expected)


def test_a_selection_is_matched_as_the_log_reads_it(spark: Any, archive: Archive) -> None:
    selection = Selection(Range(after=150, upto=620), parse_alternatives("t1; t2,t3"))
    result = match.run(spark, Archived(archive, selection), SUBSCRIPTIONS, pairs=True)
    assert isinstance(result, LargeResult)
    log = read_log(spark, archive.folder, after=150, upto=620, subscribe="t1; t2,t3")
    assert pairs_of(result.frame) == pairs_of(plain.match(spark, log, SUBSCRIPTIONS))


def test_any_frame_of_messages_can_be_matched(spark: Any, archive: Archive) -> None:
    frame = Framed(read_log(spark, archive.folder))
    result = match.run(spark, frame, SUBSCRIPTIONS)
    assert isinstance(result, Result)
    straight = match.run(spark, Archived(archive), SUBSCRIPTIONS)
    assert isinstance(straight, Result)
    assert result.table.equals(straight.table)


def test_an_empty_archive_matches_nothing(spark: Any, tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "empty")
    result = match.run(spark, Archived(archive), pa.array(["a", "a,b"]))
    assert isinstance(result, Result)
    assert result.table.column("messages").to_pylist() == [0, 0]


def test_what_is_there_already_is_not_overwritten(
    spark: Any, archive: Archive, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="there already"):
        match.run(spark, Archived(archive), SUBSCRIPTIONS, out=tmp_path)
