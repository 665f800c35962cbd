"""Blocking portal: a thread that runs a client, and synchronous calls into it.

Ctrl-C reaches a script that waits for a message that never comes: a call that is interrupted in the
calling thread is cancelled in the client's.

After `os.fork` the child has a copy of the client, but not its thread. There every call raises, see
`mist.client.home`, and closing does nothing, so that the parent's connection stays its own.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from mist.client.client import Client
from mist.client.home import FORKED
from mist.errors import ClientClosed

__all__ = ["BlockingPortal"]

_T = TypeVar("_T")
_IN_CALLBACK = "on_state and on_gap run in the client's thread, where its methods can't be called"


class _Aborted(Exception):
    """The block failed: close without a flush."""


class BlockingPortal:
    """Runs a client in its own thread. `open` starts it, `close` ends it."""

    def __init__(self, manager: AbstractAsyncContextManager[Client]) -> None:
        self._opened: Future[Client] = Future()
        self._process = os.getpid()
        self._aborted = False
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._main_task: asyncio.Task[None] | None = None
        self._tasks: dict[Future[Any], asyncio.Task[None]] = {}
        self._lock = threading.Lock()  # held for no longer than a look:
        self._calls: set[Future[Any]] = set()  # that wait, from all threads
        self._ended = False
        self._thread = threading.Thread(
            target=self._run, args=(manager,), name="mist-client", daemon=True
        )
        self._started = threading.Event()

    def open(self) -> Client:
        """Start the thread and wait for the client. Raises what `connect` does."""
        self._thread.start()
        self._started.wait()
        try:
            return self._opened.result()
        except BaseException:
            self.close(aborted=True, quiet=True)
            raise

    def _run(self, manager: AbstractAsyncContextManager[Client]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main(manager))
        except _Aborted:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            if not self._opened.done():
                self._opened.set_exception(self._error or ClientClosed())
            with self._lock:
                self._ended = True
                calls = [each for each in self._calls if not each.done()]
            for each in calls:
                each.set_exception(ClientClosed())

    async def _main(self, manager: AbstractAsyncContextManager[Client]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._main_task = asyncio.current_task()
        self._started.set()
        async with manager as client:
            self._opened.set_result(client)
            await self._stop.wait()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._aborted:
                raise _Aborted

    @property
    def forked(self) -> bool:
        """Whether this is a copy in another process than the client's."""
        return os.getpid() != self._process

    def call(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run an async function in the client's thread and wait. Interrupted, it is cancelled.

        Raises:
            ClientClosed: the client is closed, or another process has it.
            RuntimeError: it is called in the client's thread, which would wait for itself.
        """
        if self.forked:
            raise ClientClosed(FORKED)
        if threading.current_thread() is self._thread:
            raise RuntimeError(_IN_CALLBACK)
        future: Future[_T] = Future()
        with self._lock:
            if self._ended:
                raise ClientClosed
            self._calls.add(future)
        try:
            self._run_soon(self._begin, function, future)
            return future.result()
        except BaseException:
            self._run_soon(self._cancel, future)
            raise
        finally:
            with self._lock:
                self._calls.discard(future)

    def _begin(self, function: Callable[[], Awaitable[_T]], future: "Future[_T]") -> None:
        if self._stop.is_set():
            future.set_exception(ClientClosed())
        else:
            self._tasks[future] = asyncio.create_task(self._do(function, future))

    async def _do(self, function: Callable[[], Awaitable[_T]], future: "Future[_T]") -> None:
        try:
            future.set_result(await function())
        except Exception as error:
            future.set_exception(error)
        finally:
            del self._tasks[future]
            if not future.done():
                future.set_exception(ClientClosed())

    def _cancel(self, future: "Future[Any]") -> None:
        task = self._tasks.get(future)
        if task is not None:
            task.cancel()

    def _run_soon(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, *, aborted: bool, quiet: bool = False) -> None:
        """End the thread and wait for it; raise what closing the client raised."""
        if self.forked:
            return
        self._aborted = aborted
        if self._main_task is not None:  # otherwise there is no loop, for want of descriptors
            self._run_soon(self._stop.set if self._opened.done() else self._cancel_all)
        try:
            self._thread.join()
        except BaseException:  # interrupted while flushing: cancel the flush too
            self._run_soon(self._cancel_all)
            raise
        if self._error is not None and not quiet:
            raise self._error

    def _cancel_all(self) -> None:
        if self._main_task is not None:
            self._main_task.cancel()
