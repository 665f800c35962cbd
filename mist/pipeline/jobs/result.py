"""The result of a job, and writing it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from mist.pipeline.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LargeResult", "Result", "write_frame", "write_table"]


@attrs.frozen
class Result:
    """The result of a job.

    Attributes:
        table: described in the job's module.
        summary: figures, serializable as JSON.
    """

    table: pa.Table
    summary: dict[str, Any]


@attrs.frozen
class LargeResult:
    """The result of a job that may exceed the memory of the driver.

    Attributes:
        frame: described in the job's module; valid as long as the session.
        summary: figures, serializable as JSON.
    """

    frame: "DataFrame"
    summary: dict[str, Any]


def write_table(rows: pa.Table, out: Path | None) -> None:
    """Write a small result as one Parquet file in the folder `out`, if given.

    Raises:
        BadInput: the folder is there already, or can't be made.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True)
        pq.write_table(rows, out / "part-00000.parquet", compression="zstd")
    except FileExistsError:
        raise BadInput(f"{out} is there already") from None
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror or error}") from None


def write_frame(rows: "DataFrame", out: Path | None) -> "DataFrame":
    """Write a large result as Parquet, if `out` is given, and return it as read from there.

    Raises:
        BadInput: the folder is there already.
    """
    if out is None:
        return rows
    if out.exists():
        raise BadInput(f"{out} is there already")
    rows.write.parquet(str(out))
    return rows.sparkSession.read.schema(rows.schema).parquet(str(out))
