"""A Redis: the `redis-server` on the PATH, with its append-only file."""

import secrets
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mist.bench.errors import BenchError
from mist.bench.nodes.engines import HOST, EngineServer

__all__ = ["FSYNCS", "RedisServer", "missing_redis"]

FSYNCS: Final = {"everysec": "process", "always": "power"}
"""What `appendfsync` is set to, and the `--durability` of nodes that this allows."""

_TIMEOUT: Final = 5.0  # seconds for an answer


def missing_redis() -> str | None:
    """What has to be installed before it can be started; None for nothing."""
    if shutil.which("redis-server") is None:
        return "no redis-server on the PATH"
    try:
        import hiredis  # noqa: F401
    except ImportError:
        return "no hiredis: pip install 'mist-pubsub[redis]'"
    return None


class RedisServer(EngineServer):
    """A Redis on loopback, with a password, since other users of the machine reach it there.

    Args:
        fsync: of `FSYNCS`.
    """

    engine = "redis"

    def __init__(self, folder: Path | None, fsync: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("no redis-server on the PATH")
        super().__init__(folder, fsync, FSYNCS[fsync])
        self._program = program
        self._password = secrets.token_hex(16)
        data = self.folder / "data"
        data.mkdir()
        # In a file, since a command line is seen by others.
        self._configuration = self.folder / "redis.conf"
        self._configuration.write_text(
            f"bind {HOST}\nport {self.port}\ndir {data}\nrequirepass {self._password}\n"
            f'save ""\nappendonly yes\nappendfsync {fsync}\n'
        )

    def url(self) -> str:
        return f"redis://:{self._password}@{HOST}:{self.port}/0?realm=bench"

    def _command(self) -> Sequence[str | Path]:
        return [self._program, self._configuration]

    def _answers(self) -> bool:
        """Whether it has read its file: until then it answers `-LOADING`."""
        wanted = b"+OK\r\n+PONG\r\n"
        got = b""
        try:
            with socket.create_connection((HOST, self.port), timeout=_TIMEOUT) as sock:
                sock.sendall(b"AUTH %b\r\nPING\r\n" % self._password.encode())
                while wanted.startswith(got) and len(got) < len(wanted):
                    chunk = sock.recv(64)
                    if not chunk:
                        return False
                    got += chunk
        except OSError:
            return False
        return got == wanted
