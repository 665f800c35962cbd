"""A real server, two queries, and `kill -9`: of Spark's JVM, a task's Python, the server.

Every message that was published is in the Parquet files once and in the server's log a second
time once, whatever was killed and when.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from mist.pipeline.selection import parse_alternatives
from mist.pipeline.source.address import Address
from mist.pipeline.source.origins import Losses
from mist.pipeline.source.origins.server import ServerOrigin
from mist.pipeline.source.splitting import OffsetRange
from tests.pipeline.source.queries import batches_done, run_to_the_end, start
from tests.processes import Process, environment, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

MESSAGES = 2000
WAIT = 400.0  # seconds, for what takes some on a machine that is not shared


class Place:
    """A server that can be killed and comes back at the same address, and the queries' folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._ports = [0, 0]
        self.process: Process
        self.serve()

    def serve(self) -> None:
        tcp, http = self._ports
        listen = ("--listen", f"tcp://127.0.0.1:{tcp}", "--listen", f"http://127.0.0.1:{http}")
        self.process = self._stack.enter_context(serving(self.folder / "data", listen=listen))
        self._ports = [urlsplit(url).port or 0 for url in self.process.urls]

    @property
    def url(self) -> str:
        return self.process.urls[1]

    @property
    def origin(self) -> ServerOrigin:
        return ServerOrigin(Address.parse(self.url, None, None))

    def publish(self, first: int, last: int) -> None:
        newest = self.origin.position().newest
        lines = b"".join(b"publish in,n%d %d\n" % (n % 10, n) for n in range(first, last + 1))
        with socket.create_connection(("127.0.0.1", self._ports[0])) as peer:
            peer.sendall(lines)
            wait_until(lambda: self.origin.position().newest == newest + last - first + 1)

    def published(self, tag: str) -> list[int]:
        """The numbers of the messages with this tag, in the order of the log."""
        position = self.origin.position()
        whole = OffsetRange(position.epoch, 0, position.newest)
        batches = self.origin.read(
            whole, parse_alternatives(tag), ["data"], 10_000, Losses(fatal=True)
        )
        return [int(data) for batch in batches for data in batch.column("data").to_pylist()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def wait_until(true: Callable[[], bool], alive: Callable[[], bool] = lambda: True) -> bool:
    """Wait for something; False where what was to bring it about has ended before."""
    until = time.monotonic() + WAIT
    while not true():
        if not alive():
            return False
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
    return True


def holds_each_once(spark: "SparkSession", place: Place, count: int) -> None:
    rows = spark.read.parquet(str(place.folder / "out")).select("data").collect()
    assert sorted(int(row.data) for row in rows) == list(range(1, count + 1))
    assert sorted(place.published("out")) == list(range(1, count + 1))


def kill_jvm(place: Place, when: Callable[[], bool]) -> bool:
    """Run the queries in a process of their own until then. False where it ended before."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.source.queries", place.url, str(place.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as victim:
        assert victim.stdout is not None
        word, pid = victim.stdout.readline().split()
        assert word == "JVM"
        try:
            in_time = wait_until(when, lambda: victim.poll() is None)
            if in_time:
                os.kill(int(pid), signal.SIGKILL)
            return in_time
        finally:
            with suppress(ProcessLookupError):  # all of it has ended
                os.killpg(victim.pid, signal.SIGKILL)


def workers() -> list[int]:
    """Python processes that run tasks of this session's, its daemon not among them."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    parents, daemons = {}, set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
        if b"pyspark.daemon" in command:
            daemons.add(int(name))
    mine = {pid for pid in daemons if parents[pid] == gateway.proc.pid}
    return [pid for pid in daemons if parents[pid] in mine]


def test_the_jvm_may_be_killed(spark: "SparkSession", place: Place) -> None:
    place.publish(1, MESSAGES)
    kill_jvm(place, lambda: batches_done(place.folder) >= 1)
    assert run_to_the_end(start(spark, place.url, place.folder))
    holds_each_once(spark, place, MESSAGES)


def test_a_tasks_python_may_be_killed(spark: "SparkSession", place: Place) -> None:
    place.publish(1, MESSAGES)
    queries = start(spark, place.url, place.folder)
    wait_until(lambda: batches_done(place.folder) >= 1)
    killed = workers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert killed
    # Spark tries a task again on a cluster; on local[2] it gives up, and the query goes on
    # when it is started again.
    if not run_to_the_end(queries):
        assert run_to_the_end(start(spark, place.url, place.folder))
    holds_each_once(spark, place, MESSAGES)


def test_the_server_may_be_killed(spark: "SparkSession", place: Place) -> None:
    place.publish(1, MESSAGES)
    queries = start(spark, place.url, place.folder)
    wait_until(lambda: batches_done(place.folder) >= 1)
    place.process.stop(signal.SIGKILL)
    place.serve()
    # Nobody has to start them again: what they ask for is asked for until there is an answer.
    assert run_to_the_end(queries)
    holds_each_once(spark, place, MESSAGES)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["jvm", "worker", "server"])
def test_ten_may_be_killed_at_any_moment(spark: "SparkSession", place: Place, victim: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # shown where it fails
    chance = random.Random(seed)
    kills = 0
    for turn in range(10):
        place.publish(turn * MESSAGES + 1, (turn + 1) * MESSAGES)
        done = batches_done(place.folder) + chance.randrange(3)
        pause = chance.uniform(0, 1)

        def when(done: int = done, pause: float = pause) -> bool:
            if batches_done(place.folder) < done:
                return False
            time.sleep(pause)
            return True

        if victim == "jvm":
            kills += kill_jvm(place, when)
            continue
        queries = start(spark, place.url, place.folder)

        def alive(queries: "list[StreamingQuery]" = queries) -> bool:
            return any(query.isActive for query in queries)

        # Spark gives its workers ten seconds to start, which a busy machine may not have: then
        # a query ends by itself, and the next turn begins it again.
        if not wait_until(when, alive):
            continue
        kills += 1
        if victim == "server":
            place.process.stop(signal.SIGKILL)
            place.serve()
        else:
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
        run_to_the_end(queries)
    assert kills >= 5
    assert run_to_the_end(start(spark, place.url, place.folder))
    holds_each_once(spark, place, 10 * MESSAGES)
