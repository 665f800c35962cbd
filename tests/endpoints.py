"""Every endpoint of a server, as its own clients use it: publishers and receivers for tests.

A *scenario* is a kind of address: the tags of a message, and what each kind of client asks for
to get it. A receiver is opened with that and gives the data of each message it gets, in order; a
publisher publishes one message and returns when the server has it.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

import attrs
from trio_websocket import WebSocketConnection

from mist.bus import Bus
from mist.server import Server
from tests.http.client import connect, request
from tests.http.events import listen
from tests.servers import Served, listeners
from tests.transports.lines import talk
from tests.transports.websockets import open_websocket

__all__ = ["LISTEN", "PUBLISHERS", "RECEIVERS", "SCENARIOS", "Receive", "Scenario", "web"]

LISTEN = listeners("tcp", "ws", "http", "nats")

Receive = Callable[[], Awaitable[str]]
"""The data of the next message."""


@attrs.frozen
class Scenario:
    """One kind of address.

    Attributes:
        tags: of a message, as mist's own endpoints write them.
        asked: what mist's own endpoints subscribe to.
        subject, topic, channel: the same as NATS, guble and MessageBus say them; empty where
            they can't. What is published to and what is asked for.
    """

    tags: str
    asked: str
    subject: tuple[str, str] = ("", "")
    topic: tuple[str, str] = ("", "")
    channel: str = ""


SCENARIOS = {
    "tags": Scenario("eu,order", "order"),
    "topic": Scenario("/rooms/1", "/rooms", topic=("/rooms/1", "/rooms"), channel="/rooms/1"),
    "channel": Scenario(
        "/rooms/1", "=/rooms/1", topic=("/rooms/1", "/rooms/1"), channel="/rooms/1"
    ),
    "subject": Scenario(".order.eu", ".order.*", subject=("order.eu", "order.*")),
    "all at once": Scenario(
        ".order.eu,/rooms/1,urgent",
        ".order.>,/rooms,urgent",
        subject=("order.eu", "*.eu"),
        topic=("/rooms/1", "/rooms"),
        channel="/rooms/1",
    ),
}

CONNECT = b'CONNECT {"verbose":false,"pedantic":false%b}\r\n'


def user_of(token: str) -> str:
    """`7` of `token-7`: the user that a test gives a token."""
    return token.removeprefix("token-") if token.startswith("token-") else "marvin"


@asynccontextmanager
async def web(
    server: Served, path: str, token: str, subprotocols: Sequence[str] = ()
) -> AsyncIterator[WebSocketConnection]:
    headers = {"X-Auth-Token": token} if token else {}
    async with open_websocket(server, path, subprotocols=subprotocols, headers=headers) as socket:
        yield socket


# receivers: server, scenario, token -> Receive


@asynccontextmanager
async def lines(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with talk(server) as peer:
        await peer.ask(f"subscribe {scenario.asked}\n".encode())

        async def receive() -> str:
            word, tags, data = (await peer.line()).decode().removesuffix("\n").split(" ", 2)
            assert word == "publish"
            assert sorted(tags.split(",")) == sorted(scenario.tags.split(","))
            return data

        yield receive


@asynccontextmanager
async def json_lines(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with talk(server) as peer:
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        await peer.send(json.dumps(asked).encode() + b'{"command":"ping"}')
        assert json.loads(await peer.line()) == {"command": "ping", "data": "pong"}

        async def receive() -> str:
            found = json.loads(await peer.line())
            assert found["command"] == "publish"
            assert found["tags"] == sorted(scenario.tags.split(","))
            return str(found["data"])

        yield receive


@asynccontextmanager
async def frames(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with web(server, "/subscribe/websocket", token) as socket:
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        await socket.send_message(json.dumps(asked))
        assert json.loads(await socket.get_message())["success"]

        async def receive() -> str:
            found = json.loads(await socket.get_message())
            assert found["keys"] == sorted(scenario.tags.split(","))
            return str(found["data"])

        yield receive


@asynccontextmanager
async def json_frames(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with web(server, "/subscribe/websocket", token, ["mist.json"]) as socket:
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        await socket.send_message(json.dumps(asked))
        await socket.send_message('{"command":"ping"}')
        assert json.loads(await socket.get_message())["data"] == "pong"

        async def receive() -> str:
            return str(json.loads(await socket.get_message())["data"])

        yield receive


@asynccontextmanager
async def events(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with listen(
        server, f"tags={quote(scenario.asked)}", {"X-Auth-Token": token} if token else {}
    ) as stream:
        await stream.get("ready")

        async def receive() -> str:
            return str((await stream.get())["data"])

        yield receive


@asynccontextmanager
async def polls(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    """Long polling, each going on where the one before it ended."""
    headers = {"X-Auth-Token": token} if token else {}
    waiting: list[str] = []
    place = "0"

    async def receive() -> str:
        nonlocal place
        while not waiting:
            path = f"/v1/poll?tags={quote(scenario.asked)}&since={place}"
            found = (await request(server, "GET", path, headers)).json()
            waiting.extend(each["data"] for each in found["messages"])
            place = f"{found['epoch']}:{found['id']}"
        return waiting.pop(0)

    yield receive


@asynccontextmanager
async def subjects(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with talk(server, 3) as peer:
        await peer.line()
        auth = b',"auth_token":"%b"' % token.encode() if token else b""
        asked = scenario.subject[1].encode()
        await peer.send(CONNECT % auth + b"SUB %b 7\r\nPING\r\n" % asked)
        assert await peer.line() == b"PONG\r\n"

        async def receive() -> str:
            word, subject, sid, _ = (await peer.line()).split()
            assert (word, subject, sid) == (b"MSG", scenario.subject[0].encode(), b"7")
            return (await peer.line()).decode().removesuffix("\r\n")

        yield receive


@asynccontextmanager
async def topics(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with web(server, f"/stream/user/{user_of(token)}", token) as socket:
        assert (await socket.get_message()).startswith("#connected ")
        await socket.send_message(f"+ {scenario.topic[1]}")
        assert await socket.get_message() == f"#subscribed-to {scenario.topic[1]}"

        async def receive() -> str:
            head, _, data = (await socket.get_message()).split("\n", 2)
            assert head.split(",")[0] == scenario.topic[0]
            return str(data)

        yield receive


@asynccontextmanager
async def channels(server: Served, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    headers = {"Dont-Chunk": "true", "X-Auth-Token": token}
    waiting: list[str] = []
    place = 0

    async def receive() -> str:
        nonlocal place
        while not waiting:
            path = f"/message-bus/tab-of-{user_of(token)}/poll"
            found = await request(server, "POST", path, headers, json={scenario.channel: place})
            for each in found.json():
                if each["channel"] == "/__status":
                    place = each["data"][scenario.channel]
                else:
                    place = each["message_id"]
                    waiting.append(str(each["data"]))
        return waiting.pop(0)

    yield receive


RECEIVERS = {
    each.__name__: each
    for each in (
        lines,
        json_lines,
        frames,
        json_frames,
        events,
        polls,
        subjects,
        topics,
        channels,
    )
}


# publishers: server, scenario, data, token


async def publish_line(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with talk(server) as peer:
        assert await peer.ask(f"publish {scenario.tags} {data}\n".encode()) == []


async def publish_json(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with talk(server) as peer:
        sent = {"command": "publish", "tags": scenario.tags.split(","), "data": data}
        await peer.send(json.dumps(sent).encode() + b'{"command":"ping"}')
        assert json.loads(await peer.line())["data"] == "pong"


async def publish_frame(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with web(server, "/subscribe/websocket", token, ["mist.v1"]) as socket:
        sent = {"command": "publish", "tags": scenario.tags.split(","), "data": data}
        await socket.send_message(json.dumps(sent))
        assert json.loads(await socket.get_message())["success"]


async def publish_json_frame(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with web(server, "/subscribe/websocket", token, ["mist.json"]) as socket:
        sent = {"command": "publish", "tags": scenario.tags.split(","), "data": data}
        await socket.send_message(json.dumps(sent))
        await socket.send_message('{"command":"ping"}')
        assert json.loads(await socket.get_message())["data"] == "pong"


async def publish_http(server: Served, scenario: Scenario, data: str, token: str) -> None:
    body = {"tags": scenario.tags.split(","), "data": data}
    response = await request(server, "POST", "/v1/messages", json=body)
    assert response.status in (200, 202), response


async def publish_subject(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with talk(server, 3) as peer:
        await peer.line()
        subject = scenario.subject[0].encode()
        await peer.send(
            CONNECT % b"" + b"PUB %b %d\r\n%b\r\nPING\r\n" % (subject, len(data), data.encode())
        )
        assert await peer.line() == b"PONG\r\n"


async def publish_topic(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with web(server, "/stream/user/marvin", token) as socket:
        await socket.get_message()
        await socket.send_message(f"> {scenario.topic[0]} id1\n\n{data}")
        assert (await socket.get_message()).startswith("#send id1")


async def publish_topic_rest(server: Served, scenario: Scenario, data: str, token: str) -> None:
    async with connect(server) as client:
        path = f"/api/message{scenario.topic[0]}?userId=marvin"
        response = await client.request("POST", path, {}, data.encode())
    assert (response.status, response.body) == (200, b"OK")


async def publish_channel(server: Server, scenario: Scenario, data: str, token: str) -> None:
    await Bus(server.hub).publish(scenario.channel, data)


PUBLISHERS = {
    "lines": publish_line,
    "json": publish_json,
    "frames": publish_frame,
    "json frames": publish_json_frame,
    "http": publish_http,
    "subjects": publish_subject,
    "topics": publish_topic,
    "topics over http": publish_topic_rest,
    "channels": publish_channel,
}
