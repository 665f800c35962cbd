"""The server's part of a backup: the tokens, and what else there is to copy.

A registry in SQLite is locked by its server, and one that servers share is in an engine. Either is
written out from memory: into a registry of its own, with the same key, in the data directory. Who
has asked for it takes it from there.
"""

import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from mist.auth import Record
from mist.auth.digests import Digests
from mist.auth.key import read_key
from mist.auth.sqlite import SqliteStore
from mist.backup.manifest import TOKENS, BackupError, write_file
from mist.backup.settings import settings_text
from mist.config import Config
from mist.config.kinds import without_password
from mist.config.places import is_memory
from mist.errors import RegistryUnavailable, StartupError
from mist.history.sqlite.database import LOG
from mist.sessions.hub import Hub
from mist.version import __version__

__all__ = ["describe_data", "export_tokens"]

_PREFIX: Final = "backup-"  # of folders in the data directory
_KEPT_SECONDS: Final = 3_600
_AT_ONCE: Final = 10_000  # records in a transaction


async def describe_data(config: Config) -> Mapping[str, object]:
    """What there is to copy, and the settings. Paths are absolute.

    Raises:
        MistError: the archive can't be read.
    """
    archive = None
    if config.archive is not None:
        archive = await trio.to_thread.run_sync(_describe_archive, config.archive)
    return {
        "mist": __version__,
        "settings": settings_text(config),
        "history": _history_file(config),
        "engine": None if config.engine is None else without_password(config.engine),
        "archive": archive,
    }


def _history_file(config: Config) -> str | None:
    if config.engine is not None or config.history_url is None:
        return None
    scheme, _, location = config.history_url.partition("://")
    return str(LOG.locate(location)) if scheme.lower() == "sqlite" else None


def _describe_archive(folder: Path) -> Mapping[str, object]:
    from mist.archive import Archive  # needs pyarrow, which a server with an archive has

    table = Archive(folder).messages
    manifest = table.current()
    return {
        "manifest": os.path.abspath(table.manifest_path(manifest.generation)),
        "sealed": manifest.sealed,
        "segments": len(manifest.segments),
        "size": manifest.size,
    }


async def export_tokens(hub: Hub, config: Config) -> Mapping[str, object]:
    """Write the tokens and their key into a folder, of which the answer tells.

    The records are those of one moment; they are written in a thread.

    Raises:
        BackupError: they can't be written, or their key not be read.
    """
    key_file = _key_file(config)
    if key_file is None:
        return {"folder": None, "tokens": None}
    records = hub.registry.records()
    write = partial(_write_tokens, config.data, records, key_file, hub.registry.fingerprint)
    with trio.CancelScope(shield=True):
        folder = await trio.to_thread.run_sync(write)
    return {"folder": folder, "tokens": len(records)}


def _key_file(config: Config) -> Path | None:
    """The key of the tokens; None where they last as long as the process."""
    if config.shares_tokens:
        return config.token_key_file
    if is_memory(config.tokens_url):
        return None
    _, _, location = config.tokens_url.partition("://")
    return Path(os.path.abspath(location[1:] + ".key"))


def _write_tokens(data: Path, records: Sequence[Record], key_file: Path, fingerprint: bytes) -> str:
    """Returns the folder that they are in."""
    _remove_old(data)
    folder = Path(os.path.abspath(data / f"{_PREFIX}{secrets.token_hex(8)}"))
    try:
        key = _read_key(key_file, fingerprint)
        folder.mkdir(mode=0o700)
        path = folder / TOKENS
        write_file(path.with_name(f"{TOKENS}.key"), key)
        store = SqliteStore.open(f"/{path}")
        try:
            for start in range(0, len(records), _AT_ONCE):
                store.write({each.digest: each for each in records[start : start + _AT_ONCE]})
        finally:
            store.close()
    except OSError as error:
        raise BackupError(f"tokens: {error.filename or folder}: {error.strerror}") from error
    except RegistryUnavailable as error:
        raise BackupError(f"tokens: {error.__cause__}") from error
    except (StartupError, BackupError) as error:
        raise BackupError(f"tokens: {error}") from error
    return str(folder)


def _read_key(key_file: Path, fingerprint: bytes) -> bytes:
    key = read_key(key_file)
    if Digests(key).fingerprint != fingerprint:
        raise BackupError(
            f"{key_file} is another key than the one this server has begun with, and no token "
            "can be recognised with it; put that back"
        )
    return key


def _remove_old(data: Path) -> None:
    """Remove what nobody has taken."""
    for each in data.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if each.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(each)
