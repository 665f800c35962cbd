"""`backup.json`: what a backup has, for `mist restore` and for people."""

import os
from pathlib import Path
from typing import Final

import msgspec

from mist.errors import MistError
from mist.sqlite import sync_directory

__all__ = [
    "FORMAT",
    "FOUND_ON_VOLUMES",
    "HISTORY",
    "MANIFEST",
    "SETTINGS",
    "TOKENS",
    "ArchiveState",
    "BackupError",
    "HistoryState",
    "Manifest",
    "read_manifest",
    "write_file",
    "write_manifest",
]

MANIFEST: Final = "backup.json"
HISTORY: Final = "history.db"
TOKENS: Final = "tokens.db"
SETTINGS: Final = "mist.toml"

FOUND_ON_VOLUMES: Final = ("lost+found",)
"""Names that an empty directory may have where it is a volume of its own."""

FORMAT: Final = 1


class BackupError(MistError):
    """A backup can't be made or used. The text is one line that says why."""

    code = "backup"


class HistoryState(msgspec.Struct, frozen=True):
    """The log in a backup.

    Attributes:
        epoch: that of its ids.
        newest: the highest id that was given.
        messages: how many are kept.
        size: bytes of them.
        time: of the newest, Unix seconds; None where there is none.
    """

    epoch: str
    newest: int
    messages: int
    size: int
    time: float | None


class ArchiveState(msgspec.Struct, frozen=True):
    """The archive beside a backup, which has no copy of it.

    Attributes:
        manifest: the file that lists its segments.
        sealed: the highest id that it accounts for.
        segments, size: how many files, and bytes, of messages.
    """

    manifest: str
    sealed: int
    segments: int
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        format: of this file.
        mist: the version that made it.
        made: when it was begun, Unix seconds.
        history: None where the server keeps none, or an engine does.
        tokens: how many; None where the server keeps none on a disk.
        archive: None where there is none.
        engine: where the log is, without a password; None for a server of its own.
    """

    format: int
    mist: str
    made: float
    history: HistoryState | None
    tokens: int | None
    archive: ArchiveState | None
    engine: str | None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it in place of the one before, durably.

    Raises:
        BackupError: it can't be written.
    """
    text = msgspec.json.format(msgspec.json.encode(manifest))
    write_file(folder / MANIFEST, text + b"\n")


def write_file(path: Path, data: bytes) -> None:
    """Replace a file, durably; only its owner can read it.

    Raises:
        BackupError: it can't be written.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup.

    Raises:
        BackupError: there is none, or it is of a later version.
    """
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BackupError(f"{folder}: no backup is there; `mist backup` makes one") from None
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{path}: {error}") from None
    if found.format != FORMAT:
        raise BackupError(f"{path}: format {found.format}, but this mist knows {FORMAT}")
    return found
