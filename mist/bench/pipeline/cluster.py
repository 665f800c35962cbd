"""A standalone cluster out of the pip package: a master and two workers on loopback.

For the bench and for tests: what runs on it is pickled, sent and placed as on any cluster.
"""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from mist.bench.errors import BenchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SMALL", "Cluster", "Killer", "executors", "start_cluster"]

WORKERS: Final = 2
EXIT_TIMEOUT: Final = 20.0  # seconds for a daemon to exit by itself
POLL: Final = 0.02  # seconds
SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


@attrs.frozen
class Cluster:
    """Where it is, and the processes of its workers."""

    master: str
    workers: list[int]


@contextmanager
def start_cluster(folder: Path, *, memory: str = "1g") -> Iterator[Cluster]:
    """A master and two workers of one core each, gone at the end of the block.

    Args:
        folder: for what workers and executors write.
        memory: of a worker.

    Raises:
        BenchError: one doesn't start, and the text is what it said.
    """
    with ExitStack() as stack:
        process, master = stack.enter_context(
            _daemon("master.Master", r"(spark://\S+:\d+)", "--port", "0", "--webui-port", "0")
        )
        workers = []
        for n in range(WORKERS):
            options = ("--cores", "1", "--memory", memory, "--webui-port", "0", "--port", "0")
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

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MIST_")}
    with subprocess.Popen(  # noqa: S603  # what PySpark brings
        [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **kept,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
        },
    ) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(says, line):
                    break
            else:
                raise BenchError(f"Spark's {name} doesn't start: {''.join(said)}")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield process, found[1]
        finally:
            process.terminate()
            try:
                process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def executors(worker: int) -> list[int]:
    """Processes of executors that a worker has started. Needs /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{worker}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return [each for each in found if EXECUTOR in Path(f"/proc/{each}/cmdline").read_bytes()]


class Killer(threading.Thread):
    """Kills an executor with -9 once a stage has done some of its tasks, and has others to do.

    Args:
        left: tasks of the stage that are still to be done then, at least.

    Attributes:
        at: tasks that were done, and of how many; None before.
    """

    def __init__(self, spark: "SparkSession", workers: list[int], left: int = 6) -> None:
        super().__init__(daemon=True)
        self.at: tuple[int, int] | None = None
        self._tracker = spark.sparkContext.statusTracker()
        self._workers = workers
        self._left = left
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(POLL):
            for number in self._tracker.getActiveStageIds():
                stage = self._tracker.getStageInfo(number)
                if stage and 2 <= stage.numCompletedTasks <= stage.numTasks - self._left:
                    os.kill(executors(self._workers[0])[0], signal.SIGKILL)
                    self.at = stage.numCompletedTasks, stage.numTasks
                    return

    def stop(self) -> None:
        """Let it be, where it hasn't come to it."""
        self._over.set()
        self.join()
