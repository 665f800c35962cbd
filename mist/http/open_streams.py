"""Open event streams and waiting polls: how many a token has; heartbeats; stalled readers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from mist.auth import Record
from mist.http.event_chunks import ChunkedEventForm
from mist.http.problems import Problem
from mist.protocols.event_forms import COMMENT, EventForm
from mist.sessions.close_reason import DISCONNECTED
from mist.sessions.hub import Hub
from mist.sessions.session import Session

__all__ = ["Streams"]

_STALLED: Final = 30.0  # seconds in which a reader took nothing of what is queued


@attrs.define
class _Progress:
    """What a stream's client has done lately, in trio's seconds.

    Attributes:
        form: of the stream.
        beaten: when it was last sent a heartbeat.
        taken: bytes that it had taken when that was last looked at.
        moved: when that was more than before, or nothing was queued.
    """

    form: EventForm
    beaten: float
    taken: int
    moved: float


class Streams:
    """The event streams of a server, and its waiting polls.

    Args:
        hub: what all sessions share.
        most_of_token: streams and waiting polls of one token at a time.
        heartbeat_seconds: between heartbeats on a quiet stream: comments, which browsers ignore.
    """

    def __init__(self, hub: Hub, *, most_of_token: int, heartbeat_seconds: float = 15.0) -> None:
        self._epoch = None if hub.sequencer is None else hub.sequencer.epoch
        self._chunked = ChunkedEventForm(self._epoch)
        self._unchunked = EventForm(self._epoch)
        self._hub = hub
        self._most_of_token = most_of_token
        self._heartbeat_seconds = heartbeat_seconds
        self._by_token: Counter[str] = Counter()
        self._open: dict[Session, _Progress] = {}

    def configure(self, most_of_token: int) -> None:
        """Change how many a token may have. Those that are open stay, also beyond that."""
        self._most_of_token = most_of_token

    @contextmanager
    def counted(self, record: Record | None) -> Iterator[None]:
        """Count a stream or poll of a token for as long as the block runs.

        Raises:
            Problem: the token has too many (429).
        """
        if record is None:
            yield
            return
        if self._by_token[record.id] >= self._most_of_token:
            headers = {"Retry-After": "5"}
            raise Problem(429, "too_many_streams", "too many streams with this token", headers)
        self._by_token[record.id] += 1
        try:
            yield
        finally:
            self._by_token[record.id] -= 1
            if not self._by_token[record.id]:
                del self._by_token[record.id]

    def form_for(self, http_version: str) -> EventForm:
        """The form of a stream; one for all of an HTTP version, so that each event is encoded once.

        HTTP/1.0 knows no chunks.
        """
        epoch = None if self._hub.sequencer is None else self._hub.sequencer.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._chunked, self._unchunked = ChunkedEventForm(epoch), EventForm(epoch)
        return self._unchunked if http_version == "1.0" else self._chunked

    def add(self, session: Session, form: EventForm) -> None:
        """Send heartbeats to a stream that was answered, and end it once its client stalls."""
        now = trio.current_time()
        self._open[session] = _Progress(form, beaten=now, taken=0, moved=now)

    def remove(self, session: Session) -> None:
        """Undo `add`, if there was one."""
        self._open.pop(session, None)

    async def watch(self) -> None:
        """Look after all streams, in one task. Runs until cancelled."""
        every = self._hub.flush_scheduler.every
        await every(self._heartbeat_seconds / 5, self._look_after_all)

    def _look_after_all(self, now: float) -> Iterator[None]:
        for session, progress in list(self._open.items()):
            if session in self._open:  # not ended meanwhile
                self._look_after(session, progress, now)
            yield

    def _look_after(self, session: Session, progress: _Progress, now: float) -> None:
        outbox = session.outbox
        if not outbox.size or outbox.sent_bytes != progress.taken:
            progress.taken, progress.moved = outbox.sent_bytes, now
        elif now - progress.moved >= _STALLED:
            session.end(DISCONNECTED)
        if now - progress.beaten >= self._heartbeat_seconds * 0.99:  # sleep isn't exact
            progress.beaten = now
            if not outbox.size:  # else it isn't quiet, or its client doesn't read
                outbox.reply(progress.form.frame(COMMENT))
