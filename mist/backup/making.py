"""`mist backup`: a backup of a server that runs, or one that is brought up to date."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from mist.backup import DESCRIBE, EXPORT_TOKENS
from mist.backup.manifest import (
    FORMAT,
    FOUND_ON_VOLUMES,
    HISTORY,
    MANIFEST,
    SETTINGS,
    TOKENS,
    ArchiveState,
    BackupError,
    HistoryState,
    Manifest,
    read_manifest,
    write_file,
    write_manifest,
)
from mist.errors import HistoryUnavailable, StartupError
from mist.history.opening import open_history
from mist.history.sqlite.copying import check_blocks, copy_log

__all__ = ["Made", "make_backup", "read_state"]

_LOCK: Final = "lock"
_OURS: Final = {
    *(MANIFEST, SETTINGS, HISTORY, TOKENS, f"{TOKENS}.key", _LOCK),
    *(f"{name}.new" for name in (MANIFEST, SETTINGS, HISTORY, TOKENS, f"{TOKENS}.key")),
    f"{HISTORY}-journal",  # of an update that was interrupted: SQLite takes it back
    f"{HISTORY}.new-journal",  # of a first backup that was
}


@attrs.frozen
class Made:
    """A backup that was made.

    Attributes:
        blocks: of the history, that were written; None where all of it was.
        written: bytes of these.
        problems: what is damaged in the history, a line each.
        seconds: that it took.
    """

    manifest: Manifest
    blocks: int | None
    written: int
    problems: tuple[str, ...]
    seconds: float


def make_backup(
    folder: Path, ask: Callable[[str], Mapping[str, Any]], *, verify: bool = False
) -> Made:
    """Back up a server into a folder, or bring the backup there up to date. Blocks.

    What was written is read again and checked. An error leaves the backup before this one usable.
    So does a server that has begun with nothing, as where its disk was lost: the backup is what
    there is of the one before.

    Args:
        ask: has the server do a command of its control socket.
        verify: whether all of the history is checked, and not just what was written.

    Raises:
        BackupError: one line that says why there is none.
        MistError: as `ask`.
    """
    began, now = time.monotonic(), time.time()
    with _folder(folder):
        before = read_manifest(folder) if (folder / MANIFEST).exists() else None
        found = ask(DESCRIBE)
        history = None
        blocks, written = None, 0
        problems: tuple[str, ...] = ()
        if found["history"] is not None:
            if before is not None and before.history is not None:
                _check_related(folder, before.history, Path(found["history"]))
            history, blocks, written, problems = _copy_history(
                Path(found["history"]), folder / HISTORY, verify=verify
            )
        tokens = _take_tokens(folder, before, ask(EXPORT_TOKENS))
        write_file(folder / SETTINGS, found["settings"].encode())
        archive = found["archive"]
        manifest = Manifest(
            format=FORMAT,
            mist=found["mist"],
            made=now,
            history=history,
            tokens=tokens,
            archive=None if archive is None else msgspec.convert(archive, ArchiveState),
            engine=found["engine"],
        )
        write_manifest(folder, manifest)
    return Made(manifest, blocks, written, problems, time.monotonic() - began)


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Make the folder where there is none, and keep other backups out of it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = {each.name for each in folder.iterdir()} - {*_OURS, *FOUND_ON_VOLUMES}
        if others and not (folder / MANIFEST).exists():
            raise BackupError(f"{folder}: it has other files; name an empty directory")
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BackupError(f"{folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"{folder}: another backup is being made there") from None
        yield
    finally:
        os.close(handle)


def _check_related(folder: Path, had: HistoryState, source: Path) -> None:
    """Check that a log is the one that a folder has a backup of, or may have followed it.

    One that was restored, or has begun another epoch, goes on with higher ids.

    Raises:
        BackupError: it has less, and is another one.
    """
    try:
        found = read_state(source)
    except (HistoryUnavailable, StartupError) as error:
        raise _history_error(error) from error
    if found.epoch != had.epoch and found.newest < had.newest:
        raise BackupError(
            f"{folder}: it has the log of epoch {had.epoch} up to id {had.newest}, and this server"
            f" another one, up to {found.newest}; it is left as it is: restore it, or name another"
            " directory"
        )


def _history_error(error: HistoryUnavailable | StartupError) -> BackupError:
    return BackupError(f"history: {error}; the backup before this one is unchanged")


def _copy_history(
    source: Path, target: Path, *, verify: bool
) -> tuple[HistoryState, int | None, int, tuple[str, ...]]:
    try:
        copied = copy_log(source, target)
        state, problems = trio.run(_check, target, copied.blocks is None or verify)
        if copied.blocks is not None and not verify:
            problems = [str(each) for each in check_blocks(target, copied.blocks)]
    except (HistoryUnavailable, StartupError) as error:
        raise _history_error(error) from error
    except OSError as error:
        raise BackupError(f"history: {error.filename or target}: {error.strerror}") from error
    count = None if copied.blocks is None else len(copied.blocks)
    return state, count, copied.size, tuple(problems)


async def _check(path: Path, verify: bool) -> tuple[HistoryState, list[str]]:
    async with await open_history(f"sqlite:///{path}", read_only=True) as history:
        found = await history.verify() if verify else []
        problems = [
            f"{each.first}-{each.last}: {each.text}" if each.last else each.text for each in found
        ]
        statistics = await history.statistics()
    position = statistics.position
    state = HistoryState(
        position.epoch, position.newest, statistics.messages, statistics.size, statistics.newest
    )
    return state, problems


def read_state(path: Path) -> HistoryState:
    """What the log in a backup has. Blocks.

    Raises:
        StartupError: there is none that can be read.
        HistoryUnavailable: it can't be read.
    """
    return trio.run(_check, path, False)[0]


def _take_tokens(folder: Path, before: Manifest | None, found: Mapping[str, Any]) -> int | None:
    if found["folder"] is None:
        return None
    source, had = Path(found["folder"]), 0 if before is None else before.tokens or 0
    key = f"{TOKENS}.key"
    try:
        if found["tokens"] < had and (source / key).read_bytes() != (folder / key).read_bytes():
            raise BackupError(
                f"{folder}: it has {had} tokens of another registry than this server's, which has"
                f" {found['tokens']}; they are left as they are: restore them, or name another"
                " directory"
            )
        # The key first: tokens with another key would be refused, a key without tokens is not.
        for name in (key, TOKENS):
            write_file(folder / name, (source / name).read_bytes())
        with suppress(OSError):  # the next backup does
            shutil.rmtree(source)
    except OSError as error:
        raise BackupError(f"tokens: {error.filename}: {error.strerror}") from error
    tokens = found["tokens"]
    assert isinstance(tokens, int)
    return tokens
