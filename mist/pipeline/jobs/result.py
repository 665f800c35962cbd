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
    """What a job came to.

    Attributes:
        table: as the job's module says.
        summary: figures, fit for JSON.
    """

    table: pa.Table
    summary: dict[str, Any]


@attrs.frozen
class LargeResult:
    """What a job came to that may be too much for the driver.

    Attributes:
        frame: as the job's module says; lasts as long as the session.
        summary: figures, fit for JSON.
    """

    frame: "DataFrame"
    summary: dict[str, Any]


def write_table(rows: pa.Table, out: Path | None) -> None:
    """Write a small result as Parquet, where asked: one file in the folder `out`.

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
    """Write a large result as Parquet, where asked, and go on with what is written.

    Raises:
        BadInput: the folder is there already.
    """
    if out is None:
        return rows
    if out.exists():
        raise BadInput(f"{out} is there already")
    rows.write.parquet(str(out))
    return rows.sparkSession.read.schema(rows.schema).parquet(str(out))
