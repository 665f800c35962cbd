"""Reading an archive with Spark: as a DataFrame, or in ranges of ids for kernels.

    read_log        a DataFrame, through the manifest: what Spark does by itself with Parquet
    Archived        messages of an archive for kernels; Framed has those of any DataFrame
    segments        the segments of the archive, one row each

A *scan task* is a range of ids that one Spark task reads: a segment, several small ones, or some
row groups of a large one. It has the ids and the segments as they were planned. If a file is gone
when the task opens it, since compaction or erasure wrote another generation, the task reads the
manifest again and continues in the current generation: ids never change.

Only the requested columns are read. Tags keep the dictionary encoding of the file, so no strings
are created for them (see `mist.pipeline.kernels.tags`).
"""

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from mist.addresses import EVERYTHING, is_pattern
from mist.archive.manifest import Segment
from mist.archive.schema import ROW_GROUP, SPARK_MESSAGES
from mist.archive.table import Archive, Table
from mist.pipeline.selection import Alternatives, Range, Selection, parse_alternatives
from mist.pipeline.unreadable import segment_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Archived",
    "Framed",
    "Kernel",
    "Messages",
    "ScanTask",
    "each_in_a_task",
    "in_tasks",
    "plan",
    "read_log",
    "read_task",
    "segments",
]

Kernel = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Maps the rows of a task to its result. Pickled, so it is a module-level function of mist, or a
`functools.partial` of one."""

SEGMENT_COLUMNS: Final = "file string, first bigint, last bigint, rows bigint"

_TASKS: Final = 3  # for each core, so that a straggler delays the job little
_ATTEMPTS: Final = 5  # to open a segment, while others write new generations
_DICTIONARIES: Final = ["tags.list.element", "publisher", "audience"]
_QUOTED: Final = re.compile(r"[!-/:-@\[-`{-~]")  # characters with a meaning in a regular expression


@attrs.frozen
class ScanTask:
    """A scan task: what one task reads, ids in `(after, upto]` out of these segments."""

    after: int
    upto: int
    segments: tuple[Segment, ...]


def read_log(
    spark: "SparkSession",
    path: Path | str,
    *,
    subscribe: str | Alternatives | None = None,
    after: int | None = None,
    upto: int | None = None,
    since: int | None = None,
    until: int | None = None,
) -> "DataFrame":
    """A snapshot of an archive, as a DataFrame of `SPARK_MESSAGES`.

    Segments that can hold no selected message are pruned. Rows come in no order.

    Args:
        path: of the archive; on a cluster it is on storage shared by all executors.
        subscribe: `a,b; c`, see `mist.pipeline.selection`; None for all.
        after: ids above this one.
        upto: ids up to this one.
        since: not older than this, microseconds since 1970.
        until: older than this, microseconds since 1970.

    Raises:
        ArchiveMissing, ArchiveDamaged: there is none, or its manifest can't be read.
        InvalidSelection: `subscribe` can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    alternatives = parse_alternatives(subscribe) if isinstance(subscribe, str) else subscribe or ()
    wanted = Range(after or 0, upto, since, until)
    table = Archive.open(Path(path)).messages
    files = [str(table.path(each)) for each in _wanted(table, Selection(wanted))]
    if not files:
        return spark.createDataFrame([], SPARK_MESSAGES)
    frame = spark.read.schema(SPARK_MESSAGES).parquet(*files)
    if wanted.after:
        frame = frame.where(F.col("id") > wanted.after)
    if upto is not None:
        frame = frame.where(F.col("id") <= upto)
    if since is not None:
        frame = frame.where(F.col("time") >= F.timestamp_micros(F.lit(since)))
    if until is not None:
        frame = frame.where(F.col("time") < F.timestamp_micros(F.lit(until)))
    if alternatives and EVERYTHING not in alternatives:
        each = [reduce(and_, map(_carries, sorted(tags))) for tags in alternatives]
        frame = frame.where(reduce(or_, each))
    return frame


def _carries(asked: str) -> "Column":
    """Whether a row has a requested tag, as a Spark expression without Python."""
    from pyspark.sql import functions as F  # noqa: N812  # its conventional name

    if not is_pattern(asked):
        return F.array_contains("tags", asked.removeprefix("=") if asked[:2] == "=/" else asked)
    if asked.startswith("/"):
        below = asked if asked == "/" else f"{asked}/"
        return F.exists("tags", lambda tag: (tag == asked) | tag.startswith(below))
    kinds = {"*": r"[^.]+", ">": "(?s:.+)"}  # with (?s) a dot matches any character
    tokens = [kinds.get(token) or _QUOTED.sub(r"\\\g<0>", token) for token in asked[1:].split(".")]
    pattern = "".join(["^", *(rf"\.{token}" for token in tokens), r"\z"])
    return F.exists("tags", lambda tag: tag.rlike(pattern))


def segments(
    spark: "SparkSession", path: Path | str, selection: Selection | None = None
) -> "DataFrame":
    """The segments that may hold selected messages: `SEGMENT_COLUMNS`.

    Each is a partition of its own, and so read by one task.
    """
    table = Archive.open(Path(path)).messages
    wanted = _wanted(table, selection or Selection())
    rows = [(str(table.path(each)), each.first, each.last, each.rows) for each in wanted]

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                file, first, last, count = rows[number]
                yield pa.record_batch(
                    {"file": [file], "first": [first], "last": [last], "rows": [count]}
                )

    return in_tasks(spark, len(rows), find, SEGMENT_COLUMNS)


class Messages(Protocol):
    """Messages that a kernel can run on: of an archive or of any DataFrame."""

    def run(
        self, spark: "SparkSession", kernel: Kernel, columns: Sequence[str], schema: str
    ) -> "DataFrame":
        """Run a kernel, once in each task. Lazy: it runs when the DataFrame is evaluated.

        Args:
            columns: of `MESSAGES`, which the batches have in this order. Tags, publishers and
                audiences may be dictionary-encoded.
            schema: of the batches that it yields, as a Spark DDL string. They have to match.
        """

    def sample(self, column: str) -> pa.Array | None:
        """A column of a sample; None where there is none, or sampling would cost too much."""


@attrs.frozen
class Archived(Messages):
    """The selected messages of an archive, planned as scan tasks."""

    archive: Archive
    selection: Selection = attrs.field(factory=Selection)

    def run(
        self, spark: "SparkSession", kernel: Kernel, columns: Sequence[str], schema: str
    ) -> "DataFrame":
        folder, selection = self.archive.folder.absolute(), self.selection
        tasks = plan(self.archive.messages, selection, spark.sparkContext.defaultParallelism)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = Archive(folder).messages
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from kernel(read_task(table, tasks[number], selection, columns))

        return in_tasks(spark, len(tasks), run, schema)

    def sample(self, column: str) -> pa.Array | None:
        table = self.archive.messages
        tasks = plan(table, self.selection, 1)
        if not tasks:
            return None
        # From the middle: the use of tags changes with time.
        rows = read_task(table, tasks[len(tasks) // 2], self.selection, [column])
        with contextlib.closing(rows):
            for batch in rows:
                return batch.column(column)
        return None


@attrs.frozen
class Framed(Messages):
    """The rows of a DataFrame with columns of `MESSAGES`, as from `format("mist")` of a URL."""

    frame: "DataFrame"

    def run(
        self, spark: "SparkSession", kernel: Kernel, columns: Sequence[str], schema: str
    ) -> "DataFrame":
        return self.frame.select(*columns).mapInArrow(kernel, schema)

    def sample(self, column: str) -> pa.Array | None:
        return None  # a sample would require an evaluation


def in_tasks(spark: "SparkSession", count: int, run: Kernel, schema: str) -> "DataFrame":
    """Run a function on the numbers 0 to `count` - 1, each in a task of its own."""
    # A range with as many partitions as numbers needs no shuffle.
    if not count:
        return spark.createDataFrame([], schema)
    return spark.range(0, count, 1, count).mapInArrow(run, schema)


def each_in_a_task(
    spark: "SparkSession", count: int, call: Callable[[int], bytes]
) -> Sequence[bytes]:
    """Call a function with each number 0 to `count` - 1, in a task of its own; results in order.

    For jobs whose rows never pass through Spark, with small results. This avoids planning and code
    generation for a DataFrame, a second of CPU in Java: a third of the time to compact a million
    messages.
    """
    if not count:
        return ()
    found: list[bytes] = spark.sparkContext.parallelize(range(count), count).map(call).collect()
    return found


def _wanted(table: Table, selection: Selection) -> list[Segment]:
    return [each for each in selection.segments(table.current().segments) if each.rows]


def plan(table: Table, selection: Selection, cores: int) -> list[ScanTask]:
    """Plan the scan tasks of a selection: about `_TASKS` for each core, of similar size.

    A task reads at least a row group, if there is that much. Segments that are larger than a task
    are split; only these are opened.
    """
    wanted = _wanted(table, selection)
    target = max(ROW_GROUP, -(-sum(each.rows for each in wanted) // (_TASKS * max(1, cores))))
    found: list[ScanTask] = []
    small: list[Segment] = []

    def close() -> None:
        if small:
            found.append(ScanTask(small[0].first - 1, small[-1].last, tuple(small)))
            small.clear()

    for segment in wanted:
        if sum(each.rows for each in small) + segment.rows > 1.25 * target:
            close()
        if segment.rows > 1.5 * target:
            found += _split_segment(table, segment, target)
        else:
            small.append(segment)
    close()
    return found


def _split_segment(table: Table, segment: Segment, target: int) -> Iterator[ScanTask]:
    """Split a segment into scan tasks of some row groups each."""
    after, rows = segment.first - 1, 0
    with contextlib.suppress(FileNotFoundError), _open(table, segment) as file:
        for _, first, _last, count in _groups(file.metadata):
            if rows and rows + count > 1.25 * target:
                yield ScanTask(after, first - 1, (segment,))
                after, rows = first - 1, 0
            rows += count
    # One that is gone is left to the task, which looks for what has replaced it.
    yield ScanTask(after, segment.last, (segment,))


def read_task(
    table: Table, task: ScanTask, selection: Selection, columns: Sequence[str]
) -> Generator[pa.RecordBatch, None, None]:
    """Read the selected rows of a scan task by id, up to a row group at a time.

    Raises:
        SegmentUnreadable: a segment is in the manifest and missing, or damaged.
    """
    ids = selection.range
    upto = task.upto if ids.upto is None else min(task.upto, ids.upto)
    wanted = Selection(
        attrs.evolve(ids, after=max(ids.after, task.after), upto=upto), selection.alternatives
    )
    todo, attempts = list(task.segments), 0
    while todo:
        segment = todo[0]
        try:
            file = _open(table, segment)
        except FileNotFoundError:
            attempts += 1
            if attempts > _ATTEMPTS:
                with segment_errors(table, segment):
                    raise
            rest = Range(max(segment.first - 1, wanted.range.after), wanted.range.upto)
            todo = [each for each in table.current().segments if each.rows and rest.touches(each)]
            # Its replacement may begin before it, with rows that were yielded already.
            wanted = Selection(attrs.evolve(wanted.range, after=rest.after), wanted.alternatives)
            continue
        with file, segment_errors(table, segment):
            yield from _rows(file, segment, wanted, columns)
        todo.pop(0)


def _open(table: Table, segment: Segment) -> Any:
    """Open a segment; a missing one raises FileNotFoundError, since it may have been replaced."""
    path = table.path(segment)
    if not path.exists():
        raise FileNotFoundError(path)
    with segment_errors(table, segment):
        return pq.ParquetFile(path, read_dictionary=_DICTIONARIES, memory_map=True)


def _rows(
    file: Any, segment: Segment, wanted: Selection, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    needed = set(columns)
    if wanted.alternatives:
        needed.add("tags")
    if not wanted.range.holds(segment):
        needed |= {"id", "time"} if wanted.range.timed else {"id"}
    else:  # the whole segment is selected: no filter on ids
        wanted = Selection(Range(), wanted.alternatives)
    for number, first, last, _ in _groups(file.metadata):
        upto = wanted.range.upto
        if last <= wanted.range.after or (upto is not None and first > upto):
            continue
        # One row group at a time: Arrow can't put two dictionaries into one batch of lists. And
        # Spark uses each core for a task, so threads of Arrow would only compete with them.
        for batch in file.read_row_group(number, sorted(needed), use_threads=False).to_batches():
            chosen = wanted.filter(batch)
            if len(chosen):
                yield chosen.select(list(columns))


def _groups(metadata: Any) -> Iterable[tuple[int, int, int, int]]:
    """Row groups: number, lowest and highest id, rows. Without statistics, all ids."""
    column = metadata.schema.names.index("id")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known = group.column(column).statistics
        low, high = (known.min, known.max) if known and known.has_min_max else (0, 2**63 - 1)
        yield number, low, high, group.num_rows
