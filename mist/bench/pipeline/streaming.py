"""From a live server into a lake: `mist pipeline stream`, and what a user's own query takes.

The server is started for it, with a history on the disk, and filled over TCP before. Tag lists
repeat, as those of services do: `LISTS` of them, 3 to 10 tags each; data is 100 letters.
"""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mist.bench.errors import BenchError
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import timed
from mist.bench.process import cpu_seconds, start_server
from mist.pipeline.jobs import stream
from mist.pipeline.origin import Origin
from mist.wire import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure_stream"]

LISTS: Final = 1000  # distinct tag lists
DATA: Final = 100  # bytes of a message
MUST: Final = 200_000  # messages a second
AIM: Final = 400_000

_CHUNK: Final = 10_000  # messages sent at a time
_WARM: Final = 20_000  # messages
_STALL_TIMEOUT: Final = 60.0  # seconds for a server to do what was asked
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"


@attrs.frozen
class _Server:
    """One that is up: where it is read from, where published to, and its process."""

    url: str
    tcp: tuple[str, int]
    pid: int


def measure_stream(
    spark: "SparkSession", folder: Path, messages: int, plain_messages: int, vocabulary: int
) -> Figure:
    """Rows a second, from the start of the query to its end, when all of them are in the lake.

    Args:
        folder: to make the history and the lakes in.
        messages: that are streamed.
        plain_messages: of them, into Parquet by a query as anybody would write it.
        vocabulary: tags that lists are made of.

    Raises:
        BenchError: not each message came once.
    """
    messages = max(_CHUNK, messages - messages % _CHUNK)
    with _serving(folder / "log.db") as server:
        # Small, and both: neither is to pay for Spark's start.
        _publish(server, _WARM, vocabulary)
        _into_lake(spark, server, folder / "lake-warm")
        _plainly(spark, server, folder / "plain-warm", _WARM)
        _publish(server, max(0, messages - _WARM), vocabulary)
        before = cpu_seconds(server.pid)
        _, took = timed(lambda: _into_lake(spark, server, folder / "lake"))
        after = cpu_seconds(server.pid)
        upto = min(plain_messages, messages)
        _, plain_took = timed(lambda: _plainly(spark, server, folder / "plain", upto))
    messages = max(messages, _WARM)
    _check(folder / "lake", messages)
    _check(folder / "plain" / "out", upto)
    server_cpu = None if before is None or after is None else after - before
    return Figure("stream", messages, None, took, upto, plain_took, MUST, AIM, server_cpu)


@contextmanager
def _serving(log: Path) -> Iterator[_Server]:
    with start_server(history=f"sqlite:///{log}") as started:
        url = f"http://{started.host}:{started.http_port}"
        yield _Server(url, (started.host, started.tcp_port), started.pid)


def _publish(server: _Server, count: int, vocabulary: int) -> None:
    """Publish over TCP, and wait until all of it is in the history."""
    chance = random.Random(1)  # noqa: S311
    lists = [
        b",".join(sorted({b"tag%06d" % chance.randrange(vocabulary) for _ in range(size)}))
        for size in (chance.randint(3, 10) for _ in range(LISTS))
    ]
    lines = b"".join(
        record(chance.choice(lists), bytes(chance.choices(_LETTERS, k=DATA))) for _ in range(_CHUNK)
    )
    try:
        with socket.create_connection(server.tcp, _STALL_TIMEOUT) as peer:
            for _ in range(count // _CHUNK):
                peer.sendall(lines + b"ping\n")
                if (said := peer.recv(100)) != b"pong\n":
                    raise BenchError(f"the server said {said!r} to what was published")
    except OSError as error:
        raise BenchError(f"the server takes no messages: {error.strerror or error}") from error


def _into_lake(spark: "SparkSession", server: _Server, lake: Path) -> None:
    stream.run(spark, Origin(url=server.url), lake, now=time.time(), once=True)


def _plainly(spark: "SparkSession", server: _Server, folder: Path, upto: int) -> None:
    """The same by Spark's own sink."""
    from pyspark.sql import functions as sf

    rows = (
        spark.readStream.format("mist")
        .options(url=server.url, startingOffsets="earliest", endingOffsets=str(upto + 1))
        .load()
        .withColumn("date", sf.to_date("time"))
    )
    query = (
        rows.writeStream.format("parquet")
        .partitionBy("date")
        .options(path=str(folder / "out"), checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _check(folder: Path, messages: int) -> None:
    ids = ds.dataset(folder, format="parquet").to_table(columns=["id"]).column("id")
    if len(ids) != messages or pc.count_distinct(ids).as_py() != messages:
        raise BenchError(f"{len(ids):,} of {messages:,} messages came into {folder.name}")
