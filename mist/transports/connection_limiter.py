"""The connection limiter: connections in total and by address."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final

import attrs

from mist.change import Change
from mist.origins import ip_of, origin_of

__all__ = ["ConnectionLimiter", "Ticket"]

_REMEMBERED: Final = 4_096  # addresses


@attrs.frozen(eq=False)
class Ticket:
    """One connection let in; give it back to the limiter that issued it.

    Attributes:
        address: what is counted for it; empty where its address isn't counted.
    """

    address: str


class ConnectionLimiter:
    """Limits on connections, shared by all listeners.

    Loopback, unix sockets and the configured proxies have no limit of their own: behind a
    proxy everything comes from one address. The others are counted by `origin_of`.

    Args:
        most: connections in all.
        most_per_address: connections of one address.
        proxies: networks without that limit.

    Attributes:
        connected: how many are, now.
        refused: how many were not let in.
    """

    def __init__(
        self,
        most: int = 20_000,
        most_per_address: int = 1_000,
        proxies: Iterable[IPv4Network | IPv6Network] = (),
    ) -> None:
        self._emptied = Change()
        self.connected = 0
        self._aside = 0
        self._by_address: Counter[str] = Counter()
        self.refused = 0
        self.configure(most, most_per_address, proxies)

    def configure(
        self,
        most: int,
        most_per_address: int,
        proxies: Iterable[IPv4Network | IPv6Network],
    ) -> None:
        """Change the limits. Who is connected stays, also beyond them."""
        self._most = most
        self._most_per_address = most_per_address
        self._proxies = tuple(proxies)
        self._counted = lru_cache(_REMEMBERED)(self._count)

    def enter(self, address: str) -> Ticket | None:
        """Let a connection in, or None. `address` is empty for unix sockets."""
        counted = self.counted(address)
        if self.connected >= self._most or (
            counted and self._by_address[counted] >= self._most_per_address
        ):
            self.refused += 1
            return None
        self.connected += 1
        if counted:
            self._by_address[counted] += 1
        return Ticket(counted)

    def claim(self, address: str) -> Ticket | None:
        """Count what a trusted proxy asks for, or has open, on behalf of an address; or None.

        The proxy's own connection has been counted by `enter`, without its address. Give the
        ticket back with `release`.
        """
        counted = self.counted(address)
        if counted and self._by_address[counted] >= self._most_per_address:
            self.refused += 1
            return None
        if counted:
            self._by_address[counted] += 1
        return Ticket(counted)

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket of `enter` back, once."""
        self.connected -= 1
        self._emptied.notify()
        self.release(ticket)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Have `emptied` not wait for a connection that was let in, as long as this block lasts.

        Its peer has asked for nothing yet: it has TLS to agree on first.
        """
        self._aside += 1
        self._emptied.notify()
        try:
            yield
        finally:
            self._aside -= 1

    def release(self, ticket: Ticket) -> None:
        """Take a ticket of `claim` back, once."""
        if ticket.address:
            self._by_address[ticket.address] -= 1
            if not self._by_address[ticket.address]:
                del self._by_address[ticket.address]

    @property
    def awaited(self) -> int:
        """How many `emptied` waits for."""
        return self.connected - self._aside

    async def emptied(self) -> None:
        """Wait until nobody is connected, but for those that are `aside`."""
        while self.awaited:
            await self._emptied.wait()

    def counted(self, address: str) -> str:
        """What stands for an address where peers are limited by it; empty where they aren't."""
        return self._counted(address)

    def _count(self, address: str) -> str:
        ip = ip_of(address)
        if ip is None or ip.is_loopback or any(ip in network for network in self._proxies):
            return ""
        return origin_of(address)
