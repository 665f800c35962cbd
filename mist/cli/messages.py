"""`mist publish`, `subscribe`, `ping`, `list` and `who`."""

import base64
import io
import json
import logging
import os
import sys
import time
from datetime import datetime

import click
import trio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.text import Text

from mist.audience import Audience
from mist.cli.common import Server, client_command, say_state
from mist.cli.options import json_option, print_json
from mist.client import Client, Gap, Latest, State
from mist.client.position import Start
from mist.errors import InvalidAudience
from mist.message import Message, is_tag_pattern

__all__ = ["list_tags", "ping", "publish", "subscribe", "who"]

_READ = 1 << 16  # bytes of standard input at a time


def _audience(value: str) -> Audience:
    try:
        return Audience.parse(value)
    except InvalidAudience as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    epilog="""\b
Examples:
  mist publish order,eu,paid 17
  grep ERROR app.log | mist publish log,level:error --stdin
  mist publish order,eu 18 --store     prints its id once it is durable
  mist publish order 19 --to 'users=7;8&groups=eu'"""
)
@click.argument("tags")
@click.argument("data", required=False)
@click.option("--stdin", is_flag=True, help="Publish each line of standard input")
@click.option("--store", is_flag=True, help="Wait until DATA is in the history, and print its id")
@click.option(
    "--to",
    metavar="AUDIENCE",
    type=_audience,
    help="Only to subscribers with these attributes: 'users=1;2&groups=3', 'clients=x', 'except=x'",
)
@json_option("Print how many were published, and with --store the id")
@client_command
async def publish(
    server: Server,
    tags: str,
    data: str | None,
    stdin: bool,
    store: bool,
    to: Audience | None,
    as_json: bool,
) -> None:
    """Publish DATA with TAGS, to all matching subscribers or to an audience of them.

    Exit code 0 means that the server has handled all of it; with --store, that it is durable.
    """
    if stdin == (data is not None):
        raise click.UsageError("give either DATA or --stdin")
    if stdin and store:
        raise click.UsageError("--store is for one message")
    if to is not None and store:
        raise click.UsageError("--store and --to can't be combined")
    done: dict[str, object] = {"published": 1}
    connected = trio.CancelScope()  # cancelled where the connection is lost

    def end(state: State) -> None:
        if state is State.CLOSED:
            connected.cancel()

    if data is not None:
        # A refusal ends the command with an error. Of lines it is logged: that may be hours before.
        logging.getLogger("mist.client").addHandler(logging.NullHandler())
    async with server.connect(reconnect=False, on_state=end) as client:
        if data is not None and store:
            done["id"] = await client.store(tags.split(","), os.fsencode(data))
        elif data is not None:
            await client.publish(tags.split(","), os.fsencode(data), to=to)
        else:
            with connected:
                done["published"] = await _publish_lines(client, tags, to, quiet=as_json)
            await client.flush()  # tells why, where the connection was lost
    if as_json:
        print_json(done)
    elif store:
        click.echo(done["id"])


def _position(value: str) -> Start:
    """A history position in the form of the line protocol."""
    if value.startswith("latest="):
        pattern = value.removeprefix("latest=")
        if not is_tag_pattern(pattern):
            raise click.BadParameter(f"{value} has no tag, nor the beginning of one and *")
        return Latest(pattern)
    epoch, colon, number = value.rpartition(":")
    try:
        return (epoch, int(number)) if colon else int(number)
    except ValueError:
        raise click.BadParameter(f"{value} is not an ID, EPOCH:ID or -N") from None


async def _publish_lines(client: Client, tags: str, to: Audience | None, *, quiet: bool) -> int:
    if sys.stdin is None:
        raise click.UsageError("--stdin: standard input is closed")
    count = 0
    tag_list = tags.split(",")
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} messages published"))
    # It would be drawn over lines that are typed.
    disable = not console.is_terminal or sys.stdin.isatty()
    with Progress(*columns, console=console, transient=True, disable=disable) as p:
        task = p.add_task("publish")
        lines = _Lines(sys.stdin.fileno())
        while found := await lines.read():
            for line in found:
                await client.publish(tag_list, line, to=to)
            count += len(found)
            p.update(task, completed=count)
        await client.flush()
    if not quiet:
        console.print(f"{count:,} messages published", highlight=False)
    return count


class _Lines:
    """The lines of a file that may have none for hours, such as what `tail -f` writes.

    A read is left behind where it is cancelled, by Ctrl-C or by the end of the connection. Else
    neither would be noticed before the next line. A buffered file would still be locked by that
    read when the process ends, which Python takes for a fatal error.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = io.FileIO(descriptor, closefd=False)
        self._begun: list[bytes] = []  # a line whose end is not read yet, in pieces

    async def read(self) -> list[bytes]:
        """The next lines, as many as there are, without their ends; empty at the end of the file.

        Cancelled, what it reads is lost.
        """
        while piece := await trio.to_thread.run_sync(
            self._file.read, _READ, abandon_on_cancel=True
        ):
            first, *others = piece.split(b"\n")
            self._begun.append(first)
            if others:
                lines = [b"".join(self._begun), *others]
                self._begun = [lines.pop()]
                return lines
        last = b"".join(self._begun)
        self._begun = []
        return [last] if last else []


@click.command(
    epilog="""\b
Examples:
  mist subscribe order,eu log       messages with order and eu, and messages with log
  mist subscribe order | jq .data
  mist subscribe order --since -10  the last ten, then live messages
  mist subscribe --server ws://127.0.0.1:8888 --token TOKEN order:17"""
)
@click.argument("tags", nargs=-1, required=True)
@click.option("--count", metavar="N", type=click.IntRange(1), help="Stop after N messages")
@click.option(
    "--since",
    metavar="POSITION",
    type=_position,
    help="Replay from the server's history first: messages after an ID or EPOCH:ID, 0 (all that "
    "are kept) or -N (the last N that match), or latest=order:* (the newest of each such tag)",
)
@json_option("JSON lines, also on a terminal")
@client_command
async def subscribe(
    server: Server,
    tags: tuple[str, ...],
    count: int | None,
    since: Start | None,
    as_json: bool,
) -> None:
    """Print messages that carry all of TAGS.

    TAGS are joined by commas; several TAGS mean any of them. Formatted on a terminal; JSON lines in
    a pipe: {"tags": […], "data": "…"}, or "data64" where the data is not UTF-8, and "id" where the
    server has a history.
    """
    as_json = as_json or not sys.stdout.isatty()
    printer = _Printer(as_json, count)
    async with (
        server.connect(on_state=_StateReporter()) as client,
        trio.open_nursery() as nursery,
    ):
        wanted = [frozenset(each.split(",")) for each in tags]
        for index, each in enumerate(tags):
            # A message that matches several of them is printed by the first.
            await nursery.start(_show, client, each, since, wanted[:index], printer, nursery)
        if sys.stderr.isatty():
            click.echo(f"subscribed to {' and to '.join(tags)}", err=True)


class _StateReporter:
    """Reports every change of state after the first connection."""

    def __init__(self) -> None:
        self._connected = False

    def __call__(self, state: State) -> None:
        if self._connected:
            say_state(state)
        self._connected = True


async def _show(
    client: Client,
    tags: str,
    since: Start | None,
    shown: list[frozenset[str]],
    printer: "_Printer",
    nursery: trio.Nursery,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    async with client.subscribe(tags.split(","), since=since, on_gap=_say_gap) as messages:
        task_status.started()
        async for message in messages:
            if any(each <= message.tags for each in shown):
                continue
            if not printer.show(message):
                nursery.cancel_scope.cancel()


def _say_gap(gap: Gap) -> None:
    if gap.lost:
        click.echo(f"{gap.lost} messages lost: they came faster than they were printed", err=True)
    if gap.forgotten:
        click.echo("some messages are missing: the history no longer has them", err=True)
    elif gap.reconnected:
        click.echo("messages published while the connection was down are missing", err=True)


class _Printer:
    def __init__(self, as_json: bool, count: int | None) -> None:
        self._as_json = as_json
        self._left = count
        self._console = Console(soft_wrap=True, highlight=False)

    def show(self, message: Message) -> bool:
        """Print a message; False when the count is reached."""
        if self._left == 0:
            return False
        if self._as_json:
            print(_json_line(message), flush=True)
        else:
            self._console.print(_pretty(message))
        if self._left is not None:
            self._left -= 1
        return self._left != 0


def _json_line(message: Message) -> str:
    line: dict[str, object] = {} if message.id is None else {"id": message.id}
    line["tags"] = sorted(message.tags)
    try:
        line["data"] = message.data.decode()
    except UnicodeDecodeError:
        line["data64"] = base64.b64encode(message.data).decode()
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _pretty(message: Message) -> Text:
    # Control characters could control the reader's terminal, so they are escaped.
    data = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message.text)
    return Text.assemble(
        (datetime.now().strftime("%H:%M:%S "), "dim"),
        (" ".join(sorted(message.tags)), "cyan"),
        " ",
        data,
    )


@click.command()
@click.option("-c", "--count", metavar="N", type=click.IntRange(1), default=1, help="N times")
@json_option("One JSON object each")
@client_command
async def ping(server: Server, count: int, as_json: bool) -> None:
    """Check that the server responds, and print the round-trip time."""
    async with server.connect(reconnect=False) as client:
        for _ in range(count):
            start = time.perf_counter()
            await client.ping()
            seconds = time.perf_counter() - start
            if as_json:
                print_json({"server": server.url, "seconds": round(seconds, 6)})
            else:
                click.echo(f"pong from {server.url} in {seconds * 1e3:.2f} ms")


@click.command("list")
@json_option("One JSON object")
@client_command
async def list_tags(server: Server, as_json: bool) -> None:
    """List all tags with subscriptions, one per line."""
    async with server.connect(reconnect=False) as client:
        tags = sorted(await client.list_all())
    if as_json:
        print_json({"tags": tags})
        return
    for tag in tags:
        click.echo(tag)


@click.command()
@json_option("One JSON object")
@client_command
async def who(server: Server, as_json: bool) -> None:
    """Count connections: now, and since the server started."""
    async with server.connect(reconnect=False) as client:
        found = await client.who()
    if as_json:
        print_json({"connected": found.connected, "lifetime": found.lifetime})
    else:
        click.echo(f"{found.connected} connected, {found.lifetime} since the start")
