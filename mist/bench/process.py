"""A server in a process of its own, and what a process costs: CPU and memory, from outside."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

import attrs

from mist.bench.errors import BenchError
from mist.descriptors import OTHERS

__all__ = [
    "Started",
    "check_file_limit",
    "cpu_seconds",
    "held_signals",
    "raise_file_limit",
    "resident_bytes",
    "start_server",
    "terminable",
]

_TERMINATED: Final = 128 + signal.SIGTERM  # what a shell calls that end


@attrs.frozen
class Started:
    """A server that was started for the occasion.

    Attributes:
        host: an address of this machine.
        tcp_port, ws_port, http_port: where it listens.
        pid: its process.
        nats_port: where it listens for NATS; 0 where it doesn't.
    """

    host: str
    tcp_port: int
    ws_port: int
    http_port: int
    pid: int
    nats_port: int = 0


@contextmanager
def start_server(
    *options: str,
    history: str | None = "none",
    tokens: str | None = "memory://",
    nats: bool = False,
    command: Sequence[str] = ("mist", "serve"),
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """`mist serve` on free ports of 127.0.0.1, gone at the end of the block whatever happens.

    It keeps no tokens, and no messages unless told. Signals from the terminal don't reach it,
    so that its end is ours alone to decide.

    Args:
        options: of `mist serve`, beside those that say where it listens and what it keeps.
        history, tokens: what `--history` and `--tokens` take; None for the server's own defaults.
        nats: whether it listens for NATS, too.
        command: a module that serves, and what stands before the options.
        folder: where its data directory is made and removed; None for the system's place for
            temporary files.
        variables: of its environment, such as options that other users should not see.

    Raises:
        BenchError: it didn't start.
    """
    arguments = ["--log-level", "error"]
    for flag, value in (("--tokens", tokens), ("--history", history)):
        if value is not None:
            arguments += [flag, value]
    schemes = ("tcp", "ws", "http", *(("nats",) if nats else ()))
    for scheme in schemes:
        arguments += ["--listen", f"{scheme}://127.0.0.1:0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MIST_")}
    environment.update(variables or {})
    with tempfile.TemporaryDirectory(dir=folder) as data, held_signals() as let_signals_in:
        process = subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", *command, "--data", data, *arguments, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        with process:
            try:
                let_signals_in()
                yield _started(process, len(schemes))
            finally:
                process.kill()  # it has nothing worth draining


@contextmanager
def held_signals() -> Iterator[Callable[[], None]]:
    """Ctrl-C and SIGTERM wait until they are let in, or until the end of the block.

    One that came in the middle of starting a process would leave it to itself. The process
    inherits this, and hears neither unless it lets them in itself, as `mist serve` does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

    def let_in() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield let_in
    finally:
        let_in()


def _started(process: "subprocess.Popen[str]", listeners: int) -> Started:
    """Where a server listens, once it says so."""
    assert process.stdout is not None
    # tcp://127.0.0.1:1445, ws://127.0.0.1:8888/subscribe/websocket, http://127.0.0.1:8080
    lines = [process.stdout.readline().strip() for _ in range(listeners)]
    ports = [line.rpartition(":")[2].partition("/")[0] for line in lines]
    if not all(port.isdigit() for port in ports):
        raise BenchError("the server did not start")
    tcp, ws, http, *nats = map(int, ports)
    return Started("127.0.0.1", tcp, ws, http, process.pid, *nats)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM unwinds the stack as Ctrl-C does, so that no server is left behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far, user and system, all threads; None where it can't be told.

    On Linux from the process's CPU clock, in nanoseconds, where the kernel has one for
    foreign processes; else from /proc, in steps of 10 ms. The kernel books time when a thread
    stops running or at a tick, so what is running right now may lack up to 4 ms.
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
    # macOS says "unlimited" and refuses it.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_file_limit(connections: int) -> None:
    """See that there can be so many connections, before the first is made.

    Raises:
        BenchError: this process, or a server started by it, could not have them open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and connections + OTHERS > limit:
        raise BenchError(f"{connections:,} connections, but only {limit:,} open files are allowed")
