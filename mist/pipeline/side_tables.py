"""The side tables of an archive, usage accounting by the minute, as DataFrames."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mist.archive import Archive, Segment
from mist.pipeline.errors import BadInput
from mist.pipeline.selection import Range
from mist.pipeline.unreadable import check_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["accounted_up_to", "read_side_table", "time_range"]

COLUMNS = {
    "deliveries": "minute timestamp, token string, subscription string, "
    "sent bigint, dropped bigint, bytes bigint",
    "subscriptions": "minute timestamp, token string, subscription string, "
    "opened bigint, closed bigint",
    "tokens": "minute timestamp, token string, tags array<string>",
}


def time_range(start: str | None, end: str | None) -> Range:
    """Parse a range of time. These tables have no ids.

    Raises:
        BadInput: an end is an id.
        InvalidSelection: an end is neither a time nor an id.
    """
    found = Range.parse(start, end)
    if found.after or found.upto is not None:
        raise BadInput("accounts are kept by the minute: give --from and --until as times")
    return found


def accounted_up_to(archive: Archive) -> datetime | None:
    """The time that usage accounting is complete up to; None where there is none.

    A server writes it every ten minutes, when it stops, and when it is told to seal. For an
    archive of an older server, the last minute that has an account.
    """
    table = archive.table("deliveries")
    if not table.exists:
        return None
    manifest = table.current()
    last = max([each.last + 1 for each in manifest.segments], default=0)
    minutes = manifest.sealed or last
    return datetime.fromtimestamp(minutes * 60, UTC) if minutes else None


def read_side_table(
    spark: "SparkSession",
    archive: Archive,
    name: str,
    when: Range | None = None,
    *,
    ordered: bool = False,
) -> "DataFrame":
    """A snapshot of a side table, read through its manifest.

    Args:
        name: `deliveries`, `subscriptions` or `tokens`.
        when: selects minutes by their start; None selects all.
        ordered: add a column `written`, by which the rows have the order in which they were
            written: a minute has several rows where it was sealed before it ended.

    Returns:
        Empty if the archive has no such table, because an older version wrote it.

    Raises:
        SegmentUnreadable: one of its segments is missing or damaged.
    """
    from pyspark.sql import functions as sf

    when = when or Range()
    table = archive.table(name)
    listed = table.current().segments if table.exists else ()
    segments: list[Segment] = [
        segment
        for segment in listed
        if (when.since is None or segment.newest >= when.since)
        and (when.until is None or segment.oldest < when.until)
    ]
    if not segments:
        written = ", written struct<segment: bigint, row: bigint>" if ordered else ""
        return spark.createDataFrame([], COLUMNS[name] + written)
    check_segments(table, segments)
    paths = [str(table.path(segment).absolute()) for segment in segments]
    frame = spark.read.schema(COLUMNS[name]).parquet(*paths)
    if ordered:
        # The manifest has segments by their minutes, and of the same minutes as they were listed.
        places = [(segment.file.rpartition("/")[2], n) for n, segment in enumerate(segments)]
        placed = sf.broadcast(spark.createDataFrame(places, "file string, segment bigint"))
        row = sf.col("_metadata.row_index").alias("row")
        frame = frame.select("*", sf.col("_metadata.file_name").alias("file"), row)
        frame = frame.join(placed, "file").withColumn("written", sf.struct("segment", "row"))
        frame = frame.drop("file", "segment", "row")
    if when.since is not None:
        frame = frame.filter(sf.col("minute") >= sf.timestamp_micros(sf.lit(when.since)))
    if when.until is not None:
        frame = frame.filter(sf.col("minute") < sf.timestamp_micros(sf.lit(when.until)))
    return frame
