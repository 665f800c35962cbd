"""`mist token`: manage the tokens that grant subscriptions."""

import base64
import copy
import secrets
import sys
import time
from pathlib import Path

import click
import msgspec

from mist.auth.strength import weakness
from mist.cli.common import USAGE, Server, client_command, fail
from mist.cli.expiry import Expiry
from mist.cli.options import json_option, print_json
from mist.cli.paths import LocalPath
from mist.cli.standard_input import read_line
from mist.cli.token_output import HEADINGS, row, rows
from mist.errors import RemoteError, TokenNotFound
from mist.message import format_tags

__all__ = ["token"]

_TOKEN_BYTES = 20  # 160 bits


@click.group(
    epilog="""\b
TAGS are joined by commas; 'room:*' grants every tag that begins with room:, '*' grants all.
ID is what list shows, TOKEN the text itself, or - to read it from standard input, which keeps it
out of the process list.

\b
Examples:
  mist token create 'order:*,news' --expires 30d --name 'nightly export'
  mist token list
  mist token grant 'room:1' ID
  mist token set-attr ID user=7 groups=staff,beta --unset plan
  mist token revoke - < token.txt
  mist token key /etc/mist/token.key"""
)
def token() -> None:
    """Create, change and revoke tokens.

    Tokens are the credentials that browsers subscribe with.
    """


_WHICH = "ID|TOKEN"


def _read(text: str) -> str:
    return read_line() if text == "-" else text


_expires = click.option(
    "--expires",
    type=Expiry(),
    metavar="WHEN",
    help="When it expires, and its clients are disconnected: 30d, 12h, 2027-01-01T00:00Z",
)
_name = click.option("--name", default="", metavar="TEXT", help="What to call it in lists")


@token.command()
@click.argument("tags")
@click.argument("text", metavar="[TOKEN]", required=False)
@_expires
@_name
@json_option("Print the token with all that is known of it")
@client_command
async def create(
    server: Server, tags: str, text: str | None, expires: float | None, name: str, as_json: bool
) -> None:
    """Create a token that grants TAGS.

    Without TOKEN it is a random one, which is printed once.
    """
    is_random = text is None
    if text is None:
        text = base64.b32encode(secrets.token_bytes(_TOKEN_BYTES)).decode().lower()
    text = _read(text)
    async with server.connect(reconnect=False) as client:
        await client.register(tags.split(","), text, expires=expires, name=name)
        about = await client.token(text) if as_json else None
    if (weak := weakness(text)) is not None:
        click.echo(f"warning: the token {weak}", err=True)
    if about is not None:
        print_json({"token": text, **msgspec.to_builtins(about)})
    elif is_random:
        click.echo(text)
        if sys.stderr.isatty():
            saved = "Save it: the server stores only its hash and can't show it again."
            click.echo(saved, err=True)


@token.command("list")
@json_option("Print each token as an object on a line of its own")
@client_command
async def list_tokens(server: Server, as_json: bool) -> None:
    """List all tokens: what is known of them, never their texts."""
    after: str | None = ""
    async with server.connect(reconnect=False) as client:
        while after is not None:
            page = await client.tokens(after)
            if not as_json and not after:
                click.echo(HEADINGS)
            for each in page.tokens:
                if as_json:
                    print_json(msgspec.to_builtins(each))
                else:
                    click.echo(row(each, time.time()))
            after = page.next


@token.command()
@click.argument("which", metavar=_WHICH)
@json_option("Print it as one object")
@client_command
async def show(server: Server, which: str, as_json: bool) -> None:
    """Show what is known of a token."""
    async with server.connect(reconnect=False) as client:
        found = await client.token(_read(which))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        click.echo("\n".join(rows(found)))


@token.command()
@click.argument("which", metavar=f"[{_WHICH}]", required=False)
@click.option("--if-exists", is_flag=True, help="Succeed where there is no such token")
@click.option("--jti", metavar="ID", help="Revoke the JWT with this jti instead")
@click.option("--sub", metavar="USER", help="Revoke all JWTs that this user was issued until now")
@client_command
async def revoke(
    server: Server, which: str | None, if_exists: bool, jti: str | None, sub: str | None
) -> None:
    """Revoke a token, and disconnect its clients.

    Exit code 1 where there is no such token. For a JWT nobody knows that: what is revoked is kept
    until it would have expired in any case; see list.
    """
    if [which, jti, sub].count(None) != 2:
        raise click.UsageError(f"give {_WHICH}, --jti ID or --sub USER")
    async with server.connect(reconnect=False) as client:
        if which is None:
            await client.revoke_jwt(jti=jti, sub=sub)
            return
        try:
            await client.revoke(_read(which))
        except RemoteError as error:
            if not if_exists or str(error) != TokenNotFound.message:
                raise


@token.command()
@click.argument("tags")
@click.argument("which", metavar=_WHICH)
@client_command
async def grant(server: Server, tags: str, which: str) -> None:
    """Add TAGS to a token."""
    async with server.connect(reconnect=False) as client:
        await client.set(tags.split(","), _read(which))


@token.command()
@click.argument("tags")
@click.argument("which", metavar=_WHICH)
@client_command
async def ungrant(server: Server, tags: str, which: str) -> None:
    """Remove TAGS from a token.

    Subscriptions that it no longer allows end at once.
    """
    async with server.connect(reconnect=False) as client:
        await client.unset(tags.split(","), _read(which))


@token.command()
@click.argument("which", metavar=_WHICH)
@click.option(
    "--expires", type=Expiry(never=True), metavar="WHEN", help="As for create; never takes it back"
)
@click.option("--name", metavar="TEXT", help="What to call it in lists; '' for nothing")
@client_command
async def change(server: Server, which: str, expires: float | None, name: str | None) -> None:
    """Change when a token expires, or its name."""
    if expires is None and name is None:
        raise click.UsageError("nothing to change: give --expires or --name")
    async with server.connect(reconnect=False) as client:
        await client.set_terms(_read(which), expires=expires, name=name)


@token.command("set-attr")
@click.argument("which", metavar=_WHICH)
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--unset", metavar="KEY", multiple=True, help="Remove this attribute (repeatable)")
@client_command
async def set_attributes(
    server: Server, which: str, pairs: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    """Set attributes of a token.

    KEY is client, user, groups (joined by commas), site, or any other name. Attributes that aren't
    named stay as they are. For connected clients, targeted delivery follows the change at once.
    """
    attributes: dict[str, object] = {}
    for name, value in [*map(_pair, pairs), *((name, None) for name in unset)]:
        if name in attributes:
            raise click.UsageError(f"{name} is given twice")
        attributes[name] = value
    if not attributes:
        raise click.UsageError("nothing to set: give KEY=VALUE or --unset KEY")
    async with server.connect(reconnect=False) as client:
        await client.set_attributes(attributes, _read(which))


def _pair(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError("an attribute is given as KEY=VALUE")
    return name, value.split(",") if name == "groups" else value


@token.command()
@click.argument("file", type=LocalPath())
def key(file: Path) -> None:
    """Make the key of a token registry that servers share.

    FILE is given to each of these servers, see --token-key-file of mist serve. It must not exist.
    """
    from mist.auth.key import make_key_file

    try:
        make_key_file(file)
    except FileExistsError:
        fail(f"{file}: there is a file, which is left as it is", USAGE)
    except OSError as error:
        fail(f"{file}: {error.strerror}", USAGE)


@token.command("tags")
@click.argument("which", metavar=_WHICH)
@json_option("Print both as one object")
@client_command
async def show_tags(server: Server, which: str, as_json: bool) -> None:
    """Print the tags of a token, and its attributes if any."""
    text = _read(which)
    async with server.connect(reconnect=False) as client:
        tags, attributes = await client.tags(text), await client.attributes(text)
    if as_json:
        print_json({"tags": sorted(tags), "attributes": attributes.as_json()})
        return
    click.echo(format_tags(tags))
    if attributes.text:
        click.echo(attributes.text)


def _add_alias(name: str, command: click.Command) -> None:
    alias = copy.copy(command)
    alias.name = name
    alias.help = f"The same as {command.name}."
    token.add_command(alias)


for _alias, _command in {
    "new": create,
    "register": create,
    "unregister": revoke,
    "set": grant,
    "unset": ungrant,
}.items():
    _add_alias(_alias, _command)
