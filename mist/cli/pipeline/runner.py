"""Run a job: a Spark session, progress on standard error, the result, an exit code."""

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.status import Status

from mist.archive import ArchiveMissing
from mist.cli.exits import REFUSED, UNREACHABLE, USAGE, fail
from mist.cli.lazy import exit_on_interrupt
from mist.cli.pipeline.options import Spark
from mist.errors import CommandError, MistError, StartupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Run",
    "check_file",
    "errors_as_exit_codes",
    "output_folder",
    "run_job",
    "write_file",
]

POLL: Final = 0.5  # seconds between queries of Spark's tasks
MAX_ROWS: Final = 20  # rows of a result on a terminal
INPUT: Final = frozenset({"bad_input", "not_installed", "invalid_option", "invalid_selection",
                          "archive_missing"})  # fmt: skip


class Run:
    """One run of a command.

    Attributes:
        began: Unix seconds.
    """

    def __init__(self, settings: Spark) -> None:
        self.began = time.time()
        self._settings = settings
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._line = ""

    def progress(self, line: str) -> None:
        """Show a progress line."""
        self._line = line
        if self._status is not None:
            self._status.update(_shown(line))
        else:
            self._console.print(_shown(line), soft_wrap=True, markup=False)

    @contextlib.contextmanager
    def spark(self, rows: int = 0) -> Iterator["SparkSession"]:
        """A session for the length of the block; on a terminal its tasks are counted.

        Args:
            rows: that pass through Java, about.
        """
        from mist.pipeline.errors import translated
        from mist.pipeline.session import session

        settings = self._settings
        with (
            self.working("starting Spark"),
            session(
                settings.master,
                settings.conf,
                name="mist pipeline",
                verbose=settings.verbose,
                rows=rows,
            ) as spark,
            self._counting(spark),
            translated(),
        ):
            yield spark

    @contextlib.contextmanager
    def working(self, line: str) -> Iterator[None]:
        """Show a progress line; on a terminal, with a spinner for the length of the block."""
        self.progress(line)
        if not self._console.is_terminal or self._settings.verbose:
            yield
            return
        with self._console.status(self._line) as self._status:
            try:
                yield
            finally:
                self._status = None

    @contextlib.contextmanager
    def _counting(self, spark: "SparkSession") -> Iterator[None]:
        if self._status is None:
            yield
            return
        done = threading.Event()
        watcher = threading.Thread(target=self._count, args=(spark, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()

    def _count(self, spark: "SparkSession", done: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        with contextlib.suppress(Exception):  # the JVM may have ended
            while not done.wait(POLL):
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                tasks = sum(stage.numTasks for stage in stages if stage)
                ended = sum(stage.numCompletedTasks for stage in stages if stage)
                status = self._status
                if status is not None:
                    counted = f" ({ended:,} of {tasks:,} tasks)" if tasks else ""
                    status.update(_shown(self._line + counted))

    def finish(self, summary: dict[str, Any], table: Any = None) -> None:
        """Print the result to standard output.

        Args:
            table: a `pyarrow.Table`; its first rows are printed.
        """
        seconds = round(time.time() - self.began, 3)
        if self._settings.as_json:
            click.echo(json.dumps({**summary, "seconds": seconds}, default=str))
            return
        if table is not None and table.num_rows:
            _print_table(table)
        for key, value in summary.items():
            if isinstance(value, bool | int | float | str):
                click.echo(f"{key.replace('_', ' ')}: {_cell(value)}")
        click.echo(f"seconds: {seconds:.1f}", err=True)


def _shown(text: str) -> str:
    # Control characters could control the reader's terminal, so they are escaped.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_table(table: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    printed = Table(box=None, pad_edge=False, header_style="bold")
    for field in table.schema:
        right = str(field.type).startswith(("int", "double"))
        printed.add_column(field.name, justify="right" if right else "left")
    for row in table.slice(0, MAX_ROWS).to_pylist():
        printed.add_row(*(Text(_cell(value)) for value in row.values()))
    Console(highlight=False).print(printed)
    if table.num_rows > MAX_ROWS:
        click.echo(f"… and {table.num_rows - MAX_ROWS:,} more")


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case list():
            return _shown(",".join(map(str, value)))
        case _:
            return _shown(str(value))


def run_job(settings: Spark, work: Callable[[Run], None], *, on_spark: bool = True) -> None:
    """Run `work`; errors become one line and an exit code.

    Args:
        on_spark: whether it needs PySpark.
    """
    run = Run(settings)
    with errors_as_exit_codes(verbose=settings.verbose):
        if on_spark:
            with exit_on_interrupt():
                from mist.pipeline.preflight import require_spark

                require_spark()
        work(run)


@contextlib.contextmanager
def errors_as_exit_codes(*, verbose: bool) -> Iterator[None]:
    """Turn errors of the block into one line and an exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # see `LazyGroup.invoke`
    except MistError as error:
        if verbose and (details := getattr(error, "details", "")):
            click.echo(details, err=True)
        fail(_shown(str(error)), _exit_code(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", REFUSED)


def _exit_code(error: MistError) -> int:
    match error:
        case ArchiveMissing() | StartupError() | CommandError():
            return USAGE
        case _ if error.code in INPUT:
            return USAGE
        case _ if error.code in {"server_unavailable", "cluster_unavailable"}:
            return UNREACHABLE
        case _:
            return REFUSED


@contextlib.contextmanager
def output_folder(out: Path | None, *, overwrite: bool) -> Iterator[Path | None]:
    """A new directory that replaces `out` when the block succeeds."""
    if out is None:
        yield None
        return
    from mist.pipeline.jobs.export import beside, check_target, put_in_place

    check_target(out, overwrite=overwrite)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    making = beside(out)
    try:
        yield making
        put_in_place(making, out, overwrite=overwrite)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def check_file(flag: str, path: Path | None, out: Path | None = None) -> None:
    """Check that a file can be written, before the job begins.

    Args:
        path: None where the option isn't given.
        out: the folder that the job makes anew, if any.

    Raises:
        BadInput: its directory doesn't exist, or may not be written to; or it is in `out`.
    """
    from mist.pipeline.errors import BadInput

    if path is None:
        return
    if out is not None and path.resolve().is_relative_to(out.resolve()):
        raise BadInput(f"{flag} {path}: is in --out {out}, which is made anew; give another place")
    if not path.parent.is_dir():
        raise BadInput(f"{flag} {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"{flag} {path}: {path.parent} may not be written to")


def write_file(path: Path, text: str) -> None:
    """Write a text file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
