"""Servers that have an engine's log, started for the occasion, killed, and started again."""

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from mist.bench.errors import BenchError
from mist.bench.process import held_signals

__all__ = ["HOST", "EngineServer"]

HOST: Final = "127.0.0.1"

_PORTS: Final = (12_000, 22_000)  # below those that the kernel gives out
_START: Final = 60.0  # seconds until a server answers; a killed one may have much to read
_END: Final = 20.0  # seconds until a killed one is gone
_POLL: Final = 0.005  # seconds
_LOOKS: Final = 10  # at processes, of which some may end meanwhile
_USED: Final = slice(11, 15)  # utime, stime, cutime, cstime in /proc, counted from the state on


class EngineServer(ABC):
    """A server in a directory of its own, which outlives its process. A context manager.

    Nothing runs before `start`. At the end of the block its processes are killed, and its
    directory is removed.

    Args:
        folder: where its directory is made; None for the system's place for temporary files.

    Attributes:
        engine: what it is called in figures.
        setting: what its durability is set to: `appendfsync` of a Redis, `synchronous_commit` of a
            PostgreSQL.
        durability: what nodes have to be started with: `power` or `process`.
        port: where it listens. It stays the same when it is started again.

    Raises:
        BenchError: there can't be a directory.
    """

    engine: ClassVar[str]

    def __init__(self, folder: Path | None, setting: str, durability: str) -> None:
        self.setting = setting
        self.durability = durability
        self.port = _free_port()
        try:
            self._made = tempfile.TemporaryDirectory(dir=folder, prefix="mist-bench-")
        except OSError as error:
            raise BenchError(f"{error.filename}: {error.strerror}") from error
        self.folder = Path(self._made.name)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def url(self) -> str:
        """What `--engine` takes. It holds a password: not for a command line."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """What starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it answers a client; asked again and again while it starts."""

    def _user(self) -> str | None:
        """Who runs it; None for whom we are."""
        return None

    def start(self) -> None:
        """Start it, and return once it answers.

        Raises:
            BenchError: it ended, or does not answer.
        """
        with held_signals():
            self._process = subprocess.Popen(  # noqa: S603  # a program of the system
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                user=self._user(),
                start_new_session=True,
            )
        deadline = time.perf_counter() + _START
        while not self._answers():
            if self._process.poll() is not None:
                raise BenchError(f"{self.engine} did not start")
            if time.perf_counter() > deadline:
                raise BenchError(f"{self.engine} does not answer")
            time.sleep(_POLL)

    def kill(self) -> None:
        """SIGKILL for all its processes, as a crash has it; return once they are gone.

        Raises:
            BenchError: one of them does not end.
        """
        if self._process is None or self._process.poll() is not None:
            return
        processes = _with_children(self._process.pid)
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        deadline = time.perf_counter() + _END
        while self._process.poll() is None or any(_runs(each) for each in processes):
            if time.perf_counter() > deadline:
                raise BenchError(f"{self.engine} does not end")
            time.sleep(_POLL)

    def cpu(self) -> float | None:
        """CPU seconds of its processes since it was started; None where it can't be told.

        In clock ticks, those of children that have ended among them.
        """
        if self._process is None:
            return None
        for _ in range(_LOOKS):
            # A child that ends between two looks is among those that have ended at the next one.
            with suppress(OSError):
                ticks = sum(_ticks(each) for each in _with_children(self._process.pid))
                return ticks / os.sysconf("SC_CLK_TCK")
        return None

    def __enter__(self) -> "EngineServer":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.kill()
        finally:
            self._made.cleanup()


def _free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to no connection meanwhile."""
    while True:
        port = random.randrange(*_PORTS)  # noqa: S311  # no secret
        with socket.socket() as sock, suppress(OSError):
            sock.bind((HOST, port))
            return port


def _with_children(pid: int) -> list[int]:
    """A process, and those that it has started; itself alone where the system does not tell."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *map(int, children)]


def _runs(pid: int) -> bool:
    """Whether it runs: neither gone nor waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[_USED]))
