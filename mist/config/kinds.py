"""Kinds of values: how each is written, read and shown.

A parser takes text and raises ValueError: bare where the kind's `expected` says all there is
to say, with a reason where it doesn't. It never puts the text into the reason, since that
text may be a secret; `mist.config.sources` shows it where it may be shown.

Numbers are matched before `int` and `float` see them: those accept `+1`, `٣`, ` 1 ` and
`nan`, and refuse a number of 5000 digits with an error of their own.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import attrs

from mist.config import paths
from mist.config.addresses import SCHEMES, Listen, parse_host, parse_origin
from mist.config.places import is_memory, is_network
from mist.config.public_url import PublicUrl
from mist.history.retention import Rule
from mist.message import EVENTS, is_tag_pattern

__all__ = [
    "ADVERTISE",
    "CLAIM",
    "CLAIM_VALUE",
    "HISTORY",
    "HOST",
    "KEEP",
    "LATEST",
    "LISTEN",
    "NETWORK",
    "NODE",
    "ORIGIN",
    "PUBLIC_URL",
    "SECRET",
    "SWITCH",
    "URL",
    "WEB_OR_FILE",
    "WEB_URL",
    "Kind",
    "Network",
    "choice",
    "count",
    "path",
    "seconds",
    "size",
    "without_password",
]

T = TypeVar("T")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_SIZE: Final = 1 << 40  # bytes; far above any use, to catch typing errors
_MAX_COUNT: Final = 1_000_000_000
_MAX_SECONDS: Final = 31_536_000.0  # a year
_MAX_PUBLIC_URL: Final = 512  # characters
_MAX_SECRET: Final = 255  # bytes: as for a token, since `auth` carries either

_DIGITS = r"[0-9]{1,15}(?:_[0-9]{1,15}){0,5}"
_COUNT = re.compile(_DIGITS)
_SIZE = re.compile(rf"({_DIGITS}) ?(b|kib|mib|gib)?", re.IGNORECASE)
_SECONDS = re.compile(rf"({_DIGITS}(?:\.[0-9]{{1,9}})?) ?(ms|s|m|h|d)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_WEB_URL = re.compile(r"https?://[^\s\0/?#]+[^\s\0#]*")
_CLAIM = re.compile(r"[^\x00-\x20\x7f]{1,255}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\0]*")

# Only powers of 1024: whether KB means 1000 or 1024 is disputed.
_SIZE_UNITS: Final[Mapping[str, int]] = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SECONDS_UNITS: Final[Mapping[str, float]] = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_SWITCHES: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@attrs.frozen
class Kind(Generic[T]):
    """One kind of value.

    Attributes:
        metavar: placeholder of a value in help texts; empty for a switch.
        expected: completes "expected …" in an error's text.
        parse: text to value; raises ValueError, with a reason or bare.
        toml: the types a TOML file may use for it, besides lists of these.
        show: a value back to text that `parse` reads.
        choices: all that is accepted, where that is a short list.
    """

    metavar: str
    expected: str
    parse: Callable[[str], T]
    toml: tuple[type, ...] = (str,)
    show: Callable[[T], str] = str
    choices: tuple[str, ...] = ()


def size(minimum: int = 1) -> Kind[int]:
    """Bytes: `65536`, `65_536`, `64KiB`, `8 MiB`."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError
        number = int(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()]
        return _between(minimum, number, _MAX_SIZE)

    expected = f"bytes from {_show_size(minimum)} to {_show_size(_MAX_SIZE)}, as 65536 or 64KiB"
    return Kind("BYTES", expected, parse, (str, int), _show_size)


def _show_size(number: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def count(minimum: int = 1) -> Kind[int]:
    """A number of things: `20000`, `20_000`."""

    def parse(text: str) -> int:
        if not _COUNT.fullmatch(text):
            raise ValueError
        return _between(minimum, int(text), _MAX_COUNT)

    expected = f"a whole number from {minimum} to {_MAX_COUNT:_}"
    return Kind("N", expected, parse, (str, int), lambda number: f"{number:_}")


def seconds(minimum: float = 0.001) -> Kind[float]:
    """A length of time: `10`, `0.5`, `10s`, `250ms`, `2m`, `1h`, `7d`."""

    def parse(text: str) -> float:
        match = _SECONDS.fullmatch(text)
        if match is None:
            raise ValueError
        number = float(match[1]) * _SECONDS_UNITS[match[2] or "s"]
        return _between(minimum, number, _MAX_SECONDS)

    expected = f"seconds from {minimum:g} to {_MAX_SECONDS:.0f}, as 10, 0.5, 10s or 2m"
    return Kind("SECONDS", expected, parse, (str, int, float), _show_seconds)


def _show_seconds(number: float) -> str:
    if number and number % 86_400 == 0:
        return f"{number / 86_400:.0f}d"
    return f"{number:.3f}".rstrip("0").rstrip(".") + "s"


Number = TypeVar("Number", int, float)


def _between(minimum: Number, number: Number, maximum: Number) -> Number:
    if not minimum <= number <= maximum:
        raise ValueError
    return number


def choice(*choices: str) -> Kind[str]:
    """One of a few words, exactly as written here."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Kind("|".join(choices), " or ".join(choices), parse, choices=choices)


def path(metavar: str = "FILE") -> Kind[Path]:
    """A path on this machine; a relative one is relative to the working directory."""
    return Kind(metavar, paths.EXPECTED, paths.parse_path)


def _parse_switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ValueError
    return _SWITCHES[text.lower()]


def _parse_engine(text: str) -> str:
    url = _parse_url(text)
    if not (is_network(url) or is_memory(url)):
        raise ValueError
    return url


def _parse_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError
    return text


def _parse_web_url(text: str) -> str:
    if not _WEB_URL.fullmatch(text):
        raise ValueError
    return text


def _parse_web_or_file(text: str) -> str:
    return _parse_web_url(text) if "://" in text[:9] else str(paths.parse_path(text))


def _parse_claim(text: str) -> str:
    if not _CLAIM.fullmatch(text):
        raise ValueError
    return text


def _parse_public_url(text: str) -> str:
    if len(text) > _MAX_PUBLIC_URL or "@" in _parse_url(text):
        raise ValueError
    return text


def _parse_node_name(text: str) -> str:
    if not _NODE.fullmatch(text):
        raise ValueError
    return text


def without_password(url: str) -> str:
    """`url` without what may be secret: `postgres://u:p@db/x?password=p` → `***@db/x?password=***`.

    That is what stands before an `@`, and the value of any option that is named so.
    """
    hidden = re.sub(r"^.*@", "***@", url, flags=re.DOTALL)
    return re.sub(r"(password=)[^&]*", r"\1***", hidden, flags=re.IGNORECASE)


def _parse_network(text: str) -> Network:
    if "%" in text:
        raise ValueError
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(_why_no_network(text)) from None
    # As a peer's address is read: ::ffff:10.0.0.1, which a dual-stack socket tells, is 10.0.0.1.
    first = network.network_address
    if isinstance(first, ipaddress.IPv6Address) and first.ipv4_mapped and network.prefixlen >= 96:
        return ipaddress.IPv4Network((first.ipv4_mapped, network.prefixlen - 96))
    return network


def _why_no_network(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return ""
    return f"the network's own address is {network}"


def _show_network(network: Network) -> str:
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return str(network)


def _show_rule(rule: Rule) -> str:
    limits = [] if rule.count is None else [str(rule.count)]
    if rule.age is not None:
        limits.append(f"{rule.age:.0f}s")
    return f"{rule.pattern}={','.join(limits)}"


def _parse_pattern(text: str) -> str:
    Rule(text, 0)
    if text.startswith(("..", ">", EVENTS)):
        raise ValueError("it is reserved")
    return text


def _parse_latest(text: str) -> str:
    if not is_tag_pattern(text):
        raise ValueError("it can't be the beginning of a tag")
    return text


def _parse_secret(text: str) -> str:
    """`text`, where `auth {secret}` of the line protocol can carry it.

    A space could not pass: fields are split on it, and the count of arguments is exact.
    """
    if not text:
        raise ValueError("it is empty")
    if any(c == " " or unicodedata.category(c) == "Cc" for c in text):
        raise ValueError("it holds a space or a control character")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    if length > _MAX_SECRET:
        raise ValueError(f"it has {length} bytes")
    return text


SWITCH: Final = Kind(
    "",
    "one of 1, 0, true, false, yes, no, on, off",
    _parse_switch,
    (bool,),
    lambda value: "true" if value else "false",
)
LISTEN: Final = Kind(
    "URL",
    "SCHEME://HOST:PORT or SCHEME+unix:///PATH with SCHEME "
    + " or ".join(name for name, scheme in SCHEMES.items() if scheme.port is not None),
    Listen.parse,
)
ORIGIN: Final = Kind("ORIGIN", "an origin, as https://app.example:8443", parse_origin)
HOST: Final = Kind("HOST", "a host name or IP address, as mist.example", parse_host)
NETWORK: Final = Kind(
    "NET", "an IP address or network, as 10.0.0.0/8", _parse_network, show=_show_network
)
URL: Final = Kind("URL", "a URL, as sqlite:///tokens.db or memory://", _parse_url)
HISTORY: Final = Kind(
    "URL",
    "none or a URL, as sqlite:///history.db or memory://",
    lambda text: text if text == "none" else _parse_url(text),
)
ENGINE: Final = Kind(
    "URL",
    "redis://, redis+sentinel:// or redis+cluster://, as rediss with TLS, postgresql:// or "
    "memory://NAME",
    _parse_engine,
)
NODE: Final = Kind("NAME", "1 to 64 letters, digits, '.', '_', ':', '-', as eu-1", _parse_node_name)
ADVERTISE: Final = Kind(
    "URL", "a URL without a user or password, as https://eu-1.example", _parse_public_url
)
WEB_OR_FILE: Final = Kind(
    "URL|FILE", "http://, https:// or a path, as https://id.example/jwks.json", _parse_web_or_file
)
WEB_URL: Final = Kind("URL", "http:// or https://, as https://app.example/auth", _parse_web_url)
CLAIM: Final = Kind("NAME", "the name of a claim, as https://app.example/mist", _parse_claim)
CLAIM_VALUE: Final = Kind("TEXT", "1 to 255 characters without spaces", _parse_claim)
PUBLIC_URL: Final = Kind(
    "URL", "a URL of http or https, as https://example.com/mist", PublicUrl.parse
)
KEEP: Final = Kind(
    "TAG=LIMIT",
    "a tag, or the beginning of tags and *, and a number of messages or an age, as room:*=100",
    Rule.parse,
    show=_show_rule,
)
PRESENCE: Final = Kind("TAG", "a tag, or the beginning of tags and *, as room:*", _parse_pattern)
LATEST: Final = Kind("TAG", "a tag, or the beginning of tags and *, as order:*", _parse_latest)
SECRET: Final = Kind(
    "TEXT",
    f"1 to {_MAX_SECRET} bytes of UTF-8 without spaces and control characters",
    _parse_secret,
)
