"""What the URL of a Redis says.

    redis://[[user]:password@]host[:port][/database]
    redis+sentinel://[[user]:password@]host[:port],host[:port],…/MASTER[/database]
    redis+cluster://[[user]:password@]host[:port],host[:port],…

each with `rediss` for TLS, and with options, such as `?realm=NAME`.
"""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from mist.engine.addresses import Address, read_addresses
from mist.engine.redis import SCHEMES, ServerKind
from mist.errors import StartupError

__all__ = ["Location"]

_PORTS: Final[dict[ServerKind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_REALM: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MASTER: Final = re.compile(r"[A-Za-z0-9._-]{1,256}")  # as Sentinel has it
_OPTIONS: Final = ("realm", "timeout", "connect_timeout", "ca")
_OPTIONS_OF_SENTINEL: Final = ("sentinel_user", "sentinel_password")
_LONGEST: Final = 60.0  # seconds
_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final[dict[ServerKind, float]] = {"server": 2.0, "sentinel": 1.0, "cluster": 1.0}


@attrs.frozen
class Location:
    """Where a realm is kept, and how long to wait for it.

    Attributes:
        kind: whether `servers` is the server itself, Sentinels, or members of a cluster.
        servers: of Sentinels and members any will do; one at least.
        master: the name under which Sentinels know it.
        sentinel_user, sentinel_password: of the Sentinels.
        tls: for Sentinels, too.
        realm: names the log; several may be in one database.
        timeout: seconds for a reply; more where megabytes are on the way, see `connection`.
        connect_timeout: seconds for a connection, up to its first reply.
        ca: file of the certificates to trust, in place of the system's.
    """

    servers: tuple[Address, ...]
    kind: ServerKind = "server"
    master: str = ""
    database: int = 0
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    sentinel_user: str = ""
    sentinel_password: str = attrs.field(default="", repr=False)
    tls: bool = False
    realm: str = "mist"
    timeout: float = _TIMEOUT
    connect_timeout: float = _CONNECT_TIMEOUT["server"]
    ca: str = ""

    @property
    def name(self) -> str:
        """Names it, for messages: no user, no password."""
        servers = ", ".join(map(str, self.servers))
        match self.kind:
            case "sentinel":
                return f"Redis {self.master} of Sentinel at {servers}"
            case "cluster":
                return f"the Redis cluster at {servers}"
            case _:
                return f"Redis at {servers}"

    @property
    def slot_name(self) -> str:
        """What all keys of the realm have between braces: by this a cluster finds their slot."""
        return f"mist:{self.realm}"

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read a URL; see the module.

        Raises:
            StartupError: one line that says why not, without the password.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _wrong("its host or port is not one") from None
        if parts.scheme not in SCHEMES:
            raise _wrong(f"not {'://, '.join(SCHEMES)}://")
        if parts.fragment:
            raise _wrong("a '#' in the user or password is written %23")
        kind, tls = SCHEMES[parts.scheme]
        account, _, hosts = parts.netloc.rpartition("@")
        user, _, password = account.partition(":")
        master, database = _path(kind, parts.path.strip("/"))
        options = _options(parts.query, kind)
        realm = options.get("realm", "mist")
        if not _REALM.fullmatch(realm):
            raise _wrong("a realm is 1 to 64 letters, digits, '.', '_', '-'")
        return cls(
            servers=_servers(kind, hosts),
            kind=kind,
            master=master,
            database=database,
            user=unquote(user),
            password=unquote(password),
            sentinel_user=options.get("sentinel_user", ""),
            sentinel_password=options.get("sentinel_password", ""),
            tls=tls,
            realm=realm,
            timeout=_seconds(options, "timeout", _TIMEOUT),
            connect_timeout=_seconds(options, "connect_timeout", _CONNECT_TIMEOUT[kind]),
            ca=options.get("ca", ""),
        )


def _servers(kind: ServerKind, hosts: str) -> tuple[Address, ...]:
    if kind == "server" and "," in hosts:
        raise _wrong("it names one server; several go with redis+sentinel:// and redis+cluster://")
    try:
        return read_addresses(hosts, _PORTS[kind])
    except ValueError as error:
        raise _wrong(str(error)) from None


def _path(kind: ServerKind, path: str) -> tuple[str, int]:
    """The name of the master, and the number of the database."""
    master = ""
    if kind == "sentinel":
        master, _, path = path.partition("/")
        if not _MASTER.fullmatch(master):
            raise _wrong("its path is not the name of a master, as redis+sentinel://host/mymaster")
    if path and not (path.isascii() and path.isdigit() and len(path) < 10):
        raise _wrong("its path is not the number of a database")
    if kind == "cluster" and int(path or 0):
        raise _wrong("a cluster has the database 0 only")
    return master, int(path or 0)


def _options(query: str, kind: ServerKind) -> dict[str, str]:
    options: dict[str, str] = {}
    known = (*_OPTIONS, *_OPTIONS_OF_SENTINEL) if kind == "sentinel" else _OPTIONS
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise _wrong(f"no such option, there are {', '.join(known)}")
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
