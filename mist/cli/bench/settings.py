"""What all commands of `mist bench` share: which server is measured, and how results look."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import click

from mist.bench.cell import TRANSPORTS
from mist.bench.process import resident_bytes
from mist.bench.site import RESOURCE, Place, Site, given_site, own_site
from mist.client import BadArgument
from mist.client.address import Address

__all__ = ["Settings"]

_HTTP_PORT: Final = 8080
_NOT_MEASURED: Final = "--server: tcp://, ws:// and http:// can be measured, TLS and unix:// not"


@attrs.frozen(kw_only=True)
class Settings:
    """What all subcommands share.

    Attributes:
        html: the file for a page of the results.
        transport: what subscribers use; none for what the command finds sensible. Unknown to
            commands that measure all there are.
        server: URLs of a server to be measured; none for one of our own.
        secret, token: for its endpoints.
        pid: its process.
    """

    quick: bool = False
    as_json: bool = False
    html: Path | None = None
    transport: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    pid: int | None = None

    @property
    def reachable(self) -> tuple[str, ...]:
        """Transports that can be measured: all, or those of the URLs given.

        Raises:
            click.UsageError: URLs are given, and none is of a transport.
        """
        given = self._places()
        found = tuple(each for each in TRANSPORTS if not given or each in given)
        if not found:
            raise click.UsageError("--server: that takes a tcp:// or ws:// URL, too")
        return found

    @property
    def has_http(self) -> bool:
        """Whether HTTP can be measured beside the other transports."""
        return not self.server or {"tcp", "ws", "http"} <= self._places().keys()

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
        places = self._places()
        return given_site(
            places.get("tcp"),
            places.get("ws"),
            places.get("http"),
            secret=self.secret,
            token=self.token,
            pid=self.pid,
        )

    def _places(self) -> dict[str, Place]:
        places: dict[str, Place] = {}
        for url in self.server:
            protocol, place = (
                _http_place(url) if url.partition(":")[0] in ("http", "https") else _place(url)
            )
            if protocol in places:
                raise click.UsageError(f"two {protocol}:// servers are given")
            places[protocol] = place
        return places


def _place(url: str) -> tuple[str, Place]:
    try:
        address = Address.parse(url if "://" in url else f"tcp://{url}")
    except BadArgument as error:
        raise click.UsageError(f"--server: {error}") from None
    if address.tls or address.path:
        raise click.UsageError(_NOT_MEASURED)
    resource = address.resource if address.protocol == "ws" else RESOURCE
    return address.protocol, Place(address.host, address.port, resource)


def _http_place(url: str) -> tuple[str, Place]:
    try:
        parts = urlsplit(url)
        port = parts.port or _HTTP_PORT
    except ValueError as error:
        raise click.UsageError(f"--server: not a URL: {error}") from None
    if parts.scheme != "http":
        raise click.UsageError(_NOT_MEASURED)
    extra = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    if not parts.hostname or extra:
        raise click.UsageError("--server: an http URL names a host and a port, and nothing else")
    return "http", Place(parts.hostname, port)
