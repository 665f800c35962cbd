"""Dialect: the contract of a sans-I/O client protocol. Requests to bytes, bytes to events.

The commands and replies are those of the server (`mist.commands`); `Failed` holds a
`RemoteError` here. A dialect belongs to one connection. It remembers the requests in flight,
because they give a reply its meaning.
"""

import abc
from collections.abc import Iterable

import attrs

from mist.commands import Command
from mist.message import Message, TagSet
from mist.replies import PresenceChanged, Present, Reply

__all__ = [
    "Dialect",
    "Event",
    "HistoryGap",
    "PresenceRevoked",
    "PresenceTold",
    "PublishFailed",
    "ReplayStarted",
    "Request",
    "Response",
    "SubscriptionRevoked",
]


@attrs.define(eq=False)
class Request:
    """A command in flight, and later its reply.

    Attributes:
        command: what is requested.
        reply: None until it arrived.
    """

    command: Command
    reply: Reply | None = None


@attrs.frozen
class Response:
    """The reply to a request; `Failed` if the server refused it."""

    request: Request
    reply: Reply


@attrs.frozen
class PublishFailed:
    """The server refused one of the messages published before.

    The protocol doesn't say which one; it was written between the last two fences.

    Attributes:
        text: the server's error text.
    """

    text: str


@attrs.frozen
class SubscriptionRevoked:
    """The server ended a subscription: the token no longer allows it."""

    tags: TagSet


@attrs.frozen
class ReplayStarted:
    """The replay that a `Resume` asked for starts; its `Response` says that it is complete.

    Attributes:
        epoch: which log it is.
        id: the newest id in the log. On the line protocol, which does not mark the exact
            point, live messages with higher ids may still come before the replay.
    """

    request: Request
    epoch: str
    id: int


@attrs.frozen
class ReplayUnplaced:
    """The server refused to say where in the log the replay of a `Resume` starts.

    It may replay all the same, since only `last` asks an engine; the `Response` says whether.

    Attributes:
        text: the server's error text.
    """

    request: Request
    text: str


@attrs.frozen
class HistoryGap:
    """Messages are missing here, because retention removed them from the history.

    Attributes:
        request: the `Resume` that asked for them. The event comes before its first message, or
            where messages were removed during the replay. None where the protocol doesn't say
            which: the server also replays to a slow consumer what it could not deliver live.
    """

    request: Request | None


@attrs.frozen
class PresenceTold:
    """Who is present at a tag set, or who has joined and left. It comes before its `Response`."""

    told: Present | PresenceChanged


@attrs.frozen
class PresenceRevoked:
    """The server tells no more of a tag set's presence: the token no longer allows it."""

    tags: TagSet


Event = (
    Message
    | Response
    | PublishFailed
    | SubscriptionRevoked
    | ReplayStarted
    | ReplayUnplaced
    | HistoryGap
    | PresenceTold
    | PresenceRevoked
)


class Dialect(abc.ABC):
    """Encodes the requests of one connection and decodes what comes back.

    Attributes:
        unconfirmed: messages written that no fence has confirmed.
    """

    unconfirmed: int = 0

    @abc.abstractmethod
    def write(self, items: Iterable[bytes | Request]) -> list[bytes]:
        """The wire form of published messages (already bytes) and requests, in order.

        Everything returned must be sent, in this order: replies to it are expected.
        """

    @abc.abstractmethod
    def receive(self, data: bytes) -> Iterable[Event]:
        """The events in a chunk that arrived, in order; iterated once, to its end.

        Raises:
            ProtocolViolation: the server broke the protocol, behind the events before. The
                connection can't be used after that.
        """

    @abc.abstractmethod
    def close(self) -> tuple[list[Event], list[Request]]:
        """The connection is gone: the events still held back, and the requests never answered."""
