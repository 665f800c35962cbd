"""Ports of servers that have to know theirs before they start, or keep it when they start again.

They are below those that the kernel gives out: before a server is there, and while it is down, none
of the connections and listeners of others has its port, and none to it is connected to itself. So
is the port 10,000 above it, which a member of a Redis Cluster listens on, too.
"""

import random
import socket
from contextlib import suppress

__all__ = ["free_port", "free_ports"]

_given: set[int] = set()


def free_port() -> int:
    """A port on loopback that nobody listens on, given once in this process."""
    while True:
        port = random.randrange(12_000, 22_000)
        if port not in _given:
            with socket.socket() as sock, suppress(OSError):
                sock.bind(("127.0.0.1", port))
                _given.add(port)
                return port


def free_ports(count: int) -> list[int]:
    """Several of them."""
    return [free_port() for _ in range(count)]
