"""The WebSocket listener's sessions: JSON in frames, tokens, browsers; and guble's clients.

The handshake is a request like those of HTTP, read by the same reader and judged by `admission`.
It arrives at a `ws` listener, or at an `http` listener, which then hands its stream over. From
there on a WebSocket is served as a TCP connection is: what has come goes to the session, whose
protocol reads frames, and everything for the peer goes through the session's outbox, the answer
to the handshake, deliveries, pongs and the close frame alike. So nothing lands inside a frame,
and an idle browser costs one task.

Closing is bounded: a close frame is queued, nothing after it, and the connection is given a
second. That holds for refused handshakes too.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import attrs
import trio

from mist.auth import Record
from mist.origins import origin_of
from mist.protocols.frames import FrameProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.rfc6455 import close_frame, ping_frame
from mist.protocols.topics import TopicProtocol
from mist.sessions.authenticating import Credential
from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.transports import handshake
from mist.transports.admission import SWITCHED, Admission, refuse
from mist.transports.connection import Connection
from mist.transports.connection_limiter import ConnectionLimiter, Ticket
from mist.transports.forwarding import BadForwarding, Proxies
from mist.transports.handshake import PATH, Origins, Refusal
from mist.transports.http1 import BadRequest, RequestHead, RequestReader
from mist.transports.tls_handshake import ready_stream
from mist.transports.transport import Transport

__all__ = ["PATH", "WebSocketTransport"]

_READ: Final = 16_384  # bytes read of a handshake at a time
_EXCESS: Final = 64  # handshakes done at a time only to say "too many"


@attrs.define
class _Pulse:
    """Signs of life of one peer, in trio's seconds.

    Attributes:
        heard: when anything last came from it.
        pinged: when it was last pinged, or accepted.
    """

    heard: float
    pinged: float


class WebSocketTransport(Transport):
    """Runs a session of frames for each stream it is given.

    Args:
        hub, limiter, name: see `Transport`.
        origins, query_token, bring, redeem, is_local: as for an `Admission`.
        max_header: bytes of a handshake.
        handshake_seconds: for TLS, and again for the WebSocket handshake.
        auth_seconds: for the first frame of a client that brought no token.
        ping_seconds: between pings.
        idle_seconds: of silence after which a peer is taken for dead.
        protocol: what understands a session's messages, unless its client asks for another
            by a subprotocol.
        proxies: whose word on whom they ask for counts; None where there are none.
    """

    def __init__(
        self,
        hub: Hub,
        limiter: ConnectionLimiter,
        origins: Origins,
        *,
        name: str = "ws",
        max_header: int = 16_384,
        query_token: bool = False,
        bring: Callable[[str], Awaitable[None]] | None = None,
        redeem: Callable[[str, str | None], Record | None] = lambda ticket, origin: None,
        handshake_seconds: float = 10.0,
        auth_seconds: float = 5.0,
        ping_seconds: float = 25.0,
        idle_seconds: float = 60.0,
        is_local: bool = False,
        protocol: type[FrameProtocol] = FrameProtocol,
        proxies: Proxies | None = None,
    ) -> None:
        super().__init__(hub, limiter, name, handshake_seconds)
        self._protocol = protocol
        self._proxies = proxies
        self._admission = Admission(
            hub,
            name,
            origins,
            query_token=query_token,
            bring=bring,
            redeem=redeem,
            is_local=is_local,
        )
        self._max_header = max_header
        self._auth_seconds = auth_seconds
        self._ping_seconds = ping_seconds
        self._idle_seconds = idle_seconds
        self._open: dict[CommandSession, _Pulse] = {}
        self._excess = 0

    async def sweep(self) -> None:
        """Ping the quiet and end the silent, all of them in one task. Runs until cancelled."""
        await self._hub.flush_scheduler.every(min(5.0, self._ping_seconds / 5), self._look_after)

    def _look_after(self, now: float) -> Iterator[None]:
        for session, pulse in list(self._open.items()):
            if now - pulse.heard > self._idle_seconds:
                session.end(CloseReason(4408, "no answer to pings"))
            elif now - pulse.pinged >= self._ping_seconds:
                pulse.pinged = now
                session.outbox.reply(ping_frame())
            yield

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        # A browser is told in the answer to its handshake, or not at all.
        if self._excess >= _EXCESS:
            return
        self._excess += 1
        try:
            if await ready_stream(stream, self._handshake_seconds, self._hub.turns, address):
                await self._serve(stream, address, nursery, refusal=handshake.TOO_MANY)
        finally:
            self._excess -= 1

    def upgrade(
        self,
        stream: trio.abc.Stream,
        head: RequestHead,
        address: str,
        nursery: trio.Nursery,
        *,
        early: bool,
        crowded: bool = False,
    ) -> Awaitable[None]:
        """Answer a handshake that arrived at another listener, and serve the WebSocket.

        Args:
            stream: whose next bytes are the client's first frames.
            head: `mist.transports.handshake.is_upgrade` holds of it.
            address, nursery: as for `handle`.
            early: whether anything has arrived behind the head.
            crowded: whether it is to be refused since there are too many connections.
        """
        refusal = None
        if crowded:
            refusal = handshake.TOO_MANY
            self._hub.sessions.refused[self._name] += 1
        return self._serve(stream, address, nursery, head=head, early=early, refusal=refusal)

    async def _serve(
        self,
        stream: trio.abc.Stream,
        address: str,
        nursery: trio.Nursery,
        *,
        head: RequestHead | None = None,
        early: bool = False,
        refusal: Refusal | None = None,
    ) -> None:
        hub = self._hub
        session = CommandSession(
            hub,
            self._protocol(hub.limits, unauthenticated=True),
            transport=self._name,
            peer=address,
            credential=Credential.TOKEN,
            auth_timeout=self._handshake_seconds,
        )
        origin = origin_of(address)
        connection = Connection(stream, session.outbox, nursery, hub.newcomers, origin)
        status = 0  # of the answer to the handshake; none yet
        claim: Ticket | None = None
        try:
            with session.scope:
                try:
                    if head is None:
                        head, early = await self._read_head(connection)
                        if not isinstance(stream, trio.SocketStream):
                            # Over TLS peers don't wait among the newcomers, so that a thousand
                            # heads may have come in one moment.
                            await hub.turns.begin(hub.turns.account(origin), late=True)
                    if head is not None:
                        if self._proxies is not None:
                            claim, refusal = self._forward(session, head, refusal)
                        status = await self._admission.answer(session, head, refusal, early=early)
                        head = None  # its headers would be kept as long as the session, 2 KB
                except BadRequest as error:
                    status = refuse(session, Refusal(error.status, 4400, "bad request"))
                if status == SWITCHED and session.ended is None:
                    await self._read(session, connection)
                await hub.turns.leave(session.account)
            if session.scope.cancelled_caught and session.ended is None:
                session.end(CloseReason(4408, "no auth in time"))
            session.end(DISCONNECTED)
            assert session.ended is not None
            goodbye = _goodbye(session)
            _say_goodbye(session, goodbye, status)
            # A peer that has closed its WebSocket still has to read the close frame in reply. It
            # sends nothing behind its own (RFC 6455, 5.5.1), so mostly nothing is unread.
            linger = session.ended is not DISCONNECTED or (goodbye and not connection.emptied)
            await connection.finish(session.ended.grace, linger=bool(linger))
        finally:
            self._open.pop(session, None)
            if claim is not None:
                self._limiter.release(claim)
            connection.abandon()
            await session.aclose()

    def _forward(
        self, session: CommandSession, head: RequestHead, refusal: Refusal | None
    ) -> tuple[Ticket | None, Refusal | None]:
        """Take a handshake for that of the client for which a trusted proxy asks, if one does.

        Returns:
            What counts the client, and why it is refused.
        """
        assert self._proxies is not None
        if not self._proxies.trust(session.peer):
            self._proxies.note_untrusted(head.headers, session.peer)
            return None, refusal
        try:
            forwarded = self._proxies.read(head.headers, session.peer)
        except BadForwarding:
            return None, refusal or handshake.BAD_REQUEST
        if forwarded is None or refusal is not None:
            return None, refusal
        session.peer = forwarded.address
        claim = self._limiter.claim(forwarded.address)
        if claim is None:
            self._hub.sessions.refused[self._name] += 1
            return None, handshake.TOO_MANY
        return claim, None

    async def _read(self, session: CommandSession, connection: Connection) -> None:
        flush_scheduler = self._hub.flush_scheduler
        now = trio.current_time()
        if session.unauthenticated:
            session.scope.deadline = now + self._auth_seconds
        pulse = self._open[session] = _Pulse(heard=now, pinged=now)
        rested = False
        while session.ended is None and (
            data := await connection.receive(
                flush_scheduler.read_size, rested=rested, live=session.live
            )
        ):
            pulse.heard = trio.current_time()
            rested = await session.receive(data)

    async def _read_head(self, connection: Connection) -> tuple[RequestHead | None, bool]:
        """The handshake's head, and whether anything has arrived behind it; None at the end.

        Raises:
            BadRequest: it is no request.
        """
        reader = RequestReader(self._max_header)
        rested = True  # this task is new, and by now the head is mostly there
        while data := await connection.receive(_READ, rested=rested, live=False):
            rested = False
            reader.receive_data(data)
            head = reader.next_head()
            if head is not None:
                return head, reader.buffered > 0
        return None, False


def _goodbye(session: CommandSession) -> bytes:
    """What answers the peer's close frame; empty where none came."""
    protocol = session.protocol
    assert isinstance(protocol, FrameProtocol | JsonFrameProtocol | TopicProtocol)
    return protocol.close_reply


def _say_goodbye(session: CommandSession, goodbye: bytes, status: int) -> None:
    """Queue the last word: a close frame, or a status where the handshake was not answered."""
    ending = session.ended
    assert ending is not None
    if status == SWITCHED:
        if goodbye:
            session.outbox.reply(goodbye)
        elif ending is not DISCONNECTED:
            session.outbox.reply(close_frame(ending.code, ending.reason))
    elif not status and 4400 <= ending.code < 4500:
        session.outbox.reply(handshake.refusal_head(ending.code - 4000))
    session.outbox.close()  # RFC 6455, 5.5.1: nothing after a close frame
