"""The commands of `mist bench`: each makes cells of its options."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.fairness.cells import ATTACKS, fairness_cells
from mist.bench.history.cells import history_cells
from mist.bench.history.search import FEWEST
from mist.bench.http.cells import http_cells
from mist.bench.nodes.cells import ENGINES, nodes_cells
from mist.bench.pipeline.cells import JOBS, pipeline_cells
from mist.bench.suite import (
    all_cells,
    fanout_cells,
    idle_cells,
    latency_cells,
    match_cells,
    publish_cells,
    slow_consumer_cells,
)
from mist.cli.bench.options import (
    CONNECTIONS,
    FOLDER,
    MESSAGES,
    MOST_LISTS,
    PUBLISHERS,
    RATE,
    REQUESTS,
    ROUNDS,
    SECONDS,
    SERVED,
    SERVER,
    SHARED,
    SIZE,
    TAG_LISTS,
    WINDOW,
    measuring,
    number,
    several,
    subscriber_count,
)
from mist.cli.bench.settings import Settings
from mist.cli.exits import REFUSED, fail

__all__ = ["bench"]

_MAX_SECONDS: Final = 300  # of one latency run
_DELIVERY_TRANSPORTS: Final = ("tcp",)  # of commands that measure one unless told


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mist bench --quick                               a first look, in a few seconds
  mist bench fanout --subscribers 100              1 publisher, 100 subscribers
  mist bench fanout --transport ws --window 0      browsers; what is dropped is counted
  mist bench latency --rate 20000 --json
  mist bench --html bench.html                     with plots, to show to others
  mist bench history --folder /var/lib/mist        on the disk that it will be on
  mist bench history --tag-lists 225000            with tags that hardly come again
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
    command = bench.get_command(context, context.invoked_subcommand)
    if command is not None:
        taken = {option.name for option in command.params}
        for option in context.command.params:
            if option.name in chosen and option.name not in taken:
                raise click.UsageError(f"{option.opts[0]} is not for {command.name}")
    context.default_map = {context.invoked_subcommand: chosen}


for _option in (*SERVED, *SHARED):
    bench = _option(bench)


@bench.command("all")
@measuring()
def everything(settings: Settings) -> Sequence[Cell]:
    """A bit of everything: somewhat more than a minute.

    What can't be measured of a given server, for want of a URL or its --pid, is left out; so
    is what a history costs it, which takes servers of our own.
    """
    return all_cells(
        settings.transport or settings.reachable,
        quick=settings.quick,
        idle=settings.memory_is_known,
        http=settings.has_http,
        history=not settings.server,
    )


@bench.command()
@measuring(
    number("--subscriptions", 1, 10_000_000, "Distinct tag sets"),
    number("--vocabulary", 20, 10_000_000, "Distinct tags that they are drawn from"),
    click.option("--zipf", is_flag=True, help="The n-th tag is 1/n as popular as the first"),
    served=(),
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
@measuring(PUBLISHERS, subscriber_count(least=0, most=1), MESSAGES, SIZE, WINDOW, TAG_LISTS)
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
@measuring(PUBLISHERS, subscriber_count(least=1), MESSAGES, SIZE, WINDOW, TAG_LISTS)
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
@measuring(RATE, subscriber_count(least=1), MESSAGES, SIZE)
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
@measuring(CONNECTIONS)
def idle(settings: Settings, connections: int | None) -> Sequence[Cell]:
    """Memory that an idle, subscribed connection takes in the server."""
    transports = settings.transport or settings.reachable
    return idle_cells(transports, connections=connections, quick=settings.quick)


@bench.command("slow-consumer")
@measuring(subscriber_count(least=2), RATE, SIZE)
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


@bench.command()
@measuring(REQUESTS, subscriber_count(least=1), RATE, ROUNDS, served=SERVER)
def http(settings: Settings, **options: Any) -> Sequence[Cell]:
    """What HTTP costs the server: about a minute and a half, --quick ten seconds.

    \b
    requests    POST /v1/messages, one at a time: with a history and without, with tag lists
                never seen before, on a connection each, and with many messages each
    WebSockets  that connect with a token; that connect, subscribe and close
    streams     a delivery on an event stream, at --rate to --subscribers, and flat out, beside
                one over a WebSocket and one over TCP

    A given server needs all of tcp://, ws:// and http://, and --pid for its CPU time.
    """
    return http_cells(history=not settings.server, quick=settings.quick, **options)


@bench.command()
@measuring(
    number(
        "--messages",
        FEWEST,
        100_000_000,
        "Messages to search among; some 150 bytes of disk each  [default: 1000000]",
    ),
    number(
        "--tag-lists",
        1,
        MOST_LISTS,
        "Different tag lists that messages have in turns; 225000 for such as hardly come again  "
        "[default: 1 and 1000]",
    ),
    SECONDS,
    FOLDER,
    click.option("--idle", is_flag=True, help="Leave the event loop in peace beside the log"),
    served=(),
)
def history(settings: Settings, folder: Path | None, idle: bool, **options: Any) -> Sequence[Cell]:
    """What a history costs and gives: about two minutes, --quick fifteen seconds.

    \b
    appends    durable messages/s of the log alone, beside SQLite's own bare appends
    publishes  end to end, with --history none, and sqlite by --durability, in turns
    size       bytes on the disk for a message, beside bare rows in SQLite
    replay     all that is stored, of the log alone and over TCP
    search     1,000 matches among many messages: the first, and all of them

    The log alone is measured beside a saturated event loop, since that is where it runs.
    """
    return history_cells(folder, busy=not idle, quick=settings.quick, **options)


@bench.command()
@measuring(
    several("--attack", "attacks", ATTACKS),
    ROUNDS,
    SECONDS,
    served=(),
)
def fairness(settings: Settings, attacks: Sequence[str], **options: Any) -> Sequence[Cell]:
    """What one peer, within its limits, does to all others: some minutes, --quick one.

    \b
    match      messages of 64 tags to 100 WebSockets of one token, 996 subscriptions each
    million    tag lists never seen before, where a service has a million subscriptions
    subscribe  all those WebSockets subscribe at once, or end at once
    request    requests and lines with very many tags, with the right to publish and without
    replay     10 readers of a million messages
    wide       a message to 10,000 connections, or 100,000 subscriptions of a NATS client;
               many messages, each to some

    Beside each a probe in a process of its own sends a message every 2 ms, and a request every
    20 ms, and times them: quiet and attacked, in turns, on a server that the attack has to
    itself. A second probe does so on another server, which nobody attacks: it shows what of the
    wait is due to the load of this machine. What takes more than two minutes is ended, and
    shown as longer.
    """
    return fairness_cells(attacks, quick=settings.quick, **options)


@bench.command()
@measuring(
    several("--engine", "engines", ENGINES, "Only this one  [default: all that are installed]"),
    ROUNDS,
    SECONDS,
    number(
        "--log-mebibytes",
        1,
        100_000,
        "Data that a new node has to read; 1024 for a GiB  [default: 64]",
    ),
    FOLDER,
    served=(),
)
def nodes(
    settings: Settings, engines: Sequence[str], log_mebibytes: int | None, **options: Any
) -> Sequence[Cell]:
    """Two nodes on an engine: two to three minutes, --quick one.

    \b
    idle node    CPU of one without clients
    latency      from one node to the other, at 2,000 messages/s
    revocation   at one node, until the session at the other has ended
    publish      full blocks at one node, to a subscriber at the other; CPU of both, and the engine
    engine       killed and started again: until a store is acknowledged
    new node     until it has the log and is ready
    node killed  until its client has its next message at another

    Starts a Redis (appendfsync everysec, then always) and a PostgreSQL (as installed), each with
    two nodes, and ends them. It says which is not installed, and what could not be measured. Beside
    the medians stands what is asked of them on a machine with little else to do.
    """
    try:
        return nodes_cells(
            engines,
            mebibytes=log_mebibytes,
            quick=settings.quick,
            progress=partial(click.echo, err=True),
            **options,
        )
    except BenchError as error:
        fail(str(error), REFUSED)


@bench.command()
@measuring(
    several("--job", "jobs", JOBS),
    number(
        "--messages",
        20,
        1_000_000_000,
        "Messages to match and roll up; some 160 bytes of disk each  [default: 10000000]",
    ),
    number(
        "--plain-messages",
        20,
        1_000_000_000,
        "The first of them only, where the plain forms take too long  [default: all]",
    ),
    number("--subscriptions", 1, 10_000_000, "Subscriptions to match  [default: 100000]"),
    ROUNDS,
    served=(),
)
def pipeline(settings: Settings, jobs: Sequence[str], **options: Any) -> Sequence[Cell]:
    """Jobs on Spark beside plain DataFrame code: some minutes for each, --quick three for all.

    \b
    match      messages against --subscriptions
    one-core   the same against ten times as many, on one core, without Spark
    rollup     by hour and tag
    compact    500 segments into 4
    small      a roll-up of 10,000 messages, with the start of Spark
    stream     from a server of its own into a lake, beside a query with Spark's sink
    cluster    match, rollup, compact on two workers, with an executor killed in between

    Each job and its plain form go over the same messages, in turns in --rounds, of which medians
    are shown, and have to give the same; so has the cluster. match and rollup have a hard case
    beside, of a million tags, which hardly repeat. What is done is told on standard error. Needs
    Java, and mist-pubsub[spark].
    """
    tell = partial(click.echo, err=True)
    return pipeline_cells(jobs, quick=settings.quick, progress=tell, **options)
