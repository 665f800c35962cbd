"""`mist token`: manage the tokens that grant subscriptions."""

import base64
import secrets
import sys
from pathlib import Path

import click

from mist.cli.common import USAGE, Server, client_command, fail
from mist.cli.expiry import Expiry
from mist.cli.paths import LocalPath
from mist.message import format_tags

__all__ = ["token"]

_TOKEN_BYTES = 20  # 160 bits


@click.group(
    epilog="""\b
TAGS are joined by commas; 'room:*' grants every tag that begins with room:, '*' grants all.
TOKEN may be - to read it from standard input, which keeps it out of the process list.

\b
Examples:
  mist token new 'order:*,news' --expires 30d --name 'nightly export'
  mist token unset news "$TOKEN"
  mist token set-attr "$TOKEN" user=7 groups=staff,beta --unset plan
  mist token unregister - < token.txt
  mist token key /etc/mist/token.key"""
)
def token() -> None:
    """Create, change and revoke tokens.

    Tokens are the credentials that browsers subscribe with.
    """


def _read(text: str) -> str:
    return sys.stdin.readline().removesuffix("\n") if text == "-" else text


_with_expiry = click.option(
    "--expires",
    type=Expiry(),
    metavar="WHEN",
    help="When it expires, and its clients are disconnected: 30d, 12h, 2027-01-01T00:00Z",
)
_with_name = click.option("--name", default="", metavar="TEXT", help="What to call it in lists")


@token.command()
@click.argument("tags")
@_with_expiry
@_with_name
@client_command
async def new(server: Server, tags: str, expires: float | None, name: str) -> None:
    """Create a random token that grants TAGS, and print it once."""
    text = base64.b32encode(secrets.token_bytes(_TOKEN_BYTES)).decode().lower()
    async with server.connect(reconnect=False) as client:
        await client.register(tags.split(","), text, expires=expires, name=name)
    click.echo(text)
    if sys.stderr.isatty():
        click.echo("Save it: the server stores only its hash and can't show it again.", err=True)


@token.command()
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@_with_expiry
@_with_name
@client_command
async def register(server: Server, tags: str, text: str, expires: float | None, name: str) -> None:
    """Register TOKEN, granting TAGS."""
    async with server.connect(reconnect=False) as client:
        await client.register(tags.split(","), _read(text), expires=expires, name=name)


@token.command()
@click.argument("text", metavar="TOKEN")
@click.option(
    "--expires", type=Expiry(never=True), metavar="WHEN", help="As for new; never takes it back"
)
@click.option("--name", metavar="TEXT", help="What to call it in lists; '' for nothing")
@client_command
async def change(server: Server, text: str, expires: float | None, name: str | None) -> None:
    """Change when TOKEN expires, or its name."""
    if expires is None and name is None:
        raise click.UsageError("nothing to change: give --expires or --name")
    async with server.connect(reconnect=False) as client:
        await client.set_terms(_read(text), expires=expires, name=name)


@token.command()
@click.argument("text", metavar="TOKEN")
@click.option("--if-exists", is_flag=True, help="Succeed where there is no such token")
@client_command
async def unregister(server: Server, text: str, if_exists: bool) -> None:
    """Revoke TOKEN, and disconnect its clients.

    Exit code 1 where there is no such token.
    """
    text = _read(text)
    async with server.connect(reconnect=False) as client:
        if not if_exists:
            # The command alone succeeds for an unknown token: in the protocol it is idempotent.
            await client.tags(text)
        await client.unregister(text)


@token.command("set")
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def set_tags(server: Server, tags: str, text: str) -> None:
    """Add TAGS to TOKEN."""
    async with server.connect(reconnect=False) as client:
        await client.set(tags.split(","), _read(text))


@token.command()
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def unset(server: Server, tags: str, text: str) -> None:
    """Remove TAGS from TOKEN.

    Subscriptions that it no longer allows end at once.
    """
    async with server.connect(reconnect=False) as client:
        await client.unset(tags.split(","), _read(text))


@token.command("set-attr")
@click.argument("text", metavar="TOKEN")
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--unset", metavar="KEY", multiple=True, help="Remove this attribute (repeatable)")
@client_command
async def set_attributes(
    server: Server, text: str, pairs: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    """Set attributes of TOKEN.

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
        await client.set_attributes(attributes, _read(text))


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
@click.argument("text", metavar="TOKEN")
@client_command
async def show(server: Server, text: str) -> None:
    """Print the tags of TOKEN, and its attributes if any."""
    text = _read(text)
    async with server.connect(reconnect=False) as client:
        tags, attributes = await client.tags(text), await client.attributes(text)
    click.echo(format_tags(tags))
    if attributes.text:
        click.echo(attributes.text)
