"""Responses as bytes: heads, and the framing of bodies (RFC 9112, section 6). No I/O.

A body is framed by its Content-Length where the application gives one or sends it whole, in
chunks where it comes in pieces, and for HTTP/1.0 by the end of the connection.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

__all__ = ["LAST_CHUNK", "SAFEGUARDS", "ResponseWriter", "chunk", "response_head"]

Headers = Iterable[tuple[bytes, bytes]]

LAST_CHUNK: Final = b"0\r\n\r\n"
"""What ends a chunked body."""

SAFEGUARDS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response, errors included. A browser then doesn't let a foreign page load it,
as an image or a script, and so into a process that the page may read (Fetch, section 3.7)."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
# Framing is decided here; the date is the connection's to add.
_OWN: Final = frozenset({b"connection", b"content-length", b"date", b"transfer-encoding"})


def chunk(data: bytes) -> bytes:
    """Data, which is not empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_head(status: int, headers: Headers) -> bytes:
    """A status line and headers, to the empty line.

    Raises:
        ValueError: a header has a line break or a NUL in it, and would be another header.
    """
    lines = [b"%b: %b\r\n" % header for header in headers]
    first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    head = first + b"".join(lines) + b"\r\n"
    expected = len(lines) + 2
    if head.count(b"\n") != expected or head.count(b"\r") != expected or b"\0" in head:
        raise ValueError("a response header has a line break or a NUL in it")
    return head


class ResponseWriter:
    """One response: what an application says, as bytes.

    Args:
        to_head: whether it answers a HEAD request, and so has no body.
        http_version: the request's.
        keep_alive: whether the connection may be used again.

    Attributes:
        keep_alive: likewise, once the response's own headers and framing were looked at.
        status: None before `start`.
        begun: whether the head was given out.
        complete: whether all was.
    """

    __slots__ = (
        "_chunked",
        "_headers",
        "_is_old",
        "_left",
        "_to_head",
        "begun",
        "complete",
        "keep_alive",
        "status",
    )

    def __init__(self, *, to_head: bool, http_version: str, keep_alive: bool) -> None:
        self._to_head = to_head
        self._is_old = http_version == "1.0"
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunked = False
        self._left: int | None = None  # bytes that the body still lacks; None where unbounded
        self.keep_alive = keep_alive
        self.status: int | None = None
        self.begun = False
        self.complete = False

    def start(self, status: int, headers: Headers, *, lower: bool = False) -> None:
        """Say what the response is. Nothing is given out before the first piece of its body.

        Args:
            lower: whether all names are in lower case.

        Raises:
            RuntimeError: it has been said.
        """
        if self.status is not None:
            raise RuntimeError("a response starts once")
        self.status = status
        self._headers = (
            list(headers) if lower else [(name.lower(), value) for name, value in headers]
        )

    def body(self, data: bytes, *, more: bool, date: bytes) -> bytes:
        """The next piece of the body, framed; before the first one the head.

        Args:
            more: whether another piece follows.
            date: the value of the `Date` header.

        Raises:
            RuntimeError: the response has not started, is complete, or its body is longer than
                it said.
        """
        if self.status is None or self.complete:
            raise RuntimeError("a response's body follows its start, and ends once")
        head = b"" if self.begun else self._head(len(data), more=more, date=date)
        self.complete = not more
        if self._left is None:
            if not self._chunked:
                return head + data
            return b"".join((head, chunk(data) if data else b"", b"" if more else LAST_CHUNK))
        if not self._has_body:
            return head
        self._left -= len(data)
        if self._left < 0:
            self.keep_alive = False
            raise RuntimeError("a response's body is longer than its Content-Length")
        if self._left and not more:
            self.keep_alive = False  # the client has to see that something is missing
        return head + data

    def head_of_stream(self, date: bytes, *, chunked: bool) -> bytes:
        """The head of a response whose body is framed and written elsewhere.

        Args:
            date: as for `body`.
            chunked: whether its body is chunked; else it ends with the connection.

        Raises:
            ValueError: HTTP/1.0 has no chunks.
        """
        if chunked and self._is_old:
            raise ValueError("HTTP/1.0 has no chunks")
        return self._head(0, more=True, date=date, chunked=chunked)

    def _head(self, size: int, *, more: bool, date: bytes, chunked: bool = True) -> bytes:
        assert self.status is not None
        self.begun = True
        sent = [each for each in self._headers if each[0] not in _OWN]
        if len(sent) != len(self._headers):
            sent += self._framing()
        sent.append((b"date", date))
        if not self._has_body:
            if self._to_head and self._left is None and not more:
                sent.append((b"content-length", b"%d" % size))
            self._left = 0
        elif self._left is None:
            if not more:
                self._left = size
                sent.append((b"content-length", b"%d" % size))
            elif self._is_old or not chunked:
                self.keep_alive = False
            else:
                self._chunked = True
                sent.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            sent.append((b"connection", b"close"))
        elif self._is_old:
            sent.append((b"connection", b"keep-alive"))
        return response_head(self.status, sent)

    def _framing(self) -> Headers:
        """Do what headers say of the framing; those of them that are sent as they are."""
        assert self.status is not None
        for name, value in self._headers:
            if name == b"content-length":
                if self.status != 204 and self.status >= 200:  # RFC 9110, section 8.6
                    self._left = int(value)
                    yield name, value
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False

    @property
    def _has_body(self) -> bool:
        status = self.status
        assert status is not None
        return not (self._to_head or status in (204, 304) or status < 200)
