"""The client's side of a protocol: requests to bytes, bytes to events. No I/O.

The commands and replies are those of the server (`mist.commands`); `Failed` holds a
`RemoteError` here. A dialect belongs to one connection. It remembers what was written and
not answered yet, because that is what gives an answer its meaning.
"""

import abc
from collections.abc import Iterable

import attrs

from mist.commands import Command, Reply
from mist.message import Message, TagSet

__all__ = [
    "Answer",
    "Begun",
    "Dialect",
    "Ended",
    "Event",
    "Forgotten",
    "PublishFailed",
    "Request",
]


@attrs.define(eq=False)
class Request:
    """A command on its way, and in the end its reply.

    Attributes:
        command: what is asked.
        reply: None until it is answered.
    """

    command: Command
    reply: Reply | None = None


@attrs.frozen
class Answer:
    """A request was answered: carried out, or `Failed`."""

    request: Request
    reply: Reply


@attrs.frozen
class PublishFailed:
    """The server refused one of the messages published before.

    The protocol doesn't say which. It is one of those between the last two fences.

    Attributes:
        text: the server's words.
    """

    text: str


@attrs.frozen
class Ended:
    """The server ended a subscription because the token doesn't allow it any more."""

    tags: TagSet


@attrs.frozen
class Begun:
    """What a `Resume` asked for comes from here on; its `Answer` says that all of it came.

    Attributes:
        epoch: which log it is.
        id: the newest that there was. On the line protocol, where nothing marks the very
            moment, live messages with higher ids may still come before the replay.
    """

    request: Request
    epoch: str
    id: int


@attrs.frozen
class Forgotten:
    """From here on something is missing that the history has forgotten.

    Attributes:
        request: the `Resume` that asked for it; it is told before the first message, or where
            the history lost it while it was being read. None where nothing says whose it is:
            a slow reader is given from the history, too, what it could not be given live.
    """

    request: Request | None


Event = Message | Answer | PublishFailed | Ended | Begun | Forgotten


class Dialect(abc.ABC):
    """One connection's writer of requests and reader of what comes back.

    Attributes:
        unconfirmed: messages written that no fence has come back for.
    """

    unconfirmed: int = 0

    @abc.abstractmethod
    def write(self, items: Iterable[bytes | Request]) -> list[bytes]:
        """The wire form of published messages (already bytes) and requests, in order.

        Everything returned must be sent, in this order: it is expected to be answered.
        """

    @abc.abstractmethod
    def receive(self, data: bytes) -> list[Event]:
        """What has arrived, in order.

        Raises:
            ProtocolViolation: nothing that the server could mean here. The connection is of
                no use after that.
        """

    @abc.abstractmethod
    def close(self) -> tuple[list[Event], list[Request]]:
        """The connection is gone: events that were held back, and requests never answered."""
