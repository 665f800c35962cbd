"""Listeners: bound before anyone is told, so that whatever can fail at the start does so first."""

import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import attrs
import trio

from mist.certificate import Certificate
from mist.config import Listen
from mist.errors import StartupError
from mist.outage import Outage
from mist.systemd import PassedSockets
from mist.turns import Turns

__all__ = ["Listening", "bind", "keep_alive", "reason"]

log = logging.getLogger("mist.listening")

_BACKLOG: Final = 1024  # connections the kernel completes before they are accepted
_AT_ONCE: Final = 8  # connections accepted in a pass of the event loop, as long as there is time

# Where accept(2) fails so, there is too much of something, and there will be less.
_TOO_MUCH: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_RETRY: Final = 0.1  # seconds until it is tried again

# Half-open peers, which vanish without a FIN: first probe after a minute, gone after two more. The
# kernel doesn't probe while something it has sent is unacknowledged, and goes on sending that for
# a quarter of an hour; the timeout, in milliseconds, is for this.
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 20),
    ("TCP_KEEPCNT", 6),
    ("TCP_USER_TIMEOUT", 180_000),
)


# What concerns the one connection that was to be accepted, and no other (accept(2)).
_LOST: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)


def _outage() -> Outage:
    return Outage(log, "no connection can be accepted for now", "connections can be accepted again")


@attrs.frozen
class Listening:
    """One listener that is bound: what it was asked to be, and what it became.

    Attributes:
        listen: with the real port.
        sock: non-blocking.
        certificate: with which each stream is to speak TLS; None for no TLS. It does so from its
            beginning, but for `nats`: there the protocol begins without.
        is_passed: whether the service manager keeps it open, too, for the next server.
        outage: whether connections wait that can't be accepted for now.
    """

    listen: Listen
    sock: socket.socket
    certificate: Certificate | None = None
    is_passed: bool = False
    outage: Outage = attrs.field(init=False, factory=_outage)

    async def serve(
        self,
        handle: Callable[[trio.abc.Stream], Awaitable[None]],
        nursery: trio.Nursery,
        turns: Turns,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        """Accept connections until cancelled, then stop listening.

        Where thousands connect in one moment, one is accepted in each pass of the loop once its
        budget is used up: not none, or the kernel's queue would run over, and clients would wait
        for a second and try again.

        `trio.serve_listeners` takes two passes of the event loop and two cancel scopes for each
        connection, which is a fifth of what a short one costs in all.

        Args:
            handle: called with each stream in a task of its own. Has to close it.
            nursery: of those tasks.
            turns: of the event loop.
        """
        sock = self.sock
        most = 1  # at a time: to find that there is no more takes as long as to accept one
        outage = self.outage
        with sock:
            task_status.started()
            while True:
                if outage:  # only trying tells that nobody waits any more
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(sock)
                try:
                    for _ in range(most):
                        accepted, _ = sock.accept()
                        nursery.start_soon(handle, self._stream(accepted))
                        if turns.over:
                            break
                    most = min(2 * most, _AT_ONCE)
                except BlockingIOError:
                    outage.end()  # and not where one more is accepted, while others wait
                    most = 1
                except OSError as error:
                    if error.errno in _TOO_MUCH:
                        outage.note(reason(error))
                        most = _AT_ONCE
                        await trio.sleep(_RETRY)
                    elif error.errno not in _LOST:
                        raise

    def _stream(self, accepted: socket.socket) -> trio.abc.Stream:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        if self.certificate is None or self.listen.protocol == "nats":
            return stream
        # HTTP and WebSockets say themselves where they end; a line protocol's end must be told
        # from a cut line.
        compatible = self.listen.protocol != "tcp"
        context = self.certificate.context
        return trio.SSLStream(stream, context, server_side=True, https_compatible=compatible)

    def close(self) -> None:
        """Stop listening; a unix socket's file goes, too. Not while `serve` runs."""
        self.sock.close()
        if self.listen.is_unix and not self.is_passed:
            with suppress(OSError):  # another server may listen there by now
                _unlink_socket(self.listen.path)


def keep_alive(sock: socket.socket | trio.socket.SocketType) -> None:
    """Have the kernel notice a peer that vanishes without closing its connection.

    What a listener accepts has mostly inherited it, which is found by one system call.
    """
    with suppress(OSError):
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return
    # Best effort: unix sockets have none of these, some systems not all.
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # last: it says that all is set


async def bind(
    listen: Listen, certificate: Certificate | None, passed: PassedSockets | None = None
) -> Listening:
    """Listen, without accepting yet.

    Args:
        certificate: of listeners with TLS.
        passed: sockets that are bound already; the one that has the address is taken.

    Raises:
        StartupError: the address can't be bound.
    """
    passed = passed or PassedSockets()
    try:
        if listen.is_unix:
            sock, is_passed = _unix_socket(listen.path, passed)
        else:
            sock, is_passed = await _tcp_socket(listen, passed)
    except OSError as error:
        raise StartupError(f"{listen}: {reason(error)}") from error
    if not listen.is_unix:
        listen = attrs.evolve(listen, port=sock.getsockname()[1])
    sock.setblocking(False)
    keep_alive(sock)
    assert certificate is not None or not listen.tls  # config demands one for TLS
    return Listening(listen, sock, certificate if listen.tls else None, is_passed)


async def _tcp_socket(listen: Listen, passed: PassedSockets) -> tuple[socket.socket, bool]:
    found = await trio.socket.getaddrinfo(
        listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    bound = passed.take_address(family, address[:2])
    if bound is not None:
        return bound, True
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # [::] beside 0.0.0.0 are two listeners, whatever the system's default is.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock, False


def _unix_socket(path: str, passed: PassedSockets) -> tuple[socket.socket, bool]:
    bound = passed.take_path(path)
    if bound is not None:
        return bound, True
    _unlink_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o660)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock, False


def _unlink_socket(path: str) -> None:
    """Remove a socket that nobody listens on, left by a server that was killed.

    Raises:
        OSError: EADDRINUSE where somebody does, or where something else is there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise OSError(errno.EADDRINUSE, "not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # its queue may be full, and nobody accept
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            except BlockingIOError:
                raise OSError(errno.EADDRINUSE, "in use") from None
            else:
                raise OSError(errno.EADDRINUSE, "in use")


def reason(error: OSError) -> str:
    """Why, in a few words of lower case."""
    match error.errno:
        case errno.EADDRINUSE:
            return "the address is in use"
        case errno.EACCES | errno.EPERM:
            return "permission denied"
        case errno.ENOTDIR | errno.EEXIST:
            return "not a folder"
        case _:
            return (error.strerror or str(error)).lower()
