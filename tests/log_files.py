"""The log of this process in a file, written as a server writes it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from mist.logs import configure

__all__ = ["logging_to"]


@contextlib.contextmanager
def logging_to(path: Path, kind: str) -> Iterator[Path]:
    """Log to a file as `mist serve --log-level debug` does; as before at the end of the block.

    Args:
        kind: `console` or `json`.
    """
    root, mist = logging.getLogger(), logging.getLogger("mist")
    before = root.handlers[:], root.level, mist.level
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        with contextlib.redirect_stderr(file):
            configure(kind, "debug")
        yield path
    root.handlers[:], level, mist_level = before
    root.setLevel(level)
    mist.setLevel(mist_level)
