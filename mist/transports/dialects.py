"""Which dialect a connection speaks, where its first bytes or its handshake have to tell.

A session begins when its peer connects, so that it is counted, and ends with the server, however
long the peer keeps silent. What it will speak may not be known by then; it is told as soon as it
is (`CommandSession.set_protocol`), before the first command.
"""

from collections.abc import Callable, Iterator
from typing import Final

from mist.commands import Command
from mist.message import Limits
from mist.protocols import Protocol
from mist.protocols.json import JsonProtocol
from mist.protocols.line import LineProtocol
from mist.protocols.line.forms import PLAIN
from mist.replies import Reply
from mist.wire import WireForm

__all__ = ["Protocols", "Undecided", "line_or_json"]

Protocols = Callable[[bytes, Limits, bool], Protocol | None]
"""Finds the protocol of a connection.

Called with all that its peer has sent so far, at first with nothing; with the limits of what a
peer sends; and with whether the peer has yet to prove who it is. None where more bytes have to
tell. What it was called with is what the protocol then receives.
"""

_BLANK: Final = b" \t\r\n"
_MOST_BLANK: Final = 4096  # bytes of white space, after which the peer is taken to speak lines


def line_or_json(first: bytes, limits: Limits, unauthenticated: bool) -> Protocol | None:
    """JSON objects where the first byte that is not white space is `{`, else lines."""
    begun = first.lstrip(_BLANK)
    if not begun and len(first) <= _MOST_BLANK:
        return None
    if begun.startswith(b"{"):
        return JsonProtocol(limits, unauthenticated=unauthenticated)
    return LineProtocol(limits, unauthenticated=unauthenticated)


class Undecided(Protocol):
    """Of a peer that has said nothing yet, and is told nothing."""

    def __init__(self) -> None:
        self.form: WireForm = PLAIN

    def receive(self, data: bytes) -> Iterator[Command]:
        raise AssertionError("what a peer speaks is decided before it is listened to")

    def reply(self, command: Command, reply: Reply) -> bytes:
        return b""  # not even why its session ends
