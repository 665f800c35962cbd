"""Export: a selection of messages as Parquet, JSON lines or a Delta table.

It is written to a temporary folder and moved to its place when it is complete, so no partial export
is visible. It is recorded in the archive before, so that erasure finds it.

A line of JSON is what `mist history show --json` prints: `{"id", "time", "tags", "data" or
"data64", "publisher"?, "audience"?, "meta"?}`, `time` in Unix seconds, `data64` where the data
isn't UTF-8.
"""

import base64
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import attrs
import msgspec
import pyarrow as pa

from mist.archive import Archive
from mist.pipeline.delta import begin_log, require_delta
from mist.pipeline.errors import BadInput, translated
from mist.pipeline.exports import Export, Format, record
from mist.pipeline.origin import Origin
from mist.pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FORMATS", "Result", "beside", "check_target", "line_of", "put_in_place", "run"]

FORMATS: Final[tuple[str, ...]] = get_args(Format)


@attrs.frozen
class Result:
    """The export that was written.

    Attributes:
        recorded: whether it is recorded in an archive, so that erasure finds it.
    """

    path: str
    format: str
    messages: int
    files: int
    bytes: int
    recorded: bool

    @property
    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


def check_target(out: Path, *, overwrite: bool) -> None:
    """Check that `out` can be written, before the job begins.

    Raises:
        BadInput: it exists and may not be overwritten, or it is something else than an export.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BadInput(f"--out {out}: is there, and is no folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise BadInput(f"--out {out}: is there already; --overwrite replaces it")
    if (out / "_manifest").exists():
        raise BadInput(f"--out {out}: is an archive, which is not to be overwritten")
    # The data directory, or the one that has it.
    if any(any(out.glob(below)) for below in ("*/_manifest", "*/*/_manifest")):
        raise BadInput(f"--out {out}: has an archive in it, which is not to be overwritten")


def run(
    spark: "SparkSession",
    origin: Origin,
    out: Path,
    *,
    format: Format,  # noqa: A002  # the option's name
    now: float,
    overwrite: bool = False,
    known_to: Archive | None = None,
    progress: Progress = silent,
) -> Result:
    """Write the messages of `origin` to the folder `out`.

    Args:
        now: Unix seconds, for the record.
        known_to: the archive to record it in.

    Raises:
        BadInput: see `check_target`; or no message is selected.
        NotInstalled: the format needs a package.
        JobFailed, PipelineError, ArchiveError: nothing was written.
    """
    check_target(out, overwrite=overwrite)
    if format == "delta":
        require_delta()
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    if known_to is not None:
        record(known_to, Export(str(out), format, now, dict(origin.described())))
    making = beside(out)
    progress(f"writing {format} to {out}")
    try:
        with translated():
            messages = _write(origin.frame(spark), making, format)
        if not messages:
            raise BadInput("no message is selected; nothing was written")
        if format == "delta":
            begin_log(making)
        put_in_place(making, out, overwrite=overwrite)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    files = [
        path for path in out.rglob("[!._]*") if path.is_file() and "_delta_log" not in path.parts
    ]
    size = sum(path.stat().st_size for path in files)
    return Result(str(out), format, messages, len(files), size, known_to is not None)


def _write(frame: "DataFrame", folder: Path, format: str) -> int:  # noqa: A002
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    seen = Observation()
    frame = frame.observe(seen, sf.count(sf.lit(1)).alias("messages"))
    if format == "jsonl":
        lines = frame.mapInArrow(_lines, "value string")
        lines.write.option("compression", "none").text(str(folder))
        for path in folder.glob("*.txt"):
            path.rename(path.with_suffix(".jsonl"))
            (folder / f".{path.name}.crc").unlink(missing_ok=True)
    else:
        frame.write.parquet(str(folder))
    return int(seen.get["messages"])


def _lines(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = pa.array([line_of(row) for row in batch.to_pylist()], pa.string())
        yield pa.RecordBatch.from_arrays([lines], names=["value"])


def line_of(row: dict[str, Any]) -> str:
    """A message as a line of JSON, without its newline."""
    line: dict[str, Any] = {
        "id": row["id"],
        "time": row["time"].timestamp(),
        "tags": row["tags"],
        **_plain(row["data"]),
    }
    if row["publisher"]:
        line["publisher"] = row["publisher"]
    if row["audience"] is not None:
        line["audience"] = row["audience"]
    if row["meta"] is not None:
        line["meta"] = {key: _plain(value) for key, value in row["meta"]}
    return msgspec.json.encode(line).decode()


def _plain(data: bytes) -> dict[str, str]:
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data64": base64.b64encode(data).decode()}


def beside(out: Path) -> Path:
    """A temporary path beside `out`, to be moved there."""
    return out.with_name(f".{out.name}.{secrets.token_hex(4)}")


def put_in_place(made: Path, out: Path, *, overwrite: bool) -> None:
    """Move a new folder to its place. An existing one is deleted after the move.

    Raises:
        BadInput: see `check_target`; something was put there since the job began.
    """
    check_target(out, overwrite=overwrite)
    if not out.exists():
        made.rename(out)
        return
    old = beside(out)
    out.rename(old)
    try:
        made.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)
