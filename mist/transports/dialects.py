"""Which dialect a connection speaks, where its first bytes or its handshake have to tell.

A session begins when its peer connects, so that it is counted, and ends with the server, however
long the peer keeps silent. What it will speak may not be known by then; it is told as soon as it
is (`Conversation.speak`), before the first command.
"""

from collections.abc import Callable, Iterator

from mist.commands import Command, Reply
from mist.dialogue import Dialogue
from mist.message import Limits
from mist.protocols import Protocol, WireForm
from mist.protocols.line import LineProtocol
from mist.protocols.line_forms import PLAIN

__all__ = ["Conversation", "Protocols", "Undecided", "lines"]

Protocols = Callable[[bytes, Limits, bool], Protocol | None]
"""Finds the protocol of a connection.

Called with all that its peer has sent so far, at first with nothing; with the limits of what a
peer sends; and with whether the peer has yet to prove who it is. None where more bytes have to
tell. What it was called with is what the protocol then receives.
"""


def lines(first: bytes, limits: Limits, stranger: bool) -> Protocol | None:
    """The line protocol, whatever comes."""
    return LineProtocol(limits, stranger=stranger)


class Undecided(Protocol):
    """Of a peer that has said nothing yet, and is told nothing."""

    def __init__(self) -> None:
        self.form: WireForm = PLAIN

    def receive(self, data: bytes) -> Iterator[Command]:
        raise AssertionError("what a peer speaks is decided before it is listened to")

    def reply(self, command: Command, reply: Reply) -> bytes:
        raise AssertionError("nothing has been asked")


class Conversation(Dialogue):
    """A dialogue whose dialect may be told after it has begun."""

    __slots__ = ()

    def speak(self, protocol: Protocol) -> None:
        """Speak this from now on. Only before the first command."""
        self.protocol = protocol
        self.outbox.form = protocol.form
        self.outbox.echo = getattr(protocol, "echoes", True)
        self.subscriptions._counted = protocol.counts_subscriptions
        self._notify = protocol.notice
