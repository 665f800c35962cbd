"""Archive maintenance: compact, retain, erase."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mist.cli.exits import REFUSED
from mist.cli.numbers import FiniteRange
from mist.cli.options import json_option, secret_option
from mist.cli.paths import LocalPath
from mist.cli.pipeline.options import Spark, archive_option, live_option, spark_options
from mist.cli.pipeline.runner import Run, check_file, run_job, write_file
from mist.cli.standard_input import read_line

if TYPE_CHECKING:
    from mist.pipeline.jobs.erase import Result

__all__ = ["compact", "erase", "retain"]

TOKEN_ID: Final = re.compile(r"[0-9a-f]{16}")


@click.command()
@archive_option
@click.option("--from", "start", metavar="ID|TIME", help="Only segments that begin here or later")
@click.option("--until", "end", metavar="ID|TIME", help="Only segments that end before")
@click.option("--rows", type=click.IntRange(1), help="Approximate number of messages per segment")
@spark_options
def compact(
    settings: Spark, archive: Path, start: str | None, end: str | None, rows: int | None
) -> None:
    """Merge many small segments into few large ones.

    Replaced files are deleted an hour later, so that readers are not disturbed.
    """

    def work(run: Run) -> None:
        from mist.archive import Archive
        from mist.pipeline.jobs import compact as compacting
        from mist.pipeline.selection import Range, Selection

        opened = Archive.open(archive)
        wanted = Selection(Range.parse(start, end))
        options = {} if rows is None else {"rows": rows}
        with run.spark() as spark:
            result = compacting.run(spark, opened, wanted, progress=run.progress, **options)
        opened.messages.sweep()
        run.finish(result.summary, result.table)

    run_job(settings, work)


@click.command()
@archive_option
@click.option("--days", type=int, required=True, help="Remove partitions older than that")
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable")
@click.option(
    "--grace",
    type=FiniteRange(0),
    default=3600.0,
    show_default=True,
    help="Seconds until the files are deleted",
)
@json_option("A summary in JSON on standard output")
def retain(archive: Path, days: int, tables: tuple[str, ...], grace: float, as_json: bool) -> None:
    """Drop old partitions. Does not need Spark."""

    def work(run: Run) -> None:
        from mist.archive import Archive
        from mist.pipeline.jobs import retain as retaining

        options: dict[str, Any] = {"tables": tables} if tables else {}
        options |= {"now": run.began, "grace": grace, "progress": run.progress}
        result = retaining.run(Archive.open(archive), days, **options)
        run.finish(result.summary)

    run_job(Spark("", {}, as_json, False), work, on_spark=False)


@click.command()
@archive_option
@click.option("--tag", metavar="TAGS", help="Messages with this tag; a,b: with both")
@click.option("--publisher", metavar="NAME", help="Messages of this token's id or listener")
@click.option(
    "--token",
    metavar="TOKEN",
    help="Messages published with this token, by text or id; - reads it from stdin",
)
@click.option("--accounts", is_flag=True, help="Erase its usage accounting too")
@live_option("The server that has the log open, http://HOST:8080")
@click.option(
    "--history", metavar="URL", envvar="MIST_HISTORY", help="The log, if no server has it open"
)
@click.option("--no-log", is_flag=True, help="Skip the log: only archive and exports")
@click.option(
    "--receipt",
    metavar="FILE",
    type=LocalPath(dir_okay=False),
    help="File for the receipt  [default: standard output]",
)
@secret_option
@spark_options
def erase(
    settings: Spark,
    archive: Path,
    tag: str | None,
    publisher: str | None,
    token: str | None,
    accounts: bool,
    server: str | None,
    history: str | None,
    no_log: bool,
    receipt: Path | None,
    secret: str | None,
) -> None:
    """Erase messages everywhere.

    That is in the log, the archive, and the exports recorded in the archive. Give --server if one
    runs; otherwise the log's file is changed directly. Files are removed at once, without a grace
    period: a job that reads them fails and must be run again. Exit code 1 if something could not be
    searched; the receipt says what. A failed erasure leaves a receipt too, of what it has erased,
    with "complete": false; run it again for the rest.
    """
    if sum(each is not None for each in (tag, publisher, token)) != 1:
        raise click.UsageError("give --tag, --publisher or --token: one of them")
    if sum((server is not None, history is not None, no_log)) > 1:
        raise click.UsageError("--server, --history and --no-log: give one of them")

    def work(run: Run) -> None:
        from mist.archive import Archive
        from mist.pipeline.jobs import erase as erasing
        from mist.pipeline.preflight import require_java, require_spark

        opened = Archive.open(archive)
        check_file("--receipt", receipt)
        require_java()  # before the log is changed, so that nothing is half erased
        require_spark()
        erasure = _erasure(tag, publisher, _id_of(token, archive))
        erase_log = None if no_log else _log_eraser(run, erasure, archive, server, history, secret)
        result = erasing.Result(erasure, archive, run.began)
        with _receipt(result, receipt, show=settings.as_json or receipt is None):
            if erase_log is not None:
                erase_log(result)
            with run.spark() as spark:
                erasing.run(
                    spark,
                    opened,
                    erasure,
                    hot=result.hot,
                    began=run.began,
                    now=time.time,
                    accounts=accounts,
                    progress=run.progress,
                    result=result,
                )
        if not result.complete:
            run.progress("not complete: see the receipt")
            sys.exit(REFUSED)

    run_job(settings, work)


def _erasure(tag: str | None, publisher: str | None, token: str | None) -> Any:
    from mist.client.arguments import tag_set
    from mist.history.erasure import Erasure
    from mist.message import MAX_MESSAGE_TAGS

    if tag is not None:
        return Erasure(tags=tag_set(tag.split(","), MAX_MESSAGE_TAGS))
    return Erasure(publisher=token if publisher is None else publisher)


def _id_of(token: str | None, archive: Path) -> str | None:
    """The registry id of a token, which messages record as their publisher."""
    if token is None:
        return None
    if token == "-":
        token = read_line()
    if TOKEN_ID.fullmatch(token):
        return token
    import trio

    from mist.auth.opening import open_registry
    from mist.pipeline.errors import BadInput

    async def look_up() -> str | None:
        async with await open_registry(f"sqlite:///{archive.parent / 'tokens.db'}") as registry:
            record = registry.lookup(token)
            return None if record is None else record.id

    if not (archive.parent / "tokens.db").exists():
        raise BadInput("--token: give the token's id, as listed by GET /v1/tokens and the audit")
    found = trio.run(look_up)
    if found is None:
        raise BadInput("--token: unknown to the registry; give its id instead")
    return found


@contextlib.contextmanager
def _receipt(result: "Result", file: Path | None, *, show: bool) -> Iterator[None]:
    """Write the receipt at the end of the block, also where that is an error or an interrupt."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        why = str(error).splitlines()[:1] or [type(error).__name__]
        result.failure = why[0]
        click.echo(f"not complete: {result.gone}; run it again for the rest", err=True)
        raise
    finally:
        text = json.dumps(result.receipt, indent=1) + "\n"
        if show:
            click.echo(text, nl=False)
        if file is not None:
            try:
                write_file(file, text)
            except OSError:
                # Nothing can tell any more what was erased, but this.
                if not show:
                    click.echo(text, nl=False)
                raise


def _log_eraser(
    run: Run,
    erasure: Any,
    archive: Path,
    url: str | None,
    history: str | None,
    secret: str | None,
) -> "Callable[[Result], None]":
    """What erases in the log; made before anything is erased, so that wrong input is told first."""
    from mist.pipeline.erasure.hot import erase_by_file, erase_by_server
    from mist.pipeline.errors import BadInput
    from mist.pipeline.source.address import Address

    file = archive.parent / "history.db"
    address = None if url is None else Address.parse(url, secret, None)
    if url is None and history is None and not file.exists():
        raise BadInput(f"no log at {file}: give --server, --history, or --no-log to leave it out")

    def erase_log(result: "Result") -> None:
        def report(hot: dict[str, Any]) -> None:
            result.hot = hot

        with run.working("erasing in the log" if address is None else f"erasing at {address.name}"):
            if address is not None:
                erase_by_server(address, erasure, report=report, progress=run.progress)
            else:
                place = history or f"sqlite:///{file}"
                erase_by_file(place, erasure, report=report, progress=run.progress)

    return erase_log
