import random
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.pipeline.jobs import cooccurrence
from mist.pipeline.reading import Archived
from tests.pipeline.archives import Told, make_archive


def test_pairs_equal_a_count_by_hand(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [sorted(rng.sample("abcdefghij", rng.randint(1, 5))) for _ in range(300)]
    archive = make_archive(tmp_path / "archive", [Told(",".join(row)) for row in rows], segment=50)
    result = cooccurrence.run(spark, Archived(archive), out=tmp_path / "out")
    used = Counter(tag for row in rows for tag in row)
    met = Counter(pair for row in rows for pair in combinations(row, 2))
    expected = sorted(met.items(), key=lambda item: (-item[1], item[0]))
    found = result.table.to_pylist()
    assert [((row["tag"], row["other"]), row["messages"]) for row in found] == expected
    for row in found:
        one, other, both = row["tag_messages"], row["other_messages"], row["messages"]
        assert (one, other) == (used[row["tag"]], used[row["other"]])
        assert row["jaccard"] == pytest.approx(both / (one + other - both))
        assert row["lift"] == pytest.approx(both / 300 / (one / 300 * other / 300))
    assert result.summary == {
        "messages": 300,
        "tags": 10,
        "among": 10,
        "pairs": len(met),
        "listed": len(met),
        "floor": 0,
    }
    assert pq.read_table(tmp_path / "out").equals(result.table)


def test_every_pair_above_the_floor_is_there(spark: Any, tmp_path: Path) -> None:
    messages = [Told("a,b")] * 9 + [Told("a,c")] * 5 + [Told("c,d")] * 3 + [Told("e,f")] * 2
    archive = make_archive(tmp_path, messages)
    result = cooccurrence.run(spark, Archived(archive), among=3)  # a, b, c
    assert [(row["tag"], row["other"], row["messages"]) for row in result.table.to_pylist()] == [
        ("a", "b", 9),
        ("a", "c", 5),
    ]
    assert result.summary["floor"] == 3  # that of d: c,d met no more often than that


def test_an_empty_archive_has_no_pairs(spark: Any, tmp_path: Path) -> None:
    result = cooccurrence.run(spark, Archived(Archive.create(tmp_path)))
    assert result.table.num_rows == 0
