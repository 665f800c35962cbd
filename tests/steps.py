"""What is done in steps, done to its end."""

from collections.abc import Generator
from typing import TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(steps: Generator[object, None, T]) -> tuple[int, T]:
    """How many steps there are, and what they come to."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return count, result
        count += 1
