"""Listeners: bound before anyone is told, so that whatever can fail at the start does so first."""

import errno
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from mist.config import Config, Listen
from mist.errors import StartupError

__all__ = ["Listening", "bind", "reason", "tls_context"]

_BACKLOG: Final = 1024  # connections the kernel completes before they are accepted


@attrs.frozen
class Listening:
    """One listener that is bound: what it was asked to be, and what it became.

    Attributes:
        listen: with the real port.
        listener: gives streams that speak TLS where `listen` does, unless `context` is set.
        context: with which each stream is to speak TLS later, where its protocol begins without.
    """

    listen: Listen
    listener: trio.abc.Listener[trio.abc.Stream]
    context: ssl.SSLContext | None = None

    async def aclose(self) -> None:
        """Stop listening; a unix socket's file goes, too."""
        await self.listener.aclose()
        if self.listen.is_unix:
            _unlink_socket(self.listen.path)


def tls_context(config: Config) -> ssl.SSLContext | None:
    """What TLS listeners speak with; None where there is no certificate.

    Raises:
        StartupError: the certificate or key can't be used.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (config.tls_cert, config.tls_key):
        try:
            path.read_bytes()
        except OSError as error:
            raise StartupError(f"{path}: {reason(error)}") from error
    try:
        # An encrypted key would make OpenSSL ask on the terminal; an empty answer fails.
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        pair = f"{config.tls_cert} and {config.tls_key}"
        raise StartupError(f"{pair}: no usable certificate and key") from error
    return context


async def bind(listen: Listen, context: ssl.SSLContext | None) -> Listening:
    """Listen, without accepting yet.

    Args:
        context: as `tls_context` gave it.

    Raises:
        StartupError: the address can't be bound.
    """
    try:
        sock = _unix_socket(listen.path) if listen.is_unix else await _tcp_socket(listen)
    except OSError as error:
        raise StartupError(f"{listen}: {reason(error)}") from error
    if not listen.is_unix:
        listen = attrs.evolve(listen, port=sock.getsockname()[1])
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    if not listen.tls:
        return Listening(listen, plain)
    assert context is not None  # config demands a certificate for a TLS listener
    if listen.protocol == "nats":
        return Listening(listen, plain, context)
    # HTTP and WebSockets say themselves where they end; a line protocol's end must be told from a
    # cut line.
    compatible = listen.protocol != "tcp"
    return Listening(listen, trio.SSLListener(plain, context, https_compatible=compatible))


async def _tcp_socket(listen: Listen) -> socket.socket:
    found = await trio.socket.getaddrinfo(
        listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
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
    return sock


def _unix_socket(path: str) -> socket.socket:
    _unlink_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o660)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _unlink_socket(path: str) -> None:
    """Remove a socket that nobody listens on, left by a server that was killed.

    Raises:
        OSError: EADDRINUSE where somebody does, or where something else is there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise OSError(errno.EADDRINUSE, "not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
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
