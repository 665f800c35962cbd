"""What trusted proxies say of the requests that they pass on: whose they are, and to what name.

    X-Forwarded-For: 203.0.113.9, 10.0.0.7      each proxy adds whom it was asked by
    X-Forwarded-Proto: https
    X-Forwarded-Host: example.com
    X-Forwarded-Prefix: /mist                   taken from the path, which arrives without it
    Forwarded: for=203.0.113.9;proto=https;host=example.com      RFC 7239: the same in one

Anyone can send such headers, so they count only where the connection is from a trusted proxy. The
address is the rightmost that is no trusted proxy's: what stands before it, the client itself may
have written. Of the others the last value counts, that of the proxy which is nearest.

`Forwarded` counts only where there is no `X-Forwarded-…`: most proxies set one kind and pass on
what a client says in the other.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import attrs

from mist.errors import MistError
from mist.origins import ip_of

__all__ = ["FORWARDING", "BadForwarding", "Forwarded", "Proxies", "is_forwarded"]

log = logging.getLogger("mist.transports.forwarding")

FORWARDING: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
"""Headers by which a request says that it was passed on, no matter by whom."""

_READ: Final = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
    }
)
_MOST_NOTED: Final = 16  # addresses
_MOST_HOPS: Final = 64  # looked at, from the last one on
_REMEMBERED: Final = 4_096  # addresses
_MAX_PREFIX: Final = 200  # characters
_SCHEMES: Final = {"http": False, "ws": False, "https": True, "wss": True}
# RFC 3986 without what browsers and proxies treat in different ways: `//`, `.` and `..`, escapes.
_PREFIX: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*/?")
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# Blanks are taken all or not at all: shared out between two places, thousands of them take minutes.
_PAIR: Final = re.compile(
    rf'[ \t]*+(?:({_TOKEN})=(?:({_TOKEN})|"((?:[^"\\]|\\.)*+)"))?[ \t]*+(;|,|$)'
)
_NAMELESS: Final = re.compile(r"unknown|unix:|_[A-Za-z0-9._-]*", re.IGNORECASE)


class BadForwarding(MistError):
    """A trusted proxy says something that can't be understood. The text names the header."""

    code = "invalid_forwarding"


@attrs.frozen
class Forwarded:
    """What is known of a request that a trusted proxy passed on.

    Attributes:
        address: the client's, or of the farthest proxy that is known.
        tls: whether the client used TLS; None where that isn't told.
        host: by which name it called; None where that isn't told.
        prefix: what was taken from the path's beginning: `/mist`; mostly empty.
    """

    address: str
    tls: bool | None = None
    host: bytes | None = None
    prefix: str = ""


class Proxies:
    """Which proxies are trusted, at one listener.

    Args:
        networks: theirs.
        unix: whether the listener is a unix socket: all who may connect to it are trusted.
    """

    def __init__(
        self, networks: Iterable[IPv4Network | IPv6Network] = (), *, unix: bool = False
    ) -> None:
        self._unix = unix
        self._noted: set[str] = set()
        self._known = lru_cache(_REMEMBERED)(self._contain)
        self.configure(networks)

    def configure(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        """Trust others. Connections that are there stay what they are."""
        self._networks = tuple(networks)
        self._known.cache_clear()

    def trust(self, address: str) -> bool:
        """Whether a peer is one of them; its address is empty at a unix socket."""
        if not self._networks:  # as nearly everywhere
            return self._unix and not address
        return self._known(address) if address else self._unix

    def note_untrusted(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> None:
        """Log, once for each, that a peer which is not trusted passes requests on.

        Only of private addresses and of this machine's: there a proxy of the operator's would be,
        and anyone else can send such headers too.
        """
        if peer in self._noted or len(self._noted) >= _MOST_NOTED or not is_forwarded(headers):
            return
        ip = ip_of(peer)
        if ip is not None and ip.is_private:
            self._noted.add(peer)
            log.warning(
                "a proxy passes requests on, and all of its clients count as that one address: "
                "if it is yours, give --trusted-proxy",
                extra={"peer": peer},
            )

    def read(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> Forwarded | None:
        """What a request says of where it comes from; None where it was not passed on.

        Args:
            headers: names in lower case.
            peer: the address of a trusted proxy.

        Raises:
            BadForwarding: it can't be understood.
        """
        found: dict[bytes, list[str]] = {}
        for name, value in headers:
            if name in _READ:
                found.setdefault(name, []).append(value.decode("latin-1"))
        if not found:
            return None
        standard = found.pop(b"forwarded", [])
        if not found:
            return self._read_standard(_elements(standard), peer)
        address, _ = self._client(_listed(found, b"x-forwarded-for"), peer)
        tls = _tls_of(_last(found, b"x-forwarded-proto"), "X-Forwarded-Proto")
        host = _last(found, b"x-forwarded-host")
        prefix = _last(found, b"x-forwarded-prefix")
        return Forwarded(address, tls, host.encode("latin-1") or None, _prefix(prefix))

    def _read_standard(self, elements: Sequence[dict[str, str]], peer: str) -> Forwarded:
        address, place = self._client([each.get("for", "unknown") for each in elements], peer)
        # What else stands with the client's address was told by the same proxy.
        told = elements[place] if elements else {}
        tls = _tls_of(told.get("proto", ""), "Forwarded")
        return Forwarded(address, tls, told.get("host", "").encode("latin-1") or None)

    def _client(self, hops: Sequence[str], peer: str) -> tuple[str, int]:
        """The rightmost address that is no trusted proxy's, and its place.

        Where there is none, the leftmost; where a proxy doesn't tell whom it was asked by, that
        proxy.
        """
        address, place = peer, len(hops) - 1
        for distance, hop in enumerate(reversed(hops[-_MOST_HOPS:]), 1):
            if _NAMELESS.fullmatch(hop):
                break
            address, place = _address(hop), len(hops) - distance
            if not self._known(address):
                break
        return address, place

    def _contain(self, address: str) -> bool:
        ip = ip_of(address)
        return ip is not None and any(ip in network for network in self._networks)


def is_forwarded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request says that it was passed on. Then it is nobody's on this machine."""
    return any(name in FORWARDING for name, _ in headers)


def _listed(found: Mapping[bytes, list[str]], name: bytes) -> list[str]:
    """The values of a list, which may come in several headers; empty ones left out."""
    parts = ",".join(found.get(name, ())).split(",")
    return [part.strip(" \t") for part in parts if part.strip(" \t")]


def _last(found: Mapping[bytes, list[str]], name: bytes) -> str:
    values = _listed(found, name)
    return values[-1] if values else ""


def _elements(values: Iterable[str]) -> list[dict[str, str]]:
    """The elements of `Forwarded` headers, each a proxy's, by names in lower case.

    Raises:
        BadForwarding: one is malformed. Half a quoted text of the client's could otherwise hide
            what a proxy adds behind it.
    """
    elements: list[dict[str, str]] = []
    for value in values:
        element: dict[str, str] = {}
        place = 0
        while True:
            match = _PAIR.match(value, place)
            if match is None:
                raise BadForwarding("Forwarded can't be understood")
            name, plain, quoted, end = match.groups()
            if name is not None:
                text = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                if name.lower() in element:
                    raise BadForwarding("Forwarded says something twice")
                element[name.lower()] = text
            place = match.end()
            if end != ";":
                if element:
                    elements.append(element)
                element = {}
            if not end:
                break
    return elements


def _address(hop: str) -> str:
    """An address of a list, without the port that some proxies write."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        ip = ip_address(hop)
    except ValueError:
        raise BadForwarding("X-Forwarded-For and Forwarded name IP addresses") from None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip)


def _tls_of(scheme: str, header: str) -> bool | None:
    if not scheme:
        return None
    tls = _SCHEMES.get(scheme.lower())
    if tls is None:
        raise BadForwarding(f"{header} is http or https")
    return tls


def _prefix(text: str) -> str:
    if len(text) > _MAX_PREFIX or not _PREFIX.fullmatch(text):
        raise BadForwarding("X-Forwarded-Prefix is a path of plain letters, as /mist")
    return text.rstrip("/")
