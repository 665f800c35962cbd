"""Writes, `write.format("mist")` and `writeStream`: rows become messages, exactly once.

A two-phase commit: tasks stage their rows on the server in parts, which publishes nothing. When
all have, the driver commits the attempts that succeeded, in one append that records (txn, batch)
with the messages. When a batch is written again, because the driver or the server died before
the commit was acknowledged, the server finds (txn, batch) and does nothing.

    a stream                    txn is the query's id, which is its checkpoint's, and survives
                                the process; batch is the micro-batch's number
    a stream, txn given         the same under that name. A new checkpoint counts from 0 again,
                                so under an old name its first batches are taken for repeats
    write                       a random txn: each write publishes
    write, txn given            once, ever, under that name
    write in foreachBatch       as `write`; with txn given, once for each micro-batch. Not by
                                default, since two writes in one function would then be one

The number of an attempt is random. A task of a killed driver may still be staging while its
successor does, and neither may overwrite the parts of the other.
"""

import json
import logging
import secrets
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from mist.pipeline.source.client import (
    COMMIT_RETRY_TIMEOUT,
    COMMIT_TIMEOUT,
    FIRST_TIMEOUT,
    Client,
)
from mist.pipeline.source.errors import (
    InvalidOption,
    ServerRefused,
    ServerUnavailable,
    SourceError,
)
from mist.pipeline.source.options import WriteOptions
from mist.pipeline.source.staging import check_columns, parts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Staged", "StreamWriter", "Writer"]

log = logging.getLogger("mist.pipeline.source")

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
ATTEMPTS: Final = 2**53  # upper bound of an attempt's number, set by the server
QUERY_ID: Final = (
    "sql.streaming.queryId"  # the local property in which Spark gives a task its query
)
BATCH_ID: Final = "streaming.sql.batchId"


@attrs.frozen
class Staged(WriterCommitMessage):
    """The commit message of a task: what it has staged."""

    txn: str
    batch: int
    partition: int
    attempt: int
    parts: int


@attrs.frozen
class _Sink:
    """The sink shared by the writers of batches and of streams.

    Attributes:
        columns: the columns to stage.
        txn: used where neither an option nor a query gives one; None for a stream.
    """

    options: WriteOptions
    columns: tuple[str, ...]
    txn: str | None

    @classmethod
    def of(
        cls, options: WriteOptions, schema: "StructType", overwrite: bool, txn: str | None
    ) -> "_Sink":
        if overwrite:
            raise InvalidOption("mode: append only; what was published can't be overwritten")
        return cls(options, check_columns(schema), txn)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage all its rows."""
        txn, batch, partition = self._names()
        attempt = secrets.randbelow(ATTEMPTS)
        count = 0
        with Client(self.options.address) as client:
            for body in parts(iterator, self.columns):
                path = f"/v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{count}"
                client.request("PUT", path, body=body, content_type=ARROW_STREAM)
                count += 1
        return Staged(txn, batch, partition, attempt, count)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: publish what was staged."""
        staged = sorted(_staged(messages), key=lambda one: one.partition)
        attempts = [
            {"partition": one.partition, "attempt": one.attempt, "parts": one.parts}
            for one in staged
            if one.parts
        ]
        if not attempts:
            return  # no rows, so a repeat has nothing to publish twice
        txn, batch = staged[0].txn, staged[0].batch
        body = json.dumps({"txn": txn, "batch": batch, "attempts": attempts}).encode()
        address = self.options.address
        with Client(address, retry_timeout=COMMIT_RETRY_TIMEOUT, timeout=COMMIT_TIMEOUT) as client:
            answer = client.request(
                "POST", "/v1/log/commit", body=body, content_type="application/json"
            )
            if answer.json()["repeated"]:
                log.warning("batch %d of %s was there already; nothing was published", batch, txn)
                _discard(client, txn, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: discard what was staged. The server expires what this misses."""
        for txn, batch in {(one.txn, one.batch) for one in _staged(messages)}:
            with Client(self.options.address, retry_timeout=FIRST_TIMEOUT) as client:
                _discard(client, txn, batch)

    def _names(self) -> tuple[str, int, int]:
        # txn, batch and partition of the current task.
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "writers run in tasks"
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        txn = self.options.txn or self.txn or query
        if txn is None:
            raise SourceError("this Spark tells its tasks no query id; give the option txn")
        # A random txn has a single batch.
        batch = int(number) if number is not None and txn != self.txn else 0
        return txn, batch, context.partitionId()


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _discard(client: Client, txn: str, batch: int) -> None:
    try:
        client.request("DELETE", f"/v1/log/stage/{txn}/{batch}")
    except (ServerRefused, ServerUnavailable) as error:
        log.info("what was staged of batch %d of %s is left to be swept: %s", batch, txn, error)


class Writer(DataSourceArrowWriter):
    """The writer of a batch."""

    def __init__(self, options: WriteOptions, schema: "StructType", overwrite: bool) -> None:
        self._sink = _Sink.of(options, schema, overwrite, f"write-{uuid.uuid4()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one partition."""
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all partitions."""
        self._sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all partitions."""
        self._sink.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream."""

    def __init__(self, options: WriteOptions, schema: "StructType", overwrite: bool) -> None:
        self._sink = _Sink.of(options, schema, overwrite, None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one partition of a micro-batch."""
        return self._sink.write(iterator)

    # The messages carry the number as well: tasks need it to stage.
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a micro-batch."""
        self._sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard a micro-batch."""
        self._sink.abort(messages)
