"""Checks of this machine: directories, disk, open files, ports, certificate, clock."""

import errno
import fcntl
import math
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mist.auth.secret_file import is_exposed
from mist.certificate import Certificate
from mist.cli.config.findings import Finding, bad, good, warn
from mist.config import Config, Listen
from mist.descriptors import OTHERS
from mist.errors import StartupError
from mist.listening import reason

__all__ = ["is_running", "local_findings"]

_MIB: Final = 1 << 20
_LEAST_FREE: Final = 64 * _MIB  # bytes; with less, a server soon can't store
_SECRET_FILES: Final = (
    *("secret_file", "token_key_file", "tls_key"),
    *("jwt_secret_file", "auth_url_secret_file"),
)
_BUILT: Final = 1_735_689_600  # 2025-01-01: a clock that shows less was never set


def local_findings(config: Config, now: float) -> Iterator[Finding]:
    """All checks that need nothing but this machine.

    Args:
        now: Unix seconds.
    """
    running = is_running(config.data)
    yield from _directory("data directory", config.data)
    if running:
        yield good("data directory", f"{config.data} is in use by a running server")
    if config.archive is not None:
        yield from _directory("archive", config.archive)
    yield from _disk(config)
    yield _open_files(config)
    yield from _secret_files(config)
    if config.tls_cert is not None:
        yield from _certificate(config, now)
    if not running:
        for listen in config.listen:
            yield _port(listen)
    yield _clock(now)


def is_running(data: Path) -> bool:
    """Whether a server has this data directory."""
    try:
        handle = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _existing(path: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _directory(check: str, path: Path) -> Iterator[Finding]:
    place = _existing(path)
    try:
        # By writing, since modes say nothing of mounts that are read-only.
        with tempfile.TemporaryFile(dir=place, prefix=".mist-check-"):
            pass
    except OSError as error:
        yield bad(check, f"{path}: {reason(error)}")
        return
    if place != path.absolute():
        yield good(check, f"{path} will be made")
        return
    mode = place.stat().st_mode
    if check == "data directory" and mode & 0o077:
        yield warn(check, f"{path} can be read or written by others: chmod 700 it")
    else:
        yield good(check, f"{path} can be written")


def _disk(config: Config) -> Iterator[Finding]:
    place = _existing(config.data)
    free = shutil.disk_usage(place).free
    used = 0
    if config.history_url is not None:
        for name in ("history.db", "history.db-wal", "mirror.db", "mirror.db-wal"):
            with suppress(OSError):
                used += (config.data / name).stat().st_size
    wanted = 0 if config.history_url is None else max(config.keep_bytes - used, 0)
    text = f"{free // _MIB} MiB are free at {place}"
    if free < _LEAST_FREE:
        yield bad("disk", f"{text}: too little")
    elif free < wanted:
        yield warn("disk", f"{text}; the history may grow by {wanted // _MIB} (keep_bytes)")
    else:
        yield good("disk", text)


def _open_files(config: Config) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.max_connections + OTHERS
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return good("open files", f"the limit of {limit} is enough for max_connections")
    return warn(
        "open files",
        f"the limit of {limit} is too low for max_connections {config.max_connections}: "
        f"ulimit -n {wanted}, or LimitNOFILE={wanted} in a unit of systemd",
    )


def _secret_files(config: Config) -> Iterator[Finding]:
    for name in _SECRET_FILES:
        path: Path | None = getattr(config, name)
        if path is None:
            continue
        check = name.replace("_", " ")
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
        except OSError as error:
            yield bad(check, f"{path}: {reason(error)}")
            continue
        if is_exposed(found):
            yield warn(check, f"{path} can be read or written by others: chmod 600 it")
        elif found.st_mode & 0o077:
            yield good(check, f"{path} can be read by its owner and group alone")
        else:
            yield good(check, f"{path} can be read by its owner alone")


def _certificate(config: Config, now: float) -> Iterator[Finding]:
    check = "certificate"
    assert config.tls_cert is not None
    assert config.tls_key is not None
    try:
        certificate = Certificate.load(config.tls_cert, config.tls_key)
    except StartupError as error:
        yield bad(check, str(error))
        return
    trouble = certificate.trouble(now)
    if math.isinf(certificate.ends):
        yield warn(check, f"{config.tls_cert}: when it ends can't be read")
    elif trouble is None:
        until = datetime.fromtimestamp(certificate.ends, UTC)
        yield good(check, f"{config.tls_cert} and its key; valid until {until:%Y-%m-%d}")
    elif certificate.is_valid(now):
        yield warn(check, trouble)
    else:
        yield bad(check, trouble)


def _port(listen: Listen) -> Finding:
    """Whether a listener's address is free. Nothing listens there, not even for a moment."""
    check = "listener"
    if listen.is_unix:
        place = _existing(Path(listen.path).parent)
        if not os.access(place, os.W_OK | os.X_OK):
            return bad(check, f"{listen}: {place} can't be written")
        return good(check, f"{listen} can be made")
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as error:
        if error.errno == errno.EACCES:
            return bad(check, f"{listen}: ports below 1024 need the right to bind them")
        return bad(check, f"{listen}: {reason(error)}")
    return good(check, f"{listen} is free")


def _clock(now: float) -> Finding:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _BUILT:
        return bad("clock", f"it shows {text}, and was never set")
    return good("clock", f"it shows {text}")
