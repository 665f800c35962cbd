"""Generations of a table: the directory `_manifest`, where each manifest is a file with a number.

A new one is written aside, and then linked under the next number, which fails where that number
is taken. So of several writers that start from the same generation one succeeds, wherever they
run: a writer that was stopped for an hour in between changes nothing that others have done since.
This compare-and-set needs no lock. The lock on a file (`locked`) lets writers take turns instead
of trying again.

Old generations are deleted, so a number is free again some time later. A writer that was stopped
for that long must not take it: what it has written aside is deleted before the number is, and it
looks which generation is the newest once it has written.
"""

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["Generations", "Taken", "sync_directory"]

_KEPT: Final = 8  # generations, for readers of an older one, and for inspection
_NAME: Final = re.compile(r"([0-9]{20})\.json")
_ASIDE: Final = re.compile(r"\.([0-9]{20})\.[0-9a-f]+\.json")
_LOOK: Final = 0.02  # seconds between two attempts to get the lock
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class Taken(Exception):  # no error: the caller starts from the newest again
    """Another writer has added a generation meanwhile."""


class Generations:
    """See the module. Methods raise `OSError` unless they say otherwise.

    Args:
        folder: the directory, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> int:
        """The highest number; 0 where there is none."""
        names = self._names()
        return int(names[-1][:20]) if names else 0

    def path(self, number: int) -> Path:
        """Where a generation is."""
        return self.folder / f"{number:020}.json"

    def add(self, data: bytes, number: int, *, locked: bool) -> None:
        """Add the generation behind the newest one, durably.

        Args:
            data: of the manifest.
            number: of the generation; one more than that of the newest.
            locked: whether the caller has the lock. Without it, a file system without hard links
                is refused.

        Raises:
            Taken: another writer was faster; nothing is changed.
        """
        aside = self.folder / f".{number:020}.{secrets.token_hex(8)}.json"
        try:
            with open(aside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if self.newest() != number - 1:
                raise Taken
            self._link(aside, self.path(number), locked=locked)
        finally:
            with suppress(OSError):
                aside.unlink()
        sync_directory(self.folder)
        self._delete_old()

    def check_links(self) -> None:
        """Check that the file system has hard links.

        Raises:
            OSError: it has none, or the directory can't be written to.
        """
        one = self.folder / f".{0:020}.{secrets.token_hex(8)}.json"
        two = one.with_name(f".{0:020}.{secrets.token_hex(8)}.json")
        try:
            one.touch(0o600, exist_ok=False)
            os.link(one, two)
        finally:
            for each in (one, two):
                with suppress(OSError):
                    each.unlink()

    @contextmanager
    def locked(self, timeout: float | None = None) -> Iterator[bool]:
        """Have the lock within the block. Not reentrant. Gives whether it is had.

        Args:
            timeout: seconds to wait for it; None is no limit. A process that was stopped while it
                had the lock keeps it.
        """
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _lock(handle, timeout)
        finally:
            os.close(handle)

    def _link(self, aside: Path, path: Path, *, locked: bool) -> None:
        try:
            os.link(aside, path)
        except FileNotFoundError:  # deleted, since there are many newer ones
            raise Taken from None
        except FileExistsError:
            # Over NFS, a request whose answer was lost is repeated: then it is this one's.
            if os.stat(aside).st_nlink < 2:
                raise Taken from None
        except OSError as error:
            if error.errno not in _NO_LINKS or not locked:
                raise
            if path.exists():
                raise Taken from None
            os.rename(aside, path)

    def _delete_old(self) -> None:
        old = self._names()[:-_KEPT]
        if not old:
            return
        try:
            for name in os.listdir(self.folder):
                if (found := _ASIDE.fullmatch(name)) and int(found[1]) <= int(old[-1][:20]):
                    (self.folder / name).unlink(missing_ok=True)
            for name in old:
                (self.folder / name).unlink(missing_ok=True)
        except OSError:  # tried again with the next one, in the same order
            return

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))


def sync_directory(folder: Path) -> None:
    """Make renamed and new names in a directory survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(handle: int, timeout: float | None) -> bool:
    if timeout is None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return True
    give_up = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(_LOOK)
        else:
            return True
