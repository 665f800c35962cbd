"""A TCP listener's sessions: a text protocol over any stream of bytes.

Which one, the first bytes may tell (`mist.transports.dialects`); after them nobody looks again.
"""

from collections.abc import Mapping
from typing import Final

import trio

from mist.commands import Invalid
from mist.errors import CommandError, SessionEnded, TokenExpired, TokenRevoked
from mist.origins import origin_of
from mist.replies import Failed
from mist.sessions.authenticating import Credential
from mist.sessions.close_reason import (
    DISCONNECTED,
    ENDED_BY_OPERATOR,
    TOKEN_EXPIRED,
    TOKEN_REVOKED,
    CloseReason,
)
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.transports.connection import Connection
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.dialects import Protocols, Undecided, line_or_json
from mist.transports.streams import send
from mist.transports.transport import Transport

__all__ = ["TcpTransport"]

# Of sessions that end though their peer did nothing wrong.
_LAST_WORDS: Final[Mapping[CloseReason, type[CommandError]]] = {
    ENDED_BY_OPERATOR: SessionEnded,
    TOKEN_EXPIRED: TokenExpired,
    TOKEN_REVOKED: TokenRevoked,
}


class TcpTransport(Transport):
    """Runs a session of a text protocol for each stream it is given.

    Args:
        hub, limiter, name: see `Transport`.
        handshake_seconds: for the TLS handshake, and again for `auth` where there is a secret.
        protocols: finds the protocol of each connection.
    """

    def __init__(
        self,
        hub: Hub,
        limiter: ConnectionLimiter,
        *,
        name: str = "tcp",
        handshake_seconds: float = 10.0,
        protocols: Protocols = line_or_json,
    ) -> None:
        super().__init__(hub, limiter, name, handshake_seconds)
        self._protocols = protocols

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        await send(stream, b"error Too many connections\n", 1.0)

    async def _serve(self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery) -> None:
        hub = self._hub
        unauthenticated = hub.needs_secret
        protocol = self._protocols(b"", hub.limits, unauthenticated)
        session = CommandSession(
            hub,
            protocol or Undecided(),
            transport=self._name,
            peer=address,
            credential=Credential.SECRET,
            auth_timeout=self._handshake_seconds if unauthenticated else None,
        )
        connection = Connection(stream, session.outbox, nursery, hub.newcomers, origin_of(address))
        hub.sessions.attach(session)
        try:
            with session.scope:
                first = b"" if protocol else await self._decide(session, connection)
                rested = bool(first) and await session.receive(first)
                while session.ended is None and (
                    data := await connection.receive(
                        hub.flush_scheduler.read_size, rested=rested, live=session.live
                    )
                ):
                    rested = await session.receive(data)
                await hub.turns.leave(session.account)
            if session.scope.cancelled_caught and session.ended is None:
                session.end(CloseReason(4408, "no auth in time"))
            session.end(DISCONNECTED)
            assert session.ended is not None
            last_word = _LAST_WORDS.get(session.ended)
            if last_word is not None:
                error = last_word()
                session.outbox.reply(session.protocol.reply(Invalid(error), Failed(error)))
            await connection.finish(session.ended.grace, linger=session.ended is not DISCONNECTED)
        finally:
            connection.abandon()
            await session.aclose()

    async def _decide(self, session: CommandSession, connection: Connection) -> bytes:
        """Have the session speak what its peer does.

        Returns:
            What told so, all of it still to be received. Empty where the peer is gone.
        """
        hub = self._hub
        first = b""
        while data := await connection.receive(hub.flush_scheduler.read_size, live=False):
            first += data
            protocol = self._protocols(first, hub.limits, hub.needs_secret)
            if protocol is not None:
                session.set_protocol(protocol)
                return first
        return b""
