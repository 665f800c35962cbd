"""The URL under which a server is known, where a proxy stands before it."""

import re
from ipaddress import ip_address
from typing import Final

import attrs

from mist.config.addresses import parse_origin

__all__ = ["PublicUrl"]

_MAX_PATH: Final = 200  # characters
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*/?")


@attrs.frozen
class PublicUrl:
    """A URL as browsers have it. `str()` gives it in canonical form.

    Attributes:
        origin: `https://example.com`, with a port where it isn't the scheme's.
        prefix: the path under which the proxy has the server: `/mist`; mostly empty.
    """

    origin: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> "PublicUrl":
        """From text: `https://example.com`, `https://example.com:8443/mist/`.

        Raises:
            ValueError: with the reason, fit to print.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise ValueError("it begins with https:// or http://")
        authority, slash, path = rest.partition("/")
        if len(path) > _MAX_PATH or not _PATH.fullmatch(slash + path):
            raise ValueError("its path has plain letters only, and no query or fragment")
        return cls(parse_origin(f"{scheme}://{authority}"), (slash + path).rstrip("/"))

    @property
    def host(self) -> str:
        """The name or address in it, without brackets and port."""
        authority = self.origin.partition("://")[2]
        if authority.startswith("["):
            return authority[1:].partition("]")[0]
        return authority.partition(":")[0]

    @property
    def is_local(self) -> bool:
        """Whether it leads to this machine alone."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.origin}{self.prefix}"
