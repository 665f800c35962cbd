"""A standalone cluster out of the pip package: a master and two workers on loopback.

    python -m tests.pipeline.cluster MASTER FOLDER URL WORKER-PID…

runs every job on one, with the server at URL, and kills an executor in the middle of one of them;
prints a line of JSON.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.processes import environment

CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SEGMENTS = 40
SEGMENT = 25  # messages


@attrs.frozen
class Cluster:
    """Where it is, and the processes of its workers."""

    master: str
    workers: list[int]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each, gone at the end of the block."""
    with ExitStack() as stack:
        process, master = stack.enter_context(
            _daemon("master.Master", r"(spark://\S+:\d+)", "--port", "0", "--webui-port", "0")
        )
        workers = []
        for n in range(2):
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--port", "0")
            work = ("--work-dir", str(folder / f"work-{n}"), master)
            process, _ = stack.enter_context(
                _daemon("worker.Worker", "(Successfully registered)", *options, *work)
            )
            workers.append(process.pid)
        yield Cluster(master, workers)


@contextmanager
def _daemon(name: str, says: str, *options: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A daemon of Spark's, once it has said what it says when it is ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with subprocess.Popen(
        [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
         "--host", "127.0.0.1", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(SPARK_DAEMON_MEMORY="256m", SPARK_LOCAL_IP="127.0.0.1",
                        SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    ) as popen:  # fmt: skip
        try:
            assert popen.stderr is not None
            said = []
            for line in popen.stderr:
                said.append(line)
                if found := re.search(says, line):
                    break
            else:
                raise AssertionError("".join(said))
            threading.Thread(target=popen.stderr.read, daemon=True).start()
            yield popen, found[1]
        finally:
            popen.terminate()
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()


def executors(worker: int) -> list[int]:
    """Processes of executors that a worker has started."""
    found: list[int] = []
    for task in Path(f"/proc/{worker}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    name = b"CoarseGrainedExecutorBackend"
    return [each for each in found if name in Path(f"/proc/{each}/cmdline").read_bytes()]


class Killer(threading.Thread):
    """Kills an executor with -9 once a stage has done some of its tasks, and has others to do."""

    def __init__(self, spark: Any, workers: list[int]) -> None:
        super().__init__(daemon=True)
        self.at: tuple[int, int] | None = None
        self._tracker = spark.sparkContext.statusTracker()
        self._workers = workers

    def run(self) -> None:
        while self.at is None:
            for number in self._tracker.getActiveStageIds():
                stage = self._tracker.getStageInfo(number)
                if stage and 2 <= stage.numCompletedTasks <= stage.numTasks - 6:
                    os.kill(executors(self._workers[0])[0], signal.SIGKILL)
                    self.at = stage.numCompletedTasks, stage.numTasks
                    return
            time.sleep(0.02)


def main(master: str, folder: Path, url: str, workers: list[int]) -> dict[str, Any]:
    """Every job; what each came to."""
    import pyarrow as pa

    from mist.archive import Archive
    from mist.history.erasing import Erasure
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
