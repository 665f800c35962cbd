"""`mist history`: inspect and maintain a message log.

It opens the log itself, without a server. Reading is safe while a server runs; commands that
change the log need exclusive access, and fail where a server has it open.
"""

import base64
import functools
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec

import click
import trio
from rich.console import Console
from rich.text import Text

from mist.cli.common import REFUSED, run
from mist.cli.options import data_option, json_option, print_json
from mist.commands import Since
from mist.config import kinds
from mist.history import Durability, History, Page, Policy, Rule, Selection, StoredMessage
from mist.history.cursor import Cursor, Lost
from mist.history.opening import open_history
from mist.history.retention import parse_age
from mist.message import ASK, Limits, parse_tags

__all__ = ["history"]

P = ParamSpec("P")

_POLL: Final = 0.2  # seconds between two reads of `tail --follow`
_SINCE: Final = re.compile(r"-?[0-9]{1,16}")


@click.group(
    epilog="""\b
show, tail, stats and verify work while a server runs; trim and new-epoch do not.

\b
Examples:
  mist history tail order,eu --follow      follow messages that carry both tags
  mist history show order --since -100     the last hundred
  mist history stats --history sqlite:////var/lib/mist/history.db"""
)
def history() -> None:
    """Inspect and maintain the message history."""


def history_command(
    *, changes: bool = False
) -> Callable[[Callable[Concatenate[History, P], Awaitable[None]]], Callable[..., None]]:
    """Make an async function a command on an open log.

    Args:
        changes: whether it needs exclusive access to the log.
    """

    def decorate(
        function: Callable[Concatenate[History, P], Awaitable[None]],
    ) -> Callable[..., None]:
        @click.option(
            "--history",
            "url",
            metavar="URL",
            envvar="MIST_HISTORY",
            show_envvar=True,
            help="The log  [default: history.db in the data directory]",
        )
        @data_option
        @functools.wraps(function)
        def command(url: str | None, data: Path, *args: P.args, **kwargs: P.kwargs) -> None:
            async def work() -> None:
                async with await _open(url or f"sqlite:///{data / 'history.db'}", changes) as log:
                    await function(log, *args, **kwargs)

            run(work)

        return command

    return decorate


async def _open(url: str, changes: bool) -> History:
    scheme = url.partition("://")[0].lower()
    if scheme in ("memory", "none"):
        raise click.UsageError(f"{scheme}:// keeps nothing on disk")
    # Only a server changes a log's durability, so it is opened with the one it has.
    async with await open_history(url, read_only=True) as reader:
        durability = (await reader.statistics()).durability
    return await open_history(url, durability=durability, read_only=not changes)


def _selection(tags: tuple[str, ...]) -> Selection | None:
    limit = Limits().subscription_tags
    if not tags:
        return None
    return Selection.asked(parse_tags(each.split(","), limit, ASK) for each in tags)


def _parsed(parse: Callable[[str], Any], expected: str = "") -> Callable[..., Any]:
    """An option callback that parses the value; the text of a ValueError is the message."""

    def callback(context: click.Context, option: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(each) for each in value)
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error) or f"expected {expected}") from None

    return callback


def _parse_since(text: str) -> int:
    if not _SINCE.fullmatch(text):
        raise ValueError
    return int(text)


@history.command()
@click.argument("tags", nargs=-1)
@click.option(
    "--since",
    callback=_parsed(_parse_since, "an id, or -N for the last N"),
    default="0",
    metavar="ID",
    help="After ID; -N: the last N",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N messages")
@json_option("JSON lines, also on a terminal")
@history_command()
async def show(
    log: History, tags: tuple[str, ...], since: int, limit: int | None, as_json: bool
) -> None:
    """Print messages that carry all of TAGS.

    TAGS are joined by commas; several TAGS mean any of them. Formatted on a terminal; JSON lines
    in a pipe.
    """
    printer = _Printer(as_json or not sys.stdout.isatty(), limit)
    await _replay(log, _selection(tags), since, printer)


@history.command()
@click.argument("tags", nargs=-1)
@click.option("-n", "--lines", type=click.IntRange(0), default=10, show_default=True, metavar="N")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages and print them")
@json_option("JSON lines, also on a terminal")
@history_command()
async def tail(
    log: History, tags: tuple[str, ...], lines: int, follow: bool, as_json: bool
) -> None:
    """Print the last messages that carry all of TAGS.

    With --follow, new ones too.
    """
    printer = _Printer(as_json or not sys.stdout.isatty(), None)
    selection = _selection(tags)
    after = -lines if lines else (await log.position()).newest
    while True:
        after = await _replay(log, selection, after, printer)
        if not follow:
            return
        await trio.sleep(_POLL)


async def _replay(
    log: History, selection: Selection | None, since: int, printer: "_Printer"
) -> int:
    upto = (await log.position()).newest
    cursor = Cursor(log)
    wanted = Since(last=-since) if since < 0 else Since(after=since, literal=True)
    await cursor.begin(wanted, selection, upto)
    _report(cursor.lost)
    while cursor.place < upto:
        piece = await cursor.read(selection, upto, limit=1000)
        cursor.take(piece)
        if piece.lost is not None:
            _report([piece.lost])
        if not printer.show(piece.page):
            break
    return cursor.place


def _report(lost: Sequence[Lost]) -> None:
    for each in lost:
        click.echo(f"messages {each.first} to {each.last} are damaged, can't be read", err=True)


class _Printer:
    def __init__(self, as_json: bool, count: int | None) -> None:
        self._as_json = as_json
        self._left = count
        self._console = Console(soft_wrap=True, highlight=False)

    def show(self, page: Page) -> bool:
        """Print a page; False when the count is reached."""
        for message in page.messages():
            if self._left == 0:
                break
            if self._left is not None:
                self._left -= 1
            if self._as_json:
                print(_json_line(message))
            else:
                self._console.print(_pretty(message))
        sys.stdout.flush()
        return self._left != 0


def _plain(data: bytes) -> dict[str, str]:
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data64": base64.b64encode(data).decode()}


def _json_line(message: StoredMessage) -> str:
    line: dict[str, object] = {
        "id": message.id,
        "time": message.time,
        "tags": sorted(message.tags),
        **_plain(message.data),
    }
    if message.publisher:
        line["publisher"] = message.publisher
    if message.audience is not None:
        line["audience"] = message.audience
    if message.meta is not None:
        line["meta"] = {name: _plain(value) for name, value in message.meta.items()}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _pretty(message: StoredMessage) -> Text:
    # Control characters could control the reader's terminal, so they are escaped.
    text = message.data.decode("utf-8", "replace")
    data = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return Text.assemble(
        (f"{message.id} ", "bold"),
        (f"{datetime.fromtimestamp(message.time):%Y-%m-%d %H:%M:%S} ", "dim"),
        (" ".join(sorted(message.tags)), "cyan"),
        " ",
        data,
    )


@history.command()
@json_option("One JSON object")
@history_command()
async def stats(log: History, as_json: bool) -> None:
    """Print the size, positions and durability of the log."""
    found = await log.statistics()
    position = found.position
    rows: dict[str, object] = {
        "epoch": position.epoch,
        "durability": found.durability.value,
        "first": position.first,
        "newest": position.newest,
        "trimmed": position.trimmed,
        "messages": found.messages,
        "blocks": found.blocks,
        "bytes": found.size,
        "file_bytes": found.file_size,
        "oldest_time": _when(found.oldest),
        "newest_time": _when(found.newest),
    }
    if as_json:
        print_json(rows)
        return
    for name, value in rows.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        click.echo(f"{name.replace('_', ' '):<12} {'-' if shown is None else shown}")
    click.echo(_PROMISES[found.durability])


_PROMISES: Final = {
    Durability.POWER: "an acknowledged message survives a power cut",
    Durability.PROCESS: "an acknowledged message survives a crash of the server, "
    "but not a power cut, after which the log begins a new epoch",
    Durability.NOTHING: "messages are lost when the server ends",
}


def _when(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@history.command()
@click.option("--keep-age", callback=_parsed(parse_age), metavar="AGE", help="As 90s, 30m, 12h, 7d")
@click.option(
    "--keep-bytes",
    callback=_parsed(kinds.size(0).parse, kinds.size(0).expected),
    metavar="BYTES",
    help="As 500MiB, 1GiB",
)
@click.option("--keep-count", type=click.IntRange(0), metavar="N", help="The newest N")
@click.option(
    "--keep",
    "rules",
    callback=_parsed(Rule.parse),
    multiple=True,
    metavar="RULE",
    help="Keep more for each such tag than the other limits do: room:*=100, room:*=7d",
)
@json_option("One JSON object")
@history_command(changes=True)
async def trim(
    log: History,
    keep_age: int | None,
    keep_bytes: int | None,
    keep_count: int | None,
    rules: tuple[Rule, ...],
    as_json: bool,
) -> None:
    """Apply retention limits once.

    Removes older messages and frees their space. A limit that is not given does not apply. The
    server must not be running.
    """
    if (keep_age, keep_bytes, keep_count) == (None, None, None):
        raise click.UsageError("give --keep-age, --keep-bytes or --keep-count")
    policy = Policy(keep_age, keep_bytes, keep_count, rules)
    now = time.time()
    removed = 0
    while True:
        step = await log.trim(policy, now)
        removed += step.messages
        if not step.more:
            break
    while await log.compact():
        pass
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"{removed:,} messages removed")


@history.command()
@json_option("One JSON object")
@history_command()
async def verify(log: History, as_json: bool) -> None:
    """Read the whole log and report what is damaged. Exit code 1 if anything is."""
    problems = await log.verify()
    messages = None if problems else (await log.statistics()).messages
    if as_json:
        found = [{"first": each.first, "last": each.last, "text": each.text} for each in problems]
        print_json({"messages": messages, "problems": found})
    for problem in () if as_json else problems:
        where = f"{problem.first}-{problem.last}: " if problem.last else ""
        click.echo(f"{where}{problem.text}")
    if problems:
        sys.exit(REFUSED)
    if not as_json:
        click.echo(f"{messages:,} messages, no damage")


@history.command("new-epoch")
@json_option("One JSON object")
@history_command(changes=True)
async def new_epoch(log: History, as_json: bool) -> None:
    """Start a new epoch, after the log was restored from a backup.

    Clients may hold ids from after the backup. In a new epoch they are told that messages may be
    missing, instead of getting other messages under the same ids. The server must not be
    running.
    """
    epoch = await log.new_epoch()
    if as_json:
        print_json({"epoch": epoch})
    else:
        click.echo(epoch)
