"""`connect` for tests that run under trio: its client runs under trio, too, or under asyncio.

Under asyncio it has a loop in a thread of its own. What a test does with the client is done there:
a call is a task of that loop, and cancelled where the test's is.

    from tests.client.loops import connect      # in place of `mist.client.connect`

Each test of a module that has this runs twice; see conftest.py.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, TypeVar

import outcome
import trio
import trio.testing

import mist.client
from mist.client import Client, Message, Subscription

__all__ = ["asyncio_loop", "begun", "connect", "next_of", "trio_only"]

_loop: asyncio.AbstractEventLoop | None = None


@contextmanager
def asyncio_loop() -> Iterator[None]:
    """Have clients run under asyncio for the length of the block."""
    global _loop
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="asyncio")
    thread.start()
    _loop = loop
    try:
        yield
    finally:
        _loop = None
        left = asyncio.run_coroutine_threadsafe(_left(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        assert not left, f"tasks that nobody ended: {left}"


async def _left() -> list[str]:
    """Tasks that are still there, which a closed client must not leave behind."""
    await asyncio.sleep(0)
    this = asyncio.current_task()
    return [repr(each) for each in asyncio.all_tasks() if each is not this]


_Test = TypeVar("_Test", bound=Callable[..., Awaitable[None]])


def trio_only(test: _Test) -> _Test:
    """Mark a test that moves so much that two threads would be what it measures.

    Its like for asyncio is in test_asyncio.py.
    """
    test.trio_only = True  # type: ignore[attr-defined]
    return test


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Client]:
    """As `mist.client.connect`."""
    if _loop is None:
        return mist.client.connect(url, **options)
    on_state = options.get("on_state")
    if on_state is not None:  # it may wake the test's tasks
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        options["on_state"] = lambda state: soon(on_state, state)
    return _Manager(_loop, lambda: mist.client.connect(url, **options))  # type: ignore[return-value]


async def _call(
    loop: asyncio.AbstractEventLoop, function: Callable[..., Awaitable[Any]], *arguments: Any
) -> Any:
    """Await something in the other loop. Cancelled here, it is cancelled there."""
    token = trio.lowlevel.current_trio_token()
    done = trio.Event()
    result: outcome.Outcome[Any] | None = None
    task: asyncio.Task[None] | None = None

    async def run() -> None:
        nonlocal result
        result = await outcome.acapture(function, *arguments)

    def begin() -> None:
        nonlocal task
        task = asyncio.create_task(run())
        # Not in `run`: a task that is cancelled before its first step does nothing.
        task.add_done_callback(lambda _: token.run_sync_soon(done.set))

    def cancel() -> None:
        assert task is not None
        task.cancel()

    loop.call_soon_threadsafe(begin)
    try:
        await done.wait()
    except trio.Cancelled:
        loop.call_soon_threadsafe(cancel)
        with trio.CancelScope(shield=True):
            await done.wait()
        if not isinstance(result, outcome.Value):
            raise
    assert result is not None
    return result.unwrap()


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> Any:
    """Call something in the other loop, and wait for it."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    loop.call_soon_threadsafe(run)
    return future.result(10)


async def next_of(subscription: Subscription, count: int) -> list[Message]:
    """The next messages, by one call to the other loop: one for each would take most of a test."""

    async def following(subscription: Subscription) -> list[Message]:
        return [await anext(subscription) for _ in range(count)]

    if isinstance(subscription, _There):
        return await _call(subscription._loop, following, subscription._subject)  # type: ignore[no-any-return]
    return await following(subscription)


async def begun(client: object) -> None:
    """Wait until every call of a client that a task has begun is at its first wait."""
    await trio.testing.wait_all_tasks_blocked()
    if isinstance(client, _There):
        # The first is behind what creates their tasks, the second behind these tasks' first steps.
        for _ in range(2):
            _call_soon(client._loop, lambda: None)


class _There:
    """A client or a subscription in the other loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, subject: object) -> None:
        self._loop = loop
        self._subject = subject

    def __repr__(self) -> str:
        return repr(self._subject)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if inspect.iscoroutinefunction(found):

            async def method(*arguments: Any, **options: Any) -> Any:
                return await _call(self._loop, lambda: found(*arguments, **options))

            return method
        if not callable(found):
            return found

        def function(*arguments: Any, **options: Any) -> Any:
            make = lambda: found(*arguments, **options)  # noqa: E731
            if name in ("subscribe", "presence"):
                return _Manager(self._loop, make)
            return _call_soon(self._loop, make)

        return function

    def __aiter__(self) -> "_There":
        return self

    async def __anext__(self) -> Any:
        return await _call(self._loop, self._subject.__anext__)  # type: ignore[attr-defined]


class _Manager:
    """A context manager in the other loop: entered and left in one task there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self._loop = loop
        self._make = make
        self._token = trio.lowlevel.current_trio_token()
        self._entered = trio.Event()
        self._ended = trio.Event()
        self._value: object = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None]
        self._leave: asyncio.Future[None]

    async def __aenter__(self) -> Any:
        self._loop.call_soon_threadsafe(self._begin)
        try:
            await self._entered.wait()
        except trio.Cancelled:
            await self._cancel()
            raise
        if self._ended.is_set() or self._error is not None:
            assert self._error is not None
            raise self._error
        return _There(self._loop, self._value)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, trio.Cancelled):
            await self._cancel()
            return False
        if error is None:
            self._loop.call_soon_threadsafe(self._leave.set_result, None)
        else:
            self._loop.call_soon_threadsafe(self._leave.set_exception, error)
        try:
            await self._ended.wait()
        except trio.Cancelled:
            await self._cancel()
            raise
        if self._error is None:
            return error is not None
        if self._error is error:
            return False
        raise self._error

    async def _cancel(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task.cancel())
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def _begin(self) -> None:
        self._leave = self._loop.create_future()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._note_end)

    async def _run(self) -> None:
        try:
            async with self._make() as self._value:
                self._token.run_sync_soon(self._entered.set)
                await self._leave
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # such as pytest's own, of what didn't raise
            self._error = error

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        self._token.run_sync_soon(self._ended.set)
        self._token.run_sync_soon(self._entered.set)
