"""WebSocket handshakes: the offer, its origin and credential, and the answer. No I/O.

A browser page can't set headers on a WebSocket, so a token may come in several ways; all of
them lead to the same check. A browser also shows its scripts nothing of a refused handshake,
so a client that offered one of our subprotocols is let in and told by a close code, while anyone
else gets a plain HTTP status.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import attrs

from mist.config.addresses import parse_origin
from mist.sessions.close_reason import REGISTRY_UNAVAILABLE
from mist.transports.forwarding import FORWARDING
from mist.transports.http1 import SAFEGUARDS, RequestHead, response_head

__all__ = [
    "FRAMES",
    "JSON",
    "PATH",
    "TOPICS",
    "Offer",
    "Origins",
    "Refusal",
    "is_upgrade",
    "read_handshake",
    "read_offer",
    "refusal_head",
    "welcome_head",
]

PATH: Final = "/subscribe/websocket"
FRAMES: Final = "mist.v1"
JSON: Final = "mist.json"
TOPICS: Final = "mist.topics"  # for pages that bring a token to guble's path
_SUBPROTOCOLS: Final = frozenset({FRAMES, JSON})
_STREAMS: Final = "/stream/user/"
_USER: Final = re.compile(r"[^,\x00-\x1f\x7f-\x9f]+")
_MAX_USER: Final = 255  # bytes
_BEARER: Final = b"bearer "
_TOKEN_PREFIX: Final = "mist.token."  # a prefix, not a token
_VERSION: Final = b"13"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::[0-9]{1,5})?")
_WELCOME: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\n\r\n"
)
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


@attrs.frozen
class Refusal:
    """Why a handshake is refused.

    Attributes:
        status: for HTTP clients.
        code: the close code for clients that offered a subprotocol of ours.
        reason: short text for the close frame and the log.
    """

    status: int
    code: int
    reason: str


NOT_FOUND: Final = Refusal(404, 4404, "no such path")
BAD_REQUEST: Final = Refusal(400, 4400, "bad request")
TWO_CREDENTIALS: Final = Refusal(400, 4400, "two different credentials")
UNAUTHORIZED: Final = Refusal(401, 4401, "unauthorized")
FORBIDDEN_USER: Final = Refusal(403, 4403, "the token is another user's")
CLIENT_TAKEN: Final = Refusal(409, 4409, "client id is taken")
FORBIDDEN_ORIGIN: Final = Refusal(403, 4403, "origin not allowed")
TOO_MANY: Final = Refusal(429, 4429, "too many connections")
UNAVAILABLE: Final = Refusal(503, REGISTRY_UNAVAILABLE.code, REGISTRY_UNAVAILABLE.reason)
OTHER_VERSION: Final = Refusal(426, 4400, "expected version 13 of the WebSocket protocol")


@attrs.frozen
class Offer:
    """What a handshake asks for.

    Attributes:
        path: without the query.
        origin: None where the request has none.
        token: None where none was presented. Never shown by `repr`. May be empty or
            malformed; the registry then doesn't know it.
        ticket: what stands for a token in a URL. As `token`.
        ambiguous: two different credentials, or two origins.
        has_body: whether a body is announced; what comes next would not be frames.
        subprotocol: the first one of ours among those offered; None where there is none.
        answered: the subprotocol that a welcome names; None where it names none. Browsers fail
            a connection whose welcome names none of those that they offered. So guble's clients,
            whose messages have no name of a subprotocol, are given back one of their own, a
            token only where there is nothing else.
        is_local: where `user` is given, whether it comes from this machine, as far as a request can
            tell: it names this machine and was not forwarded. A web page that has its own name
            resolve to this machine (DNS rebinding) names another one; what a proxy here asks for,
            anybody may have asked it for.
        client: the id that the client chose, `?client=`; None where it chose none.
        user: the user that the path names, where it is one of guble's; None elsewhere.
    """

    path: str
    origin: str | None
    token: str | None = attrs.field(repr=False)
    ticket: str | None = attrs.field(repr=False)
    ambiguous: bool
    has_body: bool
    subprotocol: str | None
    user: str | None = None
    is_local: bool = False
    client: str | None = None
    answered: str | None = attrs.field(default=None, repr=False)


def read_offer(
    target: str,
    headers: Iterable[tuple[bytes, bytes]],
    subprotocols: Sequence[str],
    *,
    query_token: bool,
    is_credential: Callable[[str], bool] = lambda text: False,
) -> Offer:
    """What a handshake asks for.

    Args:
        target: the request target, path and query.
        headers: names in lower case.
        subprotocols: as offered.
        query_token: whether `?x-auth-token=` counts; elsewhere it is not even looked at.
        is_credential: whether what a header `Authorization` has is a client's, rather than the
            secret, which is for HTTP.
    """
    tokens = []
    origins = []
    hosts = []
    has_body = forwarded = False
    for name, value in headers:
        if name == b"x-auth-token":
            tokens.append(value.decode("utf-8", "replace"))
        elif name == b"authorization":
            bearer = value[len(_BEARER) :].decode("utf-8", "replace")
            if value[: len(_BEARER)].lower() == _BEARER and is_credential(bearer):
                tokens.append(bearer)
        elif name == b"origin":
            origins.append(value.decode("latin-1"))
        elif name == b"host":
            hosts.append(value.decode("latin-1"))
        elif name in FORWARDING:
            forwarded = True
        elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            has_body = True
    for each in subprotocols:
        if each.startswith(_TOKEN_PREFIX):
            tokens.append(_base64url(each.removeprefix(_TOKEN_PREFIX)))
    path, _, query = target.partition("?")
    fields = parse_qsl(query, keep_blank_values=True) if query else []
    tickets = [value for name, value in fields if name == "ticket"]
    if query_token:
        tokens += [value for name, value in fields if name == "x-auth-token"]
    user = _user(path)
    subprotocol = answered = None
    if subprotocols:
        ours = _SUBPROTOCOLS if user is None else {TOPICS}
        subprotocol = answered = next(filter(ours.__contains__, subprotocols), None)
        if answered is None and user is not None:
            named = [each for each in subprotocols if not each.startswith(_TOKEN_PREFIX)]
            answered = (named or subprotocols)[0]
    return Offer(
        path=path,
        origin=origins[0] if origins else None,
        token=tokens[0] if tokens else None,
        ticket=tickets[0] if tickets else None,
        ambiguous=len(set(tokens)) + len(tickets) > 1 or len(origins) > 1,
        has_body=has_body,
        subprotocol=subprotocol,
        user=user,
        # Asked of guble's clients only, and it takes as long as all the rest.
        is_local=user is not None
        and len(hosts) == 1
        and not forwarded
        and _names_this_machine(hosts[0]),
        client=dict(fields).get("client") if fields else None,
        answered=answered,
    )


def is_upgrade(head: RequestHead) -> bool:
    """Whether a request asks for a WebSocket, at a path where there are some."""
    path = head.target.partition(b"?")[0].decode("latin-1")
    return (
        head.upgrade
        and head.method == "GET"
        and any(
            name == b"upgrade" and b"websocket" in value.lower() for name, value in head.headers
        )
        and (path == PATH or _user(path) is not None)
    )


def read_handshake(head: RequestHead) -> tuple[bytes, list[str]] | Refusal:
    """The key and the subprotocols of a client's handshake (RFC 6455, section 4.2.1).

    Returns:
        What the client is refused with where it is none.
    """
    keys: list[bytes] = []
    versions: list[bytes] = []
    upgrades: list[bytes] = []
    protocols: list[str] = []
    for name, value in head.headers:
        if name == b"sec-websocket-key":
            keys.append(value)
        elif name == b"sec-websocket-version":
            versions.append(value)
        elif name == b"upgrade":
            upgrades += map(bytes.strip, value.lower().split(b","))
        elif name == b"sec-websocket-protocol":
            protocols += map(str.strip, value.decode("latin-1").split(","))
    if head.method != "GET" or head.http_version == "1.0" or not head.upgrade:
        return BAD_REQUEST
    if b"websocket" not in upgrades or len(versions) != 1:
        return BAD_REQUEST
    if versions[0] != _VERSION:
        return OTHER_VERSION
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        return BAD_REQUEST
    return keys[0], list(filter(None, protocols))


def welcome_head(key: bytes, subprotocol: str | None) -> bytes:
    """The answer to a handshake that is accepted (RFC 6455, section 4.2.2)."""
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    accept = binascii.b2a_base64(digest, newline=False)
    if subprotocol is None:
        return _WELCOME % accept
    return response_head(
        101,
        [
            (b"Upgrade", b"websocket"),
            (b"Connection", b"Upgrade"),
            (b"Sec-WebSocket-Accept", accept),
            (b"Sec-WebSocket-Protocol", subprotocol.encode("latin-1")),
        ],
    )


def refusal_head(status: int) -> bytes:
    """The answer to one that is refused; it has no body."""
    headers = [(b"Connection", b"close"), (b"Content-Length", b"0"), *SAFEGUARDS]
    if status == TOO_MANY.status:
        headers.append((b"Retry-After", b"5"))
    if status == UNAVAILABLE.status:
        headers.append((b"Retry-After", b"1"))
    if status == OTHER_VERSION.status:
        headers.append((b"Sec-WebSocket-Version", _VERSION))
        headers.append((b"Upgrade", b"websocket"))
    return response_head(status, headers)


def _user(path: str) -> str | None:
    """The user in `/stream/user/marvin`; None where nobody can be called so."""
    if not path.startswith(_STREAMS):
        return None
    raw = unquote_to_bytes(path.removeprefix(_STREAMS))
    try:
        user = raw.decode()
    except UnicodeDecodeError:
        return None
    return user if len(raw) <= _MAX_USER and _USER.fullmatch(user) else None


def _base64url(text: str) -> str:
    """The token in a subprotocol; what can't be decoded becomes a token nobody has."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return raw.decode()
    except (binascii.Error, ValueError):
        return ""


class Origins:
    """Which pages may connect. A request without an Origin doesn't come from a page.

    Never compared with the request's own Host header: under DNS rebinding that is the
    attacker's to choose.

    Args:
        allowed: exact origins, `https://example.org` or with a port; see `parse_origin`.
        names: this server's public names; pages served under them may connect, on the
            default ports and on `ports`.
        ports: ports this server listens on.
        loopback: whether pages from loopback names and addresses may connect, on any port;
            for servers that listen on loopback only.

    Raises:
        ValueError: one of `allowed` or `names` can't be what it should be.
    """

    def __init__(
        self,
        allowed: Collection[str] = (),
        names: Collection[str] = (),
        ports: Collection[int] = (),
        *,
        loopback: bool = False,
    ) -> None:
        self._ports = ports
        self._loopback = loopback
        self.configure(allowed, names)

    def configure(self, allowed: Collection[str], names: Collection[str]) -> None:
        """Change which pages may connect. Those that are connected stay."""
        found = {parse_origin(origin) for origin in allowed}
        for name in names:
            host = f"[{name}]" if ":" in name else name
            for scheme in ("http", "https"):
                found.add(parse_origin(f"{scheme}://{host}"))
                found |= {parse_origin(f"{scheme}://{host}:{port}") for port in self._ports}
        self._allowed = found

    def allow(self, origin: str | None) -> bool:
        """Whether a request with this Origin may pass; None is a request without one."""
        if origin is None:
            return True
        try:
            spelled = parse_origin(origin)
        except ValueError:  # `null` among others
            return False
        return spelled in self._allowed or (self._loopback and _is_loopback(spelled))


def _is_loopback(origin: str) -> bool:
    parts = urlsplit(origin)  # which forgives much, but not what `parse_origin` has spelled
    return parts.scheme in ("http", "https") and _is_loopback_host(parts.hostname or "")


def _names_this_machine(host: str) -> bool:
    """Whether a Host header has a name or an address of loopback, with a port or without."""
    match = _HOST.fullmatch(host)
    return match is not None and _is_loopback_host((match[1] or match[2]).lower())


def _is_loopback_host(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # which no resolver gives away
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
