"""What the URL of a Redis says."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from mist.errors import StartupError

__all__ = ["Location"]

_SCHEMES: Final = {"redis": False, "rediss": True}
_REALM: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPTIONS: Final = ("realm", "timeout", "connect_timeout", "ca")
_LONGEST: Final = 60.0  # seconds
_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final = 2.0


@attrs.frozen
class Location:
    """Where a realm is kept, and how long to wait for it.

    Attributes:
        realm: names the log; several may be in one database.
        timeout: seconds for a reply; more where megabytes are on the way, see `connection`.
        connect_timeout: seconds for a connection, up to its first reply.
        ca: file of the certificates to trust, in place of the system's.
    """

    host: str
    port: int = 6379
    database: int = 0
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    tls: bool = False
    realm: str = "mist"
    timeout: float = _TIMEOUT
    connect_timeout: float = _CONNECT_TIMEOUT
    ca: str = ""

    @property
    def name(self) -> str:
        """Names the server, for messages: no user, no password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `redis://[[user]:password@]host[:port][/database][?option=value&…]`.

        Raises:
            StartupError: one line that says why not, without the password.
        """
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            raise _wrong("its host or port is not one") from None
        if parts.scheme not in _SCHEMES:
            raise _wrong("not redis:// or rediss://")
        if not host:
            raise _wrong("a host is missing")
        if parts.fragment:
            raise _wrong("a '#' in the user or password is written %23")
        path = parts.path.strip("/")
        if path and not (path.isascii() and path.isdigit()):
            raise _wrong("its path is not the number of a database")
        options = _options(parts.query)
        realm = options.get("realm", "mist")
        if not _REALM.fullmatch(realm):
            raise _wrong("a realm is 1 to 64 letters, digits, '.', '_', '-'")
        return cls(
            host=host,
            port=port or 6379,
            database=int(path or 0),
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            tls=_SCHEMES[parts.scheme],
            realm=realm,
            timeout=_seconds(options, "timeout", _TIMEOUT),
            connect_timeout=_seconds(options, "connect_timeout", _CONNECT_TIMEOUT),
            ca=options.get("ca", ""),
        )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise _wrong(f"no such option, there are {', '.join(_OPTIONS)}")
        if name in options:
            raise _wrong(f"{name} is given twice")
        options[name] = value
    return options


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(options.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= _LONGEST:
        raise _wrong(f"{name} is a number of seconds from 0.01 to {_LONGEST:g}")
    return seconds


def _wrong(why: str) -> StartupError:
    return StartupError(f"engine: not a URL of Redis: {why}")
