"""Where peers come from: what is limited, and shared fairly, goes by that."""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["origin_of"]

_REMEMBERED: Final = 4_096  # addresses
_OF_ONE: Final = 64  # bits of an IPv6 address: one customer commonly gets all that begin with them


@lru_cache(_REMEMBERED)
def origin_of(address: str) -> str:
    """What stands for a peer's IP address: itself, and of IPv6 its /64.

    IPv4 is the same where a dual-stack socket tells it as IPv6. What is no address, as of a unix
    socket, stands for itself.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((ip, _OF_ONE), strict=False))
