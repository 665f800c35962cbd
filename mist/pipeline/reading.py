"""Reading an archive with Spark: as a DataFrame, or in ranges of ids for kernels.

    read_log        a DataFrame, through the manifest: what Spark does by itself with Parquet
    Archived        what kernels run on, a stretch to a task; Framed is any DataFrame instead
    segments        what the archive consists of, one row a segment

A *stretch* is a range of ids that one task reads: a segment, several small ones, or some row
groups of a large one. Its task holds the ids and the segments as they were planned. Where a
file is gone when its turn comes, since compaction or erasure wrote another generation, the
manifest is looked at again, and it is read from there: ids stay what they are.

Only columns that are asked for are read; tags keep the dictionary they have in the file, so
that no text is made of them (see `mist.pipeline.kernels.tags`).
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
from mist.pipeline.errors import BadInput
from mist.pipeline.selection import Alternatives, Range, Selection, parse_alternatives

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Archived",
    "Framed",
    "Kernel",
    "Messages",
    "Stretch",
    "each_in_a_task",
    "in_tasks",
    "plan",
    "read_log",
    "read_stretch",
    "segments",
]

Kernel = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of a stretch to its result. Travels by pickle: a function of a module of mist's,
or a `functools.partial` of one."""

SEGMENT_COLUMNS: Final = "file string, first bigint, last bigint, rows bigint"

_TASKS: Final = 3  # for each core, so that one that is late doesn't hold up the rest for long
_ATTEMPTS: Final = 5  # generations that may pass while a segment is being opened
_DICTIONARIES: Final = ["tags.list.element", "publisher", "audience"]
_QUOTED: Final = re.compile(r"[!-/:-@\[-`{-~]")  # what may mean something in a regular expression


@attrs.frozen
class Stretch:
    """What one task reads: ids above `after` and up to `upto`, out of these segments."""

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
    """What an archive holds at this moment, as a DataFrame of `SPARK_MESSAGES`.

    Segments that can hold nothing of what is wanted aren't read. Rows come in no order.

    Args:
        path: of the archive; on a cluster, where every executor finds it.
        subscribe: `a,b; c`, see `mist.pipeline.selection`; None for all.
        after: ids above this one.
        upto: ids up to this one.
        since: not older, microseconds since 1970.
        until: older than this, likewise.

    Raises:
        ArchiveMissing, ArchiveDamaged: there is none, or its manifest can't be read.
        InvalidSelection: `subscribe` can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

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
    """Whether a row has a tag that is asked for; by Spark's own means, without Python."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    if not is_pattern(asked):
        return F.array_contains("tags", asked.removeprefix("=") if asked[:2] == "=/" else asked)
    if asked.startswith("/"):
        below = asked if asked == "/" else f"{asked}/"
        return F.exists("tags", lambda tag: (tag == asked) | tag.startswith(below))
    kinds = {"*": r"[^.]+", ">": "(?s:.+)"}  # with s a dot is any letter
    tokens = [kinds.get(token) or _QUOTED.sub(r"\\\g<0>", token) for token in asked[1:].split(".")]
    pattern = "".join(["^", *(rf"\.{token}" for token in tokens), r"\z"])
    return F.exists("tags", lambda tag: tag.rlike(pattern))


def segments(
    spark: "SparkSession", path: Path | str, selection: Selection | None = None
) -> "DataFrame":
    """The segments in which something of a selection may be: `SEGMENT_COLUMNS`.

    Each is a partition of its own, and so the work of one task.
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
    """Messages that a kernel can be run on: an archive's, or those of any DataFrame."""

    def run(
        self, spark: "SparkSession", kernel: Kernel, columns: Sequence[str], schema: str
    ) -> "DataFrame":
        """Run a kernel on them, once in each task, when the DataFrame is asked for its rows.

        Args:
            columns: of `MESSAGES`, that its batches have, in this order; their tags, and
                publishers, perhaps with dictionaries.
            schema: of what it yields, as Spark writes it. Batches have to be exactly that.
        """

    def sample(self, column: str) -> pa.Array | None:
        """A column of some of them; None where there are none, or it isn't worth while."""


@attrs.frozen
class Archived(Messages):
    """What is selected of an archive, a stretch to a task."""

    archive: Archive
    selection: Selection = attrs.field(factory=Selection)

    def run(
        self, spark: "SparkSession", kernel: Kernel, columns: Sequence[str], schema: str
    ) -> "DataFrame":
        folder, selection = self.archive.folder.absolute(), self.selection
        stretches = plan(self.archive.messages, selection, spark.sparkContext.defaultParallelism)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            table = Archive(folder).messages
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from kernel(read_stretch(table, stretches[number], selection, columns))

        return in_tasks(spark, len(stretches), run, schema)

    def sample(self, column: str) -> pa.Array | None:
        table = self.archive.messages
        stretches = plan(table, self.selection, 1)
        if not stretches:
            return None
        # From the middle: how tags are used changes with time.
        rows = read_stretch(table, stretches[len(stretches) // 2], self.selection, [column])
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
        return None  # a look would take reading it


def in_tasks(spark: "SparkSession", count: int, run: Kernel, schema: str) -> "DataFrame":
    """Run a function on the numbers from 0, each in a task of its own."""
    # A range has one number in each partition when told so, without a shuffle.
    if not count:
        return spark.createDataFrame([], schema)
    return spark.range(0, count, 1, count).mapInArrow(run, schema)


def each_in_a_task(
    spark: "SparkSession", count: int, call: Callable[[int], bytes]
) -> Sequence[bytes]:
    """Call a function with each number from 0, in a task of its own; what it gave, in order.

    For jobs whose rows never come near Spark, and whose results are small. There is no DataFrame
    to be planned and compiled for, which takes Java a second of CPU: a third of what it takes to
    compact a million messages.
    """
    if not count:
        return ()
    found: list[bytes] = spark.sparkContext.parallelize(range(count), count).map(call).collect()
    return found


def _wanted(table: Table, selection: Selection) -> list[Segment]:
    return [each for each in selection.segments(table.current().segments) if each.rows]


def plan(table: Table, selection: Selection, cores: int) -> list[Stretch]:
    """Cut what is selected into stretches, `_TASKS` or so for each core, of similar size.

    None is smaller than a row group, unless there is no more; none spans a gap that would make
    it larger than the others. Opens what is cut: segments larger than a stretch.
    """
    wanted = _wanted(table, selection)
    target = max(ROW_GROUP, -(-sum(each.rows for each in wanted) // (_TASKS * max(1, cores))))
    found: list[Stretch] = []
    small: list[Segment] = []

    def close() -> None:
        if small:
            found.append(Stretch(small[0].first - 1, small[-1].last, tuple(small)))
            small.clear()

    for segment in wanted:
        if sum(each.rows for each in small) + segment.rows > 1.25 * target:
            close()
        if segment.rows > 1.5 * target:
            found += _cut(table, segment, target)
        else:
            small.append(segment)
    close()
    return found


def _cut(table: Table, segment: Segment, target: int) -> Iterator[Stretch]:
    """A segment in stretches of some row groups each."""
    after, rows = segment.first - 1, 0
    with _open(table, segment) as file:
        for _, first, _last, count in _groups(file.metadata):
            if rows and rows + count > 1.25 * target:
                yield Stretch(after, first - 1, (segment,))
                after, rows = first - 1, 0
            rows += count
    yield Stretch(after, segment.last, (segment,))


def read_stretch(
    table: Table, stretch: Stretch, selection: Selection, columns: Sequence[str]
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a stretch that are selected, up to a row group at a time, by id.

    Raises:
        BadInput: a segment is listed and not there, or damaged.
    """
    ids = selection.range
    upto = stretch.upto if ids.upto is None else min(stretch.upto, ids.upto)
    wanted = Selection(
        attrs.evolve(ids, after=max(ids.after, stretch.after), upto=upto), selection.alternatives
    )
    todo, attempts = list(stretch.segments), 0
    while todo:
        segment = todo[0]
        try:
            file = _open(table, segment)
        except FileNotFoundError:
            attempts += 1
            if attempts > _ATTEMPTS:
                raise BadInput(f"{table.path(segment)} is in the manifest and not there") from None
            rest = Range(max(segment.first - 1, wanted.range.after), wanted.range.upto)
            todo = [each for each in table.current().segments if each.rows and rest.touches(each)]
            # What replaces it may begin before it, where rows have been given already.
            wanted = Selection(attrs.evolve(wanted.range, after=rest.after), wanted.alternatives)
            continue
        with file:
            yield from _rows(file, segment, wanted, columns)
        todo.pop(0)


def _open(table: Table, segment: Segment) -> Any:
    path = table.path(segment)
    try:
        return pq.ParquetFile(path, read_dictionary=_DICTIONARIES, memory_map=True)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from error


def _rows(
    file: Any, segment: Segment, wanted: Selection, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    needed = set(columns)
    if wanted.alternatives:
        needed.add("tags")
    if not wanted.range.holds(segment):
        needed |= {"id", "time"} if wanted.range.timed else {"id"}
    else:  # then there is no need to look at ids
        wanted = Selection(Range(), wanted.alternatives)
    for number, first, last, _ in _groups(file.metadata):
        upto = wanted.range.upto
        if last <= wanted.range.after or (upto is not None and first > upto):
            continue
        # One by one, as Arrow can't put two dictionaries into one batch of lists. And cores are
        # for tasks: threads of Arrow's in each would only get into each other's way.
        for batch in file.read_row_group(number, sorted(needed), use_threads=False).to_batches():
            chosen = wanted.filter(batch)
            if len(chosen):
                yield chosen.select(list(columns))


def _groups(metadata: Any) -> Iterable[tuple[int, int, int, int]]:
    """Row groups: number, lowest and highest id, rows. What isn't known is taken for all."""
    column = metadata.schema.names.index("id")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known = group.column(column).statistics
        low, high = (known.min, known.max) if known and known.has_min_max else (0, 2**63 - 1)
        yield number, low, high, group.num_rows
