"""Entry point of the client: connect, and close at the end of a block."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from mist.client.address import Address
from mist.client.arguments import check_credentials, check_numbers, check_ssl_context
from mist.client.backoff import Backoff
from mist.client.client import Client
from mist.client.frames import PublishFrame
from mist.client.line_codec import PublishLine
from mist.client.options import Options, State
from mist.client.publisher import Publisher
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

    Leaving the block without an error flushes, so that the server has handled what was
    published; leaving with an error, or cancelled, does not. The block's own exceptions are
    raised as they are, not in groups. A connection lost for good does not interrupt the block:
    calls of the client and reads of its subscriptions raise it.

    Args:
        url: `tcp://`, `tcps://`, `tcp+unix:///path`, `ws://`, `wss://`; see `Address.parse`.
        secret: for TCP, where the server has one.
        token: for a WebSocket.
        ssl_context: for `tcps` and `wss`; None is the system's certificates.
        wait: whether to keep trying when the first attempt fails.
        reconnect: whether to reconnect, and subscribe again, after the connection was lost.
        backoff_base: seconds, the longest wait before the first new attempt; see `Backoff`.
        backoff_cap: seconds, the longest wait before any new attempt.
        connect_seconds: timeout of an attempt with its handshake, and again of the greeting.
        keepalive_seconds: heartbeat interval, and the timeout of its reply.
        drain_seconds: timeout of the flush at the end.
        buffer: bytes of published messages that may be queued before `publish` waits.
        echo: over TCP, whether this client receives what it publishes itself.
        limits: the server's, where they are not the defaults.
        on_state: called at each change of `Client.state`, in the client's task. It must not
            raise.

    Raises:
        BadArgument, InvalidToken: the arguments are invalid; nothing was tried.
        NoEventLoop: neither asyncio nor trio runs.
        ConnectError: the server can't be reached. `Rejected` and `AccessDenied`: it refused;
            they end a client with `wait` and `reconnect` too.
        RemoteError, Unconfirmed, ConnectionLost: at the end of the block, as `Client.flush`.
    """
    address = Address.parse(url)
    check_credentials(secret, token, address)
    check_ssl_context(ssl_context, address)
    check_numbers(zero=False, buffer=buffer, keepalive_seconds=keepalive_seconds)
    check_numbers(zero=True, backoff_base=backoff_base, backoff_cap=backoff_cap)
    limits = Limits() if limits is None else limits
    lines = address.protocol == "tcp"
    publisher = Publisher(limits, PublishLine() if lines else PublishFrame(limits.frame))
    state = ClientState(
        address,
        Options(
            reconnect=reconnect,
            wait=wait,
            backoff=Backoff(backoff_base, backoff_cap),
            connect_seconds=connect_seconds,
            keepalive_seconds=keepalive_seconds,
            ssl_context=ssl_context,
        ),
        publisher,
        secret=secret,
        token=token,
        echo=echo,
        buffer=buffer,
        on_state=on_state,
    )
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(state.run)
            try:
                yield Client(state, publisher, limits)
                await state.drain(drain_seconds)
            finally:
                state.close()
    except BaseExceptionGroup as group:
        failure = _unwrapped(group)
    if failure is not None:
        raise failure


def _unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the block raised, without the exception group of the internal nursery.

    Where everything is being cancelled as well, the error alone is raised; the cancelled scope
    raises again at the next checkpoint.
    """
    _, errors = group.split(anyio.get_cancelled_exc_class())
    found = group if errors is None else errors
    return found.exceptions[0] if len(found.exceptions) == 1 else found
