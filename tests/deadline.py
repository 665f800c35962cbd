"""A deadline for what no task can be cancelled in, such as the search of a regular expression."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deadline"]


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raise TimeoutError where a block takes longer. In the main thread; one at a time."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
