"""`mist restore`: a data directory made of a backup.

The restored log begins a new epoch: clients may have ids from after the backup, which other
messages get from now on. In the new epoch they are told that messages may be missing, instead.
"""

import os
import shutil
from pathlib import Path
from typing import Final

import attrs
import trio

from mist.auth.sqlite import SqliteStore
from mist.backup.making import read_state
from mist.backup.manifest import (
    FOUND_ON_VOLUMES,
    HISTORY,
    MANIFEST,
    TOKENS,
    BackupError,
    HistoryState,
    Manifest,
    read_manifest,
)
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Durability
from mist.history.opening import open_history
from mist.sqlite import sync_directory

__all__ = ["Restored", "restore_backup"]

_COPY_AGAIN: Final = "the backup was copied in part: copy it again"
_STAGING: Final = ".restoring"  # in a directory that is there


@attrs.frozen
class Restored:
    """What was restored.

    Attributes:
        history: as it was in the backup; None where there was none.
        epoch: of the restored log; empty where there is none.
        tokens: how many.
    """

    manifest: Manifest
    history: HistoryState | None
    epoch: str
    tokens: int | None


def restore_backup(folder: Path, data: Path) -> Restored:
    """Make a data directory of a backup. Blocks.

    Args:
        data: is made; or exists and is empty, and is then filled rather than replaced: it may be a
            volume, and belong to another user, who gets the files where root restores them.

    Raises:
        BackupError: one line that says why not. `data` is then as it was.
    """
    manifest = read_manifest(folder)
    data = Path(os.path.abspath(data))  # `.` has no name
    is_there = _check_unused(data)
    fresh = data / _STAGING if is_there else data.with_name(f".{data.name}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700, parents=True)
        history, epoch = None, ""
        if manifest.history is not None:
            history = read_state(_copy(folder, fresh, HISTORY))
            _check_whole(folder, history, manifest.history)
            epoch = trio.run(_begin_epoch, fresh / HISTORY)
        tokens = None
        if manifest.tokens is not None:
            _copy(folder, fresh, f"{TOKENS}.key")
            tokens = _count(_copy(folder, fresh, TOKENS))
        sync_directory(fresh)
        if is_there:
            _fill(data, fresh)
        else:
            fresh.rename(data)
            sync_directory(data.parent)
    except OSError as error:
        raise BackupError(f"{error.filename or data}: {error.strerror}") from error
    except (HistoryUnavailable, StartupError) as error:
        # The copy is about to go, so that of the backup is named, which is as it is.
        reason = str(error).replace(f"{fresh}/", f"{folder}/")
        raise BackupError(f"the backup can't be used: {reason}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Restored(manifest, history, epoch, tokens)


def _check_unused(data: Path) -> bool:
    """Whether it is there; with nothing in it, or what a restore that was killed has left."""
    try:
        if not data.exists():
            return False
        others = {each.name for each in data.iterdir()} - {_STAGING, *FOUND_ON_VOLUMES}
    except OSError as error:
        raise BackupError(f"{data}: {error.strerror}") from error
    if others:
        raise BackupError(f"{data}: it is in use or has files; name a new directory")
    return True


def _fill(data: Path, fresh: Path) -> None:
    """Move the files into the directory; none of them where one can't be."""
    owner = data.stat()
    moved: list[Path] = []
    try:
        for each in fresh.iterdir():
            if os.geteuid() == 0:
                os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
            moved.append(each.rename(data / each.name))
        sync_directory(data)
    except OSError:
        for each in moved:
            each.unlink(missing_ok=True)
        raise


def _check_whole(folder: Path, found: HistoryState, listed: HistoryState) -> None:
    """Check that the log has what the manifest lists; it may have more, of an interrupted backup.

    Raises:
        BackupError: it is an older one, as where a copy of a backup has ended in the middle.
    """
    if found.newest < listed.newest:
        raise BackupError(
            f"{folder / HISTORY}: it ends with id {found.newest}, and {MANIFEST} lists ids up to"
            f" {listed.newest}; {_COPY_AGAIN}"
        )


def _copy(folder: Path, fresh: Path, name: str) -> Path:
    target = fresh / name
    if not (folder / name).stat().st_size:  # which would be taken for a new one
        raise BackupError(f"{folder / name}: it is empty; {_COPY_AGAIN}")
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(folder / name, "rb") as source, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    journal = folder / f"{name}-journal"
    if journal.exists():  # an update was interrupted: with it, SQLite takes that back
        shutil.copyfile(journal, target.with_name(journal.name))
    return target


async def _begin_epoch(path: Path) -> str:
    url = f"sqlite:///{path}"
    async with await open_history(url, read_only=True) as reader:
        durability = (await reader.statistics()).durability
    async with await open_history(url, durability=Durability(durability)) as history:
        return await history.new_epoch()


def _count(path: Path) -> int:
    store = SqliteStore.open(f"/{path.absolute()}")
    try:
        return sum(1 for _ in store.load())
    finally:
        store.close()
