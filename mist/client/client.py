"""What a program calls: publisher, subscriptions, questions, administration."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import anyio
import anyio.lowlevel

from mist.attributes import Attributes, change_of_json
from mist.audience import Audience
from mist.client.arguments import (
    check_numbers,
    credential_text,
    payload,
    tag_set,
    token_text,
    unix_seconds,
)
from mist.client.errors import BadArgument, HistoryOff, Unsupported
from mist.client.line_codec import decode_text
from mist.client.options import State
from mist.client.position import Position, Start, parse_position
from mist.client.presence import PresenceWatch
from mist.client.publisher import Publisher
from mist.client.state import ClientState
from mist.client.subscription import Gap, Subscription
from mist.commands import (
    AddTags,
    Auth,
    Command,
    Last,
    ListSubscriptions,
    ListTags,
    ListTokens,
    Ping,
    PublishOnce,
    Register,
    RemoveTags,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    ShowAttributes,
    ShowTags,
    ShowToken,
    Store,
    Unregister,
    Who,
)
from mist.errors import InvalidRevocation
from mist.message import ASK, GRANT, Limits, TagSet
from mist.replies import (
    Connections,
    Newest,
    Present,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
    Tokens,
    TokenShown,
)
from mist.terms import Terms
from mist.token_info import TokenInfo, TokenPage
from mist.wire import Batch

__all__ = ["Client"]

_QUEUE: Final = 10_000  # messages; more than one read of the smallest ones brings

_TagSets = tuple[TagSet, ...]


class Client:
    """A connection to a server that reconnects by itself. Made by `mist.client.connect`.

    Any task may call any method at any time. While the connection is down, `publish` queues
    and everything else waits. Once the client is closed, or its connection is lost for good,
    every method raises the reason.
    """

    def __init__(self, state: ClientState, publisher: Publisher, limits: Limits) -> None:
        self._state = state
        self._subscriber = state.subscriber
        self._publisher = publisher
        self._limits = limits

    def __repr__(self) -> str:
        return f"<Client {self.state.value}>"

    @property
    def state(self) -> State:
        """State of the connection."""
        return self._state.state

    @property
    def refused(self) -> int:
        """Messages that the server refused so far."""
        return self._publisher.refused

    # publishing

    async def publish(
        self, tags: Iterable[str], data: bytes | str, *, to: Audience | None = None
    ) -> None:
        """Queue a message for the server; every subscription whose tags are all in `tags` gets it.

        It does not wait for the server, only for room in the send buffer (backpressure), and
        doesn't yield to other tasks before that, so a burst leaves in one write. `flush` reports
        how it went. Cancelled, the message was not queued.

        Args:
            tags: 1 to 64 of them.
            data: bytes, or text, which is sent as UTF-8. Over TCP without LF; over a WebSocket
                as much as fits into 128 KiB of JSON, with the rest of the message.
            to: the audience, for targeted delivery; None is every subscriber.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, Unframable: nothing was queued.
            ClientClosed, ConnectionLost, ConnectError: the client has ended.
        """
        await self._state.publish(self._publisher.encode(tags, data, to))

    async def store(self, tags: Iterable[str], data: bytes | str) -> int:
        """Publish a message and wait until it is durable. Returns its id in the history.

        Messages published before it precede it in the history. Cancelled, it may have been
        stored.

        Args:
            tags, data: as in `publish`.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, Unframable: nothing was sent.
            HistoryOff, HistoryUnavailable: it was not stored, and is not delivered; but over a
                WebSocket a server without a history has delivered it.
            RemoteError: the server refused it for another reason.
            ConnectionLost: it was stored once or not at all.
        """
        found, raw = tag_set(tags, self._limits.message_tags), payload(data, self._limits.data)
        self._publisher.check_store(found, raw)
        lines = self._state.lines
        command: Command = Store(Batch.of(found, raw)) if lines else PublishOnce(found, raw)
        reply = await self._state.call(command)
        if isinstance(reply, Stored):
            return reply.id
        raise HistoryOff

    async def last(self) -> Position:
        """The newest position in the server's history.

        Raises:
            HistoryOff: the server keeps no history.
            Unsupported: over a WebSocket.
        """
        reply = await self._state.call(Last())
        assert isinstance(reply, Newest)
        return Position(reply.epoch, reply.id)

    async def flush(self) -> None:
        """Wait until the server has handled every message published before.

        Raises:
            RemoteError: it refused at least one since the last flush; the text is that of the
                first.
            Unconfirmed: a connection broke since the last flush; messages may be lost.
            ConnectionLost, ClientClosed, ConnectError: as for every method.
        """
        await self._state.flush()

    # subscriptions

    @asynccontextmanager
    async def subscribe(
        self,
        tags: Iterable[str],
        *,
        queue: int = _QUEUE,
        raise_on_gap: bool = False,
        on_gap: Callable[[Gap], None] | None = None,
        since: Start | None = None,
    ) -> AsyncIterator[Subscription]:
        """Receive messages that carry all of `tags`, for the length of the block.

        The block begins once the server has confirmed the subscription. Any number of
        subscriptions may overlap or be equal; each gets its own copy of a message.

        Args:
            tags: 1 to 16 of them. `{a, b}` gets a message with a, b and c, and none with
                only a.
            queue: messages kept for a slow reader. When it is full, the newest messages are
                dropped and counted.
            raise_on_gap: whether reading raises `MessagesLost` once at each gap.
            on_gap: called when reading reaches a gap.
            since: where in the server's history to begin: an id (messages after it; 0 is all
                that is kept), a `Position` or a pair of epoch and id, or -N for the last N
                that match; or `Latest("order:*")`, of each such tag the newest message that
                matches. The replay continues with live messages, without a gap or a
                duplicate. None is live messages only. The block begins when the replay does.

        Raises:
            BadArgument, EmptyTag, InvalidTag, TooManyTags, InvalidPosition: nothing was sent.
            HistoryOff, LatestOff, HistoryUnavailable: with `since`.
            RemoteError: the server refused it: not granted, too many subscriptions.
        """
        found = tag_set(tags, self._limits.subscription_tags, ASK)
        check_numbers(zero=False, queue=queue)
        self._state.check()
        subscription = Subscription(
            found,
            queue=queue,
            home=self._state.home,
            raise_on_gap=raise_on_gap,
            on_gap=on_gap,
            since=None if since is None else parse_position(since),
        )
        self._subscriber.add(subscription)
        try:
            await subscription.settled.wait()
            subscription.raise_if_refused()
            yield subscription
        finally:
            self._subscriber.remove(subscription)

    async def unsubscribe(self, tags: Iterable[str]) -> None:
        """End all subscriptions of exactly these tags; queued messages can still be read.

        Without any such subscription it does nothing. Leaving a `subscribe` block ends only
        that one.
        """
        found = tag_set(tags, self._limits.subscription_tags, ASK)
        self._state.check()
        self._subscriber.unsubscribe(found)
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def presence(self, tags: Iterable[str]) -> AsyncIterator[PresenceWatch]:
        """Watch who is subscribed to all of `tags`, for the length of the block.

        The block begins once the server has told who is there; see `PresenceWatch`.

        Args:
            tags: 1 to 16 of them, all under the server's `--presence`.

        Raises:
            EmptyTag, InvalidTag, TooManyTags: nothing was sent.
            RemoteError: the server refused it: not granted, presence is off, too many watches.
        """
        found = tag_set(tags, self._limits.subscription_tags, ASK)
        self._state.check()
        watch = PresenceWatch(found, self._state.home)
        self._state.presence.add(watch)
        try:
            await watch.settled.wait()
            watch.raise_if_refused()
            yield watch
        finally:
            self._state.presence.remove(watch)

    async def present(self, tags: Iterable[str]) -> Present:
        """Who is subscribed to all of `tags` now; see `presence`."""
        async with self.presence(tags) as watch:
            return watch.present

    async def list(self) -> _TagSets:
        """This connection's subscriptions on the server, in the order made."""
        reply = await self._state.call(ListSubscriptions())
        assert isinstance(reply, Subscriptions)
        return tuple(frozenset(decode_text(each).split(",")) for each in reply.tag_lists)

    # queries

    async def ping(self) -> float:
        """The round-trip time in seconds. The server has handled all that was sent before."""
        before = time.monotonic()
        await self._state.call(Ping())
        return time.monotonic() - before

    async def who(self) -> Connections:
        """Numbers of sessions on all listeners: `connected` now, `lifetime` since the start."""
        reply = await self._state.call(Who())
        assert isinstance(reply, Connections)
        return reply

    async def list_all(self) -> TagSet:
        """Every tag that anyone is subscribed to."""
        reply = await self._state.call(ListTags())
        assert isinstance(reply, Tags)
        return reply.tags

    # tokens

    async def register(
        self,
        tags: Iterable[str],
        token: str,
        *,
        expires: float | datetime | None = None,
        name: str = "",
    ) -> None:
        """Register a token with these tags; `room:*` grants every tag with that prefix.

        Args:
            expires: when the token expires, and its sessions end: a `datetime` with a time zone,
                or Unix seconds. None for never.
            name: for those who manage tokens, up to 128 characters.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, InvalidToken, InvalidExpiry, InvalidName: nothing
                was sent.
            RemoteError: `already exists`, or `Invalid expiry`: it has passed.
            Unsupported: over a WebSocket; likewise for the methods below.
        """
        terms = Terms(None if expires is None else unix_seconds(expires), name or None)
        await self._state.call(Register(token_text(token), self._grant(tags), terms))

    async def set_terms(
        self,
        token: str,
        *,
        expires: float | datetime | None = None,
        name: str | None = None,
    ) -> None:
        """Set when a token expires, or what it is called.

        Args:
            expires: as for `register`; `math.inf` for never. None leaves it as it is.
            name: empty for none; None leaves it as it is.

        Raises:
            BadArgument, InvalidToken, InvalidExpiry, InvalidName: nothing was sent.
            RemoteError: the token is unknown, or `Invalid expiry`: it has passed.
        """
        terms = Terms(None if expires is None else unix_seconds(expires), name)
        if not terms.text:
            raise BadArgument("neither expires nor name is given")
        await self._state.call(SetTerms(token_text(token), terms))

    async def unregister(self, token: str) -> None:
        """Revoke a token and end its live sessions. An unknown token is no error."""
        await self._state.call(Unregister(token_text(token)))

    async def revoke(self, token: str) -> None:
        """Revoke a token and end its live sessions.

        Args:
            token: its text, or its id; so for all methods below.

        Raises:
            RemoteError: there is none.
        """
        await self._state.call(Revoke(token_text(token)))

    async def token(self, token: str) -> TokenInfo:
        """All that the server knows of a token. Raises `RemoteError` where there is none."""
        reply = await self._state.call(ShowToken(token_text(token)))
        assert isinstance(reply, TokenShown)
        return reply.token

    async def tokens(self, after: str = "") -> TokenPage:
        """Some of all tokens, in the order of their ids, which means nothing.

        Args:
            after: `next` of the page before; empty for the first.
        """
        reply = await self._state.call(ListTokens(token_text(after) if after else ""))
        assert isinstance(reply, Tokens)
        return reply.page

    async def revoke_jwt(self, *, jti: str | None = None, sub: str | None = None) -> None:
        """Revoke tokens that were issued elsewhere, and end their live sessions.

        Args:
            jti: of one token.
            sub: of a user: all tokens that were issued until now.

        Raises:
            BadArgument: not one of both is given.
            InvalidRevocation: it can't be that of a token. Nothing was sent.
        """
        given = [(kind, value) for kind, value in (("jti", jti), ("sub", sub)) if value is not None]
        if len(given) != 1:
            raise BadArgument("give jti or sub")
        if not given[0][1].isprintable():  # or it would not be one line
            raise InvalidRevocation
        await self._state.call(RevokeIssued(*given[0]))

    async def set(self, tags: Iterable[str], token: str) -> None:
        """Add tags to a token. Raises `RemoteError` where it is unknown."""
        await self._state.call(AddTags(tags=self._grant(tags), token=token_text(token)))

    async def unset(self, tags: Iterable[str], token: str) -> None:
        """Remove tags from a token. Raises `RemoteError` where it is unknown."""
        await self._state.call(RemoveTags(tags=self._grant(tags), token=token_text(token)))

    async def set_attributes(self, attributes: Mapping[str, object], token: str) -> None:
        """Set attributes of a token: `{"user": 7, "groups": ["a", "b"], "plan": None}`.

        Args:
            attributes: at least one. None removes an attribute; those not named stay. `groups`
                has a list of values, every other attribute one.

        Raises:
            BadArgument, InvalidAudience, InvalidToken: nothing was sent.
            RemoteError: the token is unknown, or has more attributes than it may.
        """
        given, unset = change_of_json(attributes)
        if not attributes:
            raise BadArgument("no attributes are given")
        await self._state.call(SetAttributes(token_text(token), given, unset))

    async def attributes(self, token: str) -> Attributes:
        """The attributes of a token. Raises `RemoteError` where it is unknown."""
        reply = await self._state.call(ShowAttributes(token_text(token)))
        assert isinstance(reply, TokenAttributes)
        return reply.attributes

    async def tags(self, token: str) -> TagSet:
        """The tags of a token. Raises `RemoteError` where it is unknown."""
        reply = await self._state.call(ShowTags(token_text(token)))
        assert isinstance(reply, Tags)
        return reply.tags

    def _grant(self, tags: Iterable[str]) -> TagSet:
        return tag_set(tags, self._limits.token_tags, GRANT)

    async def authenticate(self, token: str) -> None:
        """Replace the token of a WebSocket, without a reconnect and for later connections.

        Subscriptions that the new token doesn't allow end with `Revoked`. While the connection
        is down, the next one presents the new token, so an expired one can be replaced.
        Cancelled, it may have been replaced.

        Raises:
            RemoteError, AccessDenied: the token is unknown; the server ends the connection.
            Unsupported: over TCP.
        """
        if self._state.lines:
            raise Unsupported("a token is for websockets")
        command = Auth(credential_text(token))
        self._state.token = token
        await self._state.call(command)
