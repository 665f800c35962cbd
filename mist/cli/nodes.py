"""`mist nodes`: the nodes that act as one, as a table or as JSON."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mist.cli.common import REFUSED, UNREACHABLE, USAGE, fail
from mist.cli.paths import LocalPath

__all__ = ["nodes"]

_TIMEOUT: Final = 10.0  # seconds without a byte
_MAX_BODY: Final = 16 << 20  # bytes
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
  mist nodes --url https://mist.example --secret-file secret.txt --json"""
)
@click.option(
    "--url",
    metavar="URL",
    default="http://127.0.0.1:8080",
    envvar="MIST_URL",
    show_default=True,
    show_envvar=True,
    help="The HTTP listener of any node",
)
@click.option(
    "--secret",
    metavar="TEXT",
    envvar="MIST_SECRET",
    show_envvar=True,
    help="The server's secret; visible to other users here, so prefer the alternatives",
)
@click.option(
    "--secret-file", type=LocalPath(exists=True, dir_okay=False), help="File with the secret"
)
@click.option("--json", "as_json", is_flag=True, help="Print what GET /v1/nodes answers")
def nodes(url: str, secret: str | None, secret_file: Path | None, as_json: bool) -> None:
    """List the nodes that act as one server."""
    if secret_file is not None:
        secret = secret_file.read_text().removesuffix("\n")
    found = _get(url, "/v1/nodes", secret)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
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


def _get(url: str, path: str, secret: str | None) -> Any:
    """The answer to a request, which is JSON. Ends the command where there is none."""
    connection, prefix, name = _connection(url)
    headers: dict[str, str | bytes] = {}
    if secret is not None:
        headers["Authorization"] = b"Bearer " + secret.encode()
    try:
        connection.request("GET", prefix + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_BODY)
    except ssl.SSLCertVerificationError as error:
        fail(f"{name}: its certificate is not trusted: {error.verify_message}", UNREACHABLE)
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        fail(f"can't reach {name}: {why}", UNREACHABLE)
    except ValueError:  # whose text would have the secret
        fail("the secret holds what no header can carry", USAGE)
    finally:
        connection.close()
    try:
        found = json.loads(body)
        if response.status == 200:
            return found
        fail(f"{name} answers {response.status}: {found['detail']}", REFUSED)
    except (ValueError, KeyError, TypeError):
        fail(f"{name} answers {response.status}, and is no mist server", REFUSED)


def _connection(url: str) -> tuple[http.client.HTTPConnection, str, str]:
    """A connection that is not open yet, what stands before each path, and a name for errors."""
    # No error repeats the URL, which may hold a password.
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        fail("--url: not one of a server; try http://127.0.0.1:8080", USAGE)
    if parts.username is not None or parts.query or parts.fragment:
        fail("--url: host, port and path only", USAGE)
    name = f"[{host}]" if ":" in host else host
    name = f"{name}:{port}" if port else name
    if parts.scheme == "http":
        plain = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
        return plain, parts.path.rstrip("/"), name
    context = ssl.create_default_context()
    secure = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
    return secure, parts.path.rstrip("/"), name


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
