"""HTTP as a dialect of the driver: messages by `POST`, deliveries on an event stream."""

import json
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from mist.bench.dialect import Dialect
from mist.bench.errors import UnexpectedBytes
from mist.transports.http1 import chunk

__all__ = ["Http"]

_COMMENT: Final = chunk(b":\n\n")


class Http(Dialect):
    """mist's HTTP endpoint.

    A stream can't be asked whether all has left, so there is no fence: a run is over when
    everything has come, or nothing more does. Each event is a chunk of the answer (RFC 9112,
    section 7.1), as mist writes them.

    Args:
        authority: `host:port`, as the Host header has it.
        token: what streams are opened with; None for the secret.
        secret: what messages are published with; None for a server that has none.
    """

    fence = b""
    fenced = b"\n\n\r\n"  # ends an event's chunk, and stands at the beginning of none
    refusal = b"event: end\n"

    def __init__(self, authority: str, token: str | None = None, secret: str | None = None) -> None:
        self._authority = authority
        publisher = "" if secret is None else f"Authorization: Bearer {secret}\r\n"
        self._publisher = publisher
        self._subscriber = publisher if token is None else f"X-Auth-Token: {token}\r\n"

    def opening(self) -> tuple[bytes, bytes]:
        """Nothing: a connection is ready as it is."""
        return b"", b""

    def check(self, answer: bytes) -> None:
        """As every dialect does; an answer that begins with a head has to be a good one."""
        if answer.startswith(b"HTTP/") and not answer.startswith(b"HTTP/1.1 200 "):
            raise UnexpectedBytes(answer)
        super().check(answer)

    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        """A request for an event stream, which makes a connection one."""
        query = quote(",".join(tags))
        return (
            f"GET /v1/stream?tags={query} HTTP/1.1\r\n"
            f"Host: {self._authority}\r\n{self._subscriber}Connection: close\r\n\r\n"
        ).encode()

    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        """A request that publishes one message, on a connection that is kept."""
        return self.post(tags, data)

    def post(self, tags: Sequence[str], data: bytes, *, close: bool = False) -> bytes:
        """A request that publishes one message.

        Args:
            close: whether it is to be the connection's last.
        """
        return self._request(_message(tags, data), "application/json", close=close)

    def post_many(self, lists: Sequence[Sequence[str]], data: bytes, *, lines: bool) -> bytes:
        """A request that publishes a message with each of these tag lists.

        Args:
            lines: whether they stand on a line each, rather than in a list.
        """
        messages = [_message(tags, data) for tags in lists]
        if lines:
            return self._request("\n".join(messages), "application/x-ndjson")
        return self._request(f"[{','.join(messages)}]", "application/json")

    def _request(self, body: str, kind: str, *, close: bool = False) -> bytes:
        connection = "Connection: close\r\n" if close else ""
        return (
            "POST /v1/messages HTTP/1.1\r\n"
            f"Host: {self._authority}\r\n{self._publisher}{connection}"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        keys = json.dumps(sorted(tags), separators=(",", ":"))
        return chunk(b'data: {"keys":%b,"data":"%b"}\n\n' % (keys.encode(), data))

    def control(self, data: bytes, start: int) -> tuple[int, bytes] | None:
        """A comment, which keeps a quiet stream alive."""
        return (len(_COMMENT), b"") if data.startswith(_COMMENT, start) else None


def _message(tags: Sequence[str], data: bytes) -> str:
    return json.dumps({"tags": list(tags), "data": data.decode("ascii")})
