"""Files with a secret: who else can read one, and those that hold one of another server."""

import logging
import os
from pathlib import Path
from typing import Final

from mist.errors import StartupError

__all__ = ["is_exposed", "read_secret_file", "warn_if_exposed"]

_BYTES: Final = range(32, 4_097)  # RFC 7518, 3.2: as many as the hash has at least
_OTHERS: Final = 0o077  # of a mode: what the group and all others may do
_GROUP_READS: Final = 0o040

log = logging.getLogger("mist.auth")


def read_secret_file(path: Path, what: str) -> bytes:
    """The secret in a file; one line end is ignored. Warns where others could read it. Blocks.

    Args:
        what: the secret is of, for errors.

    Raises:
        StartupError: one line that says why not, without any of the secret.
    """
    try:
        with path.open("rb") as file:
            secret = file.read(_BYTES[-1] + 3)
            warn_if_exposed(path, os.fstat(file.fileno()))
    except OSError as error:
        raise StartupError(f"secret file of {what} {path}: {error.strerror}") from error
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if len(secret) not in _BYTES:
        raise StartupError(
            f"secret file of {what} {path}: it has {len(secret)} bytes; expected {_BYTES[0]} to "
            f"{_BYTES[-1]:,} that nobody can guess"
        )
    return secret


def is_exposed(found: os.stat_result) -> bool:
    """Whether others than its owner can read or write a file.

    Where another user owns it and its group alone may read it, it isn't: so secrets of containers
    and of systemd are given to a process, and root's files to a service. With a stricter mode this
    process could not read it.
    """
    others = found.st_mode & _OTHERS
    is_given = found.st_uid != os.geteuid() or found.st_gid != os.getegid()
    return others != 0 and not (is_given and others == _GROUP_READS)


def warn_if_exposed(path: Path, found: os.stat_result) -> None:
    """Log a warning where others could read or write a file; see `is_exposed`.

    Not refused: some secrets of containers and network mounts can't have a stricter mode.
    """
    if is_exposed(found):
        log.warning("%s can be read or written by others: chmod 600 it", path)
