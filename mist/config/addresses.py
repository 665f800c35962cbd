"""Parsing of hosts: listeners' URLs, origins, server names.

`urllib.parse` is not used: it drops tabs and newlines and accepts invalid URLs
(`tcp://127.0.0.1:1445x` fails only when its port is read). These texts decide who can reach the
server, so they are parsed strictly, and anything left over is an error.
"""

import ipaddress
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final
from urllib.parse import quote, unquote

import attrs

__all__ = ["SCHEMES", "Listen", "Scheme", "parse_host", "parse_origin"]

_MAX_UNIX_PATH: Final = 107  # bytes: Linux's sun_path holds 108 with its NUL
_MAX_NAME: Final = 253  # characters in a host name (RFC 1035, 2.3.4, without the root's dot)

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LOOKS_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}")
_ORIGIN_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_ORIGIN_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


@attrs.frozen
class Scheme:
    """The scheme of a listener's URL.

    Attributes:
        protocol: the plain scheme, which names the transport: `tcp` for `tcps` too.
        port: where the URL names none; None for a unix socket, which has no port.
        tls: whether the listener speaks TLS.
    """

    protocol: str
    port: int | None
    tls: bool = False


# protocol, its scheme under TLS, its port where the URL names none. A new kind of listener
# is one more row; its `…+unix` form is derived.
_PROTOCOLS: Final = (
    ("tcp", "tcps", 1445),
    ("ws", "wss", 8888),
    ("http", "https", 8080),
    ("nats", "natss", 4222),
)

SCHEMES: Final[Mapping[str, Scheme]] = {
    name: scheme
    for protocol, secure, port in _PROTOCOLS
    for name, scheme in (
        (protocol, Scheme(protocol, port)),
        (secure, Scheme(protocol, port, tls=True)),
        (f"{protocol}+unix", Scheme(protocol, None)),
    )
}


def parse_host(text: str) -> str:
    """A host in canonical form: a lowercase name, an IPv4 or a compressed IPv6 address.

    `LOCALHOST` → `localhost`, `[0:0::1]` and `0:0::1` → `::1`. Refused: `127.1` (looks like
    an address to some resolvers and like a name to others), `fe80::1%eth0`, `bücher.example`
    (write `xn--bcher-kva.example`).

    Raises:
        ValueError: with the reason, fit to print.
    """
    if not text.isascii():  # before lower(): the Kelvin sign's lower case is an ASCII k
        raise ValueError("a host is written in ASCII (xn--… for other letters)")
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        return _parse_ipv6(host)
    if not host:
        raise ValueError("it names no host")
    if _LOOKS_NUMERIC.fullmatch(host):
        return _parse_ipv4(host)
    if len(host) > _MAX_NAME or not _NAME.fullmatch(host):
        raise ValueError("that is not a host name")
    return host


def _parse_ipv4(host: str) -> str:
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise ValueError("that is not an IPv4 address") from None


def _parse_ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError("that is not an IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("an address with a zone (%) is not understood")
    return str(address)


def _parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise ValueError("the port is not a number from 0 to 65535")
    return int(text)


def _parse_authority(text: str) -> tuple[str, int | None]:
    """`host[:port]` → the host as `parse_host` spells it, and the port if one is there."""
    if "@" in text:
        raise ValueError("a user or password has no place in it")
    if any(mark in text for mark in "/?#"):
        raise ValueError("a path, query or fragment has no place in it")
    if text.count(":") > 1 and "[" not in text:
        raise ValueError("an IPv6 address stands in brackets: [::1]")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError("that is not HOST:PORT")
    host, port = match["host"], match["port"]
    if host.startswith("[") and ":" not in host:
        raise ValueError("only an IPv6 address stands in brackets")
    return parse_host(host), None if port is None else _parse_port(port)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@attrs.frozen
class Listen:
    """The address of a listener, as `Listen.parse` reads it from a URL.

    `str()` gives the URL in canonical form, with its port.

    Attributes:
        scheme: a key of `SCHEMES`.
        host: a name or an address without brackets; empty for a unix socket.
        port: 0 for a free one, which the kernel picks; 0 for a unix socket too.
        path: of a unix socket, absolute; empty for all others.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Listen":
        """A listener from its URL.

        `tcp://127.0.0.1` is `tcp://127.0.0.1:1445`; `ws://[::1]:0` is any free port;
        `ws+unix:///run/mist%20ws.sock` is the path `/run/mist ws.sock`.

        Raises:
            ValueError: with the reason, fit to print.
        """
        name, separator, rest = text.partition("://")
        name = name.lower()
        if not separator or name not in SCHEMES:
            raise ValueError(f"its scheme is none of {', '.join(SCHEMES)}")
        default_port = SCHEMES[name].port
        if default_port is None:
            return cls(name, path=_parse_unix_path(rest))
        host, port = _parse_authority(rest)
        return cls(name, host, default_port if port is None else port)

    @property
    def protocol(self) -> str:
        """The plain scheme: `tcp` for `tcp`, `tcps` and `tcp+unix`."""
        return SCHEMES[self.scheme].protocol

    @property
    def tls(self) -> bool:
        """Whether the listener speaks TLS, and so needs a certificate."""
        return SCHEMES[self.scheme].tls

    @property
    def is_unix(self) -> bool:
        """Whether this is a unix socket."""
        return SCHEMES[self.scheme].port is None

    @cached_property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a unix socket or loopback.

        `127.0.0.0/8`, `::1` and the name `localhost` are. A name that happens to resolve to
        loopback is not: what it resolves to can change after the check. Nor is
        `::ffff:127.0.0.1`, on which Python's versions disagree.
        """
        return self.is_unix or self.host in ("localhost", "::1") or _is_loopback(self.host)

    def __str__(self) -> str:
        if self.is_unix:
            return f"{self.scheme}://{quote(self.path, safe='/', errors='surrogateescape')}"
        return f"{self.scheme}://{_in_url(self.host)}:{self.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def _parse_unix_path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("a unix socket's path is absolute: three slashes")
    if "?" in text or "#" in text:
        raise ValueError("a query or fragment has no place in it (in a path write %3F, %23)")
    path = unquote(text, errors="surrogateescape")
    if "\0" in path or path.endswith("/"):
        raise ValueError("that is not the path of a socket")
    if _path_length(path) > _MAX_UNIX_PATH:
        raise ValueError(f"a unix socket's path has at most {_MAX_UNIX_PATH} bytes")
    return path


def _path_length(path: str) -> int:
    try:
        return len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ValueError("that is not the path of a socket") from None


def parse_origin(text: str) -> str:
    """A web origin in the spelling that browsers send: `scheme://host[:port]`.

    `HTTPS://App.Example:443` → `https://app.example`. `https://app.example/` is refused (an
    origin has no path), `*` and `https://*.example` (each origin is named), and `null`,
    which every sandboxed frame and local file sends (RFC 6454, section 7.3).

    Raises:
        ValueError: with the reason, fit to print.
    """
    if "*" in text:
        raise ValueError("a wildcard would let in pages nobody named; name each origin")
    if text.lower() == "null":
        raise ValueError("null is the origin of any sandboxed page")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or not _ORIGIN_SCHEME.fullmatch(scheme):
        raise ValueError("it has no scheme")
    host, port = _parse_authority(rest)
    if port is None or port == _ORIGIN_PORTS.get(scheme):
        return f"{scheme}://{_in_url(host)}"
    return f"{scheme}://{_in_url(host)}:{port}"
