"""What URLs of engines and stores name: whether others can reach it, and whether two are the same.

The members that open them know what the URLs mean in full; see `mist.engine`.
"""

from typing import Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["has_replicas", "is_memory", "is_network", "place_of", "shares"]

_PORTS: Final = {
    "redis": 6379,
    "rediss": 6379,
    "redis+sentinel": 26379,
    "rediss+sentinel": 26379,
    "redis+cluster": 6379,
    "rediss+cluster": 6379,
    "postgres": 5432,
    "postgresql": 5432,
}


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def is_network(url: str) -> bool:
    """Whether it names something that other machines may use, too."""
    return _scheme(url) in _PORTS


def is_memory(url: str) -> bool:
    """Whether it names something in this process."""
    return _scheme(url) == "memory"


def has_replicas(url: str) -> bool:
    """Whether it names something of which it can be chosen how many replicas to wait for."""
    return is_network(url) and _scheme(url).startswith("redis")


def shares(url: str) -> bool:
    """Whether a token registry there may be shared: `redis://…`; `memory://NAME`."""
    return is_network(url) or (is_memory(url) and url.partition("://")[2] != "")


def place_of(url: str) -> tuple[object, ...]:
    """What it names: equal for URLs that differ in their user, password and timeouts only.

    Of several servers, any order is the same.
    """
    scheme, _, location = url.partition("://")
    scheme = scheme.lower()
    if scheme not in _PORTS:
        return scheme, location
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        servers = [urlsplit(f"//{each}") for each in hosts]
        places = frozenset(
            [((each.hostname or "").lower(), each.port or _PORTS[scheme]) for each in servers]
        )
    except ValueError:  # which is told of where it is opened
        return scheme, location
    realm = parse_qs(parts.query).get("realm", ["mist"])[0]
    path = parts.path.strip("/").removesuffix("/0") or "0"
    return scheme, places, path, realm
