"""Polls of the MessageBus dialect, as its client sends them, and what they are answered."""

import json
from urllib.parse import urlencode

import trio
import trio.testing

from tests.http.client import connect, request
from tests.servers import listeners
from tests.waiting import until

TOKEN = "t0ken-that-no-log-may-hold"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
SECRET = {"Authorization": "Bearer s3cret"}
PLAIN = {"Dont-Chunk": "true"}
LISTEN = listeners("tcp", "http")
SETTINGS = {
    "listen": LISTEN,
    "history": "memory://",
    "secret": "s3cret",
    "token_rate": 100_000,
    "request_rate": 100_000,
}
FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=UTF-8"}


async def ask(server, places, headers=WITH_TOKEN, *, client="c1", dlp=True, form=False, **more):
    """A plain poll, by default one that doesn't wait; the whole response."""
    path = f"/message-bus/{client}/poll{'?dlp=t' if dlp else ''}"
    headers = {**PLAIN, **headers}
    if form:
        body = urlencode(places).encode()
        return await request(server, "POST", path, {**FORM, **headers}, body, **more)
    return await request(server, "POST", path, headers, json=places, **more)


async def poll(server, places, headers=WITH_TOKEN, **options):
    """What an answer holds."""
    response = await ask(server, places, headers, **options)
    assert response.status == 200, response
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    return response.json()


def told(answer):
    """Channel and data of each message; of a status, what it says."""
    return [(each["channel"], each["data"]) for each in answer]


def numbers(answer):
    return [each["message_id"] for each in answer if each["message_id"] > 0]


def status(**places):
    return ("/__status", {f"/{name}": place for name, place in places.items()})


async def waiting(server):
    """Until a poll waits for what comes."""
    await until(server.hub.broker.tag_sets)
    await trio.testing.wait_all_tasks_blocked(0.02)


class Chunked:
    """A chunked poll that is under way."""

    def __init__(self, streamed):
        self.streamed = streamed
        self._rest = b""

    async def chunk(self):
        """The next array."""
        while b"\r\n|\r\n" not in self._rest:
            data = await self.streamed.receive()
            assert data, self._rest
            self._rest += data
        chunk, _, self._rest = self._rest.partition(b"\r\n|\r\n")
        return json.loads(chunk)

    async def ended(self):
        """Whether nothing but the end comes."""
        return not self._rest and not await self.streamed.receive()


class Polling:
    """`async with chunked(server, places) as poll`."""

    def __init__(self, server, places, headers=WITH_TOKEN, client="c1"):
        self._connection = connect(server)
        self._places, self._headers, self._client = places, headers, client

    async def __aenter__(self):
        http = await self._connection.__aenter__()
        path = f"/message-bus/{self._client}/poll"
        await http.send_request("POST", path, self._headers, json=self._places)
        return Chunked(await http.receive_head())

    async def __aexit__(self, *error):
        await self._connection.__aexit__(*error)
