"""Server-Sent Events as chunks of an HTTP/1.1 body, each event one chunk.

So that a client can tell a stream that has ended from one that broke. The framing is part of the
wire form: it is written once for all streams, as the event itself is.
"""

from collections.abc import Sequence

from mist.message import Envelope
from mist.protocols.event_forms import EventForm
from mist.transports.http1 import LAST_CHUNK, chunk
from mist.wire import Entry

__all__ = ["ChunkedEventForm"]


class ChunkedEventForm(EventForm):
    """As `EventForm`, framed."""

    name = "event-chunks"
    is_chunked = True
    ending = LAST_CHUNK

    def frame(self, event: bytes) -> bytes:
        return chunk(event)

    def count_whole(self, wire: bytes, end: int) -> int:
        return wire.count(b"\n\n\r\n", 0, end)

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        events = super().pieces(entries, firsts=firsts, envelope=envelope)
        return [chunk(event) for event in events]
