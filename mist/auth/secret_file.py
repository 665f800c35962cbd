"""Files with a secret that this server shares with another one."""

from pathlib import Path
from typing import Final

from mist.auth.key import warn_if_open
from mist.errors import StartupError

__all__ = ["read_secret_file"]

_BYTES: Final = range(32, 4_097)  # RFC 7518, 3.2: as many as the hash has at least


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
        warn_if_open(path, path.stat().st_mode)
    except OSError as error:
        raise StartupError(f"secret file of {what} {path}: {error.strerror}") from error
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if len(secret) not in _BYTES:
        raise StartupError(
            f"secret file of {what} {path}: it has {len(secret)} bytes; expected {_BYTES[0]} to "
            f"{_BYTES[-1]:,} that nobody can guess"
        )
    return secret
