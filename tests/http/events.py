"""A reader of Server-Sent Events to the letter of the standard, for tests."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11

from tests.http.client import Streamed, connect
from tests.servers import Served

__all__ = ["Event", "EventReader", "Events", "listen"]


@attrs.frozen
class Event:
    """One event.

    Attributes:
        name: `message` where it says nothing else.
        data: read as JSON.
        id: the last event id as of this event; what a browser would come back with.
    """

    name: str
    data: Any
    id: str


class EventReader:
    """Bytes to events, as HTML's section 9.2.6 has it.

    Attributes:
        last_id: what a browser would come back with.
        comments: how many there were.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self.comments = 0
        self._held = b""
        self._fields: dict[str, list[str]] = {}

    def receive(self, data: bytes) -> list[Event]:
        """The events that are complete."""
        self._held += data
        found: list[Event] = []
        # A CR at the end may be half of a CRLF: wait for what follows.
        while (match := re.search(rb"\r\n|\n|\r(?=[^\n])", self._held)) is not None:
            line, self._held = self._held[: match.start()], self._held[match.end() :]
            event = self._take(line.decode())
            if event is not None:
                found.append(event)
        return found

    def _take(self, line: str) -> Event | None:
        if not line:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            text = "\n".join(fields["data"])
            return Event(fields.get("event", ["message"])[-1], json.loads(text), self.last_id)
        name, _, value = line.partition(":")
        if not name:
            self.comments += 1
            return None
        value = value.removeprefix(" ")
        assert name in ("event", "data", "id"), line  # the server says nothing else
        if name == "id":
            self.last_id = value
        else:
            self._fields.setdefault(name, []).append(value)
        return None


class Events:
    """The events of one stream."""

    def __init__(self, response: Streamed) -> None:
        self.response = response
        self.reader = EventReader()
        self._waiting: list[Event] = []

    async def next(self) -> Event | None:
        """The next event; None at the end of the stream, however that came."""
        while not self._waiting:
            try:
                data = await self.response.receive()
            except h11.RemoteProtocolError:
                return None
            if not data:
                return None
            self._waiting += self.reader.receive(data)
        return self._waiting.pop(0)

    async def get(self, name: str = "message") -> Any:
        """The data of the next event, which must be one of that name."""
        event = await self.next()
        assert event is not None, "the stream has ended"
        assert event.name == name, event
        return event.data

    async def take(self, count: int) -> list[Any]:
        """The data of so many messages."""
        return [await self.get() for _ in range(count)]

    async def rest(self) -> list[Event]:
        """Everything up to the end of the stream."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def listen(
    server: Served, query: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Events]:
    """A stream that has been let in."""
    async with connect(server) as client:
        async with client.stream("GET", f"/v1/stream?{query}", headers) as response:
            assert response.status == 200, (response.status, await response.read())
            yield Events(response)
