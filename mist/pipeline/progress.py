"""How a job tells what it is at: a line of text now and then, for a person who waits."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str], None]
"""Takes one line, without its end."""


def silent(line: str) -> None:
    """Tell nobody."""
