"""What URLs of engines and stores name: whether others can reach it, and whether two are the same.

The members that open them know what the URLs mean in full; see `mist.engine`.
"""

from typing import Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["is_network", "place_of", "shares"]

_PORTS: Final = {"redis": 6379, "rediss": 6379, "postgres": 5432, "postgresql": 5432}


def is_network(url: str) -> bool:
    """Whether it names something that other machines may use, too."""
    return url.partition("://")[0].lower() in _PORTS


def shares(url: str) -> bool:
    """Whether a token registry there may be shared: `redis://…`; `memory://NAME`."""
    scheme, _, location = url.partition("://")
    return is_network(url) or (scheme.lower() == "memory" and location != "")


def place_of(url: str) -> tuple[object, ...]:
    """What it names: equal for URLs that differ in their user, password and timeouts only."""
    scheme, _, location = url.partition("://")
    scheme = scheme.lower()
    if scheme not in _PORTS:
        return scheme, location
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # which is told of where it is opened
        return scheme, location
    realm = parse_qs(parts.query).get("realm", ["mist"])[0]
    path = parts.path.strip("/") or "0"
    return scheme, (parts.hostname or "").lower(), port or _PORTS[scheme], path, realm
