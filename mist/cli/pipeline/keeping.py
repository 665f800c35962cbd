"""What changes an archive: compact, retain, erase."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from mist.cli.common import REFUSED
from mist.cli.pipeline.options import Spark, archive_option, secret_option, spark_options
from mist.cli.pipeline.running import Html, Run, running

__all__ = ["compact", "erase", "retain"]

TOKEN_ID: Final = re.compile(r"[0-9a-f]{16}")


@click.command()
@archive_option
@click.option("--from", "start", metavar="ID|TIME", help="Only segments that begin here or later")
@click.option("--until", "end", metavar="ID|TIME", help="Only segments that end before")
@click.option("--rows", type=click.IntRange(1), help="Messages of a segment, about")
@spark_options
def compact(
    settings: Spark, archive: Path, start: str | None, end: str | None, rows: int | None
) -> None:
    """Make few large segments of many small ones.

    What is replaced is deleted an hour later, so that nobody who reads it is disturbed.
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

    running(settings, work)


@click.command()
@archive_option
@click.option("--days", type=int, required=True, help="What ended longer ago goes, by whole days")
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    help="Seconds until the files go",
)
@click.option("--json", "as_json", is_flag=True, help="A summary in JSON on standard output")
def retain(archive: Path, days: int, tables: tuple[str, ...], grace: float, as_json: bool) -> None:
    """Drop old partitions. Takes no Spark."""

    def work(run: Run) -> None:
        from mist.archive import Archive
        from mist.pipeline.jobs import retain as retaining

        options: dict[str, Any] = {"tables": tables} if tables else {}
        options |= {"now": run.began, "grace": grace, "progress": run.progress}
        result = retaining.run(Archive.open(archive), days, **options)
        run.finish(result.summary)

    running(Spark("", {}, as_json, False), work, on_spark=False)


@click.command()
@archive_option
@click.option("--tag", metavar="TAGS", help="What carries it; a,b is what carries both")
@click.option("--publisher", metavar="NAME", help="What it published: a token's id or a listener")
@click.option(
    "--token",
    metavar="TOKEN",
    help="What this token published, by text or id; - reads it from stdin",
)
@click.option("--accounts", is_flag=True, help="What the accounts say of it, too")
@click.option("--url", metavar="URL", help="The server whose log it is, http://host:8080")
@click.option(
    "--history", metavar="URL", envvar="MIST_HISTORY", help="The log, where no server has it open"
)
@click.option("--no-log", is_flag=True, help="Leave the log out: only archive and exports")
@click.option(
    "--receipt",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the receipt goes; standard output unless given",
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
    url: str | None,
    history: str | None,
    no_log: bool,
    receipt: Path | None,
    secret: str | None,
) -> None:
    """Take messages out of everything: log, archive, and the exports the archive knows of.

    Give --url where a server runs; otherwise the log's file is changed directly. Files are
    removed at once, without the grace that others get: a job that reads them fails, and is run
    again. Exit code 1 where something could not be looked into; the receipt says what.
    """
    if sum(each is not None for each in (tag, publisher, token)) != 1:
        raise click.UsageError("give --tag, --publisher or --token: one of them")
    if sum((url is not None, history is not None, no_log)) > 1:
        raise click.UsageError("--url, --history and --no-log: give one of them")

    def work(run: Run) -> None:
        from mist.archive import Archive
        from mist.pipeline.java import require_java
        from mist.pipeline.jobs import erase as erasing
        from mist.pipeline.session import require_spark

        opened = Archive.open(archive)
        require_java()  # before the log is changed: half of it helps nobody
        require_spark()
        erasure = _erasure(tag, publisher, _id_of(token, archive))
        hot = None if no_log else _erase_log(run, erasure, archive, url, history, secret)
        with run.spark() as spark:
            result = erasing.run(
                spark,
                opened,
                erasure,
                hot=hot,
                began=run.began,
                now=time.time,
                accounts=accounts,
                progress=run.progress,
            )
        text = json.dumps(result.receipt, indent=1) + "\n"
        if receipt is not None:
            Html(receipt).write(text)
        if settings.as_json or receipt is None:
            click.echo(text, nl=False)
        if not result.complete:
            run.progress("not complete: see the receipt")
            sys.exit(REFUSED)

    running(settings, work)


def _erasure(tag: str | None, publisher: str | None, token: str | None) -> Any:
    from mist.history.erasing import Erasure
    from mist.message import MAX_MESSAGE_TAGS, parse_tags

    if tag is not None:
        return Erasure(tags=parse_tags(tag.split(","), MAX_MESSAGE_TAGS))
    return Erasure(publisher=token if publisher is None else publisher)


def _id_of(token: str | None, archive: Path) -> str | None:
    """The registry id of a token, by which messages know it."""
    if token is None:
        return None
    if token == "-":
        token = sys.stdin.readline().removesuffix("\n")
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
        raise BadInput("--token: give the token's id, as GET /v1/tokens and the audit name it")
    found = trio.run(look_up)
    if found is None:
        raise BadInput("--token: the registry doesn't know it; its id would still do")
    return found


def _erase_log(
    run: Run,
    erasure: Any,
    archive: Path,
    url: str | None,
    history: str | None,
    secret: str | None,
) -> dict[str, Any]:
    from mist.pipeline.erasure.hot import erase_by_file, erase_by_server
    from mist.pipeline.errors import BadInput
    from mist.pipeline.source.address import Address

    if url is not None:
        address = Address.parse(url, secret, None)
        run.progress(f"erasing at {address.name}")
        return erase_by_server(address, erasure)
    file = archive.parent / "history.db"
    if history is None and not file.exists():
        raise BadInput(f"no log at {file}: give --url, --history, or --no-log to leave it out")
    run.progress("erasing in the log")
    return erase_by_file(history or f"sqlite:///{file}", erasure)
