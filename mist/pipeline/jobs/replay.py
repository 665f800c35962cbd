"""Publish a selection again: to the same server or another, all at once or at a rate.

Messages keep their tags, data, audience and meta, and their order; they get new ids and times, and
the publisher that replays them. Subscribers receive them like any others.

At once: Spark's tasks stage the rows and one commit publishes them, all or nothing
(`mist.pipeline.source.sink`). At a rate: the driver does the same with a tenth of a second's
messages at a time, one after the other.

Under a name (`txn`) each message is published once, however often the same command is run. A
batch that goes out at a rate is numbered by the id of its last message, and the server keeps the
number of the name's last batch. So a run that resumes asks for that number and goes on above it,
whatever has been trimmed or published at its source meanwhile.

Refused: to number batches by their position in the selection. Where retention has trimmed the
selection since, another batch has that position, and the server takes it for a repeat.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from mist.archive.schema import MESSAGES
from mist.history.record import MAX_ID
from mist.pipeline.errors import BadInput, JobFailed, translated
from mist.pipeline.origin import Origin
from mist.pipeline.progress import Progress, silent
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client, check_server
from mist.pipeline.source.errors import InvalidOption, ServerRefused
from mist.pipeline.source.options import WriteOptions
from mist.pipeline.source.sink import ARROW_STREAM, ATTEMPTS
from mist.pipeline.source.staging import parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Result", "Target", "run"]

COLUMNS: Final = ("tags", "data", "audience", "meta")
ID: Final = "id"
SCHEMA: Final = pa.schema([MESSAGES.field(name) for name in COLUMNS])
BATCHES_PER_SECOND: Final = 10  # at a rate
MAX_BATCH: Final = 10_000  # messages of a batch, at a rate
_PROBE_ATTEMPT: Final = MAX_ID  # number of an attempt that never stages


@attrs.frozen
class Target:
    """The server that messages are published to.

    Attributes:
        secret, token: credential.
    """

    url: str
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)

    @property
    def address(self) -> Address:
        """The address, validated.

        Raises:
            InvalidOption: the URL or the credential is invalid.
        """
        return Address.parse(self.url, self.secret, self.token)

    def options(self, txn: str | None = None) -> dict[str, str]:
        """The options of `format("mist")` for it, including credentials.

        Raises:
            InvalidOption: one of them is invalid.
        """
        given = {"url": self.url, "secret": self.secret, "token": self.token, "txn": txn}
        if txn is not None and not txn.strip():  # Spark treats a blank option as not given
            raise InvalidOption("txn: give a name")
        options = {name: value for name, value in given.items() if value is not None}
        WriteOptions.parse(options)
        return options

    def check(self, txn: str | None = None) -> None:
        """Check that the server is reachable and authorizes us, before Spark is started.

        Args:
            txn: transaction name, if any.

        Raises:
            InvalidOption: the name or another option is invalid.
            ServerUnavailable, ServerRefused: from the server.
        """
        self.options(txn)
        check_server(self.address)


@attrs.frozen
class Result:
    """The result of a replay.

    Attributes:
        repeated: number of messages that an earlier run had published under the same name; only
            known at a rate.
        txn: transaction name, for resuming an interrupted run.
    """

    messages: int
    repeated: int
    txn: str
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


def run(
    spark: "SparkSession",
    origin: Origin,
    target: Target,
    *,
    rate: float | None = None,
    txn: str | None = None,
    progress: Progress = silent,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Publish the messages of `origin` at `target`.

    Args:
        rate: messages a second, at most; None is no limit.
        txn: transaction name, under which each message is published once; None is a random one.
        clock, sleep: for tests.

    Raises:
        BadInput: no message is selected.
        InvalidOption: the name is invalid.
        ServerRefused, ServerUnavailable, JobFailed: without a rate, nothing was published; at a
            rate, the batches before were.
    """
    name = f"replay-{secrets.token_hex(8)}" if txn is None else txn
    options = target.options(name)
    began = clock()
    frame = origin.frame(spark)
    with translated():
        if rate is None:
            done, repeated = _at_once(frame.select(*COLUMNS), options), 0
        else:
            pace = _Pace(rate, clock, sleep)
            done, repeated = _paced(frame, target, name, pace, progress)
    if not done + repeated:
        raise BadInput("no message is selected; nothing was published")
    return Result(done, repeated, name, clock() - began)


def _at_once(frame: "DataFrame", options: Mapping[str, str]) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    seen = Observation()
    writer = frame.observe(seen, sf.count(sf.lit(1)).alias("messages")).write.format("mist")
    for option, value in options.items():
        writer = writer.option(option, value)
    writer.mode("append").save()
    return int(seen.get["messages"])


@attrs.frozen
class _Pace:
    """Limits the rate of publishing.

    Attributes:
        rate: messages a second.
    """

    rate: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    @property
    def batch_size(self) -> int:
        """Messages of a batch."""
        return max(1, min(MAX_BATCH, int(self.rate / BATCHES_PER_SECOND)))

    def wait(self, began: float, done: int) -> None:
        """Wait until `done` messages are within the rate."""
        early = began + done / self.rate - self.clock()
        if early > 0:
            self.sleep(early)


def _paced(
    frame: "DataFrame", target: Target, txn: str, pace: _Pace, progress: Progress
) -> tuple[int, int]:
    # Not the name itself: earlier versions numbered its batches by their position.
    txn = f"{txn}.id"
    target.options(txn)  # validated again, since it is longer
    done = repeated = 0
    began = reported = pace.clock()
    with Client(target.address) as client:
        published = _last_batch(client, txn)
        for batch in _batches(frame.select(ID, *COLUMNS), pace.batch_size, published):
            if batch.is_repeat:
                repeated += len(batch.rows)
            elif _publish(client, txn, batch):
                done += len(batch.rows)
                pace.wait(began, done)
            else:  # published by a concurrent run under the same name
                repeated += len(batch.rows)
            if pace.clock() - reported >= 1:
                reported = pace.clock()
                progress(f"{done:,} messages published")
    return done, repeated


@attrs.frozen
class _Batch:
    """A batch of messages, published in one commit.

    Attributes:
        number: id of the last message.
        is_repeat: whether an earlier run has published all of them.
    """

    rows: list[Any]
    number: int
    is_repeat: bool

    def record_batch(self) -> pa.RecordBatch:
        """The rows as an Arrow batch."""
        columns = [
            pa.array([_plain(row[name]) for row in self.rows], SCHEMA.field(name).type)
            for name in COLUMNS
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _batches(frame: "DataFrame", size: int, published: int) -> Iterator[_Batch]:
    """Batches of up to `size` messages by id, each either of repeats or of new messages."""
    rows: Iterable[Any] = frame.toLocalIterator(prefetchPartitions=True)
    for is_repeat, run_of_rows in groupby(_ascending(rows), lambda row: row[ID] <= published):
        while some := list(islice(run_of_rows, size)):
            yield _Batch(some, some[-1][ID], is_repeat)


def _ascending(rows: Iterable[Any]) -> Iterator[Any]:
    """Check that ids ascend, and pass the rows on.

    Raises:
        JobFailed: an id isn't above the one before. Its batch would be taken for a repeat.
    """
    last = 0
    for row in rows:
        if row[ID] <= last:
            raise JobFailed("messages came out of the order of their ids")
        last = row[ID]
        yield row


def _last_batch(client: Client, txn: str) -> int:
    """The number of the last batch published under a name; 0 where there is none.

    The server has no request for it. But a commit tells whether its number is a repeat before it
    checks the staged parts. So the number is found by bisection, with commits of a part that was
    never staged, which publish nothing. One request if nothing was published, else about two for
    each bit of the number.
    """
    known, unknown = 0, 1
    while unknown <= MAX_ID and _is_repeat(client, txn, unknown):
        known, unknown = unknown, min(2 * unknown, MAX_ID + 1)
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if _is_repeat(client, txn, middle):
            known = middle
        else:
            unknown = middle
    return known


def _is_repeat(client: Client, txn: str, number: int) -> bool:
    """Whether the server would treat a batch of that number as a repeat."""
    try:
        _commit(client, txn, number, _PROBE_ATTEMPT, 1)
    except ServerRefused as error:
        if error.problem != "part_missing":
            raise
        return False
    return True


def _plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case dict():
            return [(key, _plain(each)) for key, each in value.items()]
        case _:
            return value


def _publish(client: Client, txn: str, batch: _Batch) -> bool:
    """Publish a batch; False if an earlier run had published it."""
    attempt = secrets.randbelow(ATTEMPTS)
    count = 0
    for body in parts([batch.record_batch()], COLUMNS):
        path = f"/v1/log/stage/{txn}/{batch.number}/0/{attempt}/{count}"
        client.request("PUT", path, body=body, content_type=ARROW_STREAM)
        count += 1
    if not _commit(client, txn, batch.number, attempt, count):
        return True
    client.request("DELETE", f"/v1/log/stage/{txn}/{batch.number}")
    return False


def _commit(client: Client, txn: str, number: int, attempt: int, count: int) -> bool:
    """Commit what was staged; True if it was a repeat."""
    attempts = [{"partition": 0, "attempt": attempt, "parts": count}]
    answer = client.request(
        "POST",
        "/v1/log/commit",
        body=json.dumps({"txn": txn, "batch": number, "attempts": attempts}).encode(),
        content_type="application/json",
    )
    return bool(answer.json()["repeated"])
