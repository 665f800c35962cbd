"""Progress of a job: a line of text at intervals."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str], None]
"""Called with one line of text, without its newline."""


def silent(line: str) -> None:
    """Discard the line."""
