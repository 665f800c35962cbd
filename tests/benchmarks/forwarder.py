"""The least a fan-out server on trio can do: what arrives goes out to every subscriber.

    python -m tests.benchmarks.forwarder PORT

A yardstick, not a server, as epoll.c is for the system calls: one task a connection that waits,
reads, and writes on, so that what a turn of trio's loop costs can be told from what mist adds.
It looks at the first bytes of a read only, knows no tags, and drops what a socket doesn't take.
"""

import os
import sys
from contextlib import suppress
from functools import partial

import trio

__all__ = ["forward"]

_PING = b"ping\n"
_PONG = b"pong\n"


async def forward(subscribers: set[int], stream: trio.SocketStream) -> None:
    """Serve one connection: lines of the mist protocol, as the benchmarks speak it."""
    fd = stream.socket.fileno()
    try:
        while True:
            await trio.lowlevel.wait_readable(fd)
            data = os.read(fd, 65_536)
            if not data:
                return
            if data.startswith(b"publish"):
                data, ping, _ = data.partition(_PING)
                for subscriber in subscribers:
                    with suppress(OSError):
                        os.write(subscriber, data)
                os.write(fd, _PONG if ping else b"")
                continue
            if b"subscribe" in data:
                subscribers.add(fd)
            os.write(fd, _PONG * data.count(_PING))
    except OSError:
        return
    finally:
        subscribers.discard(fd)


if __name__ == "__main__":
    trio.run(partial(trio.serve_tcp, partial(forward, set()), int(sys.argv[1]), host="127.0.0.1"))
