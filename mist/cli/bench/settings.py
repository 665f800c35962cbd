"""What all commands of `mist bench` share: which server is measured, and how results look."""

import os
from contextlib import AbstractContextManager

import attrs
import click

from mist.bench.cell import TRANSPORTS
from mist.bench.process import resident_bytes
from mist.bench.site import RESOURCE, Place, Site, given_site, own_site
from mist.client import BadArgument
from mist.client.address import Address

__all__ = ["Settings"]


@attrs.frozen(kw_only=True)
class Settings:
    """What all subcommands share.

    Attributes:
        transport: what subscribers use; none for what the command finds sensible.
        server: URLs of a server to be measured; none for one of our own.
        secret, token: for its TCP and its WebSocket endpoint.
        pid: its process.
    """

    quick: bool = False
    as_json: bool = False
    transport: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    pid: int | None = None

    @property
    def reachable(self) -> tuple[str, ...]:
        """Transports that can be measured: all, or those of the URLs given."""
        given = [_place(url)[0] for url in self.server]
        return tuple(each for each in TRANSPORTS if not given or each in given)

    @property
    def memory_is_known(self) -> bool:
        """Whether the server's memory can be read, here and from outside."""
        known = not self.server or self.pid is not None
        return known and resident_bytes(self.pid or os.getpid()) is not None

    def open_site(self) -> AbstractContextManager[Site]:
        """The server to measure.

        Raises:
            click.UsageError: the options contradict each other.
        """
        if not self.server:
            if self.pid is not None:
                raise click.UsageError("--pid is for a server given by --server")
            return own_site()
        places: dict[str, Place] = {}
        for url in self.server:
            protocol, place = _place(url)
            if protocol in places:
                raise click.UsageError(f"two {protocol}:// servers are given")
            places[protocol] = place
        return given_site(
            places.get("tcp"), places.get("ws"), secret=self.secret, token=self.token, pid=self.pid
        )


def _place(url: str) -> tuple[str, Place]:
    try:
        address = Address.parse(url if "://" in url else f"tcp://{url}")
    except BadArgument as error:
        raise click.UsageError(f"--server: {error}") from None
    if address.tls or address.path:
        raise click.UsageError("--server: tcp:// and ws:// can be measured, TLS and unix:// not")
    resource = address.resource if address.protocol == "ws" else RESOURCE
    return address.protocol, Place(address.host, address.port, resource)
