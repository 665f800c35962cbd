"""Shared options: the source of messages, Spark, and where results go."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from mist.cli.options import (
    HTTP_SCHEMES,
    data_option,
    json_option,
    secret_option,
    server_option,
)
from mist.cli.paths import LocalPath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mist.archive import Archive
    from mist.pipeline.origin import Origin
    from mist.pipeline.reading import Messages

__all__ = [
    "Source",
    "Spark",
    "archive_option",
    "live_option",
    "out_options",
    "source_options",
    "spark_options",
]

Command = Callable[..., Any]
FOLDER = LocalPath(file_okay=False)


@attrs.frozen
class Spark:
    """The Spark session of a command, and its output settings."""

    master: str
    conf: dict[str, str]
    as_json: bool
    verbose: bool


@attrs.frozen
class Source:
    """Where messages come from. Made of plain options; Arrow is imported later.

    Attributes:
        archive: given or the default; None where `url` is given.
    """

    archive: Path | None
    url: str | None
    secret: str | None = attrs.field(repr=False)
    token: str | None = attrs.field(repr=False)
    subscribe: str | None
    start: str | None
    end: str | None
    skip_lost: bool = False
    default_archive: Path = Path("mist-data/archive")

    @property
    def origin(self) -> "Origin":
        """The validated origin for the jobs.

        Raises:
            MistError: it can't be used; the text is one line.
        """
        from mist.pipeline.origin import Origin

        found = Origin(
            archive=self.archive,
            url=self.url,
            secret=self.secret,
            token=self.token,
            subscribe=self.subscribe,
            start=self.start,
            end=self.end,
            skip_lost=self.skip_lost,
        )
        found.check()
        return found

    def messages(self, spark: "SparkSession") -> "Messages":
        """The messages for kernels.

        Raises:
            BadInput: the archive has no selected message.
        """
        from mist.archive import Archive
        from mist.pipeline.errors import BadInput
        from mist.pipeline.reading import Archived, Framed
        from mist.pipeline.selection import Selection, parse_alternatives

        origin = self.origin
        if origin.archive is None:
            return Framed(origin.frame(spark))
        archive = Archive.open(origin.archive)
        wanted = Selection(origin.range, parse_alternatives(origin.subscribe))
        if not any(each.rows for each in wanted.segments(archive.messages.current().segments)):
            raise BadInput("no message is selected")
        return Archived(archive, wanted)

    @property
    def rows(self) -> int:
        """Rows of the segments that are selected from; 0 where a server has them."""
        from mist.archive import Archive
        from mist.pipeline.selection import Selection

        origin = self.origin
        if origin.archive is None:
            return 0
        segments = Archive.open(origin.archive).messages.current().segments
        return sum(each.rows for each in Selection(origin.range).segments(segments))

    @property
    def known_to(self) -> "Archive | None":
        """The archive that records exports: the one read, or the data directory's, if any."""
        from mist.archive import Archive

        archive = Archive(self.archive or self.default_archive)
        return archive if archive.messages.exists else None


def spark_options(function: Command) -> Command:
    """`--master`, `--conf`, `--json`, `--verbose` as one argument `settings`."""

    @click.option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="The Spark master: local[N], spark://HOST:7077",
    )
    @click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A Spark setting (repeatable)")
    @json_option("A summary in JSON on standard output")
    @click.option("-v", "--verbose", is_flag=True, help="Show Spark's log and tracebacks")
    @functools.wraps(function)
    def command(
        *args: Any, master: str, conf: tuple[str, ...], as_json: bool, verbose: bool, **kwargs: Any
    ) -> Any:
        pairs = dict(_pair(each) for each in conf)
        return function(*args, settings=Spark(master, pairs, as_json, verbose), **kwargs)

    return command


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise click.BadParameter(f"{text!r} is not spark.SOMETHING=VALUE", param_hint="--conf")
    return key, value


def archive_option(function: Command) -> Command:
    """`--archive`, and `--data` that its default is in; as one argument `archive`."""

    @_archive
    @data_option
    @functools.wraps(function)
    def command(*args: Any, archive: Path | None, data: Path, **kwargs: Any) -> Any:
        return function(*args, archive=archive or data / "archive", **kwargs)

    return command


_archive = click.option(
    "--archive",
    metavar="DIR",
    type=LocalPath(),
    envvar="MIST_ARCHIVE",
    show_envvar=True,
    help="The archive  [default: archive in the data directory]",
)


def live_option(text: str) -> Callable[[Command], Command]:
    """`--server` where a server is one of several sources, as the parameter `server`.

    No variable gives it: one that is set for other commands would change what is read.
    """
    return server_option(HTTP_SCHEMES, None, text, alias="--url", environment=False)


def credentials(function: Command) -> Command:
    """`--secret`, `--secret-file`, `--token`, as arguments `secret` and `token`."""

    @secret_option
    @click.option("--token", metavar="TEXT", envvar="MIST_TOKEN", help="A token instead")
    @functools.wraps(function)
    def command(*args: Any, secret: str | None, token: str | None, **kwargs: Any) -> Any:
        context = click.get_current_context()
        if token is not None and secret is not None and context.params["secret_file"] is None:
            # One may come from the environment; the one on the command line wins.
            if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
                secret = None
            else:
                token = None
        return function(*args, secret=secret, token=token, **kwargs)

    return command


def source_options(function: Command) -> Command:
    """The selection of messages, as one argument `source`."""

    @_archive
    @data_option
    @live_option("Read from a live server instead, http://HOST:8080")
    @credentials
    @click.option("--subscribe", metavar="TAGS", help="Select by tags: 'a,b; c' is a and b, or c")
    @click.option("--from", "start", metavar="ID|TIME", help="Start: an id, or ISO 8601 (UTC)")
    @click.option("--until", "end", metavar="ID|TIME", help="End (exclusive)")
    @click.option("--skip-lost", is_flag=True, help="Skip missing messages instead of failing")
    @functools.wraps(function)
    def command(
        *args: Any,
        archive: Path | None,
        data: Path,
        server: str | None,
        secret: str | None,
        token: str | None,
        subscribe: str | None,
        start: str | None,
        end: str | None,
        skip_lost: bool,
        **kwargs: Any,
    ) -> Any:
        given = click.get_current_context().get_parameter_source("archive")
        if server is not None and archive is not None and given is ParameterSource.COMMANDLINE:
            raise click.UsageError("--archive and --server: give one of them")
        place = archive or data / "archive"
        source = Source(
            archive=None if server else place,
            url=server,
            secret=secret if server else None,
            token=token if server else None,
            subscribe=subscribe,
            start=start,
            end=end,
            skip_lost=skip_lost,
            default_archive=place,
        )
        return function(*args, source=source, **kwargs)

    return command


def out_options(function: Command) -> Command:
    """`--out`, `--overwrite`, `--html`, as they are."""
    for option in (
        click.option(
            "--html",
            metavar="FILE",
            type=LocalPath(dir_okay=False),
            help="Write a self-contained HTML page",
        ),
        click.option("--overwrite", is_flag=True, help="Replace what is at --out"),
        click.option("--out", metavar="DIR", type=FOLDER, help="Write all rows as Parquet"),
    ):
        function = option(function)
    return function
