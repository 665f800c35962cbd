"""Shared by the client commands: a connection to the server, and exit codes for errors."""

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Final, ParamSpec

import attrs
import click
import trio

from mist.cli.exits import INTERRUPTED, REFUSED, UNREACHABLE, USAGE, fail
from mist.cli.options import secret_option, server_option
from mist.client import BadArgument, Client, State, Unsupported, connect
from mist.errors import (
    CommandError,
    ConnectError,
    ConnectionLost,
    MistError,
    StartupError,
    Unauthorized,
)

__all__ = ["INTERRUPTED", "REFUSED", "UNREACHABLE", "USAGE", "Server", "client_command", "fail"]

SCHEMES: Final = ("tcp", "tcps", "tcp+unix", "ws", "wss", "ws+unix")
DEFAULT: Final = "tcp://127.0.0.1:1445"

P = ParamSpec("P")


def exit_code(error: MistError) -> int:
    """The exit code of an error; see `mist --help`."""
    match error:
        case Unauthorized():
            return REFUSED
        case StartupError() | BadArgument() | Unsupported() | CommandError():
            return USAGE
        case ConnectError() | ConnectionLost():
            return UNREACHABLE
        case _:
            return REFUSED


@attrs.frozen
class Server:
    """The server of a command, and the credential for it.

    Attributes:
        credential: a secret or a token; never shown by `repr`.
    """

    url: str
    credential: str | None = attrs.field(default=None, repr=False)

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """A connected client; see `mist.client.connect`."""
        options["token" if _is_websocket(self.url) else "secret"] = self.credential
        return connect(self.url, **options)


def _is_websocket(url: str) -> bool:
    return url.startswith("ws")


def client_command(
    function: Callable[Concatenate[Server, P], Awaitable[None]],
) -> Callable[..., None]:
    """Make an async function a command: options for the server, errors as exit codes."""

    @server_option(
        SCHEMES,
        DEFAULT,
        "The server: tcp://, tcps://, tcp+unix://, ws://, wss://",
        alias="--host",
        variable="MIST_HOST",
    )
    @secret_option
    @click.option("--token", metavar="TEXT", envvar="MIST_TOKEN", help="A token, for ws://")
    @functools.wraps(function)
    def command(
        server: str, secret: str | None, token: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        url = server if "://" in server else f"tcp://{server}"
        chosen = Server(url, token if _is_websocket(url) else secret)
        run(functools.partial(function, chosen, *args, **kwargs))

    return command


def run(function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function; expected errors become one line and an exit code."""
    try:
        trio.run(function)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        match _first(error):
            case BrokenPipeError():
                # The reader of the pipe has ended (`| head`). Nothing may be flushed at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(0)
            case KeyboardInterrupt():
                sys.exit(INTERRUPTED)
            case MistError() as known:
                fail(str(known), exit_code(known))
            case ValueError() as wrong:
                fail(str(wrong), USAGE)
            case click.ClickException() as wrong:
                raise wrong from None
            case _:
                raise


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def say_state(state: State) -> None:
    """Report that the connection was lost or restored."""
    if state in (State.RECONNECTING, State.CONNECTED):
        click.echo(f"{state.value}", err=True)
