"""The endpoint: a client for the length of a block."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mist.client.address import Address
from mist.client.arguments import check_credentials
from mist.client.client import Client
from mist.client.options import Backoff, Options, State
from mist.client.publishing import Publishing
from mist.client.state import ClientState
from mist.message import Limits

__all__ = ["connect"]


@asynccontextmanager
async def connect(
    url: str,
    *,
    secret: str | None = None,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    wait: bool = False,
    reconnect: bool = True,
    backoff_base: float = 0.5,
    backoff_cap: float = 30.0,
    connect_seconds: float = 10.0,
    keepalive_seconds: float = 30.0,
    drain_seconds: float = 5.0,
    buffer: int = 1_048_576,
    echo: bool = True,
    limits: Limits | None = None,
    on_state: Callable[[State], None] | None = None,
) -> AsyncIterator[Client]:
    """A connected client for the length of the block.

    Leaving the block without an error waits for a fence, so that what was published has been
    carried out; leaving with an error, or cancelled, does not. The block's own exceptions
    come out as they are, not in groups. A connection lost for good does not interrupt the
    block: whoever calls the client or reads from it is told.

    Args:
        url: `tcp://`, `tcps://`, `tcp+unix:///path`, `ws://`, `wss://`; see `Address.parse`.
        secret: for TCP, where the server has one.
        token: for a WebSocket.
        ssl_context: for `tcps` and `wss`; the system's certificates where it is None.
        wait: whether to keep trying where the first attempt fails.
        reconnect: whether to come back, and subscribe again, after the connection was lost.
        backoff_base: seconds before the first new attempt, at most; see `Backoff`.
        backoff_cap: seconds before any new attempt, at most.
        connect_seconds: for each attempt, the handshake included and again for the greeting.
        keepalive_seconds: between pings, and for their answers.
        drain_seconds: for the fence at the end.
        buffer: bytes of publishes queued before `publish` waits.
        echo: over TCP, whether this client gets what it publishes itself.
        limits: the server's, where they are not the defaults.
        on_state: told of each change of `Client.state`, in the client's task. It must not
            raise.

    Raises:
        BadArgument, InvalidToken: arguments that can't be meant; nothing was tried.
        ConnectError: the server can't be reached. `Rejected` and `AccessDenied` where it
            refused; those end a client with `wait` and `reconnect` too.
        RemoteError, Unconfirmed, ConnectionLost: at the end of the block, as `Client.flush`.
    """
    address = Address.parse(url)
    check_credentials(secret, token, address)
    limits = Limits() if limits is None else limits
    publishing = Publishing(limits)
    endpoint = ClientState(
        address,
        Options(
            reconnect=reconnect,
            wait=wait,
            backoff=Backoff(backoff_base, backoff_cap),
            connect_seconds=connect_seconds,
            keepalive_seconds=keepalive_seconds,
            ssl_context=ssl_context,
        ),
        publishing,
        secret=secret,
        token=token,
        echo=echo,
        buffer=buffer,
        on_state=on_state,
    )
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.run)
            try:
                yield Client(endpoint, publishing, limits)
                await endpoint.drain(drain_seconds)
            finally:
                endpoint.close()
    except BaseExceptionGroup as group:
        failure = _unwrapped(group)
    if failure is not None:
        raise failure


def _unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the block raised, without the nursery that nobody outside knows of.

    Where everything is being cancelled as well, the error alone is raised: the scope that is
    cancelled says so again at the next checkpoint.
    """
    _, errors = group.split(trio.Cancelled)
    found = group if errors is None else errors
    return found.exceptions[0] if len(found.exceptions) == 1 else found
