"""The data directory: one server at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mist.errors import StartupError
from mist.listening import reason

__all__ = ["locked"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the data directory if missing, and lock it for this server.

    Raises:
        StartupError: it can't be used, or another server uses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"data directory {folder}: {reason(error)}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"data directory {folder}: another server uses it") from None
        except OSError as error:
            raise StartupError(f"data directory {folder}: {reason(error)}") from error
        yield
    finally:
        os.close(handle)
