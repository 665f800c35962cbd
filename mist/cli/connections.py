"""`mist connections`: who is connected, one connection, and the end of its session."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import click

from mist.cli.exits import fail
from mist.cli.http import HTTP_DEFAULT, HttpError, Site
from mist.cli.options import (
    HTTP_SCHEMES,
    Command,
    json_option,
    print_json,
    secret_option,
    server_option,
)
from mist.cli.token_output import moment, printable

__all__ = ["connections"]

_SORTS: Final = (
    "oldest",
    "newest",
    "queued_bytes",
    "sent",
    "sent_bytes",
    "dropped",
    "subscriptions",
)
_PAGE: Final = 1_000
_HEADINGS: Final = (
    f"{'NAME':14}  {'NODE':12}  {'PEER':24}  {'SINCE':17}  {'TOKEN':20}  "
    f"{'SUBS':>7}  {'QUEUED':>12}  {'SENT':>12}  {'DROPPED':>9}"
)


@click.group(
    epilog="""\b
NAME is what list shows. With an engine, each node has names of its own: --node says which is meant,
if it isn't the one that answers.

\b
Examples:
  mist connections list --search 203.0.113. --sort queued_bytes
  mist connections show ws-17
  mist connections end ws-17 --node eu-2"""
)
def connections() -> None:
    """List connections, and end their sessions."""


def _site_options(function: Command) -> Command:
    text = "The HTTP listener of any node"
    option = server_option(HTTP_SCHEMES, HTTP_DEFAULT, text, alias="--url", variable="MIST_URL")
    return option(secret_option(function))


_node = click.option("--node", metavar="NODE", help="The node that has it, by name")


@connections.command("list")
@_site_options
@click.option(
    "--search", default="", metavar="TEXT", help="Those with this in name, address, token, …"
)
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="oldest",
    show_default=True,
    help="By age, or those with the most first",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="Most that are listed",
)
@json_option("Print each connection as an object on a line of its own")
def list_connections(
    server: str, secret: str | None, search: str, sort: str, limit: int, as_json: bool
) -> None:
    """List connections, of all nodes."""
    listed, count, missing = 0, 0, set[str]()
    for number, page in enumerate(_pages(server, secret, search, sort, limit)):
        if not as_json and not number:
            click.echo(_HEADINGS)
        for each in page["connections"][: limit - listed]:
            if as_json:
                print_json(each)
            else:
                click.echo(_row(each))
        listed, count = listed + len(page["connections"]), page["count"]
        missing |= set(page.get("missing") or [])
    if count > limit:
        click.echo(f"{limit} of {count}: see --limit and --search", err=True)
    if missing:
        names = ", ".join(map(printable, sorted(missing)))
        click.echo(f"nodes that do not answer: {names}", err=True)


def _pages(
    server: str, secret: str | None, search: str, sort: str, limit: int
) -> Iterator[dict[str, Any]]:
    query, left = {"search": search, "sort": sort}, limit
    while left > 0:
        page = _ask(
            server,
            secret,
            "GET",
            f"/v1/connections?{_query({**query, 'limit': str(min(left, _PAGE))})}",
        )
        yield page
        left -= len(page["connections"])
        if page["next"] is None:
            return
        query["after"] = page["next"]


@connections.command()
@click.argument("name")
@_site_options
@_node
@json_option("Print it as one object")
def show(server: str, secret: str | None, name: str, node: str | None, as_json: bool) -> None:
    """Show one connection, and what it is subscribed to."""
    found = _ask(server, secret, "GET", _path(name, node, limit=_PAGE))
    subscribed, page = found["subscribed"], found
    while page["next"] is not None:
        page = _ask(server, secret, "GET", _path(name, node, limit=_PAGE, after=page["next"]))
        subscribed += page["subscribed"]
    if as_json:
        print_json({**found, "next": None})
        return
    click.echo("\n".join(_rows(found)))
    for each in subscribed:
        named = f"  as {printable(each['name'])}" if "name" in each else ""
        click.echo(f"subscribed  {printable(','.join(each['tags']))}{named}")


@connections.command()
@click.argument("name")
@_site_options
@_node
def end(server: str, secret: str | None, name: str, node: str | None) -> None:
    """End a session.

    The client is told so, and may connect again at once: to keep it away, revoke its token. Exit
    code 1 where there is no such connection.
    """
    _ask(server, secret, "DELETE", _path(name, node))


def _ask(server: str, secret: str | None, method: str, path: str) -> Any:
    try:
        return Site.of(server, secret).ask(method, path)
    except HttpError as error:
        fail(str(error), error.code)


def _path(name: str, node: str | None, **more: object) -> str:
    query = {**({} if node is None else {"node": node}), **more}
    # As the bytes that were given, UTF-8 or not: the server says that nothing has that name.
    path = f"/v1/connections/{quote(name, safe='', errors='surrogateescape')}"
    return path + (f"?{_query(query)}" if query else "")


def _query(parameters: Mapping[str, object]) -> str:
    return urlencode(parameters, errors="surrogateescape")


def _row(each: dict[str, Any]) -> str:
    token = each.get("token_name") or each["token"] or "-"
    columns = (
        f"{printable(each['name']):14}",
        f"{printable(each.get('node') or '-'):12}",
        f"{printable(each['peer']):24}",
        f"{_moment(each.get('since', 0.0)):17}",
        f"{printable(token):20}",
        f"{each['subscriptions']:7}",
        f"{each['queued_bytes']:12}",
        f"{each['sent']:12}",
        f"{each['dropped']:9}",
    )
    return "  ".join(columns)


def _rows(each: dict[str, Any]) -> list[str]:
    behind = f"{each['owed']} messages" if each["behind"] else "no"
    found = {
        "name": each["name"],
        "node": each["node"] or "",
        "transport": each["transport"],
        "peer": each["peer"],
        "since": _moment(each["since"]),
        "token": each["token"] or "none: a service",
        "token name": each["token_name"],
        "attributes": ", ".join(
            f"{name}={value if isinstance(value, str) else ','.join(value)}"
            for name, value in each["attributes"].items()
        ),
        "expires": "" if each["expires"] is None else moment(each["expires"]),
        "queued": f"{each['queued']} messages, {each['queued_bytes']} bytes",
        "sent": f"{each['sent']} messages, {each['sent_bytes']} bytes",
        "dropped": f"{each['dropped']}",
        "behind": behind,
    }
    return [f"{name:10}  {printable(text)}" for name, text in found.items() if text]


def _moment(seconds: float) -> str:
    return moment(seconds) if seconds else "-"
