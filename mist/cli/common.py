"""Shared by the client commands: a connection to the server, and exit codes for errors."""

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Final, ParamSpec, cast

import attrs
import click
import trio

from mist.cli.exits import FULL, REFUSED, UNREACHABLE, USAGE, fail
from mist.cli.http import HttpError, Site
from mist.cli.options import HTTP_SCHEMES, secret_option, server_option
from mist.cli.requests import Requests, websocket_url
from mist.client import BadArgument, Client, State, Unsupported, connect
from mist.errors import (
    CommandError,
    ConnectError,
    ConnectionLost,
    MistError,
    StartupError,
    Unauthorized,
)

__all__ = ["REFUSED", "UNREACHABLE", "USAGE", "Server", "client_command", "fail"]

SCHEMES: Final = ("tcp", "tcps", "tcp+unix", "ws", "wss", "ws+unix", *HTTP_SCHEMES)
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
        secret: for `tcp`; for requests over HTTP before the token.
        token: for WebSockets, and for requests over HTTP.
    """

    url: str
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """A connected client; see `mist.client.connect`.

        At an HTTP listener it has a WebSocket, or makes a request each where the connection need
        not last (`reconnect=False`).

        Raises:
            HttpError: the URL is of HTTP, and can't be used.
        """
        scheme, url = self.url.partition("://")[0].lower(), self.url
        if scheme in HTTP_SCHEMES:
            site = Site.of(url, self.secret, self.token)
            if options.get("reconnect") is False:
                return cast("AbstractAsyncContextManager[Client]", Requests(site))
            if self.token is None:
                raise HttpError("subscribing over HTTP needs a token; tcp:// needs none", USAGE)
            scheme, url = "ws", websocket_url(site)
        if scheme.startswith("ws"):
            return connect(url, token=self.token, **options)
        return connect(url, secret=self.secret, **options)


def client_command(
    function: Callable[Concatenate[Server, P], Awaitable[None]],
) -> Callable[..., None]:
    """Make an async function a command: options for the server, errors as exit codes."""

    @server_option(
        SCHEMES,
        DEFAULT,
        "The server: tcp://, tcps://, tcp+unix://, ws://, wss://, http://, https://",
        alias="--host",
        variable="MIST_HOST",
    )
    @secret_option
    @click.option(
        "--token", metavar="TEXT", envvar="MIST_TOKEN", help="A token, for ws:// and http://"
    )
    @functools.wraps(function)
    def command(
        server: str, secret: str | None, token: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        url = server if "://" in server else f"tcp://{server}"
        if url.partition("://")[0].lower() not in SCHEMES:
            fail(f"a server's URL begins with one of {', '.join(SCHEMES)}", USAGE)
        chosen = Server(url, secret=secret, token=token)
        run(functools.partial(function, chosen, *args, **kwargs))

    return command


def run(function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function; expected errors become one line and an exit code."""
    try:
        trio.run(function)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        match _first(error):
            case BrokenPipeError() | KeyboardInterrupt() as ended:
                raise ended from None  # see `LazyGroup.invoke`
            case HttpError() as known:
                fail(str(known), known.code)
            case MistError() as known:
                fail(str(known), exit_code(known))
            case ValueError() as wrong:
                fail(str(wrong), USAGE)
            case click.ClickException() as wrong:
                raise wrong from None
            case OSError() as full if full.errno in FULL:
                raise full from None
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
