"""What a program calls: publishing, subscriptions, questions, administration."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from mist.audience import Attributes, Audience, change_of_json
from mist.client.arguments import payload, tag_set
from mist.client.errors import BadArgument, Unframable, Unsupported
from mist.client.options import State
from mist.client.position import Position, place
from mist.client.publishing import Publishing
from mist.client.state import ClientState
from mist.client.subscription import Gap, Subscription
from mist.client.words import read_text
from mist.commands import (
    AddTags,
    Auth,
    Connections,
    Last,
    ListSubscriptions,
    ListTags,
    Newest,
    Ping,
    Register,
    RemoveTags,
    SetAttributes,
    ShowAttributes,
    ShowTags,
    Store,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
    Unregister,
    Who,
)
from mist.message import ASK, GRANT, Limits, TagSet, check_token
from mist.wire import Batch

__all__ = ["Client"]

_QUEUE: Final = 10_000  # messages; more than one read of the smallest ones brings

_TagSets = tuple[TagSet, ...]


class Client:
    """A connection to a server that is kept up. Made by `mist.client.connect`.

    Any task may call anything at any time. While the connection is down, `publish` queues
    and everything else waits. Once the client is closed, or its connection is lost for good,
    all of it raises why.
    """

    def __init__(self, endpoint: ClientState, publishing: Publishing, limits: Limits) -> None:
        self._endpoint = endpoint
        self._subscribing = endpoint.subscribing
        self._publishing = publishing
        self._limits = limits

    def __repr__(self) -> str:
        return f"<Client {self.state.value}>"

    @property
    def state(self) -> State:
        """How it stands."""
        return self._endpoint.state

    @property
    def refused(self) -> int:
        """Messages that the server refused so far."""
        return self._publishing.refused

    # publishing

    async def publish(
        self, tags: Iterable[str], data: bytes | str, *, to: Audience | None = None
    ) -> None:
        """Queue a message for the server; every subscription whose tags are all in `tags` gets it.

        Does not wait for the server, only for room in the buffer, and doesn't yield to other
        tasks before that: a burst leaves in one write. `flush` tells how it went. Cancelled,
        the message was not queued.

        Args:
            tags: 1 to 64 of them.
            data: bytes without LF, or text, which travels as UTF-8.
            to: which of the subscribers get it; None is all.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, Unframable: nothing was queued.
            Unsupported: over a WebSocket.
            ClientClosed, ConnectionLost, ConnectError: the client is at its end.
        """
        if not self._endpoint.lines:
            raise Unsupported("publishing is not allowed over websockets")
        await self._endpoint.publish(self._publishing.line(tags, data, to))

    async def store(self, tags: Iterable[str], data: bytes | str) -> int:
        """Publish a message and wait until it is durable. Returns its id in the history.

        All that was published before is in the history before it. Cancelled, it may have been
        stored.

        Args:
            tags, data: as in `publish`.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, Unframable: nothing was sent.
            HistoryOff, HistoryUnavailable: it was not stored, and nobody gets it.
            RemoteError: the server refused it for another reason.
            ConnectionLost: it was stored once or not at all.
            Unsupported: over a WebSocket.
        """
        if not self._endpoint.lines:
            raise Unsupported("publishing is not allowed over websockets")
        found = tag_set(tags, self._limits.message_tags)
        raw = payload(data, self._limits.data)
        if b"\n" in raw:
            raise Unframable
        reply = await self._endpoint.call(Store(Batch.of(found, raw)))
        assert isinstance(reply, Stored)
        return reply.id

    async def last(self) -> Position:
        """The newest place in the server's history.

        Raises:
            HistoryOff: there is none.
            Unsupported: over a WebSocket.
        """
        reply = await self._endpoint.call(Last())
        assert isinstance(reply, Newest)
        return Position(reply.epoch, reply.id)

    async def flush(self) -> None:
        """Wait until the server has carried out all that was published before.

        Raises:
            RemoteError: it refused one or more since the last flush; the text is that of the
                first.
            Unconfirmed: a connection broke since the last flush; some may be lost.
            ConnectionLost, ClientClosed, ConnectError: as everywhere.
        """
        await self._endpoint.flush()

    # subscriptions

    @asynccontextmanager
    async def subscribe(
        self,
        tags: Iterable[str],
        *,
        queue: int = _QUEUE,
        raise_on_gap: bool = False,
        on_gap: Callable[[Gap], None] | None = None,
        since: int | tuple[str, int] | Position | None = None,
    ) -> AsyncIterator[Subscription]:
        """Receive messages that carry all of `tags`, for the length of the block.

        Inside the block the server has confirmed it. Any number of subscriptions may overlap
        or be equal: each gets its own copy of a message.

        Args:
            tags: 1 to 16 of them. `{a, b}` gets a message with a, b and c, and none with
                only a.
            queue: messages kept for a slow reader. When they are that many the newest are
                dropped and counted.
            raise_on_gap: whether reading raises `MessagesLost` once where messages are
                missing.
            on_gap: called when reading comes to such a place.
            since: where in the server's history to begin: an id (messages after it; 0 is all
                that is kept), a `Position` or a pair of epoch and id, or -N for the last N
                that match. From there on live, without a gap or a repeat. None for live
                messages only. Inside the block the replay has begun; it ends behind it.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, InvalidPosition: nothing was sent.
            HistoryOff, HistoryUnavailable: with `since`.
            RemoteError: the server refused it: not granted, too many subscriptions.
        """
        found = tag_set(tags, self._limits.subscription_tags, ASK)
        self._endpoint.check()
        subscription = Subscription(
            found,
            queue=queue,
            raise_on_gap=raise_on_gap,
            on_gap=on_gap,
            since=None if since is None else place(since),
        )
        self._subscribing.join(subscription)
        try:
            await subscription.settled.wait()
            subscription.confirmed()
            yield subscription
        finally:
            self._subscribing.leave(subscription)

    async def unsubscribe(self, tags: Iterable[str]) -> None:
        """End all subscriptions of exactly these tags; their iterators end after what they hold.

        Nothing happens where there are none. Leaving a `subscribe` block ends just that one.
        """
        found = tag_set(tags, self._limits.subscription_tags, ASK)
        self._endpoint.check()
        self._subscribing.unsubscribe(found)
        await trio.lowlevel.checkpoint()

    async def list(self) -> _TagSets:
        """This connection's subscriptions as the server has them, in the order made."""
        reply = await self._endpoint.call(ListSubscriptions())
        assert isinstance(reply, Subscriptions)
        return tuple(frozenset(read_text(each).split(",")) for each in reply.tag_lists)

    # asking

    async def ping(self) -> float:
        """The time a round trip takes, in seconds. All that was sent before is carried out."""
        before = trio.current_time()
        await self._endpoint.call(Ping())
        return trio.current_time() - before

    async def who(self) -> Connections:
        """Sessions on all listeners: `connected` now, `lifetime` since the start."""
        reply = await self._endpoint.call(Who())
        assert isinstance(reply, Connections)
        return reply

    async def list_all(self) -> TagSet:
        """Every tag that anyone is subscribed to."""
        reply = await self._endpoint.call(ListTags())
        assert isinstance(reply, Tags)
        return reply.tags

    # tokens

    async def register(self, tags: Iterable[str], token: str) -> None:
        """Make a token known with these tags; `room:*` grants every tag with that prefix.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, InvalidToken: nothing was sent.
            RemoteError: `already exists`.
            Unsupported: over a WebSocket, like all that follow.
        """
        await self._endpoint.call(Register(tags=self._grant(tags), token=check_token(token)))

    async def unregister(self, token: str) -> None:
        """Forget a token and end its live sessions; nothing happens where it is unknown."""
        await self._endpoint.call(Unregister(check_token(token)))

    async def set(self, tags: Iterable[str], token: str) -> None:
        """Grant a token more tags. Raises `RemoteError` where it is unknown."""
        await self._endpoint.call(AddTags(tags=self._grant(tags), token=check_token(token)))

    async def unset(self, tags: Iterable[str], token: str) -> None:
        """Take tags from a token. Raises `RemoteError` where it is unknown."""
        await self._endpoint.call(RemoveTags(tags=self._grant(tags), token=check_token(token)))

    async def set_attributes(self, attributes: Mapping[str, object], token: str) -> None:
        """Say whom a token is for: `{"user": 7, "groups": ["a", "b"], "plan": None}`.

        Args:
            attributes: at least one; those that are None are forgotten, and those that aren't
                named stay. `client` and `user` have one value, `groups` a list, any other one.

        Raises:
            BadArgument, InvalidAudience, InvalidToken: nothing was sent.
            RemoteError: the token is unknown, or has more attributes than it may.
        """
        given, unset = change_of_json(attributes)
        if not attributes:
            raise BadArgument("no attributes are given")
        await self._endpoint.call(SetAttributes(check_token(token), given, unset))

    async def attributes(self, token: str) -> Attributes:
        """Whom a token is for. Raises `RemoteError` where it is unknown."""
        reply = await self._endpoint.call(ShowAttributes(check_token(token)))
        assert isinstance(reply, TokenAttributes)
        return reply.attributes

    async def tags(self, token: str) -> TagSet:
        """The tags of a token. Raises `RemoteError` where it is unknown."""
        reply = await self._endpoint.call(ShowTags(check_token(token)))
        assert isinstance(reply, Tags)
        return reply.tags

    def _grant(self, tags: Iterable[str]) -> TagSet:
        return tag_set(tags, self._limits.token_tags, GRANT)

    async def authenticate(self, token: str) -> None:
        """Swap the token of a WebSocket, in band and for all connections to come.

        Subscriptions that it doesn't allow end with `Revoked`. While the connection is down
        the next one presents it already, so a token that has run out meanwhile can be replaced.
        Cancelled, it may have been swapped.

        Raises:
            RemoteError, AccessDenied: it is not known; the server ends the connection then.
            Unsupported: over TCP.
        """
        if self._endpoint.lines:
            raise Unsupported("a token is for websockets")
        command = Auth(check_token(token))
        self._endpoint.token = token
        await self._endpoint.call(command)
