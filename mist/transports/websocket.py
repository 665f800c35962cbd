"""The WebSocket listener's sessions: JSON frames, tokens, browsers.

trio-websocket does the handshake and reads frames: it parses, answers pings and closes. It is
given a stream of our own, `_OutboxStream`, whose `send_all` appends to the session's outbox
and whose `receive_some` reads the connection. So deliveries, which are appended to the same
outbox as finished frames, never wait for trio-websocket, and a pong never lands inside one.

Closing is ours, because the library would wait for the peer without bound: a close frame is
queued, nothing after it, and the connection is given a second. That holds for refused
handshakes too.
"""

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest
from trio_websocket import wrap_server_stream as wrap_websocket

from mist.hub import Hub
from mist.message import Limits
from mist.protocols.frames import FrameProtocol
from mist.protocols.rfc6455 import FrameMeter, close_frame, ping_frame
from mist.session import GONE, Credential, Ending, Session
from mist.transports import handshake
from mist.transports.connection import Connection
from mist.transports.gate import Gate
from mist.transports.handshake import Offer, Origins, Refusal
from mist.transports.streams import peer_address, ready_stream

__all__ = ["PATH", "WebSocketTransport"]

log = logging.getLogger("mist.transports.websocket")

PATH: Final = "/subscribe/websocket"
_MAX_REQUEST: Final = 16_384  # bytes of a handshake
_STRANGER_FRAME: Final = 4_096  # bytes of the first frame of a peer without a token
_EXCESS: Final = 64  # handshakes done at a time only to say "too many"
_END_OF_REQUEST: Final = re.compile(rb"\r?\n\r?\n")
# What wsproto says of broken frames without having told the peer (RFC 6455, 7.4.1).
_VIOLATIONS: Final = frozenset({1002, 1003, 1007, 1009})
_CLOSE_BYTE: Final = close_frame(1000)[0]


class WebSocketTransport:
    """Runs a session of JSON frames for each stream it is given.

    Args:
        hub: what all sessions share.
        gate: who may connect.
        origins: which pages may connect.
        name: the kind of listener, for logs and counts.
        path: the only path there is.
        query_token: whether a token may come in the URL.
        handshake_seconds: for TLS, and again for the WebSocket handshake.
        auth_seconds: for the first frame of a client that brought no token.
        ping_seconds: between pings.
        idle_seconds: of silence after which a peer is taken for dead.
        protocol: makes what understands a session's messages.
    """

    def __init__(
        self,
        hub: Hub,
        gate: Gate,
        origins: Origins,
        *,
        name: str = "ws",
        path: str = PATH,
        query_token: bool = False,
        handshake_seconds: float = 10.0,
        auth_seconds: float = 5.0,
        ping_seconds: float = 25.0,
        idle_seconds: float = 60.0,
        protocol: Callable[[Limits], FrameProtocol] = FrameProtocol,
    ) -> None:
        self._hub = hub
        self._protocol = protocol
        self._gate = gate
        self._origins = origins
        self._name = name
        self._path = path
        self._query_token = query_token
        self._handshake_seconds = handshake_seconds
        self._auth_seconds = auth_seconds
        self._ping_seconds = ping_seconds
        self._idle_seconds = idle_seconds
        self._open: dict[Session, _OutboxStream] = {}
        self._excess = 0

    async def handle(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        """Serve one connection until it ends. Raises nothing but `trio.Cancelled`.

        Args:
            stream: as accepted.
            nursery: for drain tasks; outlives the connection.
        """
        address = peer_address(stream)
        ticket = self._gate.enter(address)
        self._excess += ticket is None
        try:
            if ticket is None and self._excess > _EXCESS:
                return
            if await ready_stream(stream, self._handshake_seconds):
                refusal = handshake.TOO_MANY if ticket is None else None
                await self._serve(stream, address, nursery, refusal)
        except Exception:
            # Our own mistake, not the peer's: told in full, and it costs this session only.
            log.exception("session failed")
        finally:
            self._excess -= ticket is None
            if ticket is not None:
                self._gate.leave(ticket)
            await trio.aclose_forcefully(stream)

    async def sweep(self) -> None:
        """Ping the quiet and end the silent, all of them in one task. Runs until cancelled."""
        interval = min(5.0, self._ping_seconds / 5)
        while True:
            await trio.sleep(interval)
            now = trio.current_time()
            for session, stream in list(self._open.items()):
                if now - stream.heard > self._idle_seconds:
                    session.end(Ending(4408, "no answer to pings"))
                elif now - stream.pinged >= self._ping_seconds:
                    stream.pinged = now
                    session.outbox.reply(ping_frame())
            self._hub.broker.flush()

    async def _serve(
        self,
        stream: trio.abc.Stream,
        address: str,
        nursery: trio.Nursery,
        refusal: Refusal | None,
    ) -> None:
        hub = self._hub
        protocol = self._protocol(hub.limits)
        session = Session(
            hub,
            protocol,
            transport=self._name,
            peer=address,
            credential=Credential.TOKEN,
            patience=self._handshake_seconds,
        )
        connection = Connection(stream, session.outbox, nursery)
        outbox_stream = _OutboxStream(connection, session, hub.limits)
        try:
            with session.scope:
                await self._converse(session, protocol, outbox_stream, refusal)
            session.end(Ending(4408, "no auth in time") if session.stranger else GONE)
            assert session.ended is not None
            outbox_stream.say_goodbye(session.ended)
            # Whoever has closed its WebSocket still has to read the answer to that.
            linger = session.ended is not GONE or bool(outbox_stream.goodbye)
            await connection.finish(session.ended.grace, linger=linger)
        finally:
            self._open.pop(session, None)
            connection.abandon()
            await session.aclose()

    async def _converse(
        self,
        session: Session,
        protocol: FrameProtocol,
        stream: "_OutboxStream",
        refusal: Refusal | None,
    ) -> None:
        try:
            async with trio.open_nursery() as reader:
                request = await wrap_websocket(
                    reader,
                    stream,
                    message_queue_size=1,
                    # In characters there; in bytes, and before it is buffered, our meter.
                    max_message_size=self._hub.limits.frame,
                    receive_buffer_size=None,
                )
                websocket = await self._welcome(session, request, stream, refusal)
                if websocket is not None:
                    await self._read(session, protocol, websocket)
                reader.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            session.end(GONE)
        except* Exception as group:
            if stream.accepted:
                raise
            # A request that the parsers below choke on, a header that is no ASCII, say. Only
            # the kind of error is logged: its text would quote the header, token and all.
            kind = type(group.exceptions[0]).__name__
            log.debug("bad handshake from %s: %s", session.peer, kind)
            session.end(Ending(4400, "bad request"))

    async def _welcome(
        self,
        session: Session,
        request: WebSocketRequest,
        stream: "_OutboxStream",
        refusal: Refusal | None,
    ) -> WebSocketConnection | None:
        """Accept or refuse; None means refused. The session is attached before an await."""
        offer = handshake.read_offer(
            request.path,
            request.headers,
            request.proposed_subprotocols,
            query_token=self._query_token,
        )
        refusal = refusal or self._judge(session, offer)
        if refusal is not None and (not offer.speaks_mist or refusal is handshake.NOT_FOUND):
            headers = [(b"Connection", b"close")]
            if refusal is handshake.TOO_MANY:
                headers.append((b"Retry-After", b"5"))
            await request.reject(refusal.status, extra_headers=headers)
            session.end(Ending(refusal.code, refusal.reason))
            return None
        stream.accepting = True
        websocket = await request.accept(
            subprotocol=handshake.SUBPROTOCOL if offer.speaks_mist else None
        )
        if refusal is not None:
            session.end(Ending(refusal.code, refusal.reason))
            return None
        if session.stranger:
            session.scope.deadline = trio.current_time() + self._auth_seconds
        self._open[session] = stream
        return websocket

    def _judge(self, session: Session, offer: Offer) -> Refusal | None:
        """Look an offer over; a good token is adopted, and its absence put off to a frame."""
        if offer.path != self._path:
            return handshake.NOT_FOUND
        if offer.has_body:
            return handshake.BAD_REQUEST
        if not self._origins.allow(offer.origin):
            return handshake.FORBIDDEN_ORIGIN
        if offer.ambiguous:
            return handshake.TWO_CREDENTIALS
        if offer.token is None:
            return None if offer.speaks_mist else self._unauthorized()
        record = self._hub.registry.lookup(offer.token)
        if record is None or not record.tags:
            return self._unauthorized()
        session.adopt(record)
        return None

    def _unauthorized(self) -> Refusal:
        self._hub.failed_auths[self._name] += 1
        return handshake.UNAUTHORIZED

    async def _read(
        self, session: Session, protocol: FrameProtocol, websocket: WebSocketConnection
    ) -> None:
        try:
            while session.ended is None:
                message = await websocket.get_message()
                if isinstance(message, bytes):
                    await session.carry_out(protocol.binary(message))
                    await self._hub.pacer.pause(session.name)
                    continue
                data = message.encode()
                if session.stranger and len(data) > _STRANGER_FRAME:
                    session.end(Ending(1009, "first frame too long"))
                else:
                    await session.receive(data)
        except ConnectionClosed:
            reason = websocket.closed
            violated = reason is not None and reason.code in _VIOLATIONS
            session.end(Ending(reason.code, "broken frame") if reason and violated else GONE)


class _OutboxStream(trio.abc.Stream):
    """The stream that trio-websocket reads and writes: a connection and its outbox.

    Attributes:
        accepting: set before the handshake is accepted: the library's next write does it.
        accepted: whether that answer is queued; frames follow from there on.
        goodbye: the answer to the peer's close frame, where it sent one.
        heard: when anything last came from the peer, in trio's seconds.
        pinged: when it was last pinged, or accepted.
    """

    def __init__(self, connection: Connection, session: Session, limits: Limits) -> None:
        self.accepting = self.accepted = False
        self.goodbye = b""
        self.heard = self.pinged = trio.current_time()
        self._connection = connection
        self._session = session
        self._meter = FrameMeter(limits.frame)
        self._request = b""
        self._request_ended = False
        self._answered = False
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue what the library writes: the handshake, pongs, its half of a close."""
        # Queued before the checkpoint. A session that ends meanwhile, its token just revoked,
        # would otherwise send a close frame to a peer that has not been told of the upgrade.
        wire = bytes(data)
        if not self.accepted:
            self.accepted = self._answer(wire) and self.accepting
        elif wire[0] == _CLOSE_BYTE:
            # The last word, said when the messages before the peer's close frame are answered.
            self.goodbye = wire
        else:
            self._connection.outbox.reply(wire)
            self._connection.flush()
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """An outbox never blocks."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come, once it is seen to keep the limits."""
        if self._closed:
            raise trio.ClosedResourceError
        data = await self._connection.receive(self._session.hub.pacer.read_size)
        self.heard = trio.current_time()
        if not self.accepted:
            return self._handshake_bytes(data)
        if data and not self._meter.fits(data):
            self._session.end(Ending(1009, "message too big"))
            await trio.sleep_forever()  # until the session's scope is cancelled, at once
        return data

    def _handshake_bytes(self, data: bytes) -> bytes:
        if not data:
            self._session.end(GONE)  # the library would wait for the rest of the request
            return data
        request = self._request + data
        # From where the last search ended, less what may be the beginning of a match.
        end = _END_OF_REQUEST.search(request, max(0, len(self._request) - 3))
        # A client may say nothing more before it is answered (RFC 6455, 4.1); whoever does is
        # no WebSocket client, and the meter has to begin at the first frame.
        if self._request_ended or len(request) > _MAX_REQUEST or (end and end.end() < len(request)):
            if len(request) > _MAX_REQUEST:
                self.refuse_raw(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._session.end(Ending(4400, "bad request"))
            return b""
        self._request = b"" if end else request
        self._request_ended = end is not None
        return data

    async def aclose(self) -> None:
        """The library is done with the stream; the transport closes it for real."""
        self._closed = True
        if not self.accepted:
            self._session.end(Ending(4400, "bad request"))
        await trio.lowlevel.checkpoint()

    def refuse_raw(self, status: HTTPStatus) -> None:
        """Answer a request that the library can't answer."""
        self._answer(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            % (status.value, status.phrase.encode())
        )

    def _answer(self, wire: bytes) -> bool:
        """Queue the answer to the request; False where it has one already."""
        if self._answered:
            return False
        self._answered = True
        self._connection.outbox.reply(wire)
        self._connection.flush()
        return True

    def say_goodbye(self, ending: Ending) -> None:
        """Queue a close frame, or a status where the handshake was not answered."""
        outbox = self._connection.outbox
        if self.accepted:
            if self.goodbye:
                outbox.reply(self.goodbye)
            elif ending is not GONE:
                outbox.reply(close_frame(ending.code, ending.reason))
        elif 4400 <= ending.code < 4500:
            self.refuse_raw(HTTPStatus(ending.code - 4000))
        outbox.close()  # RFC 6455, 5.5.1: nothing after a close frame
        with suppress(OSError):
            self._connection.flush()
