"""Idle connections: what each one that is connected, subscribed and silent keeps resident."""

import socket
from contextlib import ExitStack
from typing import Final

import attrs

from mist.bench.connections import Endpoint
from mist.bench.errors import BenchError
from mist.bench.process import check_file_limit, resident_bytes
from mist.bench.script import TAG

__all__ = ["Idle", "measure_idle"]

_WARM: Final = 100  # connections before the first reading, so that code and pools are there


@attrs.frozen
class Idle:
    """Memory of idle connections.

    Attributes:
        connections: how many were opened between the two readings, each with a subscription
            of two tags that no other has.
        bytes_per_connection: resident memory of the server's process, the difference by
            `connections`. What the kernel keeps for a socket is not in it.
    """

    connections: int
    bytes_per_connection: float


def measure_idle(endpoint: Endpoint, pid: int, connections: int = 2_000) -> Idle:
    """Open connections, subscribe each, compare the server's memory before and after.

    Raises:
        BenchError: not so many can be opened, or the memory of `pid` can't be read.
    """
    check_file_limit(_WARM + connections)
    with ExitStack() as stack:
        for number in range(_WARM):
            stack.enter_context(_subscribed(endpoint, number))
        before = _resident(pid)
        for number in range(_WARM, _WARM + connections):
            stack.enter_context(_subscribed(endpoint, number))
        after = _resident(pid)
    return Idle(connections, (after - before) / connections)


def _subscribed(endpoint: Endpoint, number: int) -> socket.socket:
    return endpoint.subscribed(endpoint.dialect.subscribe([TAG, f"idle{number}"]))


def _resident(pid: int) -> int:
    found = resident_bytes(pid)
    if found is None:
        raise BenchError(f"the memory of process {pid} can't be read here")
    return found
