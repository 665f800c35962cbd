"""`mist bench`: what mist does on this machine, in figures that print.

Here are options and exit codes. What is measured, and what the figures mean, is in
`mist.bench`; what a row of `--json` holds is in `mist.bench.report`. The module is long because
options and help texts are; there is little else in it.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import attrs
import click
from click.core import ParameterSource
from rich.console import Console

from mist.bench.errors import BenchError, NotThere
from mist.bench.process import raise_file_limit, resident_bytes, terminable
from mist.bench.report import Row, print_tables, show_progress
from mist.bench.script import LETTERS, MAX_SIZE, MIN_SIZE
from mist.bench.site import RESOURCE, Place, Site, given_site, own_site
from mist.bench.suite import (
    KINDS,
    TRANSPORTS,
    Cell,
    all_cells,
    fanout_cells,
    idle_cells,
    latency_cells,
    match_cells,
    publish_cells,
    run_cells,
    slow_consumer_cells,
)
from mist.cli.common import INTERRUPTED, REFUSED, UNREACHABLE, fail
from mist.client import BadArgument
from mist.client.address import Address

__all__ = ["bench"]

_PIPE_WIDTH: Final = 120  # columns
_MAX_SECONDS: Final = 300  # of one latency run
_DELIVERY_TRANSPORTS: Final = ("tcp",)  # of commands that measure one unless told


@attrs.frozen(kw_only=True)
class Settings:
    """What all subcommands share.

    Attributes:
        transport: what subscribers use; none for what the command finds sensible.
        server: URLs of a server to be measured; none for one of our own.
        secret, token: for its TCP and its WebSocket door.
        pid: its process.
    """

    quick: bool = False
    as_json: bool = False
    transport: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    pid: int | None = None

    @property
    def reachable(self) -> tuple[str, ...]:
        """Transports that can be measured: all, or those of the URLs given."""
        given = [_place(url)[0] for url in self.server]
        return tuple(each for each in TRANSPORTS if not given or each in given)

    @property
    def memory_is_known(self) -> bool:
        """Whether the server's memory can be read, here and from outside."""
        known = not self.server or self.pid is not None
        return known and resident_bytes(self.pid or os.getpid()) is not None

    def open_site(self) -> AbstractContextManager[Site]:
        """The server to measure.

        Raises:
            click.UsageError: the options contradict each other.
        """
        if not self.server:
            if self.pid is not None:
                raise click.UsageError("--pid is for a server given by --server")
            return own_site()
        places: dict[str, Place] = {}
        for url in self.server:
            protocol, place = _place(url)
            if protocol in places:
                raise click.UsageError(f"two {protocol}:// servers are given")
            places[protocol] = place
        return given_site(
            places.get("tcp"), places.get("ws"), secret=self.secret, token=self.token, pid=self.pid
        )


def _place(url: str) -> tuple[str, Place]:
    try:
        address = Address.parse(url if "://" in url else f"tcp://{url}")
    except BadArgument as error:
        raise click.UsageError(f"--server: {error}") from None
    if address.tls or address.path:
        raise click.UsageError("--server: tcp:// and ws:// can be measured, TLS and unix:// not")
    resource = address.resource if address.protocol == "ws" else RESOURCE
    return address.protocol, Place(address.host, address.port, resource)


# Options

_SHARED: Final = [
    click.option("--quick", is_flag=True, help="A few seconds in all; rougher"),
    click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables"),
]
_SERVED: Final = [
    click.option(
        "--transport",
        type=click.Choice(TRANSPORTS),
        multiple=True,
        help="What subscribers use; may be given twice",
    ),
    click.option(
        "--server",
        metavar="URL",
        multiple=True,
        help="Measure this server: tcp:// to publish (and subscribe), ws:// beside it to "
        "subscribe there; without it, one is started and ended",
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
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File that holds the secret",
    ),
    click.option(
        "--token",
        metavar="TEXT",
        envvar="MIST_TOKEN",
        help="A token for ws:// that grants the tags 'bench' and 'stall'; without it, one is "
        "registered over tcp:// for the time being",
    ),
    click.option(
        "--pid",
        metavar="PID",
        type=click.IntRange(1),
        help="That server's process, if it runs on this machine: for its CPU time and memory",
    ),
]


def _number(
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


_publishers = _number("--publishers", 1, len(LETTERS), "Publishing connections")
_subscribers = partial(_number, "--subscribers", most=50_000, about="Subscribing connections")
_messages = _number(
    "--messages",
    1,
    100_000_000,
    "Messages to publish  [default: enough for steady figures]",
)
_size = _number("--size", MIN_SIZE, MAX_SIZE, "Data of a message", 100, "BYTES")
_window = _number(
    "--window",
    0,
    1_000_000,
    "Messages underway at most, so that none need be dropped; 0 for unthrottled",
    500,
)
_tag_lists = _number(
    "--tag-lists",
    1,
    10_000,
    "Different tag lists that messages have in turns, all with the one tag subscribed to",
    1,
)
_connections = _number("--connections", 1, 50_000, "Connections  [default: 2000]")
_rate = click.option(
    "--rate", metavar="N", type=click.FloatRange(1, 1_000_000), help="Messages a second"
)


def _measuring(*options: Callable[..., Any], served: bool = True) -> Callable[..., Any]:
    """Make a function from settings and options to cells a command that measures them."""

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
            _run(settings, function(settings, **given))

        for option in reversed([*options, *(_SERVED if served else []), *_SHARED]):
            command = option(command)
        return command

    return decorate


# Commands


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mist bench --quick                               a first look, in a few seconds
  mist bench fanout --subscribers 100              1 publisher, 100 subscribers
  mist bench fanout --transport ws --window 0      browsers; what is dropped is counted
  mist bench latency --rate 20000 --json
  mist bench idle --server tcp://127.0.0.1:1445 --pid 4711""",
)
@click.pass_context
def bench(context: click.Context, /, **given: Any) -> None:
    """Measure mist on this machine; without a COMMAND, a bit of everything.

    Beside rates, which move with whatever else the machine does, stand the server's CPU
    seconds for a million messages or deliveries, which don't.
    """
    if context.invoked_subcommand is None:
        context.invoke(everything, **given)
        return
    # What stands before the command is meant for it.
    chosen = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    context.default_map = {context.invoked_subcommand: chosen}


for _option in (*_SERVED, *_SHARED):
    bench = _option(bench)


@bench.command("all")
@_measuring()
def everything(settings: Settings) -> Sequence[Cell]:
    """A bit of everything: about a minute.

    What can't be measured of a given server, for want of a URL or its --pid, is left out.
    """
    transports = settings.transport or settings.reachable
    return all_cells(transports, quick=settings.quick, idle=settings.memory_is_known)


@bench.command()
@_measuring(
    _number("--subscriptions", 1, 10_000_000, "Distinct tag sets"),
    _number("--vocabulary", 20, 10_000_000, "Distinct tags that they are drawn from"),
    click.option("--zipf", is_flag=True, help="The n-th tag is 1/n as popular as the first"),
    served=False,
)
def match(
    settings: Settings, subscriptions: int | None, vocabulary: int | None, zipf: bool
) -> Sequence[Cell]:
    """Matching alone: no server, no connection.

    --subscriptions of 2 to 4 tags out of a --vocabulary, messages of 3 to 10.
    """
    if subscriptions is None and vocabulary is None:
        return match_cells(zipf=zipf, quick=settings.quick)
    return match_cells([(subscriptions or 100_000, vocabulary or 10_000)], zipf=zipf)


@bench.command()
@_measuring(_publishers, _subscribers(least=0, most=1), _messages, _size, _window, _tag_lists)
def publish(
    settings: Settings, publishers: int | None, subscribers: int | None, **options: Any
) -> Sequence[Cell]:
    """Publishing over TCP, to nobody or to one subscriber.

    A message counts once the server has proved that it has carried it out.
    """
    transports = settings.transport or _DELIVERY_TRANSPORTS
    shapes = [(n, subscribers or 0) for n in ([publishers] if publishers else [1, 10])]
    return publish_cells(shapes, transports, quick=settings.quick, **options)


@bench.command()
@_measuring(_publishers, _subscribers(least=1), _messages, _size, _window, _tag_lists)
def fanout(
    settings: Settings, publishers: int | None, subscribers: int | None, **options: Any
) -> Sequence[Cell]:
    """Publishers on TCP, each message to all subscribers.

    Everything that arrives is compared with what was sent: whether it is complete, in order,
    and there once.
    """
    if publishers is not None or subscribers is not None:
        options["shapes"] = [(publishers or 1, subscribers or 1)]
    transports = settings.transport or _DELIVERY_TRANSPORTS
    return fanout_cells(transports=transports, quick=settings.quick, **options)


@bench.command()
@_measuring(_rate, _subscribers(least=1), _messages, _size)
def latency(
    settings: Settings, rate: float | None, subscribers: int | None, **options: Any
) -> Sequence[Cell]:
    """Time from the publisher's write to the subscriber's read, at a fixed rate.

    The intended latency counts from when the message was due: it includes waiting for a
    publisher that is late itself.
    """
    rate = rate or 5_000
    if (options["messages"] or 0) / rate > _MAX_SECONDS:
        raise click.UsageError(
            f"so many --messages take longer than {_MAX_SECONDS} s at that --rate"
        )
    return latency_cells(
        settings.transport or settings.reachable,
        rate=rate,
        subscribers=subscribers or 1,
        quick=settings.quick,
        **options,
    )


@bench.command()
@_measuring(_connections)
def idle(settings: Settings, connections: int | None) -> Sequence[Cell]:
    """Memory that an idle, subscribed connection takes in the server."""
    transports = settings.transport or settings.reachable
    return idle_cells(transports, connections=connections, quick=settings.quick)


@bench.command("slow-consumer")
@_measuring(_subscribers(least=2), _rate, _size)
def slow_consumer(
    settings: Settings, subscribers: int | None, rate: float | None, size: int
) -> Sequence[Cell]:
    """What a subscriber that stops reading costs the others, and what it loses itself."""
    transports = settings.transport or _DELIVERY_TRANSPORTS
    return slow_consumer_cells(
        transports,
        subscribers=subscribers or 100,
        rate=rate,
        size=size,
        quick=settings.quick,
    )


# Running


def _run(settings: Settings, cells: Sequence[Cell]) -> None:
    """Measure, then print, whatever came of it."""
    raise_file_limit()
    kinds = {cell.kind for cell in cells}
    results: dict[str, list[Row]] = {kind: [] for kind in KINDS if kind in kinds}
    error: BenchError | ValueError | None = None
    current = ""
    with terminable(), show_progress(len(cells)) as show:

        def started(cell: Cell) -> None:
            nonlocal current
            current = cell.label
            show(current)

        try:
            run_cells(cells, settings.open_site, results, started)
        except (BenchError, ValueError) as caught:
            error = caught
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    if error is None or any(results.values()):
        _print(settings, results)
    if error is not None:
        where = f"{current}: " if current else ""
        fail(f"{where}{error}", UNREACHABLE if isinstance(error, NotThere) else REFUSED)


def _print(settings: Settings, results: Mapping[str, Sequence[Row]]) -> None:
    about = {"python": platform.python_version(), "processors": os.cpu_count()}
    if settings.as_json:
        click.echo(json.dumps({**about, **results}))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)  # nothing is cut where nobody could widen it
    console.print(f"Python {about['python']}, {about['processors']} processors", highlight=False)
    print_tables(console, results)
