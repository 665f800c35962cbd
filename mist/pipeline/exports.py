"""The registry of an archive's exports, so that erasure finds them.

An export is recorded in the archive, as `_exports/<time>-<random>.json`, before it becomes
visible. A record of an export that failed or was deleted does no harm.
"""

import os
import secrets
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from mist.archive import Archive, ArchiveDamaged, ArchiveError
from mist.archive.generations import sync_directory

__all__ = ["Export", "Format", "exports", "record"]

FOLDER: Final = "_exports"

Format = Literal["parquet", "jsonl", "delta", "lake"]


class Export(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of an export.

    Attributes:
        path: of its folder, absolute.
        format: of its files. A lake is an archive itself, and may be growing.
        made: time of the export, Unix seconds.
        selected: the selection of messages, as given on the command line.
    """

    path: str
    format: Format
    made: float
    selected: dict[str, str]


def record(archive: Archive, export: Export) -> Path:
    """Record an export, durably on return.

    Raises:
        ArchiveError: the record can't be written; nothing may be exported then.
    """
    folder = archive.folder / FOLDER
    name = f"{time.time_ns():020}-{secrets.token_hex(4)}.json"
    temporary = folder / f".{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(export))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / name)
        sync_directory(folder)
        sync_directory(archive.folder)
    except OSError as error:
        raise ArchiveError(f"archive {folder}: {error.strerror}") from error
    return folder / name


def exports(archive: Archive) -> list[Export]:
    """All recorded exports, the oldest first, each folder once.

    Raises:
        ArchiveDamaged: a record can't be read, so exports may be missed.
    """
    found: dict[str, Export] = {}
    for path in sorted((archive.folder / FOLDER).glob("[0-9]*.json")):
        try:
            export = msgspec.json.decode(path.read_bytes(), type=Export)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ArchiveDamaged(f"archive {path}: {error}") from error
        found[export.path] = export
    return list(found.values())
