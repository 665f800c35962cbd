"""Which servers use an archive: a lock on a file, which the kernel releases however one ends.

A server of its own has the lock alone. Nodes of one log share it: what keeps them apart is a lease,
see `sharing`.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mist.archive.manifest import ArchiveError
from mist.archive.table import Archive

__all__ = ["ArchiveInUse", "alone", "lock_alone", "lock_shared"]

_NAME: Final = "server-lock"
_WAIT: Final = 2.0  # seconds
_LOOK: Final = 0.05  # seconds


class ArchiveInUse(ArchiveError):
    """Another server uses an archive."""

    code = "archive_in_use"


def lock_alone(archive: Archive) -> int:
    """Have an archive alone. Returns the descriptor to close when done.

    Raises:
        ArchiveInUse: another server uses it.
        ArchiveError: it can't be locked.
    """
    return _lock(archive, fcntl.LOCK_EX)


def lock_shared(archive: Archive) -> int:
    """Use an archive beside others that share it. Otherwise as `lock_alone`.

    Waits a moment for a node that has it alone while it starts. Called in a thread.
    """
    give_up = time.monotonic() + _WAIT
    while True:
        try:
            return _lock(archive, fcntl.LOCK_SH)
        except ArchiveInUse:
            if time.monotonic() >= give_up:
                raise
            time.sleep(_LOOK)


@contextmanager
def alone(archive: Archive, lock: int) -> Iterator[bool]:
    """Have an archive alone within the block, if no other server uses it. Gives whether that is so.

    Args:
        lock: from `lock_shared`.

    Raises:
        ArchiveInUse: a server of its own has taken it meanwhile.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_alone = False
    else:
        is_alone = True
    try:
        yield is_alone
    finally:
        # Also where it was not had: with the attempt, the shared one may be lost.
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(archive) from None


def _lock(archive: Archive, how: int) -> int:
    path = archive.folder / "_manifest" / _NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ArchiveError(f"archive {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise _in_use(archive) from None
    except OSError as error:
        os.close(handle)
        raise ArchiveError(f"archive {path}: {error.strerror}") from error
    return handle


def _in_use(archive: Archive) -> ArchiveInUse:
    return ArchiveInUse(f"archive {archive.folder}: another server uses it")
