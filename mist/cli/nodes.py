"""`mist nodes`: the nodes that act as one, as a table or as JSON."""

from typing import Any, Final

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mist.cli.http import HTTP_DEFAULT, get_json
from mist.cli.options import HTTP_SCHEMES, json_option, print_json, secret_option, server_option

__all__ = ["nodes"]

_STYLES: Final = {"ready": "green", "not_ready": "yellow", "silent": "red"}
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@click.command(
    epilog="""\b
Columns:
  NODE      its name, with * for the one that answers
  STATUS    ready; why not; or silent: no heartbeat for so long; and whether it seals the archive
  LAG       how far it is behind the engine's log
  NEWEST    the highest id that it has delivered

\b
Examples:
  mist nodes
  mist nodes --server https://mist.example --secret-file secret.txt --json"""
)
@server_option(
    HTTP_SCHEMES, HTTP_DEFAULT, "The HTTP listener of any node", alias="--url", variable="MIST_URL"
)
@secret_option
@json_option("Print what GET /v1/nodes answers")
def nodes(server: str, secret: str | None, as_json: bool) -> None:
    """List the nodes that act as one server."""
    found = get_json(server, "/v1/nodes", secret)
    if as_json:
        print_json(found)
        return
    _print(_table(found["nodes"]))
    if not found["engine"]:
        click.echo("This server has no engine, and is the only node.", err=True)


def _print(table: Table) -> None:
    """Print a table whole: what reads a pipe must not get columns that are cut to fit a screen."""
    console = Console(highlight=False)
    wide = console.options.update(width=10_000)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("NODE", "STATUS", "VERSION", "UP"):
        table.add_column(title, no_wrap=True)
    for title in ("LAG", "NEWEST", "SESSIONS", "TAG SETS"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("CONNECTIONS", no_wrap=True)
    table.add_column("URL", no_wrap=True)
    for each in found:
        by_transport = [f"{count} {name}" for name, count in sorted(each["connections"].items())]
        table.add_row(
            _text(each["name"]) + ("*" if each["here"] else ""),
            _status(each),
            _text(each["version"]),
            _duration(each["uptime"]),
            f"{each['lag']:.1f} s",
            f"{each['newest']}",
            f"{each['sessions']}",
            f"{each['tag_sets']}",
            _text(", ".join(by_transport)),
            _text(each["advertise"] or ""),
        )
    return table


def _status(node: dict[str, Any]) -> Text:
    status = node["status"]
    text = status
    if status == "silent":
        text = f"silent {node['age']:.1f} s"
    elif status == "not_ready":
        text = _text(node["reason"] or "not ready").plain.replace("_", " ")
    if node.get("sealing"):  # older servers don't say
        text += ", seals"
    return Text(text, _STYLES.get(status, ""))


def _text(text: str) -> Text:
    # Another node says it. Control characters could control the reader's terminal.
    return Text("".join([c if c.isprintable() else repr(c)[1:-1] for c in text]))


def _duration(seconds: float) -> str:
    """By its two largest parts: `3 d 4 h`."""
    left, parts = max(int(seconds), 0), list[str]()
    for size, unit in _SPANS:
        count, left = divmod(left, size)
        if count or parts or size == 1:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
