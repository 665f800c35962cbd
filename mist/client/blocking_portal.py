"""Blocking portal: a thread that runs a client, and synchronous calls into it.

The calls do not use `trio.from_thread`: waiting there can't be interrupted, and Ctrl-C must
reach a script that waits for a message that never comes. A call that is interrupted in the
calling thread is cancelled in the client's.

After `os.fork` the child has a copy of the client, but not its thread: nobody would ever answer.
There every call raises, and closing does nothing, so that the parent's connection stays its own.
(Refused: to reconnect in the child. It would repeat the parent's subscriptions, and deliver to
both what only one of them asked for.)
"""

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import trio

from mist.client.client import Client
from mist.errors import ClientClosed

__all__ = ["BlockingPortal"]

_T = TypeVar("_T")


class _Aborted(Exception):
    """The block failed: close without a flush."""


class BlockingPortal:
    """Runs a client in its own thread. `open` starts it, `close` ends it."""

    def __init__(self, manager: AbstractAsyncContextManager[Client]) -> None:
        self._opened: Future[Client] = Future()
        self._process = os.getpid()
        self._aborted = False
        self._closed = False
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._nursery: trio.Nursery
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
            trio.run(self._main, manager)
        except _Aborted:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            if not self._opened.done():
                self._opened.set_exception(self._error or ClientClosed())

    async def _main(self, manager: AbstractAsyncContextManager[Client]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        self._opening = trio.CancelScope()
        self._started.set()
        with self._opening:
            async with manager as client:
                async with trio.open_nursery() as self._nursery:
                    self._opened.set_result(client)
                    await self._stop.wait()
                    self._closed = True
                    self._nursery.cancel_scope.cancel()
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
        """
        if self.forked:
            raise ClientClosed(
                "this client was connected by another process; connect again after a fork"
            )
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
            if self._closed:
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
            self._run_soon(scope.cancel)
            raise

    def _run_soon(self, function: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def close(self, *, aborted: bool, quiet: bool = False) -> None:
        """End the thread and wait for it; raise what closing the client raised."""
        if self.forked:
            return
        self._aborted = aborted
        self._run_soon(self._stop.set if self._opened.done() else self._opening.cancel)
        try:
            self._thread.join()
        except BaseException:  # interrupted while flushing: cancel the flush too
            self._run_soon(self._opening.cancel)
            raise
        if self._error is not None and not quiet:
            raise self._error
