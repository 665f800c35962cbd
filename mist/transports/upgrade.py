"""The stream on which trio-websocket does a handshake, and no more than that.

It gives the library the request and not a byte beyond it, and queues what the library answers
in the session's outbox. Then the library is done: frames are the business of
`mist.protocols.client_frames`, and of the outbox.
"""

import re
from http import HTTPStatus
from typing import Final

import trio

from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.session import Session
from mist.transports.connection import Connection

__all__ = ["UpgradeStream"]

_MAX_REQUEST: Final = 16_384  # bytes of a handshake
_END_OF_REQUEST: Final = re.compile(rb"\r?\n\r?\n")


class UpgradeStream(trio.abc.Stream):
    """See the module.

    Attributes:
        accepting: set before the handshake is accepted: the library's next write does it.
        accepted: whether that answer is queued; frames follow from there on.
    """

    def __init__(self, connection: Connection, session: Session) -> None:
        self.accepting = self.accepted = False
        self._connection = connection
        self._session = session
        self._request = b""
        self._request_ended = False
        self._answered = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue the answer to the request; whatever the library says after it is dropped."""
        # Queued before the checkpoint. A session that ends meanwhile, its token just revoked,
        # would otherwise send a close frame to a peer that has not been told of the upgrade.
        self.accepted = self._answer(bytes(data)) and self.accepting
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """An outbox never blocks."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come of the request, once it is seen to keep the limits."""
        if self._request_ended:
            await trio.sleep_forever()  # until the library is dismissed
        data = await self._connection.receive(_MAX_REQUEST)
        if not data:
            self._session.end(DISCONNECTED)  # the library would wait for the rest of the request
            return data
        request = self._request + data
        # From where the last search ended, less what may be the beginning of a match.
        end = _END_OF_REQUEST.search(request, max(0, len(self._request) - 3))
        # A client may say nothing more before it is answered (RFC 6455, 4.1); whoever does is
        # no WebSocket client.
        if len(request) > _MAX_REQUEST or (end and end.end() < len(request)):
            if len(request) > _MAX_REQUEST:
                self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._session.end(CloseReason(4400, "bad request"))
            return b""
        self._request = b"" if end else request
        self._request_ended = end is not None
        return data

    async def aclose(self) -> None:
        """The library can make nothing of the request; the transport closes it for real."""
        self._session.end(CloseReason(4400, "bad request"))
        await trio.lowlevel.checkpoint()

    def refuse(self, status: HTTPStatus) -> None:
        """Answer a request that the library can't answer. Nothing where it has an answer."""
        self._answer(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            % (status.value, status.phrase.encode())
        )

    def _answer(self, wire: bytes) -> bool:
        if self._answered:
            return False
        self._answered = True
        self._connection.outbox.reply(wire)
        self._connection.flush()
        return True
