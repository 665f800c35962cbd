"""Server addresses: the URLs that a client connects to."""

from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

from mist.client.errors import BadArgument

__all__ = ["Address"]

_PORTS: Final = {"tcp": 1445, "ws": 8888}
_RESOURCE: Final = "/subscribe/websocket"
# scheme: (protocol, TLS, unix socket)
_SCHEMES: Final = {
    "tcp": ("tcp", False, False),
    "tcps": ("tcp", True, False),
    "tcp+unix": ("tcp", False, True),
    "ws": ("ws", False, False),
    "wss": ("ws", True, False),
    "ws+unix": ("ws", False, True),
}


@attrs.frozen
class Address:
    """A server's address.

    Attributes:
        protocol: `tcp` (lines) or `ws` (JSON frames).
        tls: whether the stream is encrypted.
        host: a name or an address without brackets; empty for a unix socket.
        port: 0 for a unix socket.
        path: of a unix socket; empty for all others.
        resource: path and query of the WebSocket handshake.
    """

    protocol: str
    tls: bool = False
    host: str = ""
    port: int = 0
    path: str = ""
    resource: str = attrs.field(default=_RESOURCE, repr=False)  # a query may hold a ticket

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse a server's URL.

        `tcp://host` is port 1445, `ws://host` is port 8888 and `/subscribe/websocket`;
        `tcp+unix:///run/mist.sock` is the socket `/run/mist.sock`.

        Raises:
            BadArgument: not such a URL. The text is fit to print and never repeats the URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadArgument(f"not a URL: {error}") from None
        if parts.scheme in ("http", "https"):
            raise BadArgument("an HTTP URL: this client connects to tcp:// or ws:// listeners")
        if parts.scheme not in _SCHEMES:
            raise BadArgument(f"a server's URL begins with one of {', '.join(_SCHEMES)}")
        protocol, tls, unix = _SCHEMES[parts.scheme]
        if parts.fragment or "@" in parts.netloc:
            raise BadArgument("a server's URL has no user, password or fragment")
        if unix:
            if parts.netloc or not parts.path or parts.query:
                raise BadArgument(f"write {parts.scheme}:///absolute/path")
            return cls(protocol, path=unquote(parts.path))
        if not parts.hostname:
            raise BadArgument("the URL names no host")
        if protocol == "tcp" and (parts.path not in ("", "/") or parts.query):
            raise BadArgument("a tcp URL has no path and no query")
        resource = parts.path if parts.path not in ("", "/") else _RESOURCE
        if parts.query:
            resource += f"?{parts.query}"
        port = _PORTS[protocol] if port is None else port
        return cls(protocol, tls, parts.hostname, port, resource=resource)

    @property
    def authority(self) -> str:
        """`host:port`, the form of a Host header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
