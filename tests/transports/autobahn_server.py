"""An echo server over mist's own WebSocket transport, for the Autobahn fuzzing client.

Stream, reader, meter and outbox are those of a browser's session; only what understands a message
is exchanged, for something that sends it back.

    python -m tests.transports.autobahn_server 9001
"""

import struct
import sys

import attrs
import trio

from mist.auth.opening import open_registry
from mist.commands import Command, Ping, Register
from mist.message import Limits
from mist.protocols.frames import FrameProtocol
from mist.protocols.rfc6455 import text_frame
from mist.replies import Reply
from mist.sessions.hub import Hub
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins
from mist.transports.websocket import WebSocketTransport

LIMITS = attrs.evolve(Limits(), frame=1 << 20)
TOKEN = "autobahn"


class EchoProtocol(FrameProtocol):
    """Sends every message back as it came."""

    def command(self, message: bytes) -> Command:
        return Ping(ref=text_frame(message))

    def binary(self, message: bytes) -> Command:
        frame = text_frame(message)
        return Ping(ref=struct.pack("!B", 0x82) + frame[1:])

    def reply(self, command: Command, reply: Reply) -> bytes:
        return command.ref if isinstance(command.ref, bytes) else super().reply(command, reply)


async def serve(port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
    """Echo on a port of loopback until cancelled."""
    hub = Hub(await open_registry("memory://"), limits=LIMITS)
    await hub.registry.execute([Register(TOKEN, frozenset({"*"}))])
    transport = WebSocketTransport(
        hub, ConnectionLimiter(), Origins(loopback=True), query_token=True, protocol=EchoProtocol
    )
    async with trio.open_nursery() as nursery:

        async def handle(stream: trio.SocketStream) -> None:
            await transport.handle(stream, nursery)

        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(handle, listeners)


if __name__ == "__main__":
    trio.run(serve, int(sys.argv[1]))
