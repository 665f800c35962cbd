"""Fork: a child of this process has its copies of the client's connections cut off.

A child shares its parent's connections and, on Linux, the epoll instance of its event loop. When
trio cancels a read in the child, it changes the registration of the socket in that epoll instance,
and the parent is never woken again. What the child's copy of a client writes goes to the parent's
server.

So in the child, before any of its code runs, the descriptor of each connection is replaced by one
of /dev/null. Nothing that the child does with it reaches the connection or the parent's
registration, since epoll identifies a registration by descriptor and open file (epoll(7), Q0). The
parent also remains the only process that holds the connection open, so that it ends when the parent
closes it.

Refused: to close the descriptor, because the child's next file would get its number while the loop
still waits for it; and to check the process before each use, because the loop's own uses don't.

The loop itself stays shared, which only the loop could change: a child that runs on in it may
consume an event that the parent waits for, and a child that ends it in order stops what wakes the
parent's loop from threads.
"""

import os
import sys
from contextlib import suppress
from functools import cache
from weakref import WeakKeyDictionary

import anyio.abc

__all__ = ["cut_off_in_children"]

_Identity = tuple[int, int]  # device and inode


def cut_off_in_children(stream: anyio.abc.SocketStream | anyio.abc.UNIXSocketStream) -> None:
    """Keep the children of this process away from a new connection. O(1)."""
    if sys.platform == "win32":
        return
    socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 (not Django's)
    descriptor = socket.fileno()
    _connections()[stream] = descriptor, _identity(descriptor)


@cache  # made with the first connection, since a hook stays for as long as the process
def _connections() -> WeakKeyDictionary[object, tuple[int, _Identity]]:
    connections: WeakKeyDictionary[object, tuple[int, _Identity]] = WeakKeyDictionary()

    def cut_off() -> None:
        # No epoll instance accepts /dev/null, so a loop that registers it changes nothing.
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor, identity in connections.values():
            with suppress(OSError):  # closed since then
                if _identity(descriptor) == identity:  # and its number not used again
                    os.dup2(null, descriptor, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=cut_off)
    return connections


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
