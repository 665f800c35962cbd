"""Progress of a job: a line of text at intervals."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str], None]
"""Takes one line, without its end."""


def silent(line: str) -> None:
    """Tell nobody."""
