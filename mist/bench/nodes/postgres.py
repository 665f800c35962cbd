"""A PostgreSQL: of Debian's packages, newest first, or the one on the PATH."""

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mist.bench.errors import BenchError
from mist.bench.nodes.engines import HOST, EngineServer

__all__ = ["PostgresServer", "missing_postgres"]

_DEBIAN: Final = Path("/usr/lib/postgresql")
_NOT_FOUND: Final = f"no postgres in {_DEBIAN}/*/bin or on the PATH"


def missing_postgres() -> str | None:
    """What has to be installed before it can be started; None for nothing."""
    if _programs() is None:
        return _NOT_FOUND
    try:
        import psycopg  # noqa: F401
    except ImportError:  # the module, or libpq
        return "no psycopg: pip install 'mist-pubsub[postgres]'"
    return None


def _programs() -> Path | None:
    """The directory that has `initdb` and `postgres`."""
    versions = [each for each in _DEBIAN.glob("*/bin") if each.parent.name.isdigit()]
    found = sorted(versions, key=lambda each: int(each.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        # `initdb` lies beside the program itself, not beside a link to it.
        found.append(Path(on_path).resolve().parent)
    for each in found:
        if (each / "initdb").is_file() and (each / "postgres").is_file():
            return each
    return None


class PostgresServer(EngineServer):
    """A PostgreSQL on loopback, with a password and its default settings."""

    engine = "postgres"

    def __init__(self, folder: Path | None) -> None:
        programs = _programs()
        if programs is None:
            raise BenchError(_NOT_FOUND)
        super().__init__(folder, "on", "power")
        self._programs = programs
        self._password = secrets.token_hex(16)
        self._data = self.folder / "data"

    def start(self) -> None:
        if not self._data.exists():
            self._initialize()
        super().start()

    def _initialize(self) -> None:
        password = self.folder / "password"
        password.write_text(self._password)
        user = self._user()
        if user is not None:
            shutil.chown(self.folder, user)
            shutil.chown(password, user)
        command: list[str | Path] = [
            self._programs / "initdb", "--pgdata", self._data, "--no-sync",
            "--username", "mist", "--pwfile", password, "--auth", "scram-sha-256",
            "--encoding", "UTF8", "--locale", "C",
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603  # a program of the system
            command, check=False, capture_output=True, text=True, user=user, cwd="/"
        )
        if done.returncode:
            raise BenchError(f"initdb failed: {done.stderr.strip()}")

    def url(self) -> str:
        return f"postgresql://mist:{self._password}@{HOST}:{self.port}/postgres?realm=bench"

    def _user(self) -> str | None:
        # It refuses to run as root.
        if os.geteuid() != 0:
            return None
        names = {each.pw_name for each in pwd.getpwall()}
        return "postgres" if "postgres" in names else "nobody"

    def _command(self) -> Sequence[str | Path]:
        settings = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": self.folder,
            "dynamic_shared_memory_type": "mmap",  # containers have little of the other kinds
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self._programs / "postgres", "-D", self._data, *options]

    def _answers(self) -> bool:
        # Imported here, so that the other engine is measured without it.
        import psycopg

        try:
            psycopg.connect(
                host=HOST,
                port=self.port,
                user="mist",
                password=self._password,
                dbname="postgres",
                connect_timeout=5,
            ).close()
        except psycopg.OperationalError:
            return False
        return True
