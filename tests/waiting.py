"""Waiting in tests for what no event tells: a session that is gone, a thread's work, a log line."""

import inspect
import time
from collections.abc import Callable

import trio
import trio.testing

_INTERVAL = 0.002  # seconds


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds.

    A mock clock stands still meanwhile: what is waited for is then up to threads, sockets and
    other tasks, none of which it measures.

    Args:
        condition: is called again and again; cheap.
        seconds: real ones, whatever the test's clock.

    Raises:
        AssertionError: the condition still doesn't hold; shows its source.
    """
    mocked = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            source = inspect.getsource(condition).strip()
            raise AssertionError(f"still not so after {seconds:g} seconds: {source}")
        if mocked:
            await trio.testing.wait_all_tasks_blocked(_INTERVAL)
        else:
            await trio.sleep(_INTERVAL)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> float:
    """As `until`, for tests without an event loop.

    Returns:
        Seconds that it took.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"still not so after {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - began
