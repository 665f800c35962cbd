"""The listener for NATS clients: the protocol of subjects over TCP.

The server speaks first. Where the listener has TLS, that greeting still goes in the clear, and
TLS begins behind it: this is how NATS clients upgrade, of `nats://` as of `tls://`.

Every peer has to send its CONNECT in time, whether there is a secret or not. One that has been
silent for long is asked whether it is there, and after two such questions is taken for gone.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count

import attrs
import trio

from mist.certificate import Certificate
from mist.origins import origin_of
from mist.protocols.subjects import SubjectProtocol
from mist.protocols.subjects.info import ServerInfo
from mist.sessions.authenticating import Credential
from mist.sessions.close_reason import DISCONNECTED, TOKEN_EXPIRED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.transports.connection import Connection
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.streams import send
from mist.transports.tls_handshake import ready_stream
from mist.transports.transport import Transport

__all__ = ["NatsTransport"]

_FULL = b"-ERR 'maximum connections exceeded'\r\n"


@attrs.define
class _Silence:
    """How long one peer has said nothing.

    Attributes:
        since: when anything last came from it, or was asked of it; trio's seconds.
    """

    since: float


class NatsTransport(Transport):
    """Runs a session of subjects for each stream it is given.

    Args:
        hub, limiter, name: see `Transport`.
        info: what the greeting says, but for what the hub knows: limits, and credentials.
        certificate: with which TLS begins behind the greeting; None for no TLS.
        handshake_seconds: for TLS, and again for the CONNECT.
    """

    def __init__(
        self,
        hub: Hub,
        limiter: ConnectionLimiter,
        info: ServerInfo,
        *,
        name: str = "nats",
        certificate: Certificate | None = None,
        handshake_seconds: float = 10.0,
    ) -> None:
        super().__init__(hub, limiter, name, handshake_seconds)
        self._info = info
        self._certificate = certificate
        self._numbers = count(1)
        self._open: dict[CommandSession, _Silence] = {}

    async def sweep(self) -> None:
        """Ask the silent whether they are there, all of them in one task, until cancelled."""
        pulse = SubjectProtocol.pulse
        assert pulse is not None
        await self._hub.flush_scheduler.every(pulse / 20, partial(self._look_after, pulse))

    def _look_after(self, pulse: float, now: float) -> Iterator[None]:
        for session, silence in list(self._open.items()):
            if now - silence.since >= pulse:
                silence.since = now
                wire = session.protocol.beat()
                if wire is None:
                    session.end(CloseReason(4408, "no answer to pings"))
                else:
                    session.outbox.reply(wire)
            yield

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        await send(stream, _FULL, 1.0)

    async def _serve(self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery) -> None:
        hub = self._hub
        info = attrs.evolve(self._info, max_payload=hub.limits.data, auth_required=hub.needs_secret)
        greeting = info.line(next(self._numbers), address)
        protocol = SubjectProtocol(
            hub.limits,
            greeting,
            lambda tags: hub.broker.listens(
                tags, outbox.attributes.site, None if outbox.echo else outbox
            ),
        )
        if self._certificate is not None:
            if not await send(stream, protocol.greeting(), self._handshake_seconds):
                return
            # A stream that ends without a TLS close is harmless here: no command is cut unseen.
            context = self._certificate.context
            stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            with self._limiter.aside():
                if not await ready_stream(stream, self._handshake_seconds, hub.turns, address):
                    return
        session = CommandSession(
            hub,
            protocol,
            transport=self._name,
            peer=address,
            credential=Credential.EITHER,
            auth_timeout=self._handshake_seconds,
        )
        outbox = session.outbox  # rather than the session, which knows its protocol
        connection = Connection(stream, outbox, nursery, hub.newcomers, origin_of(address))
        silence = self._open[session] = _Silence(trio.current_time())
        hub.sessions.attach(session)
        try:
            with session.scope:
                if self._certificate is None:
                    session.outbox.reply(protocol.greeting())
                    connection.flush()
                rested = False
                while session.ended is None and (
                    data := await connection.receive(
                        hub.flush_scheduler.read_size, rested=rested, live=session.live
                    )
                ):
                    silence.since = trio.current_time()
                    rested = await session.receive(data)
                await hub.turns.leave(session.account)
            if session.scope.cancelled_caught and session.ended is None:
                session.end(CloseReason(4408, "no auth in time"))
            session.end(DISCONNECTED)
            assert session.ended is not None
            expired = session.ended is TOKEN_EXPIRED
            session.outbox.reply(protocol.close_error(session.ended.code, expired=expired))
            await connection.finish(session.ended.grace, linger=session.ended is not DISCONNECTED)
        finally:
            del self._open[session]
            connection.abandon()
            await session.aclose()
