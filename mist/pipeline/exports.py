"""The list of exports of an archive, so that erasure finds the copies.

An export leaves a note in the archive, `_exports/<time>-<random>.json`, before it is there for
anyone to see. A note of an export that never came to be, or was deleted, harms nobody.
"""

import os
import secrets
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from mist.archive import Archive, ArchiveDamaged, ArchiveError
from mist.archive.table import sync_directory

__all__ = ["Export", "Format", "exports", "record"]

FOLDER: Final = "_exports"

Format = Literal["parquet", "jsonl", "delta", "lake"]


class Export(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy.

    Attributes:
        path: of its folder, absolute.
        format: of what is in it. A lake is an archive by itself, which may be growing.
        made: when, Unix seconds.
        selected: which messages, as a person described them.
    """

    path: str
    format: Format
    made: float
    selected: dict[str, str]


def record(archive: Archive, export: Export) -> Path:
    """Note an export, durably on return.

    Raises:
        ArchiveError: it can't be written; then nothing should be exported.
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
    """All that were noted, the oldest first, each folder once.

    Raises:
        ArchiveDamaged: a note can't be read. Nobody can tell what is missed then.
    """
    found: dict[str, Export] = {}
    for path in sorted((archive.folder / FOLDER).glob("[0-9]*.json")):
        try:
            export = msgspec.json.decode(path.read_bytes(), type=Export)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveDamaged(f"archive {path}: {error}") from error
        found[export.path] = export
    return list(found.values())
