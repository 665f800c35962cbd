"""The WebSocket listener's sessions: JSON in frames, tokens, browsers; and guble's clients.

The handshake is a request like those of HTTP, read by the same reader and judged by `handshake`.
It arrives at a `ws` listener, or at an `http` listener, which then hands its stream over. From
there on a WebSocket is served as a TCP connection is: what has come goes to the session, whose
protocol reads frames, and everything for the peer goes through the session's outbox, the answer
to the handshake, deliveries, pongs and the close frame alike. So nothing lands inside a frame,
and an idle browser costs one task.

Closing is bounded: a close frame is queued, nothing after it, and the connection is given a
second. That holds for refused handshakes too.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from mist.auth import Record
from mist.auth.credentials import Login
from mist.engine.errors import EngineUnavailable
from mist.errors import ClientTaken, InvalidAudience, RegistryUnavailable
from mist.protocols.frames import FrameProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.rfc6455 import close_frame, ping_frame
from mist.protocols.topics import TopicProtocol
from mist.protocols.topics.forms import TopicForm
from mist.sessions.authenticating import Credential
from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.receiving import CommandSession
from mist.transports import handshake
from mist.transports.connection import Connection
from mist.transports.connection_limiter import ConnectionLimiter, Ticket
from mist.transports.forwarding import BadForwarding, Proxies
from mist.transports.handshake import PATH, Offer, Origins, Refusal
from mist.transports.http1 import BadRequest, RequestHead, RequestReader
from mist.transports.streams import ready_stream
from mist.transports.transport import Transport

__all__ = ["PATH", "WebSocketTransport"]

_SWITCHED: Final = 101
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
        origins: which pages may connect.
        max_header: bytes of a handshake.
        query_token: whether a token may come in the URL.
        bring: awaited with a ticket before it is redeemed.
        redeem: takes a ticket and the request's Origin; the record of its token, or None where
            it is not good.
        handshake_seconds: for TLS, and again for the WebSocket handshake.
        auth_seconds: for the first frame of a client that brought no token.
        ping_seconds: between pings.
        idle_seconds: of silence after which a peer is taken for dead.
        is_local: whether the listener can be reached from this machine only. Then guble's
            services need no token, unless the server has a secret.
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
        self._origins = origins
        self._max_header = max_header
        self._query_token = query_token
        self._bring = bring
        self._redeem = redeem
        self._auth_seconds = auth_seconds
        self._ping_seconds = ping_seconds
        self._idle_seconds = idle_seconds
        self._is_local = is_local
        self._topic_form = TopicForm(hub.now)  # one for all, so that each is written once
        self._open: dict[CommandSession, _Pulse] = {}
        self._excess = 0

    async def sweep(self) -> None:
        """Ping the quiet and end the silent, all of them in one task. Runs until cancelled."""
        interval = min(5.0, self._ping_seconds / 5)
        while True:
            await trio.sleep(interval)
            now = trio.current_time()
            for session, pulse in list(self._open.items()):
                if now - pulse.heard > self._idle_seconds:
                    session.end(CloseReason(4408, "no answer to pings"))
                elif now - pulse.pinged >= self._ping_seconds:
                    pulse.pinged = now
                    session.outbox.reply(ping_frame())
            self._hub.flush_scheduler.flush()

    async def _turn_away(
        self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery
    ) -> None:
        # A browser is told in the answer to its handshake, or not at all.
        if self._excess >= _EXCESS:
            return
        self._excess += 1
        try:
            if await ready_stream(stream, self._handshake_seconds):
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
        connection = Connection(stream, session.outbox, nursery, hub.newcomers)
        status = 0  # of the answer to the handshake; none yet
        claim: Ticket | None = None
        try:
            with session.scope:
                try:
                    if head is None:
                        head, early = await self._read_head(connection)
                    if head is not None:
                        if self._proxies is not None and self._proxies.trust(address):
                            claim, refusal = self._forward(session, head, refusal)
                        status = await self._answer(session, head, refusal, early=early)
                        head = None  # its headers would be kept as long as the session, 2 KB
                except BadRequest as error:
                    status = _refuse(session, Refusal(error.status, 4400, "bad request"))
                if status == _SWITCHED and session.ended is None:
                    await self._read(session, connection)
                await hub.turns.leave(session.account)
            session.end(
                CloseReason(4408, "no auth in time") if session.unauthenticated else DISCONNECTED
            )
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
        """Take a handshake for that of the client for which a trusted proxy asks.

        Returns:
            What counts the client, and why it is refused.
        """
        assert self._proxies is not None
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
        pulse = self._open[session]
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

    async def _answer(
        self,
        session: CommandSession,
        head: RequestHead,
        refusal: Refusal | None,
        *,
        early: bool,
    ) -> int:
        """Accept or refuse, and queue the answer. From the look at the token on there is no await.

        Args:
            refusal: why it is refused whatever it says.
            early: whether anything has arrived behind the head. A client may say nothing more
                before it is answered (RFC 6455, section 4.1).

        Returns:
            The answer's status; 101 where frames follow.
        """
        asked = handshake.read_handshake(head)
        if isinstance(asked, Refusal) or early:
            return _refuse(session, asked if isinstance(asked, Refusal) else handshake.BAD_REQUEST)
        key, subprotocols = asked
        offer = handshake.read_offer(
            head.target.decode("latin-1"),
            head.headers,
            subprotocols,
            query_token=self._query_token,
            is_credential=self._hub.credentials.accepts,
        )
        if offer.subprotocol == handshake.JSON:
            session.set_protocol(JsonFrameProtocol(self._hub.limits, unauthenticated=True))
        session.origin = offer.origin
        if refusal is None and offer.token is not None:
            try:
                await self._hub.credentials.prepare(offer.token, self._login(session, offer))
            except RegistryUnavailable:
                refusal = handshake.UNAVAILABLE
        if refusal is None and offer.ticket is not None and self._bring is not None:
            try:
                await self._bring(offer.ticket)
            except EngineUnavailable:
                refusal = handshake.UNAVAILABLE
        refusal = refusal or self._judge(session, offer)
        if refusal is not None and (offer.subprotocol is None or refusal is handshake.NOT_FOUND):
            return _refuse(session, refusal)
        if refusal is None and offer.user is not None:
            session.set_protocol(self._topics(session, offer.user))
        session.outbox.reply(handshake.welcome_head(key, offer.answered))
        if refusal is not None:
            session.end(CloseReason(refusal.code, refusal.reason))
            return _SWITCHED
        session.outbox.reply(session.protocol.greeting())
        session.outbox.flush()
        now = trio.current_time()
        if session.unauthenticated:
            session.scope.deadline = now + self._auth_seconds
        self._open[session] = _Pulse(heard=now, pinged=now)
        return _SWITCHED

    def _judge(self, session: CommandSession, offer: Offer) -> Refusal | None:
        """Look an offer over; a good token is adopted, and its absence put off to a frame."""
        try:
            refusal = self._look_over(session, offer)
        except RegistryUnavailable:
            return handshake.UNAVAILABLE
        if refusal is None and offer.client is not None:
            try:
                session.set_client_id(offer.client)
            except ClientTaken:
                return handshake.CLIENT_TAKEN
            except InvalidAudience:
                return handshake.BAD_REQUEST
        return refusal

    def _look_over(self, session: CommandSession, offer: Offer) -> Refusal | None:
        if offer.path != PATH and offer.user is None:
            return handshake.NOT_FOUND
        if offer.has_body:
            return handshake.BAD_REQUEST
        if not self._origins.allow(offer.origin):
            return handshake.FORBIDDEN_ORIGIN
        if offer.ambiguous:
            return handshake.TWO_CREDENTIALS
        if offer.ticket is not None:
            record = self._redeem(offer.ticket, offer.origin)
        elif offer.token is not None:
            record = self._hub.credentials.find(offer.token, self._login(session, offer))
        elif offer.subprotocol is not None and offer.user is None:
            return None
        elif self._is_service(offer):
            session.mark_authenticated()
            self._hub.sessions.attach(session)
            return None
        else:
            return self._unauthorized()
        if record is None or not record.tags:
            return self._unauthorized()
        if offer.user is not None and record.attributes.user not in ("", offer.user):
            return handshake.FORBIDDEN_USER
        if self._hub.token_limits.is_full(record, self._hub.sessions.count):
            return handshake.TOO_MANY
        session.adopt(record)
        return None

    def _login(self, session: CommandSession, offer: Offer) -> Login:
        return Login(self._name, session.peer, offer.origin, offer.client)

    def _is_service(self, offer: Offer) -> bool:
        """Whether a client without a token may do everything, as over TCP and HTTP.

        Its origin, if it has one, is allowed: that was looked at before.
        """
        return (
            offer.user is not None
            and self._is_local
            and offer.is_local
            and not self._hub.needs_secret
        )

    def _topics(self, session: CommandSession, user: str) -> TopicProtocol:
        """What understands a client of guble's, which is given an id where it has none."""
        if not session.attributes.client:
            session.set_client_id(secrets.token_hex(10))
        outbox = session.outbox  # rather than the session, which knows its protocol
        return TopicProtocol(
            self._hub.limits,
            self._topic_form,
            user=lambda: outbox.attributes.user or user,
            application=session.attributes.client,
            clock=self._hub.now,
            stores=self._hub.sequencer is not None,
        )

    def _unauthorized(self) -> Refusal:
        self._hub.note_failed_auth(self._name, "token")
        return handshake.UNAUTHORIZED


def _goodbye(session: CommandSession) -> bytes:
    """What answers the peer's close frame; empty where none came."""
    protocol = session.protocol
    assert isinstance(protocol, FrameProtocol | JsonFrameProtocol | TopicProtocol)
    return protocol.close_reply


def _refuse(session: CommandSession, refusal: Refusal) -> int:
    """Queue the answer to a handshake that is refused, and end the session. Its status."""
    session.outbox.reply(handshake.refusal_head(refusal.status))
    session.end(CloseReason(refusal.code, refusal.reason))
    return refusal.status


def _say_goodbye(session: CommandSession, goodbye: bytes, status: int) -> None:
    """Queue the last word: a close frame, or a status where the handshake was not answered."""
    ending = session.ended
    assert ending is not None
    if status == _SWITCHED:
        if goodbye:
            session.outbox.reply(goodbye)
        elif ending is not DISCONNECTED:
            session.outbox.reply(close_frame(ending.code, ending.reason))
    elif not status and 4400 <= ending.code < 4500:
        session.outbox.reply(handshake.refusal_head(ending.code - 4000))
    session.outbox.close()  # RFC 6455, 5.5.1: nothing after a close frame
