"""A new node: how long it takes from its start until it has the log and is ready."""

import os
import time
from typing import Final

from mist.bench.connections import ask
from mist.bench.dialect import Line
from mist.bench.errors import UnexpectedBytes
from mist.bench.nodes.figure import Measured
from mist.bench.nodes.publishing import STALL_TIMEOUT
from mist.bench.nodes.realm import Realm
from mist.wire import record

__all__ = ["measure_joining"]

_MIB: Final = 1 << 20
_SIZE: Final = 1024  # bytes of data in a message
_MESSAGES: Final = 1_024  # between two proofs that all is stored
_TAG: Final = b"log"


def measure_joining(realm: Realm, *, mebibytes: int, rounds: int) -> list[Measured]:
    """Publish that much, then start a node on it, `rounds` times; its start is counted, too.

    The log also has what was published before, which is not counted, so that figures
    can only come out worse than they are.

    Raises:
        BenchError: a message was refused, or the node doesn't become ready.
    """
    _fill(realm, mebibytes)
    seconds = [_join(realm) for _ in range(rounds)]
    much = "1 GiB" if mebibytes == 1024 else f"{mebibytes:,} MiB"
    note = "and what came before"
    return [
        Measured(f"new node with {much}, until it is ready", "s", seconds, note),
        Measured("new node, rate", "MiB/s", [mebibytes / each for each in seconds]),
    ]


def _fill(realm: Realm, mebibytes: int) -> None:
    with realm.one.line.connect() as sock:
        sock.settimeout(STALL_TIMEOUT)
        for _ in range(mebibytes * _MIB // (_SIZE * _MESSAGES)):
            # Random, so that nothing that compresses gains by it; printable, as most data are.
            data = os.urandom(_SIZE // 2 * _MESSAGES).hex().encode()
            lines = [
                record(_TAG, data[at : at + _SIZE]) for at in range(0, _SIZE * _MESSAGES, _SIZE)
            ]
            answer = ask(sock, b"".join(lines) + Line.fence, Line.fenced)
            if answer != Line.fenced:
                raise UnexpectedBytes(answer)


def _join(realm: Realm) -> float:
    start = time.perf_counter()
    with realm.another() as node:
        node.wait_until_ready()
        return time.perf_counter() - start
