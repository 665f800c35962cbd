"""Open event streams and waiting polls: how many a token has, and heartbeats of quiet streams."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from mist.auth import Record
from mist.broker.outbox import Outbox
from mist.http.problems import Problem
from mist.protocols.event_forms import COMMENT, EventForm
from mist.sessions.hub import Hub

__all__ = ["Streams"]


class Streams:
    """The event streams of a server, and its waiting polls.

    Args:
        hub: what all sessions share.
        most_of_token: streams and waiting polls of one token at a time.
        heartbeat_seconds: between heartbeats on a quiet stream: comments, which browsers ignore.

    Attributes:
        form: of deliveries; one for all streams, so that each is encoded once.
    """

    def __init__(self, hub: Hub, *, most_of_token: int, heartbeat_seconds: float = 15.0) -> None:
        self.form = EventForm(None if hub.sequencer is None else hub.sequencer.epoch)
        self._hub = hub
        self._most_of_token = most_of_token
        self._heartbeat_seconds = heartbeat_seconds
        self._by_token: Counter[str] = Counter()
        self._quiet: dict[Outbox, float] = {}  # time of the last heartbeat, by trio's clock

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

    @contextmanager
    def heartbeats(self, outbox: Outbox) -> Iterator[None]:
        """Send heartbeats to a stream while the block runs."""
        self._quiet[outbox] = trio.current_time()
        try:
            yield
        finally:
            del self._quiet[outbox]

    async def send_heartbeats(self) -> None:
        """Send heartbeats to all quiet streams, in one task. Runs until cancelled."""
        while True:
            await trio.sleep(self._heartbeat_seconds / 5)
            now = trio.current_time()
            for outbox, since in self._quiet.items():
                if now - since < self._heartbeat_seconds * 0.99:  # sleep isn't exact
                    continue
                self._quiet[outbox] = now
                if not outbox.size:  # else it isn't quiet, or its client doesn't read
                    outbox.reply(COMMENT)
            self._hub.broker.flush()
