"""WebSockets that connect with a token, one after the other; and stay, or subscribe and close."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

import attrs

from mist.bench.connections import ask
from mist.bench.dialect import masked_frame
from mist.bench.errors import BenchError, HungUp, UnexpectedBytes
from mist.bench.http.rounds import Rounds, measure_round
from mist.bench.script import TAG
from mist.bench.site import Site
from mist.protocols.rfc6455 import text_frame

__all__ = ["Handshakes", "measure_handshakes"]

_SUBSCRIBED = text_frame(b'{"success":true,"command":"subscribe"}')
_CLOSE = 0x88
_NORMAL = (1000).to_bytes(2)  # RFC 6455, 7.4.1
_WARM = 20  # connections ahead of the first round


@attrs.frozen
class Handshakes:
    """What WebSocket connections cost.

    Attributes:
        closed: whether each subscribes and is closed by the client, with a closing handshake,
            before the next connects. Else all stay until their round is measured.
        rounds: of connections, each opened with a token.
    """

    closed: bool
    rounds: Rounds


def measure_handshakes(
    site: Site, *, connections: int = 300, rounds: int = 3
) -> Sequence[Handshakes]:
    """Connect and be let in; then also subscribe and close, and wait for the answers.

    Args:
        connections: in each round.

    Raises:
        BenchError: there is no WebSocket endpoint, or it doesn't let us in.
    """
    endpoint = site.endpoint("ws")
    subscribe = endpoint.dialect.subscribe([TAG])

    def come_and_go(count: int) -> None:
        for _ in range(count):
            with endpoint.connect() as sock:
                ask(sock, subscribe, _SUBSCRIBED)
                _close(sock)

    come_and_go(_WARM)
    stayed, closed = Rounds(), Rounds()
    for _ in range(rounds):
        with ExitStack() as open_sockets:

            def come(count: int, sockets: ExitStack = open_sockets) -> None:
                for _ in range(count):
                    sockets.enter_context(endpoint.connect())

            stayed.rounds.append(measure_round(connections, lambda: come(connections), site.cpu))
        closed.rounds.append(measure_round(connections, lambda: come_and_go(connections), site.cpu))
    return [Handshakes(False, stayed), Handshakes(True, closed)]


def _close(sock: socket.socket) -> None:
    """A closing handshake, up to the end of the connection (RFC 6455, 7.1.1).

    Raises:
        BenchError: it was answered otherwise, or not at all.
    """
    answer = b""
    try:
        sock.sendall(masked_frame(_CLOSE, _NORMAL))
        while piece := sock.recv(1_024):
            answer += piece
    except TimeoutError as error:
        raise BenchError("the server does not close a WebSocket") from error
    except OSError as error:
        raise HungUp(f"the connection broke: {error.strerror}") from error
    if not answer.startswith(bytes((_CLOSE,))):
        raise UnexpectedBytes(answer)
