"""Authentication and authorization of requests.

A *service* has the secret and may do everything. Without a secret, any client of a loopback
listener is a service, as over TCP; unless a proxy has passed its request on, which may be
anybody's. A *client* has a token, and may do what that grants.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import attrs
import trio
from starlette.requests import Request

from mist.auth import Record
from mist.auth.credentials import Login
from mist.config import Listen
from mist.http.problems import Problem
from mist.http.rates import Rates, too_often
from mist.sessions.hub import Hub
from mist.transports.forwarding import FORWARDING, is_forwarded
from mist.turns import Account

__all__ = ["Access", "Asked", "Caller", "announce"]

_BEARER: Final = "bearer "
_TOKEN: Final = b"x-auth-token"  # a header, not a token
_ANYWHERE: Final = Login()  # a registered token is good wherever it is presented
_CREDENTIALS: Final = frozenset({b"authorization", _TOKEN})
_ASKED: Final = "asked"  # in the state of a request's scope
_LOOKED_AT: Final = _CREDENTIALS | FORWARDING


class Asked(NamedTuple):
    """What a request asks for, as far as a credential's authentication is told.

    Attributes:
        client, tags: see `Login`.
    """

    client: str | None = None
    tags: str = ""


@attrs.frozen
class Caller:
    """The authenticated sender of a request.

    Attributes:
        record: of the token; None for a service.
        login: with which it was found, and is found again.
    """

    record: Record | None
    login: Login = attrs.field(default=_ANYWHERE, repr=False, eq=False)

    @property
    def is_service(self) -> bool:
        """Whether it is a service, which may do everything."""
        return self.record is None

    @property
    def publishes(self) -> bool:
        """Whether it may publish anything at all."""
        return self.record is None or self.record.grant.publishes

    @property
    def name(self) -> str:
        """Its name in the history and in logs; empty for a service."""
        return "" if self.record is None else self.record.id


class Access:
    """Checks credentials.

    Args:
        hub: has the secret and the tokens.
        token_rate: requests per second that one token may make.
    """

    def __init__(self, hub: Hub, token_rate: float) -> None:
        self._hub = hub
        self._rates = Rates(token_rate, trio.current_time)

    def configure(self, token_rate: float) -> None:
        """Change the limit."""
        self._rates.configure(token_rate)

    async def caller(self, request: Request, delay: float = 0.0) -> Caller:
        """Authenticate a request.

        Args:
            request: with a credential, or one that needs none.
            delay: for how many seconds it may be kept waiting, rather than refused, where a
                token exceeds its rate limit.

        Raises:
            Problem: a credential is missing (401), there are two (400), it is invalid (401,
                after a delay), or a token exceeds its rate limit (429).
        """
        headers: list[tuple[bytes, bytes]] = request.scope["headers"]
        # Mostly there is none of these: one look at each header, then, and no other.
        told = [header for header in headers if header[0] in _LOOKED_AT]
        found = [header for header in told if header[0] in _CREDENTIALS]
        if len(found) > 1:
            raise Problem(400, "two_credentials", "give one credential")
        if found:
            name, value = found[0]
            text = value.decode("latin-1")
            token = text if name == _TOKEN else self._bearer_token(text)
            if token is None:
                return await self._service(text)
            caller = await self._client(token, _login(self._hub, request), delay)
            if caller.record is not None and caller.record.attributes.others:
                await self._limit(caller.record, request, delay)
            return caller
        if self._hub.needs_secret:
            raise _unauthorized("give the secret or a token")
        if told or not _is_local(request):
            raise _unauthorized("give a token")
        return Caller(None)

    async def service(self, request: Request) -> Caller:
        """Authenticate a request that only services may make.

        Raises:
            Problem: as `caller`; or it has only a token (403); or no client can be a service,
                since there is no secret and the listener is not on loopback (403).
        """
        is_local = _is_local(request) and not is_forwarded(request.scope["headers"])
        if not (self._hub.needs_secret or is_local or "x-auth-token" in request.headers):
            detail = "without a secret the server allows this on loopback only"
            raise Problem(403, "loopback_only", detail)
        caller = await self.caller(request)
        if not caller.is_service:
            raise Problem(403, "secret_needed", "this needs the secret, not a token")
        return caller

    def again(self, caller: Caller, request: Request) -> Caller:
        """Authenticate again: the token may have changed while the request's body arrived.

        Without an await between this and what it allows, a revocation takes effect before both
        or after both.

        Args:
            caller: of the request, from `caller`.

        Raises:
            Problem: the token was revoked (401).
        """
        if caller.is_service:
            return caller
        token = request.headers.get("x-auth-token")
        if token is None:
            token = self._bearer_token(request.headers["authorization"])
        record = None if token is None else self._record(token, caller.login)
        if record is None:
            raise _unauthorized("the token was revoked")
        return Caller(record, caller.login)

    def account(self, caller: Caller, request: Request) -> Account:
        """Whom the event loop's time for a request is charged to: the token, as in its sessions;
        of a service the address."""
        if caller.name:
            return self._hub.turns.account(caller.name)
        account: Account = request.scope["state"]["account"]
        return account

    async def refusal(self, reason: str, detail: str) -> Problem:
        """The problem to raise for an invalid credential: counted, and after a delay against
        guessing.

        Args:
            reason: label of the count: `secret`, `token`, `ticket`.
            detail: for the client.
        """
        self._hub.note_failed_auth("http", reason)
        await trio.sleep(self._hub.hub_limits.failed_auth_delay)
        return _unauthorized(detail)

    def _bearer_token(self, authorization: str) -> str | None:
        """The client's credential in a header that else has the secret; None where there is none.

        Services of others present a JWT so (RFC 6750).
        """
        if authorization[: len(_BEARER)].lower() != _BEARER:
            return None
        text = authorization[len(_BEARER) :]
        return text if self._hub.credentials.accepts(text) else None

    async def _client(self, token: str, login: Login, delay: float) -> Caller:
        credentials = self._hub.credentials
        await credentials.prepare(_text(token), login)
        record = self._record(token, login)
        if record is None:
            raise await self.refusal("token", credentials.explain(_text(token), login))
        wait = self._rates.take(record.id, delay)
        if wait > delay:
            raise too_often(wait)
        if wait:
            await trio.sleep(wait)
        return Caller(record, login)

    async def _limit(self, record: Record, request: Request, delay: float) -> None:
        """Count a request against the limits that the token's attributes set; see `caller`."""
        limits = self._hub.token_limits
        allowance = limits.of(record)
        if allowance is None:
            return
        length = request.headers.get("content-length", "0")
        if allowance.limits_bytes and "transfer-encoding" in request.headers:
            # What comes in chunks would have to be counted by all that read a body.
            raise Problem(411, "length_required", "a token with a limit of bytes says how many")
        wait = limits.request(record, int(length) if length.isdecimal() else 0, delay)
        if wait > delay:
            raise too_often(wait)
        if wait:
            await trio.sleep(wait)

    def charge(self, caller: Caller, messages: int) -> None:
        """Count the messages of a request against the limits of its token, if it has any."""
        if caller.record is not None and caller.record.attributes.others:
            self._hub.token_limits.charge(caller.record, messages - 1)

    async def _service(self, authorization: str) -> Caller:
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise _unauthorized("expected Authorization: Bearer SECRET")
        if not self._hub.is_secret(_text(authorization[len(_BEARER) :])):
            raise await self.refusal("secret", "that is not the secret")
        return Caller(None)

    def _record(self, token: str, login: Login) -> Record | None:
        """The record of the token in a header; None for an unknown one, or one without tags."""
        record = self._hub.credentials.find(_text(token), login)
        return record if record is not None and record.tags else None


def announce(request: Request, asked: Callable[[Request], Asked]) -> None:
    """Have a credential's authentication told what its request asks for.

    Only routes that go by just that announce it. Else a request could name other tags than those
    that it goes on to use, and be let in for their sake.

    Args:
        asked: called with the request when that is authenticated, if it matters. It must not hold
            the request, which holds it: that would be garbage in a cycle.
    """
    request.scope["state"][_ASKED] = asked


def _login(hub: Hub, request: Request) -> Login:
    if not hub.credentials.looks_at_logins:
        return _ANYWHERE
    asked: Callable[[Request], Asked] | None = request.scope["state"].get(_ASKED)
    client, tags = Asked() if asked is None else asked(request)
    address: str = request.scope["client"][0]
    return Login("http", address, request.headers.get("origin"), client, tags)


def _is_local(request: Request) -> bool:
    """Whether a request is from this machine, unless a proxy here has passed it on.

    Not under a name that isn't the server's: a page may have its own resolve to this machine (DNS
    rebinding).
    """
    state = request.scope["state"]
    listen: Listen = state["listen"]
    return listen.is_local and "other_name" not in state


def _text(value: str) -> str:
    """A header's value, decoded as UTF-8: starlette decodes headers as Latin-1."""
    return value.encode("latin-1").decode("utf-8", "replace")


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})
