"""The listener for NATS clients: the protocol of subjects over TCP.

The server speaks first. Where the listener has TLS, that greeting still goes in the clear, and
TLS begins behind it: this is how NATS clients upgrade, of `nats://` as of `tls://`.

Every peer has to send its CONNECT in time, whether there is a secret or not. One that has been
silent for long is asked whether it is there, and after two such questions is taken for gone.
"""

import logging
import ssl
from itertools import count

import attrs
import trio

from mist.dialogue import Credential, Dialogue
from mist.hub import Hub
from mist.protocols.subjects import SubjectProtocol
from mist.protocols.subjects.info import ServerInfo
from mist.session import GONE, Ending
from mist.transports.connection import Connection
from mist.transports.gate import Gate
from mist.transports.streams import peer_address, ready_stream

__all__ = ["NatsTransport"]

log = logging.getLogger("mist.transports.nats")

_FULL = b"-ERR 'maximum connections exceeded'\r\n"


@attrs.define
class _Silence:
    """How long one peer has said nothing.

    Attributes:
        since: when anything last came from it, or was asked of it; trio's seconds.
    """

    since: float


class NatsTransport:
    """Runs a session for each stream it is given.

    Args:
        hub: what all sessions share.
        gate: who may connect.
        info: what the greeting says.
        name: the kind of listener, for logs and counts.
        context: with which TLS begins behind the greeting; None for no TLS.
        handshake_seconds: for TLS, and again for the CONNECT.
    """

    def __init__(
        self,
        hub: Hub,
        gate: Gate,
        info: ServerInfo,
        *,
        name: str = "nats",
        context: ssl.SSLContext | None = None,
        handshake_seconds: float = 10.0,
    ) -> None:
        self._hub = hub
        self._gate = gate
        self._info = info
        self._name = name
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._numbers = count(1)
        self._open: dict[Dialogue, _Silence] = {}

    async def handle(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        """Serve one connection until it ends. Raises nothing but `trio.Cancelled`.

        Args:
            stream: as accepted.
            nursery: for drain tasks; outlives the connection.
        """
        address = peer_address(stream)
        ticket = self._gate.enter(address)
        try:
            if ticket is None:
                self._hub.refused[self._name] += 1
                await _send(stream, _FULL, 1.0)
            else:
                await self._greet(stream, address, nursery)
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this session only.
            log.exception("session failed")
        finally:
            if ticket is not None:
                self._gate.leave(ticket)
            await trio.aclose_forcefully(stream)

    async def sweep(self) -> None:
        """Ask the silent whether they are there, all of them in one task, until cancelled."""
        pulse = SubjectProtocol.pulse
        assert pulse is not None
        while True:
            await trio.sleep(pulse / 20)
            now = trio.current_time()
            for session, silence in list(self._open.items()):
                if now - silence.since < pulse:
                    continue
                silence.since = now
                wire = session.protocol.beat()
                if wire is None:
                    session.end(Ending(4408, "no answer to pings"))
                else:
                    session.outbox.reply(wire)
            self._hub.broker.flush()

    async def _greet(self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery) -> None:
        hub = self._hub
        greeting = self._info.line(next(self._numbers), address)
        protocol = SubjectProtocol(hub.limits, greeting, hub.broker.listens)
        if self._context is None:
            await self._serve(stream, address, nursery, protocol)
        elif await _send(stream, protocol.greeting(), self._handshake_seconds):
            # What ends without a word of TLS is no matter here: no command is cut unseen.
            secured = trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)
            if await ready_stream(secured, self._handshake_seconds):
                await self._serve(secured, address, nursery, protocol)

    async def _serve(
        self,
        stream: trio.abc.Stream,
        address: str,
        nursery: trio.Nursery,
        protocol: SubjectProtocol,
    ) -> None:
        hub = self._hub
        session = Dialogue(
            hub,
            protocol,
            transport=self._name,
            peer=address,
            credential=Credential.EITHER,
            patience=self._handshake_seconds,
        )
        connection = Connection(stream, session.outbox, nursery)
        silence = self._open[session] = _Silence(trio.current_time())
        hub.attach(session)
        try:
            with session.scope:
                if self._context is None:
                    session.outbox.reply(protocol.greeting())
                    connection.flush()
                rested = False
                while data := await connection.receive(hub.pacer.read_size, rested=rested):
                    silence.since = trio.current_time()
                    rested = await session.receive(data)
            if session.scope.cancelled_caught and session.ended is None:
                session.end(Ending(4408, "no auth in time"))
            session.end(GONE)
            assert session.ended is not None
            session.outbox.reply(protocol.farewell(session.ended.code))
            await connection.finish(session.ended.grace, linger=session.ended is not GONE)
        finally:
            del self._open[session]
            connection.abandon()
            await session.aclose()


async def _send(stream: trio.abc.Stream, wire: bytes, seconds: float) -> bool:
    """Send to a peer that has no session yet; whether that could be done in time."""
    with trio.move_on_after(seconds):
        try:
            await stream.send_all(wire)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True
    return False
