"""mist token: who may subscribe to what."""

import base64
import secrets
import sys

import click

from mist.cli.common import Server, client_command
from mist.message import format_tags

__all__ = ["token"]

_TOKEN_BYTES = 20  # 160 bits


@click.group(
    epilog="""\b
TAGS are joined by commas; 'room:*' grants every tag that begins with room:, '*' grants all.
TOKEN may be - to read it from standard input, so that it isn't seen in the process list.

\b
Examples:
  mist token new 'order:*,news'
  mist token unset news "$TOKEN"
  mist token unregister - < token.txt"""
)
def token() -> None:
    """Make, change and take back the tokens that browsers subscribe with."""


def _read(text: str) -> str:
    return sys.stdin.readline().removesuffix("\n") if text == "-" else text


@token.command()
@click.argument("tags")
@client_command
async def new(server: Server, tags: str) -> None:
    """Make a random token that grants TAGS, and show it, this once."""
    text = base64.b32encode(secrets.token_bytes(_TOKEN_BYTES)).decode().lower()
    async with server.connect(reconnect=False) as client:
        await client.register(tags.split(","), text)
    click.echo(text)
    if sys.stderr.isatty():
        click.echo("Keep it: the server knows only its hash, and can't show it again.", err=True)


@token.command()
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def register(server: Server, tags: str, text: str) -> None:
    """Make TOKEN known, granting TAGS."""
    async with server.connect(reconnect=False) as client:
        await client.register(tags.split(","), _read(text))


@token.command()
@click.argument("text", metavar="TOKEN")
@client_command
async def unregister(server: Server, text: str) -> None:
    """Forget TOKEN, and end its live clients."""
    async with server.connect(reconnect=False) as client:
        await client.unregister(_read(text))


@token.command("set")
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def set_tags(server: Server, tags: str, text: str) -> None:
    """Add TAGS to what TOKEN grants."""
    async with server.connect(reconnect=False) as client:
        await client.set(tags.split(","), _read(text))


@token.command()
@click.argument("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def unset(server: Server, tags: str, text: str) -> None:
    """Remove TAGS from what TOKEN grants; subscriptions no longer allowed end at once."""
    async with server.connect(reconnect=False) as client:
        await client.unset(tags.split(","), _read(text))


@token.command("tags")
@click.argument("text", metavar="TOKEN")
@client_command
async def show(server: Server, text: str) -> None:
    """Show the tags that TOKEN grants."""
    async with server.connect(reconnect=False) as client:
        click.echo(format_tags(await client.tags(_read(text))))
