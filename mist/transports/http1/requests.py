"""Requests, read from a stream of bytes. No I/O.

    reader = RequestReader(max_head=16_384)
    reader.receive_data(data)
    head = reader.next_head()           None: more bytes are needed
    piece = reader.read_body()          until `reader.body_complete`

What a proxy in front might understand otherwise is refused rather than repaired (RFC 9112,
section 11.2, request smuggling): llhttp, strict, refuses Content-Length beside
Transfer-Encoding, a repeated or malformed Content-Length, white space before a colon, bare CR
or LF, control characters. Here follow the versions, the Host, and transfer codings other than
`chunked`.
"""

import re
from typing import Final

import attrs
import httptools

from mist.transports.http1.chunks import ChunkedBody, InvalidChunk

__all__ = ["BadRequest", "RequestHead", "RequestReader"]

_REQUEST_LINE: Final = re.compile(rb"[!-~]+ ([!-~]+) HTTP/1\.([01])\r\n")
_MAX_DIGITS: Final = 20  # of a Content-Length: int() refuses thousands, zeros too
# From the first blank of a run only: from each of thousands that no line break follows, the search
# would go through all the others.
_FOLD: Final = re.compile(rb"(?<![ \t])[ \t]*+\r\n[ \t]++")
_URL: Final = re.compile(rb"https?://(?P<host>[^/?#]*)(?P<rest>.*)", re.IGNORECASE)
_TOKEN: Final = frozenset(
    b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


class BadRequest(Exception):
    """What arrived is not a request, or not one that can be answered. The connection must end.

    Args:
        status: of the answer: 400, 431 (head too large) or 501 (unknown transfer coding).
        bodiless: whether the answer must have no body, since a HEAD request was meant.
    """

    def __init__(self, status: int, *, bodiless: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.bodiless = bodiless


@attrs.define(eq=False)
class RequestHead:
    """A request's line and headers.

    Attributes:
        method: one that llhttp knows, in upper case.
        target: path and query as sent; of a target in absolute form without scheme and host.
        headers: names in lower case, in order. Of a target in absolute form, `host` is that of
            the target (RFC 9112, section 3.2.2).
        http_version: `1.0` or `1.1`.
        keep_alive: whether the client would send another request after this one.
        upgrade: whether the client offers to change the protocol (`Connection: upgrade`).
        length: bytes of the body; None where it is chunked.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    http_version: str
    keep_alive: bool
    upgrade: bool
    length: int | None

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return (
            self.http_version == "1.1"
            and self.length != 0
            and any(
                name == b"expect" and value.lower() == b"100-continue"
                for name, value in self.headers
            )
        )


class RequestReader:
    """Cuts a stream of bytes into requests.

    Args:
        max_head: bytes of a request's line and headers.

    Attributes:
        body_complete: whether all of the current request's body was read.
    """

    __slots__ = ("_at", "_buffer", "_chunks", "_left", "_max_head", "_scanned", "body_complete")

    def __init__(self, max_head: int) -> None:
        self._max_head = max_head
        self._buffer = b""
        self._at = 0  # what stands before was read
        self._scanned = 0  # no head ends before
        self._left = 0  # bytes of the body
        self._chunks: ChunkedBody | None = None
        self.body_complete = True

    def receive_data(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._at == len(self._buffer):
            self._buffer = data
            self._scanned = 0
        else:
            self._buffer = self._buffer[self._at :] + data
            self._scanned = max(0, self._scanned - self._at)
        self._at = 0

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and were not read."""
        return len(self._buffer) - self._at

    @property
    def body_arrived(self) -> bool:
        """Whether the rest of the body is here, as far as that is known without reading it."""
        return self.body_complete or (self._chunks is None and self._left <= self.buffered)

    def next_head(self) -> RequestHead | None:
        """The next request's head. The body before must be complete.

        Returns:
            None where more bytes are needed.

        Raises:
            BadRequest: nothing more can be read.
        """
        assert self.body_complete
        buffer = self._buffer
        while buffer.startswith(b"\r\n", self._at):  # RFC 9112, section 2.2
            self._at += 2
        start = self._at
        if start == len(buffer) or buffer[start:] == b"\r":
            return None
        if buffer[start] not in _TOKEN:  # a TLS handshake, which would wait for an answer
            raise BadRequest(400)
        begun = max(start, self._scanned - 3)
        end = buffer.find(b"\r\n\r\n", begun)
        size = (len(buffer) if end < 0 else end + 4) - start
        bodiless = buffer.startswith(b"HEAD ", start)
        if size > self._max_head:
            raise BadRequest(431, bodiless=bodiless)
        if end < 0:
            line = buffer.find(b"\n", start)
            # Another protocol's lines, or such as end in a bare LF, would wait for an answer.
            if line >= begun and _REQUEST_LINE.match(buffer, start) is None:
                raise BadRequest(400, bodiless=bodiless)
            if buffer.find(b"\n\n", begun) >= 0:
                raise BadRequest(400, bodiless=bodiless)
            self._scanned = len(buffer)
            return None
        self._at = end + 4
        try:
            head = _parse_head(buffer[start : end + 4])
        except BadRequest as error:
            error.bodiless = bodiless
            raise
        self._left = head.length or 0
        self._chunks = ChunkedBody(self._max_head) if head.length is None else None
        self.body_complete = head.length == 0
        return head

    def read_body(self) -> bytes:
        """What has arrived of the body; empty where more bytes are needed, or it is complete.

        Raises:
            BadRequest: it is framed wrongly.
        """
        if self.body_complete:
            return b""
        if self._chunks is not None:
            try:
                piece, self._at = self._chunks.read(self._buffer, self._at)
            except InvalidChunk:
                raise BadRequest(400) from None
            self.body_complete = self._chunks.complete
            return piece
        at = self._at
        piece = self._buffer[at : at + self._left]
        self._at = at + len(piece)
        self._left -= len(piece)
        self.body_complete = not self._left
        return piece


class _Sink:
    """What llhttp finds in a head. It forgets the flags with the end of a message."""

    __slots__ = ("complete", "headers", "keep_alive", "method", "parser", "upgrade")

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = self.keep_alive = self.upgrade = False
        self.method = ""
        self.parser = httptools.HttpRequestParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        # llhttp leaves what stands behind a value, which is none of it (RFC 9112, section 5).
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True
        self.method = self.parser.get_method().decode()
        self.keep_alive = self.parser.should_keep_alive()
        self.upgrade = self.parser.should_upgrade()


def _parse_head(text: bytes) -> RequestHead:
    """A head, from the request line to the empty line.

    Raises:
        BadRequest: see there.
    """
    line = _REQUEST_LINE.match(text)
    if line is None:
        raise BadRequest(400)
    if b"\r\n " in text or b"\r\n\t" in text:  # obsolete line folding (RFC 9112, section 5.2)
        text = _FOLD.sub(b" ", text)
    sink = _Sink()
    parser = sink.parser
    try:
        parser.feed_data(text)
    except httptools.HttpParserUpgrade:
        pass  # an offer, which nobody need take; all of the head was read
    except httptools.HttpParserError:
        raise BadRequest(_status_of(text, sink)) from None
    finally:
        del sink.parser, parser  # a reference cycle, which would wait for the collector
    if not sink.complete:
        raise BadRequest(400)
    target, headers = line[1], sink.headers
    is_old = line[2] == b"0"
    hosts = 0
    length: int | None = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if len(value) > _MAX_DIGITS:
                raise BadRequest(400)
            length = int(value)
        elif name == b"transfer-encoding":
            if is_old:  # faulty framing (RFC 9112, section 6.1)
                raise BadRequest(400)
            if length is None or value.lower() != b"chunked":
                raise BadRequest(501)
            length = None
    if hosts > 1 or not (hosts or is_old):
        raise BadRequest(400)
    url = None if target.startswith(b"/") else _URL.fullmatch(target)
    if url is not None:
        target = url["rest"] if url["rest"].startswith(b"/") else b"/" + url["rest"]
        headers = [header for header in headers if header[0] != b"host"]
        headers.append((b"host", url["host"]))
    return RequestHead(
        sink.method,
        target,
        headers,
        "1.0" if is_old else "1.1",
        sink.keep_alive,
        sink.upgrade,
        length,
    )


def _status_of(text: bytes, sink: _Sink) -> int:
    """The status for what llhttp refused: it refuses bodies in codings other than `chunked`."""
    codings = [value.lower() for name, value in sink.headers if name == b"transfer-encoding"]
    if sink.complete and codings and codings[-1] != b"chunked":
        return 501
    return 400
