"""systemd: what a service tells its manager, and the sockets that the manager has bound for it.

    Notifier        sd_notify(3): ready, reloading, stopping, a line of status, and the watchdog.
                    A datagram each, to the socket that NOTIFY_SOCKET names
    PassedSockets   sd_listen_fds(3), socket activation: listeners that stay open while the server
                    restarts, so that who connects meanwhile waits and is not refused

Anything else that speaks these protocols will do. Where the environment names neither, there is
neither a task nor a system call. No library: the protocols are a few lines each.
"""

import contextlib
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import trio

from mist.errors import StartupError

__all__ = ["Notifier", "PassedSockets"]

log = logging.getLogger("mist.systemd")

_FIRST: Final = 3  # the descriptor of the first passed socket; see sd_listen_fds(3)
_STATUS_SECONDS: Final = 10.0  # between two lines of status
_LEAST_SECONDS: Final = 0.1  # between two signs of life


class Notifier:
    """Tells the service manager how the server does; does nothing where there is none.

    Args:
        address: of the manager's socket: a path, or a name that begins with `@`; empty for none.
        watchdog: seconds within which the manager wants to hear again; 0 for no watchdog.
    """

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog
        self._failed = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Notifier":
        """The notifier that the manager has asked this process for."""
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_other = environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
        watched = microseconds.isdecimal() and not is_other
        seconds = int(microseconds) / 1_000_000 if watched else 0.0
        return cls(environ.get("NOTIFY_SOCKET", ""), seconds)

    def ready(self) -> None:
        """The server accepts connections, or has taken its settings again."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The server drains."""
        self._send("STOPPING=1")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """The server takes its settings again in this block."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000 if self._address else 0
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            self.ready()

    async def run(self, status: Callable[[], str]) -> None:
        """Say how the server does, and that its event loop turns, until cancelled.

        Args:
            status: a line for `systemctl status`.
        """
        if not self._address:
            return
        interval = _STATUS_SECONDS
        if self._watchdog:
            interval = min(interval, max(self._watchdog / 3, _LEAST_SECONDS))
        while True:
            alive = ("WATCHDOG=1",) if self._watchdog else ()
            self._send(*alive, f"STATUS={status()}")
            await trio.sleep(interval)

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        text = "\n".join(assignments).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text, self._address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager can't be told", extra={"reason": str(error)})
            self._failed = True
        else:
            self._failed = False


class PassedSockets:
    """Listening sockets that were bound before this process was started.

    Each listener takes the one that has its address; one that none takes is an error, since who
    connects to it would wait for ever.

    Args:
        sockets: listening stream sockets. Who takes one closes it.
    """

    def __init__(self, sockets: Sequence[socket.socket] = ()) -> None:
        self._left = list(sockets)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "PassedSockets":
        """Those that the environment announces to this process. Call it once.

        Raises:
            StartupError: something else was passed.
        """
        count = environ.get("LISTEN_FDS", "")
        if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
            return cls()
        return cls([_listener(_FIRST + number) for number in range(int(count))])

    def take_address(self, family: int, address: tuple[object, ...]) -> socket.socket | None:
        """The socket that is bound to an address of TCP; None where none is."""
        return self._take(lambda sock: (sock.family, sock.getsockname()[:2]) == (family, address))

    def take_path(self, path: str) -> socket.socket | None:
        """The unix socket that is bound to a path; None where none is."""
        return self._take(lambda sock: sock.getsockname() == path)

    def _take(self, is_wanted: Callable[[socket.socket], bool]) -> socket.socket | None:
        for number, sock in enumerate(self._left):
            if is_wanted(sock):
                return self._left.pop(number)
        return None

    def check_all_taken(self) -> None:
        """Check that every socket has a listener.

        Raises:
            StartupError: one has none.
        """
        if self._left:
            names = ", ".join(map(_name, self._left))
            self.close()
            raise StartupError(
                f"sockets passed by the service manager: no --listen has the address of {names}"
            )

    def close(self) -> None:
        """Close those that were not taken. Idempotent."""
        for sock in self._left:
            sock.close()
        self._left.clear()


def _listener(descriptor: int) -> socket.socket:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError as error:
        raise _refusal(descriptor, os.strerror(error.errno or 0)) from error
    if not is_socket:
        raise _refusal(descriptor, "not a socket")
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.type != socket.SOCK_STREAM or not listens:
        sock.close()
        raise _refusal(descriptor, "not a listening stream socket")
    return sock


def _refusal(descriptor: int, reason: str) -> StartupError:
    return StartupError(f"sockets passed by the service manager: descriptor {descriptor}: {reason}")


def _name(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, str):
        return name
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
