"""A stand-in for systemd: a socket that is told how a service does, and sockets that are passed."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

# sd_listen_fds(3): descriptors from 3 on, for the process that has the id. The first two lines
# make room, since some of those that are passed may be there.
LAUNCHER = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in os.environ.pop("PASSED").split(",")]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(high))}
os.execv(sys.executable, [sys.executable, "-m", "mist", *sys.argv[1:]])
"""
PROGRAM = ("-c", LAUNCHER)  # of `tests.processes.serving`


@attrs.define
class NotifySocket:
    """What a service has told.

    Attributes:
        address: for NOTIFY_SOCKET.
        lines: all of them so far, in order.
    """

    address: str
    _sock: socket.socket
    lines: list[str] = attrs.field(factory=list)

    def wait_for(self, start: str, seconds: float = 20.0) -> str:
        """The next line that starts so. Those before it are kept in `lines`."""
        self._sock.settimeout(seconds)
        while True:
            received = self._sock.recv(4096).decode().split("\n")
            self.lines += received
            for line in received:
                if line.startswith(start):
                    return line


@contextmanager
def notify_socket(folder: Path) -> Iterator[NotifySocket]:
    """A socket as systemd has it for services of Type=notify."""
    path = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        yield NotifySocket(str(path), sock)
    path.unlink()


@contextmanager
def bound_sockets(count: int) -> Iterator[list[socket.socket]]:
    """Listening sockets on free ports of loopback."""
    found = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(count)]
    try:
        yield found
    finally:
        for sock in found:
            sock.close()


def passing(sockets: Sequence[socket.socket]) -> dict[str, str]:
    """The variable that tells LAUNCHER of sockets."""
    return {"PASSED": ",".join(str(sock.fileno()) for sock in sockets)}
