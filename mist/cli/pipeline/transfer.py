"""Copy messages elsewhere: export, replay, stream."""

from pathlib import Path

import attrs
import click

from mist.cli.numbers import FiniteRange
from mist.cli.paths import LocalPath
from mist.cli.pipeline.options import Source, Spark, source_options, spark_options
from mist.cli.pipeline.runner import Run, run_job

__all__ = ["export", "replay", "stream"]

UNRECORDED = "no archive records this copy: erasure will not find it"


@click.command()
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "jsonl", "delta"]),
    default="parquet",
    show_default=True,
)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=LocalPath(),
    help="The directory to create",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there")
@source_options
@spark_options
def export(settings: Spark, source: Source, kind: str, out: Path, overwrite: bool) -> None:
    """Write selected messages to files.

    The archive records the copy, so that erasure finds it. A line of jsonl is what
    `mist history show --json` prints.
    """

    def work(run: Run) -> None:
        from mist.pipeline.delta import require_delta
        from mist.pipeline.jobs import export as exporting

        origin = source.origin
        exporting.check_target(out, overwrite=overwrite)
        if kind == "delta":
            require_delta()
        origin.check_server()
        known_to = source.known_to
        if known_to is None:
            run.progress(UNRECORDED)
        with run.spark(source.rows) as spark:
            result = exporting.run(
                spark,
                origin,
                out,
                format=kind,  # type: ignore[arg-type]  # a choice of just these
                now=run.began,
                overwrite=overwrite,
                known_to=known_to,
                progress=run.progress,
            )
        run.finish(result.summary)

    run_job(settings, work)


@click.command()
@click.option(
    "--to",
    metavar="URL",
    help="The server to publish to  [default: --server, or localhost]",
)
@click.option("--to-secret", metavar="TEXT", envvar="MIST_TO_SECRET", help="Its secret")
@click.option(
    "--to-secret-file",
    type=LocalPath(exists=True, dir_okay=False),
    help="File with it",
)
@click.option("--to-token", metavar="TEXT", envvar="MIST_TO_TOKEN", help="A token for it instead")
@click.option("--rate", type=FiniteRange(0, min_open=True), help="Messages a second, at most")
@click.option("--txn", metavar="NAME", help="Publish once under this name, however often it is run")
@source_options
@spark_options
def replay(
    settings: Spark,
    source: Source,
    to: str | None,
    to_secret: str | None,
    to_secret_file: Path | None,
    to_token: str | None,
    rate: float | None,
    txn: str | None,
) -> None:
    """Publish selected messages again, in order.

    Messages get new ids and times, and are delivered like any others. Without --rate, all are
    published atomically. To resume after an interruption, run the same command with --txn.
    """
    if to_secret_file is not None:
        to_secret = to_secret_file.read_text().removesuffix("\n")

    def work(run: Run) -> None:
        from mist.pipeline.jobs import replay as replaying

        origin = source.origin
        target = replaying.Target(to or source.url or "http://127.0.0.1:8080", to_secret, to_token)
        if to is None and to_secret is None and to_token is None:
            target = attrs.evolve(target, secret=source.secret, token=source.token)
        run.progress(f"publishing to {target.address.name}")
        target.check(txn)
        origin.check_server()
        with run.spark() as spark:
            result = replaying.run(spark, origin, target, rate=rate, txn=txn, progress=run.progress)
        run.finish(result.summary)

    run_job(settings, work)


@click.command()
@click.option(
    "--to",
    "lake",
    metavar="DIR",
    required=True,
    type=LocalPath(),
    help="The lake: a new or empty directory, or that of a former run",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    type=LocalPath(),
    help="Where progress is recorded  [default: _checkpoint in the lake]",
)
@click.option("--once", is_flag=True, help="Stop when all messages published so far are written")
@click.option(
    "--every",
    type=FiniteRange(0),
    default=10.0,
    show_default=True,
    help="Seconds between batches",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    help="Messages in a batch, at most  [default: 10000000]",
)
@source_options
@spark_options
def stream(
    settings: Spark,
    source: Source,
    lake: Path,
    checkpoint: Path | None,
    once: bool,
    every: float,
    most: int | None,
) -> None:
    """Stream from a live server into a lake.

    Each message is written exactly once, until interrupted. Run again, it resumes where it
    stopped.

    The lake is a directory of Parquet files by day, for DuckDB, pandas and Spark; it is also an
    archive, for the other commands here: --archive DIR. Each batch adds a few files, so a short
    --every makes many small ones; `mist pipeline compact --archive DIR` merges them. It keeps
    the small ones for an hour for their readers. In that time tools that read all files of the
    directory see messages twice; readers of the archive don't.
    """

    def work(run: Run) -> None:
        from mist.pipeline.errors import BadInput
        from mist.pipeline.jobs import stream as streaming

        if source.url is None:
            raise BadInput("give --server: a stream reads from a live server")
        origin = source.origin
        streaming.check_target(lake)
        origin.check_server()
        known_to = source.known_to
        if known_to is None:
            run.progress(UNRECORDED)
        with run.spark() as spark:
            result = streaming.run(
                spark,
                origin,
                lake,
                now=run.began,
                checkpoint=checkpoint,
                once=once,
                every=every,
                most=most or streaming.MOST,
                known_to=known_to,
                progress=run.progress,
            )
        run.finish(result.summary)

    run_job(settings, work)
