"""The file of latest values, for logs that keep none: so that none is left of an earlier start."""

import os
from contextlib import suppress
from typing import Final

__all__ = ["IN_MEMORY", "remove_tables"]

IN_MEMORY: Final = ":memory:"


def remove_tables(path: str) -> None:
    """Remove the file, if there is one, with what SQLite keeps beside it. Raises OSError."""
    if path != IN_MEMORY:
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")
