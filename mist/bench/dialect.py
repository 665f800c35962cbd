"""How one side of a benchmark speaks: bytes to send, and the bytes that will come back.

The driver knows no protocol. It joins what a dialect writes into one long script before the
clock runs, and then only copies and compares. So a dialect is a handful of formatters, each
called once a message at most, none while measuring; tests/benchmarks adds NATS and Redis.

Publishers and subscribers may speak different dialects (lines in, WebSocket frames out).
"""

import base64
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mist.bench.errors import UnexpectedBytes
from mist.protocols.rfc6455 import text_frame
from mist.wire import record

__all__ = ["Dialect", "Frames", "Line", "masked_frame"]

_PING = 0x89
_PONG = 0x8A
_TEXT = 0x81


class Dialect(ABC):
    """One side of a connection.

    Attributes:
        fence: asks for a proof that all that was sent before it has been handled, and
            that all deliveries queued before it have left. Empty where a subscriber can't ask.
        fenced: that proof, to the byte. No delivery begins with it.
        refusal: bytes that an answer or a notice holds only where something was refused.
    """

    fence: bytes
    fenced: bytes
    refusal: bytes

    @abstractmethod
    def opening(self) -> tuple[bytes, bytes]:
        """What a new connection sends, and what the last bytes of the server's answer are."""

    def check_welcome(self, answer: bytes) -> None:
        """Look at what the server answered to the opening.

        Raises:
            UnexpectedBytes: the connection can't be used.
        """
        self.check(answer)

    def check(self, answer: bytes) -> None:
        """Look at what the server answered to anything but a message.

        Raises:
            UnexpectedBytes: with the refusal, where there is one.
        """
        if self.refusal in answer:
            raise UnexpectedBytes(answer[answer.index(self.refusal) :])

    @abstractmethod
    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        """A subscription to messages tagged `tags`.

        Args:
            wider: whether the messages carry further tags. With tags that makes no difference;
                with subjects and channels it takes a wildcard.
        """

    @abstractmethod
    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        """One message. `data` is printable ASCII without quotes and backslashes."""

    @abstractmethod
    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        """What a subscriber to the first of `tags` gets for that message, to the byte."""

    def control(self, data: bytes, start: int) -> tuple[int, bytes] | None:
        """What the server says unasked, at `start`: its length, and what to answer.

        None where there is no such thing, or only the beginning of one.
        """
        return None


class Line(Dialect):
    """mist's line protocol.

    Args:
        secret: sent first where there is one.
    """

    fence = b"ping\n"
    fenced = b"pong\n"
    refusal = b"error "

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret

    def opening(self) -> tuple[bytes, bytes]:
        auth = b"" if self._secret is None else b"auth %b\n" % self._secret.encode()
        return auth + self.fence, self.fenced

    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        return b"subscribe %b\n" % ",".join(tags).encode()

    def replay(self, tags: Sequence[str]) -> bytes:
        """A subscription that begins with all that the server's history keeps."""
        return b"subscribe %b 0\n" % ",".join(tags).encode()

    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        return record(",".join(tags).encode(), data)

    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        return self.publish(sorted(tags), data)


class Frames(Dialect):
    """mist's WebSocket endpoint; subscribers only, since nobody may publish there.

    Args:
        authority: `host:port`, as the Host header has it.
        resource: path and query of the request.
        token: for `X-Auth-Token`.
        subprotocol: that is asked for; None for none.
    """

    refusal = b'{"success":false'

    def __init__(
        self, authority: str, resource: str, token: str | None, subprotocol: str | None = None
    ) -> None:
        self._authority = authority
        self._resource = resource
        self._token = token
        self._subprotocol = subprotocol
        self.fence = masked_frame(_TEXT, b'{"command":"ping"}')
        self.fenced = text_frame(b'{"success":true,"command":"ping"}')

    def opening(self) -> tuple[bytes, bytes]:
        lines = [
            f"GET {self._resource} HTTP/1.1",
            f"Host: {self._authority}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        ]
        if self._token is not None:
            lines.append(f"X-Auth-Token: {self._token}")
        if self._subprotocol is not None:
            lines.append(f"Sec-WebSocket-Protocol: {self._subprotocol}")
        return "\r\n".join([*lines, "", ""]).encode(), b"\r\n\r\n"

    def check_welcome(self, answer: bytes) -> None:
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise UnexpectedBytes(answer)

    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        request = {"command": "subscribe", "tags": list(tags)}
        return masked_frame(_TEXT, json.dumps(request).encode())

    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        raise NotImplementedError("nobody publishes over a WebSocket")

    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        keys = json.dumps(sorted(tags), separators=(",", ":"))
        return text_frame(b'{"keys":%b,"data":"%b"}' % (keys.encode(), data))

    def control(self, data: bytes, start: int) -> tuple[int, bytes] | None:
        if data[start] != _PING or len(data) < start + 2:
            return None
        size = data[start + 1]  # a control frame has at most 125 bytes (RFC 6455, 5.5)
        payload = data[start + 2 : start + 2 + size]
        if len(payload) < size:
            return None
        return 2 + size, masked_frame(_PONG, payload)


def masked_frame(first: int, payload: bytes) -> bytes:
    """A short frame as a client sends it; up to 65,535 bytes.

    The mask is all zeros: it protects proxies from scripts, and there is neither here.
    """
    size = len(payload)
    if size < 126:
        return bytes((first, 0x80 | size)) + bytes(4) + payload
    return bytes((first, 0x80 | 126)) + size.to_bytes(2) + bytes(4) + payload
