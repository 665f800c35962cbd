"""Who asks, and what they may.

A *service* knows the secret and may do everything. Where there is none, whoever reaches a
loopback listener is one, as over TCP; but never by its peer's address, which behind a proxy is
the proxy's. A *client* has a token, and may what its grant says.
"""

from typing import Final

import attrs
import trio
from starlette.requests import Request

from mist.auth import Record
from mist.config import Listen
from mist.http.guard import too_often
from mist.http.problems import Problem
from mist.http.rates import Rates
from mist.sessions.hub import Hub

__all__ = ["Access", "Caller"]

_BEARER: Final = "bearer "
_TOKEN: Final = b"x-auth-token"  # a header, not a token
_CREDENTIALS: Final = frozenset({b"authorization", _TOKEN})


@attrs.frozen
class Caller:
    """One who asks.

    Attributes:
        record: the token's; None for a service.
    """

    record: Record | None

    @property
    def is_service(self) -> bool:
        """Whether this one may do everything."""
        return self.record is None

    @property
    def name(self) -> str:
        """What stands for it in the history and in logs; empty for a service."""
        return "" if self.record is None else self.record.id


class Access:
    """Looks at credentials.

    Args:
        hub: knows the secret and the tokens.
        token_rate: requests per second that one token may make.
    """

    def __init__(self, hub: Hub, token_rate: float) -> None:
        self._hub = hub
        self._rates = Rates(token_rate, trio.current_time)

    async def caller(self, request: Request) -> Caller:
        """Who asks.

        Raises:
            Problem: there is no credential where one is needed (401), there are two (400), a
                wrong one (401, after a while), or a token is used too often (429).
        """
        headers: list[tuple[bytes, bytes]] = request.scope["headers"]
        found = [header for header in headers if header[0] in _CREDENTIALS]
        if len(found) > 1:
            raise Problem(400, "two_credentials", "give one credential")
        if found:
            name, value = found[0]
            is_token = name == _TOKEN
            return await (self._client if is_token else self._service)(value.decode("latin-1"))
        if self._hub.needs_secret:
            raise _unauthorized("give the secret or a token")
        if not _is_local(request):
            raise _unauthorized("give a token")
        return Caller(None)

    async def service(self, request: Request) -> Caller:
        """A service, or none.

        Raises:
            Problem: as `caller`; or it has a token, which is not enough (403); or nobody can be
                one here, since there is no secret and the listener isn't a loopback one (403).
        """
        if not (self._hub.needs_secret or _is_local(request) or "x-auth-token" in request.headers):
            detail = "the server has no secret, and without one does that on loopback only"
            raise Problem(403, "loopback_only", detail)
        caller = await self.caller(request)
        if not caller.is_service:
            raise Problem(403, "secret_needed", "a token is not enough for that")
        return caller

    def again(self, caller: Caller, request: Request) -> Caller:
        """Who asks, once more: a token may have changed while the request's body came.

        With no await between this and what it allows, a revocation comes before both or after.

        Args:
            caller: as found at the request's beginning.

        Raises:
            Problem: the token is good for nothing any more (401).
        """
        if caller.is_service:
            return caller
        record = self._record(request.headers["x-auth-token"])
        if record is None:
            raise _unauthorized("the token was revoked")
        return Caller(record)

    async def refusal(self, reason: str, detail: str) -> Problem:
        """What to raise for a wrong credential: counted, and after a while, so that guessing
        takes long.

        Args:
            reason: what was wrong, for the counts: `secret`, `token`, `ticket`.
            detail: for whoever asks.
        """
        self._hub.note_failed_auth("http", reason)
        await trio.sleep(self._hub.hub_limits.failed_auth_delay)
        return _unauthorized(detail)

    async def _client(self, token: str) -> Caller:
        record = self._record(token)
        if record is None:
            raise await self.refusal("token", "no such token")
        wait = self._rates.take(record.id)
        if wait:
            raise too_often(wait)
        return Caller(record)

    async def _service(self, authorization: str) -> Caller:
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise _unauthorized("expected Authorization: Bearer SECRET")
        if not self._hub.is_secret(_text(authorization[len(_BEARER) :])):
            raise await self.refusal("secret", "that is not the secret")
        return Caller(None)

    def _record(self, token: str) -> Record | None:
        """The record of a token that is good for something, as a header has it."""
        record = self._hub.registry.lookup(_text(token))
        return record if record is not None and record.tags else None


def _is_local(request: Request) -> bool:
    listen: Listen = request.state.listen
    return listen.is_local


def _text(value: str) -> str:
    """A header's value: it came as Latin-1, and credentials are UTF-8."""
    return value.encode("latin-1").decode("utf-8", "replace")


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})
