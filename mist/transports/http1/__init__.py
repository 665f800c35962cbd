"""HTTP/1.1 without I/O: bytes to requests, responses to bytes.

    requests        request heads and bodies, as they stand in a stream of bytes
    chunks          the chunked transfer coding, for bodies that name no length
    responses       response heads, and the framing of their bodies

httptools (llhttp) parses heads; it took 8 µs a head where h11 took 175 for a request and its
response. It parses whatever it is fed and does not tell where a message ended, so heads are cut
out of the stream here, and bodies are framed here. That keeps the bounds exact, and of a pipeline
only the request whose turn it is has been parsed.

Both listeners that read request heads share this: `http`, and `ws` for its handshakes.
"""

from mist.transports.http1.requests import BadRequest, RequestHead, RequestReader
from mist.transports.http1.responses import (
    LAST_CHUNK,
    SAFEGUARDS,
    ResponseWriter,
    chunk,
    response_head,
)

__all__ = [
    "LAST_CHUNK",
    "SAFEGUARDS",
    "BadRequest",
    "RequestHead",
    "RequestReader",
    "ResponseWriter",
    "chunk",
    "response_head",
]
