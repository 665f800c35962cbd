"""The client for scripts: no async, no event loop to be seen.

    with connect("tcp://127.0.0.1:1445") as client:
        client.register(["room:*"], "a-token")
        client.publish(["room:1"], "hello")
        for message in client.subscribe(["room:1"], timeout=5.0):
            print(message.text)

A thread runs trio with the real client inside; each call is sent there and waited for, at the
cost of two thread switches. The thread ends with the block. It is not `trio.from_thread` that
carries the calls: what waits there can't be given up, and Ctrl-C has to reach a script that
waits for a message that never comes. A call that is interrupted here is cancelled there.
"""

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Self, TypeVar

import trio

from mist.client.client import Client as AsyncClient
from mist.client.connect import connect as connect_async
from mist.client.link import State
from mist.client.position import Position
from mist.client.subscription import Subscription as AsyncSubscription
from mist.commands import Connections
from mist.errors import ClientClosed
from mist.message import Message, TagSet

__all__ = ["Client", "Subscription", "connect"]

_T = TypeVar("_T")


class _Aborted(Exception):
    """The block failed: leave without a flush."""


class _Portal:
    """A thread that holds a client open, and calls into it."""

    def __init__(self, manager: AbstractAsyncContextManager[AsyncClient]) -> None:
        self._opened: Future[AsyncClient] = Future()
        self._aborted = False
        self._over = False
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._nursery: trio.Nursery
        self._thread = threading.Thread(
            target=self._run, args=(manager,), name="mist-client", daemon=True
        )
        self._started = threading.Event()

    def open(self) -> AsyncClient:
        """Start the thread and wait for the client. Raises what `connect` does."""
        self._thread.start()
        self._started.wait()
        try:
            return self._opened.result()
        except BaseException:
            self.close(aborted=True, quiet=True)
            raise

    def _run(self, manager: AbstractAsyncContextManager[AsyncClient]) -> None:
        try:
            trio.run(self._main, manager)
        except _Aborted:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            if not self._opened.done():
                self._opened.set_exception(self._error or ClientClosed())

    async def _main(self, manager: AbstractAsyncContextManager[AsyncClient]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        self._opening = trio.CancelScope()
        self._started.set()
        with self._opening:
            async with manager as client:
                async with trio.open_nursery() as self._nursery:
                    self._opened.set_result(client)
                    await self._stop.wait()
                    self._over = True
                    self._nursery.cancel_scope.cancel()
                if self._aborted:
                    raise _Aborted

    def call(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run an async function in there. Interrupted, it is cancelled there."""
        future: Future[_T] = Future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    future.set_result(await function())
            except Exception as error:
                future.set_exception(error)
            finally:
                if not future.done():
                    future.set_exception(ClientClosed())

        def start() -> None:
            if self._over:
                future.set_exception(ClientClosed())
            else:
                self._nursery.start_soon(run)

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            raise ClientClosed from None
        try:
            return future.result()
        except BaseException:
            self._tell(scope.cancel)
            raise

    def _tell(self, function: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def close(self, *, aborted: bool, quiet: bool = False) -> None:
        """End the thread and wait for it; raise what leaving the client raised."""
        self._aborted = aborted
        self._tell(self._stop.set if self._opened.done() else self._opening.cancel)
        try:
            self._thread.join()
        except BaseException:  # interrupted while flushing: give that up too
            self._tell(self._opening.cancel)
            raise
        if self._error is not None and not quiet:
            raise self._error


class Subscription:
    """Messages that carry all of `tags`, as an iterator. Made by `Client.subscribe`.

    It holds from the moment it is made. Iterating ends after `timeout` seconds without a
    message, and raises what the async one does.

    Attributes:
        tags: what it asks for.
    """

    def __init__(
        self,
        portal: _Portal,
        manager: AbstractAsyncContextManager[AsyncSubscription],
        timeout: float | None,
    ) -> None:
        self._portal = portal
        self._manager = manager
        self._timeout = timeout
        self._taken: Iterator[Message] = iter(())
        self._open = True
        self._subscription = portal.call(manager.__aenter__)
        self.tags = self._subscription.tags

    @property
    def lost(self) -> int:
        """Messages dropped so far because nobody took them in time."""
        return self._subscription.lost

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and made again meanwhile."""
        return self._subscription.reconnects

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = next(self._taken, None)
        if message is not None:
            return message
        if not self._open:
            raise StopIteration
        # What is there comes over at once: a thread switch costs more than a message.
        taken = self._portal.call(self._take)
        if not taken:
            raise StopIteration
        self._taken = iter(taken)
        return next(self._taken)

    async def _take(self) -> list[Message]:
        with trio.move_on_after(float("inf") if self._timeout is None else self._timeout):
            try:
                first = await anext(self._subscription)
            except StopAsyncIteration:
                return []
            return [first, *self._subscription.take()]
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

    Any thread may call it.
    """

    def __init__(self, portal: _Portal, client: AsyncClient) -> None:
        self._portal = portal
        self._client = client

    @property
    def state(self) -> State:
        """See `mist.client.State`."""
        return self._client.state

    @property
    def refused(self) -> int:
        """Messages that the server refused so far."""
        return self._client.refused

    def publish(self, tags: Iterable[str], data: bytes | str) -> None:
        """Queue a message; see `mist.client.Client.publish`."""
        self._portal.call(lambda: self._client.publish(tags, data))

    def store(self, tags: Iterable[str], data: bytes | str) -> int:
        """Publish a message, wait until it is durable, and return its id."""
        return self._portal.call(lambda: self._client.store(tags, data))

    def last(self) -> Position:
        """The newest place in the server's history."""
        return self._portal.call(self._client.last)

    def flush(self) -> None:
        """Wait until all that was published is carried out; raises where some was refused."""
        self._portal.call(self._client.flush)

    def subscribe(
        self, tags: Iterable[str], *, timeout: float | None = None, **options: Any
    ) -> Subscription:
        """Receive messages that carry all of `tags`.

        Args:
            tags: see `mist.client.Client.subscribe`, and for `options` too.
            timeout: seconds without a message after which iterating ends; None waits on.
        """
        return Subscription(self._portal, self._client.subscribe(tags, **options), timeout)

    def unsubscribe(self, tags: Iterable[str]) -> None:
        """End all subscriptions of exactly these tags."""
        self._portal.call(lambda: self._client.unsubscribe(tags))

    def list(self) -> tuple[TagSet, ...]:
        """This connection's subscriptions as the server has them."""
        return self._portal.call(self._client.list)

    def list_all(self) -> TagSet:
        """Every tag that anyone is subscribed to."""
        return self._portal.call(self._client.list_all)

    def ping(self) -> float:
        """The time of a round trip, in seconds."""
        return self._portal.call(self._client.ping)

    def who(self) -> Connections:
        """Sessions on all listeners, now and since the start."""
        return self._portal.call(self._client.who)

    def register(self, tags: Iterable[str], token: str) -> None:
        """Make a token known."""
        self._portal.call(lambda: self._client.register(tags, token))

    def unregister(self, token: str) -> None:
        """Forget a token and end its sessions."""
        self._portal.call(lambda: self._client.unregister(token))

    def set(self, tags: Iterable[str], token: str) -> None:
        """Grant a token more tags."""
        self._portal.call(lambda: self._client.set(tags, token))

    def unset(self, tags: Iterable[str], token: str) -> None:
        """Take tags from a token."""
        self._portal.call(lambda: self._client.unset(tags, token))

    def tags(self, token: str) -> TagSet:
        """The tags of a token."""
        return self._portal.call(lambda: self._client.tags(token))

    def authenticate(self, token: str) -> None:
        """Swap the token of a WebSocket."""
        self._portal.call(lambda: self._client.authenticate(token))


@contextmanager
def connect(url: str, **options: Any) -> Iterator[Client]:
    """A connected client for the length of the block.

    Takes and raises what `mist.client.connect` does. `on_state` and `on_gap` are called in
    the client's thread.
    """
    portal = _Portal(connect_async(url, **options))
    client = Client(portal, portal.open())
    try:
        yield client
    except BaseException:
        portal.close(aborted=True, quiet=True)
        raise
    portal.close(aborted=False)
