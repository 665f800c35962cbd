"""A WebSocket client for tests: trio-websocket's, on a connection that fails as one exception."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from tests.servers import Served, port_of


@asynccontextmanager
async def open_websocket(
    server: Served,
    path: str,
    *,
    subprotocols: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    index: int = 1,
) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket to a server's listener, closed without a word at the end of the block.

    Raises:
        trio_websocket.ConnectionRejected: the server refused the handshake.
    """
    port = port_of(server.urls[index])
    extra = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        async with trio.open_nursery() as nursery:
            yield await wrap_client_stream(
                nursery,
                stream,
                f"127.0.0.1:{port}",
                path,
                subprotocols=list(subprotocols) or None,
                extra_headers=extra,
            )
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        await trio.aclose_forcefully(stream)
