"""Addresses of servers, as the URL of an engine names them."""

from typing import Final
from urllib.parse import urlsplit

import attrs

__all__ = ["Address", "read_addresses"]

_SERVERS: Final = 32  # that one URL may name


@attrs.frozen
class Address:
    """Where a server listens.

    Attributes:
        host: a name, an address, or the directory of a Unix socket.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_addresses(text: str, port: int) -> tuple[Address, ...]:
    """Read `host[:port],host[:port],…`.

    Args:
        port: where none is given.

    Raises:
        ValueError: one line that says why not.
    """
    names = text.split(",")
    if not all(names):
        raise ValueError("a host is missing")
    if len(names) > _SERVERS:
        raise ValueError(f"it names more than {_SERVERS} servers")
    return tuple([_address(each, port) for each in names])


def _address(name: str, port: int) -> Address:
    try:
        parts = urlsplit(f"//{name}")
        given, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError("its host or port is not one") from None
    if not host:
        raise ValueError("a host is missing")
    if given == 0:
        raise ValueError("its host or port is not one")
    return Address(host, given or port)
