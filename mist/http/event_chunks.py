"""Server-Sent Events as chunks of an HTTP/1.1 body, each event one chunk.

So that a client can tell a stream that has ended from one that broke. The framing is part of the
wire form: it is written once for all streams, as the event itself is.
"""

from collections.abc import Sequence
from typing import Final

from mist.protocols.event_forms import EventForm
from mist.transports.http1 import LAST_CHUNK, chunk

__all__ = ["ChunkedEventForm"]

_AROUND: Final = len(b"data: \n\n")


class ChunkedEventForm(EventForm):
    """As `EventForm`, framed."""

    name = "event-chunks"
    is_chunked = True
    ending = LAST_CHUNK

    def frame(self, event: bytes) -> bytes:
        return chunk(event)

    def count_whole(self, wire: bytes, end: int) -> int:
        return wire.count(b"\n\n\r\n", 0, end)

    def _events(self, messages: Sequence[bytes]) -> list[bytes]:
        # As `chunk` would frame them; once for each message, so without a call each.
        return [
            b"%x\r\ndata: %b\n\n\r\n" % (_AROUND + len(message), message) for message in messages
        ]

    def _events_with_ids(self, ids: Sequence[int], messages: Sequence[bytes]) -> list[bytes]:
        return list(map(chunk, super()._events_with_ids(ids, messages)))
