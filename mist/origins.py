"""Where peers come from: their addresses, and what is limited, and shared fairly, by them."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["ip_of", "origin_of"]

_REMEMBERED: Final = 4_096  # addresses
_OF_ONE: Final = 64  # bits of an IPv6 address: one customer commonly gets all that begin with them


def ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """A peer's address; None of what is none, as of a unix socket.

    IPv4 is that also where a dual-stack socket tells it as IPv6 (`::ffff:192.0.2.7`). The zone of
    a link-local address is left out.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if mapped is None else mapped


@lru_cache(_REMEMBERED)
def origin_of(address: str) -> str:
    """What stands for a peer's address: itself, and of IPv6 its /64.

    What is no address stands for itself.
    """
    ip = ip_of(address)
    if isinstance(ip, IPv6Address):
        return str(IPv6Network((ip, _OF_ONE), strict=False))
    return address if ip is None else str(ip)
