"""What the URL of a PostgreSQL says."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from mist.engine.addresses import Address, read_addresses
from mist.errors import StartupError

__all__ = ["Location"]

_PORT: Final = 5432
_SCHEMES: Final = ("postgresql", "postgres")
_REALM: Final = re.compile(r"[A-Za-z0-9._-]{1,50}")  # in an identifier of 63 bytes at most
_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_OPTIONS: Final = ("realm", "timeout", "connect_timeout", "host", *_TLS)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_LONGEST: Final = 60.0  # seconds
_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final = 2.0


@attrs.frozen
class Location:
    """Where a realm is kept, and how long to wait for it.

    Attributes:
        servers: one at least. Of several, one is the primary and the others are its standbys.
        database, user: empty is libpq's default.
        realm: names the log; several may be in one database.
        timeout: seconds for a reply; more where megabytes are on the way, see `connection`.
        connect_timeout: seconds for a connection, up to its first reply.
        tls: libpq's settings of the same names, such as `sslmode`.
    """

    servers: tuple[Address, ...]
    database: str = ""
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    realm: str = "mist"
    timeout: float = _TIMEOUT
    connect_timeout: float = _CONNECT_TIMEOUT
    tls: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Names its servers, for messages: no user, no password."""
        return ", ".join(map(str, self.servers))

    @property
    def schema(self) -> str:
        """The schema that has the realm's tables."""
        return f"mist_{self.realm}"

    @property
    def token_channel(self) -> str:
        """Where servers are notified of changed tokens."""
        return f"mist_{self.realm}.tokens"

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `postgresql://[user[:password]@]host[:port],…[/database][?option=value&…]`.

        As libpq has it, several hosts are a primary and its standbys, in any order, and a Unix
        socket is named by an option: `postgresql:///database?host=/run/…`.

        Raises:
            StartupError: one line that says why not, without the password.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _wrong("its host or port is not one") from None
        if parts.scheme not in _SCHEMES:
            raise _wrong("not postgresql:// or postgres://")
        if parts.fragment:
            raise _wrong("a '#' in the user or password is written %23")
        if "/" in parts.path[1:]:
            raise _wrong("its path is not the name of a database")
        options = _options(parts.query)
        servers = _servers(parts.netloc.rpartition("@")[2], options)
        realm = options.get("realm", "mist")
        if not _REALM.fullmatch(realm):
            raise _wrong("a realm is 1 to 50 letters, digits, '.', '_', '-'")
        if options.get("sslmode", "prefer") not in _SSL_MODES:
            raise _wrong(f"sslmode is one of {', '.join(_SSL_MODES)}")
        texts = [unquote(each or "") for each in (parts.path[1:], parts.username, parts.password)]
        if any("\0" in each for each in (parts.netloc, *texts, *options.values())):
            raise _wrong("a NUL byte is in it")
        return cls(
            servers=servers,
            database=texts[0],
            user=texts[1],
            password=texts[2],
            realm=realm,
            timeout=_seconds(options, "timeout", _TIMEOUT),
            connect_timeout=_seconds(options, "connect_timeout", _CONNECT_TIMEOUT),
            tls=tuple([(name, options[name]) for name in _TLS if name in options]),
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


def _servers(hosts: str, options: dict[str, str]) -> tuple[Address, ...]:
    directory = options.get("host", "")
    if directory and hosts.partition(":")[0]:
        raise _wrong("its host is given twice")
    # A socket's name has the number of a port, too.
    socket = directory.startswith("/") and "," not in hosts
    try:
        found = read_addresses(f"localhost{hosts}" if socket else hosts, _PORT)
    except ValueError as error:
        raise _wrong(str(error)) from None
    return (Address(directory, found[0].port),) if socket else found


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(options.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= _LONGEST:
        raise _wrong(f"{name} is a number of seconds from 0.01 to {_LONGEST:g}")
    return seconds


def _wrong(why: str) -> StartupError:
    return StartupError(f"engine: not a URL of PostgreSQL: {why}")
