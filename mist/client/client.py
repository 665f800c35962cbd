"""What a program calls: publishing, subscriptions, administration; and who hears of what.

A client is the owner of a link (`mist.client.link`). It keeps what has to outlive a
connection: who listens to what (`mist.client.topics`), and what became of publishes.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from mist.client.address import Address
from mist.client.dialect import Answer, Begun, Ended, Event, Forgotten, PublishFailed, Request
from mist.client.errors import AccessDenied, BadArgument, Unconfirmed, Unframable, Unsupported
from mist.client.frames import SUPPORTED
from mist.client.line import publish_head, publish_line
from mist.client.link import Link, Options, State
from mist.client.outgoing import Outgoing
from mist.client.position import Position, place
from mist.client.subscription import Gap, Subscription
from mist.client.topics import Topics
from mist.commands import (
    AddTags,
    Auth,
    Command,
    Connections,
    Echo,
    Escape,
    Failed,
    Ids,
    Last,
    ListSubscriptions,
    ListTags,
    Newest,
    Ping,
    Register,
    RemoveTags,
    Reply,
    Resume,
    ShowTags,
    Store,
    Stored,
    Subscribe,
    Subscriptions,
    Tags,
    Unregister,
    Unsubscribe,
    Who,
)
from mist.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ConnectionLost,
    DataTooLong,
    HistoryOff,
    RemoteError,
)
from mist.message import (
    GRANT,
    PLAIN,
    Batch,
    Limits,
    Message,
    TagSet,
    TagUse,
    check_token,
    parse_tags,
)

__all__ = ["Client"]

log = logging.getLogger("mist.client")

_CACHED: Final = 4096  # tag lists whose beginning of a line is remembered
_QUEUE: Final = 10_000  # messages; more than one read of the smallest ones brings

_TagSets = tuple[TagSet, ...]


@attrs.define(eq=False)
class _Call(Request):
    """A request that a task waits for."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: ClientError | None = None


class Client:
    """A connection to a server that is kept up. Made by `mist.client.connect`.

    Any task may call anything at any time. While the connection is down, `publish` queues
    and everything else waits. Once the client is closed, or its connection is lost for good,
    all of it raises why.

    Attributes:
        state: see `State`.
        refused: messages that the server refused so far.
    """

    def __init__(
        self,
        address: Address,
        options: Options,
        *,
        secret: str | None = None,
        token: str | None = None,
        echo: bool = True,
        buffer: int,
        limits: Limits,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        self.state = State.CONNECTING
        self.refused = 0
        self._lines = address.protocol == "tcp"
        self._check_credentials(secret, token, address)
        self._secret = secret
        self._token = token
        self._echo = echo
        self._limits = limits
        self._on_state = on_state
        self._outgoing = Outgoing(buffer)
        self._link = Link(address, options, self._outgoing, self)
        self._topics = Topics(self._outgoing.add, self._link.reset, counted=self._lines)
        self._failure: ClientError | None = None
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._refusal: str | None = None  # the first one that no flush has told yet
        self._doubtful = 0  # messages written whose connection broke, not told yet

    def _check_credentials(self, secret: str | None, token: str | None, address: Address) -> None:
        if self._lines:
            if token is not None:
                raise BadArgument("a token is for ws://; tcp:// takes a secret")
            # A secret is one field of a line.
            if secret is not None and (not secret.isprintable() or " " in secret or not secret):
                raise BadArgument("a secret is not empty and has no spaces or control characters")
            return
        if secret is not None:
            raise BadArgument("a secret is for tcp://; ws:// takes a token")
        if token is not None:
            check_token(token)
        elif "?" not in address.resource:
            raise BadArgument("ws:// needs a token")

    def __repr__(self) -> str:
        return f"<Client {self.state.value}>"

    # publishing

    async def publish(self, tags: Iterable[str], data: bytes | str) -> None:
        """Queue a message for the server; every subscription whose tags are all in `tags` gets it.

        Does not wait for the server, only for room in the buffer, and doesn't yield to other
        tasks before that: a burst leaves in one write. `flush` tells how it went. Cancelled,
        the message was not queued.

        Args:
            tags: 1 to 64 of them.
            data: bytes without LF, or text, which travels as UTF-8.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, DataTooLong, Unframable: nothing was queued.
            Unsupported: over a WebSocket.
            ClientClosed, ConnectionLost, ConnectError: the client is at its end.
        """
        if not self._lines:
            raise Unsupported("publishing is not allowed over websockets")
        key = tuple(_several(tags))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            head = publish_head(parse_tags(key, self._limits.message_tags))
            self._heads[key] = head
        line = publish_line(head, _bytes(data, self._limits.data))
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        while self._outgoing.full:
            await self._outgoing.wait_for_room()
            self._check()
        self._outgoing.add(line)

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
        if not self._lines:
            raise Unsupported("publishing is not allowed over websockets")
        found = _tag_set(tags, self._limits.message_tags)
        raw = _bytes(data, self._limits.data)
        if b"\n" in raw:
            raise Unframable
        reply = await self._call(Store(Batch.of(found, raw)))
        assert isinstance(reply, Stored)
        return reply.id

    async def last(self) -> Position:
        """The newest place in the server's history.

        Raises:
            HistoryOff: there is none.
            Unsupported: over a WebSocket.
        """
        reply = await self._call(Last())
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
        try:
            await self._call(Ping())
        except ClientError as error:
            if self._doubtful:
                raise self._take_doubt() from error
            raise
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise RemoteError(refusal)
        if self._doubtful:
            raise self._take_doubt()

    def _take_doubt(self) -> Unconfirmed:
        count, self._doubtful = self._doubtful, 0
        return Unconfirmed(count)

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
        found = parse_tags(_several(tags), self._limits.subscription_tags)
        self._check()
        subscription = Subscription(
            found,
            queue=queue,
            raise_on_gap=raise_on_gap,
            on_gap=on_gap,
            since=None if since is None else place(since),
        )
        self._topics.join(subscription)
        try:
            await subscription.settled.wait()
            subscription.confirmed()
            yield subscription
        finally:
            self._topics.leave(subscription)

    async def unsubscribe(self, tags: Iterable[str]) -> None:
        """End all subscriptions of exactly these tags; their iterators end after what they hold.

        Nothing happens where there are none. Leaving a `subscribe` block ends just that one.
        """
        found = parse_tags(_several(tags), self._limits.subscription_tags)
        self._check()
        self._topics.unsubscribe(found)
        await trio.lowlevel.checkpoint()

    async def list(self) -> _TagSets:
        """This connection's subscriptions as the server has them, in the order made."""
        reply = await self._call(ListSubscriptions())
        assert isinstance(reply, Subscriptions)
        return tuple(frozenset(each.decode().split(",")) for each in reply.tag_lists)

    # asking

    async def ping(self) -> float:
        """The time a round trip takes, in seconds. All that was sent before is carried out."""
        before = trio.current_time()
        await self._call(Ping())
        return trio.current_time() - before

    async def who(self) -> Connections:
        """Sessions on all listeners: `connected` now, `lifetime` since the start."""
        reply = await self._call(Who())
        assert isinstance(reply, Connections)
        return reply

    async def list_all(self) -> TagSet:
        """Every tag that anyone is subscribed to."""
        reply = await self._call(ListTags())
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
        await self._call(Register(tags=self._grant(tags), token=check_token(token)))

    async def unregister(self, token: str) -> None:
        """Forget a token and end its live sessions; nothing happens where it is unknown."""
        await self._call(Unregister(check_token(token)))

    async def set(self, tags: Iterable[str], token: str) -> None:
        """Grant a token more tags. Raises `RemoteError` where it is unknown."""
        await self._call(AddTags(tags=self._grant(tags), token=check_token(token)))

    async def unset(self, tags: Iterable[str], token: str) -> None:
        """Take tags from a token. Raises `RemoteError` where it is unknown."""
        await self._call(RemoveTags(tags=self._grant(tags), token=check_token(token)))

    async def tags(self, token: str) -> TagSet:
        """The tags of a token. Raises `RemoteError` where it is unknown."""
        reply = await self._call(ShowTags(check_token(token)))
        assert isinstance(reply, Tags)
        return reply.tags

    def _grant(self, tags: Iterable[str]) -> TagSet:
        return _tag_set(tags, self._limits.token_tags, GRANT)

    async def authenticate(self, token: str) -> None:
        """Swap the token of a WebSocket, in band and for all connections to come.

        Subscriptions that it doesn't allow end with `Revoked`.

        Raises:
            RemoteError, AccessDenied: it is not known; the server ends the connection then.
            Unsupported: over TCP.
        """
        if self._lines:
            raise Unsupported("a token is for websockets")
        await self._call(Auth(check_token(token)))
        self._token = token

    # calls

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _call(self, command: Command) -> Reply:
        if not self._lines and type(command) not in SUPPORTED:
            raise Unsupported(f"{type(command).__name__} is not for websockets")
        self._check()
        call = _Call(command)
        self._outgoing.add(call)
        try:
            await call.done.wait()
        except trio.Cancelled:
            self._outgoing.remove(lambda request: request is call)
            raise
        if call.error is not None:
            raise call.error
        if isinstance(call.reply, Failed):
            raise call.reply.error
        assert call.reply is not None
        return call.reply

    # the link's owner

    def greeting(self) -> Sequence[Request]:
        commands: list[Command] = []
        if self._lines:
            if self._secret is not None:
                commands.append(Auth(self._secret))
            commands.append(Escape(on=True))
            if not self._echo:
                commands.append(Echo(on=False))
            commands += [Ids(on=True), Last()]
        else:
            commands.append(Ping())  # comes back only where the token was good
        return [*map(Request, commands)]

    def greeted(self, greeting: Sequence[Request]) -> None:
        for request in greeting:
            if isinstance(request.reply, Newest):
                self._topics.history = True
            if not isinstance(request.reply, Failed):
                continue
            text = str(request.reply.error)
            if isinstance(request.command, Ids | Last) and _has_no_history(text):
                self._topics.history = False
                continue
            if isinstance(request.command, Auth):
                raise AccessDenied("access denied: the secret is wrong")
            if text == "Unauthorized":
                raise AccessDenied("access denied: the server demands a secret")
            raise ConnectError(f"the server answered: {text}")

    def opening(self) -> Sequence[Request]:
        return self._topics.opening()

    def token(self) -> str | None:
        return self._token

    def state_changed(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    def handle(self, event: Event) -> None:
        match event:
            case Message():
                self._topics.deliver(event)
            case Answer(request, reply):
                request.reply = reply
                if isinstance(request, _Call):
                    request.done.set()
                else:
                    self._topics.settle(request, reply)
            case Begun():
                self._topics.begun(event)
            case Forgotten(request):
                self._topics.forgotten(request)
            case PublishFailed(text):
                self.refused += 1
                if self._refusal is None:
                    self._refusal = text
                    log.warning("the server refused a message: %s", text)
            case Ended(tags):
                self._topics.revoked(tags)

    async def relieve(self) -> None:
        await self._topics.relieve()

    def broken(self, error: ClientError, unanswered: Sequence[Request], unconfirmed: int) -> None:
        self._doubtful += unconfirmed
        self._topics.broken()
        # The greeting of the next connection says which subscriptions there are by then.
        self._outgoing.remove(lambda it: isinstance(it.command, Resume | Subscribe | Unsubscribe))
        _abort(unanswered, error)

    # life

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the connection until `close`; started when it is there for the first time.

        Raises:
            ConnectError, ConnectionLost: it could not be had even once. Later ends are told
                to whoever calls or reads.
        """
        try:
            await self._link.run(task_status=task_status)
        except ClientError as error:
            never = self.state is State.CONNECTING
            self._fail(error)
            if never:
                raise
        finally:
            self._fail(ClientClosed())

    async def drain(self, seconds: float) -> None:
        """Flush where there is anything to tell. Raises as `flush`, `Unconfirmed` in the end."""
        doubts = self._doubtful or self._refusal is not None
        if not (doubts or self._outgoing.messages or self._link.unconfirmed):
            return
        with trio.move_on_after(seconds) as scope:
            await self.flush()
        if scope.cancelled_caught:
            waiting = self._outgoing.messages + self._link.unconfirmed
            raise Unconfirmed(waiting + self._doubtful)

    def close(self) -> None:
        """Say goodbye and end `run`. Everything that waits raises `ClientClosed`."""
        self._link.close()

    def _fail(self, error: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._topics.fail(error)
        _abort(self._outgoing.remove(lambda it: True), error)
        self._outgoing.wake()
        self.state_changed(State.CLOSED)


def _has_no_history(text: str) -> bool:
    # The second is what a server says that is older than the question.
    return text == HistoryOff.message or text.startswith("Unknown command")


def _abort(requests: Iterable[Request], error: ClientError) -> None:
    for request in requests:
        if isinstance(request, _Call):
            lost = not isinstance(error, ConnectionLost | ConnectError | ClientClosed)
            request.error = ConnectionLost() if lost else error
            request.done.set()


def _several(tags: Iterable[str]) -> Iterable[str]:
    if isinstance(tags, str):  # would be read as a set of letters
        raise TypeError("tags are a list or a set of strings, not one string")
    return tags


def _tag_set(tags: Iterable[str], limit: int, use: TagUse = PLAIN) -> TagSet:
    return parse_tags(_several(tags), limit, use)


def _bytes(data: bytes | str, limit: int) -> bytes:
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise BadArgument("data holds a lone surrogate, which UTF-8 can't carry") from None
    if len(data) > limit:
        raise DataTooLong
    return data
