import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mist.archive import Archive
from mist.pipeline.jobs import coverage
from mist.pipeline.reading import Archived
from tests.pipeline.archives import Told, make_archive


def test_all_three_parts_equal_a_count_by_hand(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(4)
    rows = [set(rng.sample("abcdefgh", rng.randint(1, 5))) for _ in range(300)]
    wanted = [{"a"}, {"a", "b"}, {"c", "d", "e"}, {"zz"}, {"a", "zz"}]
    names = [",".join(sorted(tags)) for tags in wanted]
    messages = [Told(",".join(row)) for row in rows]
    archive = make_archive(tmp_path / "archive", messages, segment=50)
    result = coverage.run(spark, Archived(archive), pa.array(names), out=tmp_path / "out")

    found: dict[str, list[tuple[str, int]]] = {"subscription": [], "tag": [], "fanout": []}
    for row in result.table.to_pylist():
        found[row["kind"]].append((row["name"], row["messages"]))
    got = {name: sum(tags <= row for row in rows) for name, tags in zip(names, wanted, strict=True)}
    fanout = Counter(sum(tags <= row for tags in wanted) for row in rows)
    unheard = Counter(tag for row in rows for tag in row if tag in "fgh")
    assert dict(found["subscription"]) == got
    assert [n for _, n in found["subscription"]] == sorted(got.values())
    assert found["tag"] == sorted(unheard.items(), key=lambda item: (-item[1], item[0]))
    assert found["fanout"] == [(str(size), fanout[size]) for size in sorted(fanout)]
    assert result.summary == {
        "subscriptions": 5,
        "never_matched": 2,
        "unheard_tags": 3,
        "messages": 300,
        "to_nobody": fanout[0],
        "mean_fanout": sum(size * n for size, n in fanout.items()) / 300,
        "largest_fanout": max(fanout),
    }
    assert pq.read_table(tmp_path / "out").equals(result.table)


def test_an_empty_archive_leaves_every_subscription_dead(spark: Any, tmp_path: Path) -> None:
    result = coverage.run(spark, Archived(Archive.create(tmp_path)), pa.array(["a", "b"]))
    assert result.summary["never_matched"] == 2
    assert result.summary["messages"] == 0
