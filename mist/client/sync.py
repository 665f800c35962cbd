"""Synchronous client, for scripts without an event loop.

    with connect("tcp://127.0.0.1:1445") as client:
        client.register(["room:*"], "a-token")
        client.publish(["room:1"], "hello")
        for message in client.subscribe(["room:1"], timeout=5.0):
            print(message.text)

A thread runs the async client (`mist.client.blocking_portal`). Each call is sent there and
waited for, at the cost of two thread switches. The thread ends with the block.

After a fork the child has to connect for itself: a client that it inherited raises `ClientClosed`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import datetime
from typing import Any, Self

import anyio

from mist.attributes import Attributes
from mist.audience import Audience
from mist.client.blocking_portal import BlockingPortal
from mist.client.client import Client as AsyncClient
from mist.client.connect import connect as connect_async
from mist.client.options import State
from mist.client.places import Places
from mist.client.position import Position
from mist.client.subscription import Subscription as AsyncSubscription
from mist.errors import ClientClosed
from mist.message import Message, TagSet
from mist.replies import Connections, Present
from mist.token_info import TokenInfo, TokenPage

__all__ = ["Client", "Subscription", "connect"]


class Subscription:
    """Messages that carry all of `tags`, as an iterator. Made by `Client.subscribe`.

    It is confirmed when the constructor returns. Iterating ends after `timeout` seconds
    without a message, and raises what the async one does.

    Attributes:
        tags: the tags that a message must carry.
    """

    def __init__(
        self,
        portal: BlockingPortal,
        manager: AbstractAsyncContextManager[AsyncSubscription],
        timeout: float | None,
    ) -> None:
        self._portal = portal
        self._manager = manager
        self._timeout = timeout
        self._taken: list[Message] = []  # of which not all were given
        self._given = 0  # of these
        self._before = 0  # messages that were taken before these
        self._places = Places()  # of both
        self._open = True
        self._subscription = portal.call(manager.__aenter__)
        self.tags = self._subscription.tags

    @property
    def lost(self) -> int:
        """Messages dropped so far because the queue was full."""
        return self._subscription.lost

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and restored so far."""
        return self._subscription.reconnects

    @property
    def position(self) -> Position | None:
        """After the last message that was taken; see the async one's."""
        if not self._taken:
            return self._subscription.position
        return self._places.after(self._before + self._given, self._taken[self._given - 1].id)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if not self._taken:
            if not self._open:
                raise StopIteration
            # All queued messages come over at once: a thread switch costs more than a message.
            self._taken = self._portal.call(self._take)
            if not self._taken:
                raise StopIteration
        message = self._taken[self._given]
        self._given += 1
        if self._given == len(self._taken):
            self._taken, self._given = [], 0
        return message

    async def _take(self) -> list[Message]:
        with anyio.move_on_after(float("inf") if self._timeout is None else self._timeout):
            try:
                first = await anext(self._subscription)
            except StopAsyncIteration:
                return []
            taken = [first, *self._subscription.take()]
            self._places = self._subscription.places
            self._before = self._subscription.taken - len(taken)
            return taken
        return []

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        if not self._open:
            return
        self._open = False

        async def leave() -> None:
            await self._manager.__aexit__(None, None, None)

        with suppress(ClientClosed):
            self._portal.call(leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Client:
    """`mist.client.Client` without `async`: the same methods, arguments and errors.

    Any thread may call its methods.
    """

    def __init__(self, portal: BlockingPortal, client: AsyncClient) -> None:
        self._portal = portal
        self._client = client

    @property
    def state(self) -> State:
        """See `mist.client.State`."""
        return State.CLOSED if self._portal.forked else self._client.state

    @property
    def refused(self) -> int:
        """Messages that the server refused so far."""
        return self._client.refused

    def publish(
        self, tags: Iterable[str], data: bytes | str, *, to: Audience | None = None
    ) -> None:
        """Queue a message; see `mist.client.Client.publish`."""
        self._portal.call(lambda: self._client.publish(tags, data, to=to))

    def store(self, tags: Iterable[str], data: bytes | str) -> int:
        """Publish a message, wait until it is durable, and return its id."""
        return self._portal.call(lambda: self._client.store(tags, data))

    def last(self) -> Position:
        """The newest position in the server's history."""
        return self._portal.call(self._client.last)

    def flush(self) -> None:
        """Wait until the server has handled all messages; see `mist.client.Client.flush`."""
        self._portal.call(self._client.flush)

    def subscribe(
        self, tags: Iterable[str], *, timeout: float | None = None, **options: Any
    ) -> Subscription:
        """Receive messages that carry all of `tags`.

        Args:
            tags, options: see `mist.client.Client.subscribe`.
            timeout: seconds without a message after which iterating ends; None is never.
        """
        return Subscription(self._portal, self._client.subscribe(tags, **options), timeout)

    def unsubscribe(self, tags: Iterable[str]) -> None:
        """End all subscriptions of exactly these tags."""
        self._portal.call(lambda: self._client.unsubscribe(tags))

    def present(self, tags: Iterable[str]) -> Present:
        """Who is subscribed to all of `tags` now."""
        return self._portal.call(lambda: self._client.present(tags))

    def list(self) -> tuple[TagSet, ...]:
        """This connection's subscriptions on the server."""
        return self._portal.call(self._client.list)

    def list_all(self) -> TagSet:
        """Every tag that anyone is subscribed to."""
        return self._portal.call(self._client.list_all)

    def ping(self) -> float:
        """The round-trip time in seconds."""
        return self._portal.call(self._client.ping)

    def who(self) -> Connections:
        """Numbers of sessions on all listeners, now and since the start."""
        return self._portal.call(self._client.who)

    def register(
        self,
        tags: Iterable[str],
        token: str,
        *,
        expires: float | datetime | None = None,
        name: str = "",
    ) -> None:
        """Register a token."""
        self._portal.call(lambda: self._client.register(tags, token, expires=expires, name=name))

    def set_terms(
        self,
        token: str,
        *,
        expires: float | datetime | None = None,
        name: str | None = None,
    ) -> None:
        """Set when a token expires, or what it is called."""
        self._portal.call(lambda: self._client.set_terms(token, expires=expires, name=name))

    def unregister(self, token: str) -> None:
        """Revoke a token and end its sessions."""
        self._portal.call(lambda: self._client.unregister(token))

    def revoke(self, token: str) -> None:
        """Revoke a token, by its text or id, and end its sessions."""
        self._portal.call(lambda: self._client.revoke(token))

    def token(self, token: str) -> TokenInfo:
        """All that the server knows of a token, by its text or id."""
        return self._portal.call(lambda: self._client.token(token))

    def tokens(self, after: str = "") -> TokenPage:
        """Some of all tokens."""
        return self._portal.call(lambda: self._client.tokens(after))

    def revoke_jwt(self, *, jti: str | None = None, sub: str | None = None) -> None:
        """Revoke tokens that were issued elsewhere, and end their sessions."""
        self._portal.call(lambda: self._client.revoke_jwt(jti=jti, sub=sub))

    def set(self, tags: Iterable[str], token: str) -> None:
        """Add tags to a token."""
        self._portal.call(lambda: self._client.set(tags, token))

    def unset(self, tags: Iterable[str], token: str) -> None:
        """Remove tags from a token."""
        self._portal.call(lambda: self._client.unset(tags, token))

    def set_attributes(self, attributes: Mapping[str, object], token: str) -> None:
        """Set attributes of a token; None removes one."""
        self._portal.call(lambda: self._client.set_attributes(attributes, token))

    def attributes(self, token: str) -> Attributes:
        """The attributes of a token."""
        return self._portal.call(lambda: self._client.attributes(token))

    def tags(self, token: str) -> TagSet:
        """The tags of a token."""
        return self._portal.call(lambda: self._client.tags(token))

    def authenticate(self, token: str) -> None:
        """Replace the token of a WebSocket."""
        self._portal.call(lambda: self._client.authenticate(token))


@contextmanager
def connect(url: str, **options: Any) -> Iterator[Client]:
    """A connected client for the length of the block.

    Takes and raises what `mist.client.connect` does. `on_state` and `on_gap` are called in
    the client's thread; a method of the client that they call raises `RuntimeError`.
    """
    portal = BlockingPortal(connect_async(url, **options))
    client = Client(portal, portal.open())
    try:
        yield client
    except BaseException:
        portal.close(aborted=True, quiet=True)
        raise
    portal.close(aborted=False)
