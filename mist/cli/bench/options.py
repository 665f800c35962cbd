"""The options of `mist bench`, and what makes a command of a function that takes them."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import attrs
import click

from mist.bench.cell import TRANSPORTS, Cell
from mist.bench.script import LETTERS, MAX_SIZE, MIN_SIZE
from mist.cli.bench.running import run
from mist.cli.bench.settings import Settings
from mist.cli.numbers import FiniteRange
from mist.cli.paths import LocalPath

__all__ = [
    "CONNECTIONS",
    "FOLDER",
    "MESSAGES",
    "MOST_LISTS",
    "PUBLISHERS",
    "RATE",
    "REQUESTS",
    "ROUNDS",
    "SECONDS",
    "SERVED",
    "SERVER",
    "SHARED",
    "SIZE",
    "TAG_LISTS",
    "WINDOW",
    "measuring",
    "number",
    "several",
    "subscriber_count",
]


def several(
    flag: str,
    name: str,
    values: Sequence[str],
    text: str = "Only this one; may be given more than once",
) -> Callable[..., Any]:
    """An option that takes some of these values.

    Args:
        name: of the parameter.
        text: of its help.
    """
    return click.option(flag, name, type=click.Choice(values), multiple=True, help=text)


SHARED: Final = [
    click.option("--quick", is_flag=True, help="A few seconds in all; rougher"),
    click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables"),
    click.option(
        "--html",
        metavar="FILE",
        type=LocalPath(dir_okay=False),
        help="Write a self-contained HTML page with plots, too",
    ),
]
SERVER: Final = [
    click.option(
        "--server",
        metavar="URL",
        multiple=True,
        help="Measure this server: tcp:// to publish (and subscribe), ws:// beside it to "
        "subscribe there, http:// for requests and event streams; without it, one is started "
        "and ended",
    ),
    click.option(
        "--secret",
        metavar="TEXT",
        envvar="MIST_SECRET",
        show_envvar=True,
        help="That server's secret; other users can see it here, so prefer the others",
    ),
    click.option(
        "--secret-file",
        type=LocalPath(exists=True, dir_okay=False),
        help="File that holds the secret",
    ),
    click.option(
        "--token",
        metavar="TEXT",
        envvar="MIST_TOKEN",
        help="A token for ws:// and event streams that grants the tags 'bench' and 'stall'; "
        "without it, one is registered over tcp:// for the time being",
    ),
    click.option(
        "--pid",
        metavar="PID",
        type=click.IntRange(1),
        help="That server's process, if it runs on this machine: for its CPU time and memory",
    ),
]
SERVED: Final = [
    several("--transport", "transport", TRANSPORTS, "What subscribers use; may be given twice"),
    *SERVER,
]


def number(
    flag: str, least: int, most: int, about: str, default: int | None = None, metavar: str = "N"
) -> Callable[..., Any]:
    return click.option(
        flag,
        metavar=metavar,
        type=click.IntRange(least, most),
        default=default,
        show_default=default is not None,
        help=about,
    )


PUBLISHERS = number("--publishers", 1, len(LETTERS), "Publishing connections")
subscriber_count = partial(number, "--subscribers", most=50_000, about="Subscribing connections")
MESSAGES = number(
    "--messages",
    1,
    100_000_000,
    "Messages to publish  [default: enough for steady figures]",
)
SIZE = number("--size", MIN_SIZE, MAX_SIZE, "Data of a message", 100, "BYTES")
WINDOW = number(
    "--window",
    0,
    1_000_000,
    "Messages in flight at most, so that none need be dropped; 0 for unthrottled",
    500,
)
MOST_LISTS: Final = 1_000_000  # different tag lists; some 1 KB of memory each
TAG_LISTS = number(
    "--tag-lists",
    1,
    MOST_LISTS,
    "Different tag lists that messages have in turns, all with the one tag subscribed to",
    1,
)
CONNECTIONS = number("--connections", 1, 50_000, "Connections  [default: 2000]")
RATE = click.option("--rate", metavar="N", type=FiniteRange(1, 1_000_000), help="Messages a second")
REQUESTS = number(
    "--requests",
    1,
    1_000_000,
    "Requests of each kind, and WebSockets that connect, in each round  [default: 300]",
)
ROUNDS = number("--rounds", 1, 1_000, "Rounds, of which medians are taken")
SECONDS = click.option(
    "--seconds",
    metavar="SECONDS",
    type=FiniteRange(0.01, 600),
    help="Time for each figure  [default: 1]",
)
FOLDER = click.option(
    "--folder",
    metavar="DIR",
    type=LocalPath(exists=True, file_okay=False, writable=True),
    help="Where files are made and removed, and so which disk  [default: for temporary files]",
)


def measuring(
    *options: Callable[..., Any], served: Sequence[Callable[..., Any]] = SERVED
) -> Callable[..., Any]:
    """Make a function from settings and options to cells a command that measures them.

    Args:
        options: of this command alone.
        served: those that say which server is measured, and how.
    """

    def decorate(function: Callable[..., Sequence[Cell]]) -> Callable[..., None]:
        @wraps(function)
        def command(
            quick: bool, as_json: bool, secret_file: Path | None = None, **given: Any
        ) -> None:
            names = {field.name for field in attrs.fields(Settings)}
            shared = {name: given.pop(name) for name in names & given.keys()}
            if secret_file is not None:
                shared["secret"] = secret_file.read_text().removesuffix("\n")
            settings = Settings(quick=quick, as_json=as_json, **shared)
            run(settings, function(settings, **given))

        for option in reversed([*options, *served, *SHARED]):
            command = option(command)
        return command

    return decorate
