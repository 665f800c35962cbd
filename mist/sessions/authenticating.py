"""A session whose peer authenticates with a command: with the secret, or a token."""

from enum import Enum
from typing import Final

import trio

from mist.auth import Record
from mist.auth.credentials import Login
from mist.commands import Auth, Command
from mist.errors import TooManyConnections, Unauthorized
from mist.protocols import Protocol
from mist.replies import Done, Failed, Reply
from mist.sessions.close_reason import CloseReason
from mist.sessions.hub import Hub
from mist.sessions.publishing import PublishingSession
from mist.sessions.token_limits import RETRY_CONNECTION

__all__ = ["AuthenticatingSession", "Credential"]

_MANY: Final = 100  # subscriptions; to end as many takes 1 ms


class Credential(Enum):
    """What an `Auth` command of a session presents."""

    SECRET = "secret"  # a kind, not a secret
    TOKEN = "token"
    EITHER = "secret or token"


class AuthenticatingSession(PublishingSession):
    """See the module.

    Args:
        hub, protocol, transport, peer, auth_timeout: as for a `PublishingSession`.
        credential: what `Auth` presents. A secret may be a token as well, where credentials are
            accepted that the registry doesn't have.

    Attributes:
        origin: of the page that the peer is; None where it is none, or that isn't known.
    """

    __slots__ = ("_credential", "origin")

    def __init__(
        self,
        hub: Hub,
        protocol: Protocol,
        *,
        transport: str,
        peer: str = "",
        credential: Credential = Credential.SECRET,
        auth_timeout: float | None = None,
    ) -> None:
        super().__init__(hub, protocol, transport=transport, peer=peer, auth_timeout=auth_timeout)
        self._credential = credential
        self.origin: str | None = None

    @property
    def _administers(self) -> bool:
        """Whether the peer may read and change the token registry: authenticated services may."""
        return (
            self._credential is Credential.SECRET
            and self.record is None
            and not self.unauthenticated
        )

    async def _authenticate(self, command: Auth) -> Reply | None:
        if self._credential is not Credential.TOKEN and self._is_service(command):
            self.mark_authenticated()
            return Done()
        credentials = self.hub.credentials
        if self._credential is not Credential.SECRET or credentials.issued:
            self.hub.flush_scheduler.flush()  # nothing that was queued waits for the answer
            await credentials.prepare(command.credential, self._login)
            narrowed: Record | None = None
            if len(self.subscriptions) + len(self.named_subscriptions) > _MANY:
                narrowed = credentials.find(command.credential, self._login)
                if narrowed is not None:
                    await self.narrow(narrowed)
                    await credentials.prepare(command.credential, self._login)
            # Lookup and adoption without an await between: a revocation comes before both or
            # finds the session attached.
            record = credentials.find(command.credential, self._login)
            if record is not None and record.tags:
                if self.hub.token_limits.is_full(record, self.hub.sessions.count, self):
                    self._answer(command, Failed(TooManyConnections(RETRY_CONNECTION)))
                    self._leave(CloseReason(4429, "too many connections"))
                    return None
                self.adopt(record, narrowed=record == narrowed)
                return Done() if self.ended is None else None  # its client id is another token's
        await self._refuse(command)
        return None

    @property
    def _login(self) -> Login:
        return Login(self.transport, self.peer, self.origin, self._client.chosen)

    def _is_service(self, command: Auth) -> bool:
        """Whether an `auth` presents the secret, or no secret is needed."""
        if not self.hub.needs_secret:
            takes_any = self._credential is Credential.SECRET and not self.hub.credentials.issued
            return takes_any or not command.credential
        return self.hub.is_secret(command.credential)

    async def _refuse(self, command: Command) -> None:
        """Refuse a peer that can't or doesn't authenticate: slowly, and end the session."""
        self.hub.note_failed_auth(self.transport, self._credential.value)
        self.hub.flush_scheduler.flush()
        await trio.sleep(self.hub.hub_limits.failed_auth_delay)
        self._answer(command, Failed(Unauthorized()))
        self._leave(CloseReason(4401, "unauthorized"))
