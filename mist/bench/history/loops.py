"""Event loops of a benchmark: one that never rests, one that ends well on a signal."""

import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NoReturn, TypeVar

import trio

from mist.bench.errors import BenchError
from mist.errors import MistError

__all__ = ["beside", "run"]

_SLICE: Final = 0.0005  # seconds
_TERMINATED: Final = 128 + signal.SIGTERM  # what a shell calls that end

T = TypeVar("T")


@asynccontextmanager
async def beside(busy: bool, *tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Do what is in the block beside other tasks, which are cancelled at its end.

    Args:
        busy: whether another one saturates the event loop.
    """
    async with trio.open_nursery() as nursery:
        for task in (*tasks, _spin) if busy else tasks:
            nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


async def _spin() -> None:
    """Work in slices of half a millisecond, as a busy server's sessions do."""
    while True:
        until = time.perf_counter() + _SLICE
        while time.perf_counter() < until:
            pass
        await trio.lowlevel.checkpoint()


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async function to its end, in the main thread.

    Ctrl-C and SIGTERM unwind it as they unwind what is not async.

    Raises:
        BenchError: the history can't be had.
    """
    try:
        return trio.run(_until_terminated, function)
    except (MistError, BaseExceptionGroup) as error:
        first = _first(error)
        if isinstance(first, MistError) and not isinstance(first, BenchError):
            raise BenchError(str(first)) from error
        raise first from None


async def _until_terminated(function: Callable[[], Awaitable[T]]) -> T:
    async with trio.open_nursery() as nursery:
        # A handler that raises would do so anywhere, in the midst of trio's own work too.
        await nursery.start(_leave_on_signal)
        result = await function()
        nursery.cancel_scope.cancel()
    return result


async def _leave_on_signal(
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            sys.exit(_TERMINATED)
    raise AssertionError("signals never end")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
