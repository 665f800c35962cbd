"""The key file beside a registry: the key with which tokens become digests.

A file of its own, so that a copy of the database alone, in a backup or a bug report, doesn't
let anyone test guesses at tokens.
"""

import os
import secrets
from pathlib import Path
from typing import Final

from mist.auth.secret_file import warn_if_exposed
from mist.errors import StartupError
from mist.sqlite import sync_directory

__all__ = ["KEY_LENGTH", "create_key", "make_key_file", "read_key", "read_key_file"]

KEY_LENGTH: Final = 32  # bytes, as many as SHA-256 gives


def read_key(path: Path) -> bytes:
    """The key in `path`. Warns where others could read it.

    Raises:
        FileNotFoundError: there is none.
        OSError: it can't be read.
        StartupError: it is not as long as a key.
    """
    with path.open("rb") as file:
        key = file.read(KEY_LENGTH + 1)
        warn_if_exposed(path, os.fstat(file.fileno()))
    if len(key) != KEY_LENGTH:
        raise StartupError(f"token registry: {path} is not a key file of {KEY_LENGTH} bytes")
    return key


def read_key_file(path: Path) -> bytes:
    """The key in a file that several servers have. It is never made here: a server with a key of
    its own would know none of the tokens.

    Raises:
        StartupError: one line that says why not.
    """
    try:
        return read_key(path)
    except FileNotFoundError:
        raise StartupError(
            f"token registry: key file {path} is missing; put the one of the other servers there, "
            f"or make the first one: mist token key {path}"
        ) from None
    except OSError as error:
        raise StartupError(f"token registry: key file {path}: {error.strerror}") from error


def make_key_file(path: Path) -> None:
    """Make a key for servers that share their tokens, durably. Only its owner can read it.

    Raises:
        FileExistsError: there is one, which is left as it is.
        OSError: it can't be written.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_LENGTH))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def create_key(path: Path) -> bytes:
    """Make a new key, durably. `path` must not exist; only its owner can read it.

    Raises:
        OSError: it can't be written.
    """
    key = secrets.token_bytes(KEY_LENGTH)
    # Written elsewhere and moved: a crash halfway would leave a short key, and with it a
    # registry that refuses to open. The caller has the registry locked, so nobody else is
    # moving one there.
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)
    return key
