"""Every job on a standalone cluster, in a process of its own.

    python -m tests.pipeline.cluster MASTER FOLDER URL WORKER-PID…

runs them, with the server at URL, and kills an executor in the middle of one of them; prints a
line of JSON.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from mist.bench.pipeline.cluster import SMALL, Killer, start_cluster

__all__ = ["SEGMENT", "SEGMENTS", "cluster"]

cluster = start_cluster
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.extraJavaOptions": SMALL,
}
SEGMENTS = 40
SEGMENT = 25  # messages


def main(master: str, folder: Path, url: str, workers: list[int]) -> dict[str, Any]:
    """Every job; what each came to."""
    import pyarrow as pa

    from mist.archive import Archive
    from mist.history.erasure import Erasure
    from mist.pipeline.jobs import (
        billing,
        compact,
        cooccurrence,
        coverage,
        drops,
        erase,
        export,
        match,
        replay,
        stream,
        tags,
        tokens,
        volume,
    )
    from mist.pipeline.origin import Origin
    from mist.pipeline.reading import Archived
    from mist.pipeline.session import session

    archive = Archive(folder / "archive")
    messages = Archived(archive)
    wanted = pa.array(["order,user:1", "news", "never"])
    found: dict[str, Any] = {}
    with session(master, CONF, name="mist tests") as spark:
        found["match"] = match.run(spark, messages, wanted).table.to_pylist()
        found["volume"] = volume.run(spark, messages).summary
        found["tags"] = tags.run(spark, messages).table.to_pylist()
        found["cooccurrence"] = cooccurrence.run(spark, messages).table.to_pylist()
        found["coverage"] = coverage.run(spark, messages, wanted).summary
        found["billing"] = billing.run(spark, archive).summary
        found["drops"] = drops.run(spark, archive).summary
        found["tokens"] = tokens.run(spark, archive).summary
        out = folder / "export"
        origin = Origin(archive=archive.folder)
        found["export"] = export.run(
            spark, origin, out, format="jsonl", now=1.0, known_to=archive
        ).summary
        found["replay"] = replay.run(spark, origin, replay.Target(url)).summary
        killer = Killer(spark, workers)
        killer.start()
        what = Erasure(tags=frozenset({"user:1"}))
        done = erase.run(spark, archive, what, hot=None, began=0.0, now=time.time)
        found["erase"] = {"complete": done.complete, "rows": done.tables[0].rows}
        found["killed"] = killer.at
        found["compact"] = compact.run(spark, archive).summary
        lake = folder / "lake"
        served = Origin(url=url)
        found["stream"] = stream.run(spark, served, lake, now=1.0, once=True, most=300).summary
    return found


if __name__ == "__main__":
    result = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], [int(each) for each in sys.argv[4:]])
    print(json.dumps(result, default=str))
