"""Presence in mist.js over a connection that is cut: who joined and who left meanwhile is told."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mist.attributes import Attributes
from mist.auth import Enroll
from mist.client import connect
from tests.endpoints import web
from tests.servers import running
from tests.static.pages import ClientPage
from tests.static.test_fallback import Endpoints, Place, endpoints, settings
from tests.waiting import until

__all__ = ["endpoints"]  # a fixture

ROOM = "room:7"
SUBSCRIBE = f'{{"command":"subscribe","tags":["{ROOM}"]}}'
WATCH = """
window.changes = [];
window.room = client.presence(["room:7"], ({attendees, joined, left}) => {
  const users = (list) => list.map((each) => each.user).sort().join("");
  changes.push([attendees, joined, left].map(users));
});
"""


@pytest.fixture
async def place(tmp_path: Path, endpoints: Endpoints) -> AsyncIterator[Place]:
    presence = settings(presence=("room:*",))
    async with running(tmp_path, **presence) as server, connect(server.urls[0]) as services:
        await server.hub.registry.execute(
            [
                *(Enroll(name, frozenset({"room:*"}), Attributes(user=name)) for name in "ABC"),
                Enroll("ASKS", frozenset({"x", "@room:*"}), Attributes()),
            ]
        )
        yield endpoints.lead_to(server, services)


@pytest.mark.parametrize("transport", ["websocket", "sse", "polling"])
async def test_who_joined_and_left_while_a_connection_was_cut_is_told_once(
    page: ClientPage, place: Place, transport: str
) -> None:
    path = "/subscribe/websocket"
    async with web(place.server, path, "A") as a:
        await a.send_message(SUBSCRIBE)
        async with web(place.server, path, "B") as b:
            await b.send_message(SUBSCRIBE)
            for each in (a, b):
                await each.get_message()
            await page.start(place.url, token="ASKS", transports=[transport])
            await page.evaluate(WATCH)
            await page.until("changes.length > 0 && room.count === 2")
            place.http.refused = place.ws.refused = {b"GET "}
            await place.cut()
            proxies = place.http, place.ws
            tried = sum(each.connections for each in proxies)
            await until(lambda: sum(each.connections for each in proxies) > tried)
        async with web(place.server, path, "C") as c:
            await c.send_message(SUBSCRIBE)
            await c.get_message()
            place.http.refused = place.ws.refused = set()
            await page.until("room.count === 2 && changes.at(-1)[0] === 'AC'")
            changes = await page.evaluate("changes")
            assert [each[1] for each in changes].count("C") == 1
            assert [each[2] for each in changes].count("B") == 1
            assert await page.evaluate("room.attendees.map((it) => it.user).sort()") == ["A", "C"]
