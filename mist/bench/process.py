"""A server in a process of its own, and what a process costs: CPU and memory, from outside."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from mist.bench.errors import BenchError
from mist.config import OPTIONS

__all__ = ["Started", "cpu_seconds", "raise_file_limit", "resident_bytes", "start_server"]

_STOP: Final = 5.0  # seconds to end before it is killed


@attrs.frozen
class Started:
    """A server that was started for the occasion.

    Attributes:
        host: an address of this machine.
        tcp_port, ws_port: where it listens.
        pid: its process.
    """

    host: str
    tcp_port: int
    ws_port: int
    pid: int


@contextmanager
def start_server(*options: str) -> Iterator[Started]:
    """`mist serve` on free ports of 127.0.0.1, gone at the end of the block whatever happens.

    It keeps neither messages nor tokens. Signals from the terminal don't reach it, so that
    its end is ours alone to decide.

    Raises:
        BenchError: it didn't start.
    """
    arguments = ["--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0"]
    arguments += ["--tokens", "memory://", "--log-level", "error"]
    if any(option.name == "history" for option in OPTIONS):
        arguments += ["--history", "none"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MIST_")}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", "mist", "serve", "--data", folder, *arguments, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ports = [process.stdout.readline().strip().rpartition(":")[2] for _ in range(2)]
            # ws://127.0.0.1:8888/subscribe/websocket
            tcp, ws = [port.partition("/")[0] for port in ports]
            if not (tcp.isdigit() and ws.isdigit()):
                raise BenchError("the server did not start")
            yield Started("127.0.0.1", int(tcp), int(ws), process.pid)
        finally:
            # It has nothing worth draining.
            process.kill()


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far, user and system, all threads; None where it can't be told.

    On Linux from the process's CPU clock, in nanoseconds, where the kernel has one for
    foreign processes; else from /proc, in steps of 10 ms.
    """
    if sys.platform != "linux":
        return None
    try:
        # How clock_getcpuclockid(3) makes a clock of a process id.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None where it can't be told.

    From `smaps_rollup`, which counts pages; the figures in `status` may lag by some hundred
    KiB.
    """
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def raise_file_limit() -> None:
    """Allow this process and its children as many open files as the system lets them have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
