"""Two sites on one server: nothing of the one reaches the other, at any endpoint.

What a token of site b can see is looked at twice: in a world where site a is silent, and in one
where it is busy at every endpoint. Both must look the same. The table `ROWS` names for each way
to look which endpoints it covers; one that is in no row fails the test.

Ids are one log's and a channel's numbers one channel's, of all sites together, so they are not
compared: from two of them anyone can tell how much was published in between, as documented.
"""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
import trio

from mist.attributes import Attributes
from mist.bus import Bus
from mist.commands import Register, SetAttributes
from mist.protocols import Protocol
from mist.server import Server
from tests.endpoints import LISTEN, PUBLISHERS, RECEIVERS, SCENARIOS, Scenario, web
from tests.http import arrow
from tests.http.client import Response, connect, request
from tests.http.events import Events, listen
from tests.servers import running
from tests.transports.lines import Lines, talk

A, B = "token-a", "token-b"
GRANTS = frozenset({"*", ">*", "@*", "/", ">/", ".>", ">.>"})
PATH = "/subscribe/websocket"
CONNECT = 'CONNECT {"verbose":false,"headers":true,"no_responders":true,"auth_token":"%s"}\r\n'


@attrs.frozen
class World:
    """A server with two sites, and a kind of address that both use.

    Attributes:
        busy: whether site a does anything.
    """

    server: Server
    scenario: Scenario
    busy: bool

    async def disturb(self) -> None:
        """Site a publishes at every endpoint, where it is busy; all of it says `alpha`."""
        if self.busy:
            for publish in PUBLISH.values():
                await publish(self, A, "alpha")

    async def tell(self, data: str) -> None:
        """Site b is told something, by its own."""
        await publish_http(self, B, data)

    async def ask(self, method: str, path: str, token: str = B, **more: Any) -> Response:
        """A request with a token."""
        headers = {"X-Auth-Token": token, **more.pop("headers", {})}
        return await request(self.server, method, path, headers, **more)


@asynccontextmanager
async def world_with(folder: Path, scenario: Scenario, busy: bool) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            running(folder, listen=LISTEN, history="memory://", token_rate=100_000, presence=("*",))
        )
        for token in (A, B):
            site = Attributes.of_json({"site": token[-1]})
            await server.hub.registry.execute([Register(token, GRANTS), SetAttributes(token, site)])
        world = World(server, scenario, busy)
        if busy:
            for endpoint, receiver in RECEIVERS.items():
                if speaks(endpoint, scenario) and endpoint not in SERVICES:
                    await stack.enter_async_context(receiver(server, scenario, A))
            await stack.enter_async_context(subscribed_alone(server))
        await world.disturb()
        await world.tell("before")
        await world.disturb()
        yield world


@asynccontextmanager
async def subscribed_alone(server: Server) -> AsyncIterator[None]:
    """Site a is subscribed to what nobody else is."""
    async with web(server, PATH, A, ["mist.json"]) as socket, nats(server, A) as peer:
        await socket.send_message('{"command":"subscribe","tags":["alpha"]}')
        await peer.ask(b"SUB alpha.requests 1\r\n")
        yield


SERVICES = {"lines", "json_lines"}  # without a token, and so of no site
ADDRESSES = {"subjects": "subject", "topics": "topic"}


def speaks(endpoint: str, scenario: Scenario) -> bool:
    if endpoint in ADDRESSES:
        return bool(getattr(scenario, ADDRESSES[endpoint])[0])
    return endpoint != "channels" or bool(scenario.channel)


# publishing, as a token of site a may try it; what the scenario's address can't be said in is left


async def publish_http(world: World, token: str, data: str) -> None:
    body = {"tags": world.scenario.tags.split(","), "data": data}
    assert (await world.ask("POST", "/v1/messages", token, json=body)).status == 200


async def publish_http_to_another_site(world: World, token: str, data: str) -> None:
    body = {"tags": world.scenario.tags.split(","), "data": data, "to": {"site": "b"}}
    assert (await world.ask("POST", "/v1/messages", token, json=body)).status == 200


async def publish_frame(world: World, token: str, data: str) -> None:
    for more in ({}, {"to": {"site": "b"}}):
        async with web(world.server, PATH, token, ["mist.v1"]) as socket:
            tags = world.scenario.tags.split(",")
            sent = {"command": "publish", "tags": tags, "data": data, **more}
            await socket.send_message(json.dumps(sent))
            assert json.loads(await socket.get_message())["success"]


async def publish_frames(world: World, token: str, data: str) -> None:
    await PUBLISHERS["json frames"](world.server, world.scenario, data, token)


async def publish_subject(world: World, token: str, data: str) -> None:
    if subject := world.scenario.subject[0]:
        async with nats(world.server, token) as peer:
            assert await peer.ask(f"PUB {subject} {len(data)}\r\n{data}\r\n".encode()) == []


async def publish_topic(world: World, token: str, data: str) -> None:
    if topic := world.scenario.topic[0]:
        async with web(world.server, "/stream/user/alpha", token) as socket:
            await socket.get_message()
            await socket.send_message(f"> {topic} id1\n\n{data}")
            assert (await socket.get_message()).startswith("#send id1")


async def publish_topic_rest(world: World, token: str, data: str) -> None:
    if topic := world.scenario.topic[0]:
        path = f"/api/message{topic}?userId=alpha"
        assert (await world.ask("POST", path, token, body=data.encode())).body == b"OK"


async def publish_staged(world: World, token: str, data: str) -> None:
    headers = {"X-Auth-Token": token}
    txn = f"txn{world.server.hub.sequencer.newest}"  # type: ignore[union-attr]
    rows = arrow.rows((world.scenario.tags, data))
    put = await arrow.put(world.server, arrow.path(txn=txn), rows, headers)
    assert put.status < 300, put
    committed = await arrow.commit(world.server, (0, 0, 1), txn=txn, headers=headers)
    assert committed.status == 200, committed


async def publish_line(world: World, token: str, data: str) -> None:
    async with talk(world.server) as peer:
        line = f"publish-to site={token[-1]} {world.scenario.tags} {data}\n"
        assert await peer.ask(line.encode()) == []


async def publish_channel(world: World, token: str, data: str) -> None:
    if channel := world.scenario.channel:
        await Bus(world.server.hub).publish(channel, data, site_id=token[-1])


PUBLISH: dict[str, Callable[[World, str, str], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        publish_http,
        publish_http_to_another_site,
        publish_frame,
        publish_frames,
        publish_subject,
        publish_topic,
        publish_topic_rest,
        publish_staged,
        publish_line,
        publish_channel,
    )
}


# looking; each returns what it saw, without ids and times


class Nats(Lines):
    """A peer whose fence is a PING."""

    async def ask(self, data: bytes) -> list[bytes]:
        await self.send(data + b"PING\r\n")
        found = []
        while (line := await self.line()) not in (b"PONG\r\n", b""):
            found.append(line)
        return found


@asynccontextmanager
async def nats(server: Server, token: str) -> AsyncIterator[Nats]:
    async with talk(server, 3) as peer:
        await peer.line()
        talking = Nats(peer.stream)
        assert await talking.ask((CONNECT % token).encode()) == []
        yield talking


def live(endpoint: str) -> Callable[[World], Awaitable[object]]:
    async def look(world: World) -> object:
        if not speaks(endpoint, world.scenario):
            return None
        async with RECEIVERS[endpoint](world.server, world.scenario, B) as receive:
            await world.disturb()
            await world.tell("during")
            await world.disturb()
            await world.tell("last")
            found = [await receive()]
            while found[-1] != "last":
                found.append(await receive())
            return found

    return look


async def frames_again(world: World) -> object:
    """A replay by frames."""
    async with web(world.server, PATH, B) as socket:
        asked = world.scenario.asked.split(",")
        await socket.send_message(json.dumps({"command": "subscribe", "tags": asked, "since": 0}))
        await socket.send_message('{"command":"ping"}')
        found = []
        while (answer := json.loads(await socket.get_message())).get("command") != "ping":
            found.append({key: answer[key] for key in answer if key not in ("id", "epoch")})
        return found


async def events_again(world: World) -> object:
    await world.tell("last")
    query = f"tags={world.scenario.asked.replace('>', '%3E').replace(',', '%2C')}&since=0"
    async with listen(world.server, query, {"X-Auth-Token": B}) as stream:
        found: list[object] = [(await stream.get("ready"))["recovered"]]
        while found[-1] != "last":
            found.append((await stream.get())["data"])
        return found


async def topics_again(world: World) -> object:
    """A fetch, which says first how many messages there are."""
    if not world.scenario.topic[0]:
        return None
    path = world.scenario.topic[1]
    async with web(world.server, "/stream/user/beta", B) as socket:
        await socket.get_message()
        await socket.send_message(f"+ {path} 0")
        found = []
        while (frame := await socket.get_message()) != f"#subscribed-to {path}":
            head, _, rest = frame.partition("\n")
            found.append(head if head.startswith("#") else rest)
        return found


async def channels_again(world: World) -> object:
    """A backlog, and a status: how far it is behind the last message of b's."""
    channel = world.scenario.channel
    if not channel:
        return None
    found = []
    headers = {"Dont-Chunk": "true"}
    path = "/message-bus/beta/poll?dlp=t"
    last = 0
    for place in (0, -1):
        answer = await world.ask("POST", path, headers=headers, json={channel: place})
        for each in answer.json():
            if each["channel"] == "/__status":
                found.append(each["data"][channel] - last)
            else:
                last = each["message_id"]
                found.append(each["data"])
    return found


async def search(world: World) -> object:
    asked = world.scenario.asked.replace(">", "%3E")
    page = (await world.ask("GET", f"/v1/messages?tags={asked}&since=0")).json()
    return [
        {key: each[key] for key in each if key not in ("id", "time")} for each in page["messages"]
    ]


async def the_last_few(world: World) -> object:
    """The last few that match, at every endpoint that has a word for them."""
    found: dict[str, object] = {}
    asked = world.scenario.asked
    query = f"tags={asked.replace('>', '%3E').replace(',', '%2C')}&since=-2"
    await world.tell("last")
    await world.disturb()
    async with web(world.server, PATH, B) as socket:
        command = {"command": "subscribe", "tags": asked.split(","), "since": -2}
        await socket.send_message(json.dumps(command))
        await socket.get_message()
        found["frames"] = [json.loads(await socket.get_message())["data"] for _ in range(2)]
    async with listen(world.server, query, {"X-Auth-Token": B}) as stream:
        await stream.get("ready")
        found["events"] = [(await stream.get())["data"] for _ in range(2)]
    for path in ("/v1/messages", "/v1/poll"):
        page = (await world.ask("GET", f"{path}?{query}")).json()
        found[path] = [each["data"] for each in page["messages"]]
    path = world.scenario.topic[1]
    if world.scenario.topic[0]:
        async with web(world.server, "/stream/user/beta", B) as socket:
            await socket.get_message()
            await socket.send_message(f"+ {path} -2 2")
            frames = [await socket.get_message() for _ in range(4)]
            found["topics"] = [frames[0], *(each.rpartition("\n")[2] for each in frames[1:3])]
    return found


async def read_log(world: World) -> object:
    asked = world.scenario.asked.replace(">", "%3E")
    answer = await world.ask("GET", f"/v1/log?subscribe={asked}")
    assert answer.status == 200, answer
    table = pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()
    return table.column("data").to_pylist(), table.column("tags").to_pylist()


async def position(world: World) -> object:
    return sorted((await world.ask("GET", "/v1/log/position")).json())


async def lists(world: World) -> object:
    """What a token's own session may ask about all of them."""
    found = []
    for subprotocols in ((), ("mist.json",)):
        async with web(world.server, PATH, B, subprotocols) as socket:
            for command in ("list", "listall", "who"):
                await socket.send_message(json.dumps({"command": command}))
                found.append(json.loads(await socket.get_message()))
    return found


async def responders(world: World) -> object:
    """A request that only site a could answer, and a queue group with members of both sites."""
    found: list[object] = []
    async with nats(world.server, B) as peer, nats(world.server, A) as other:
        await peer.ask(b"SUB inbox.beta 1\r\n")
        found.append(await peer.ask(b"PUB alpha.requests inbox.beta 1\r\nx\r\n"))
        async with nats(world.server, B) as answering:
            await answering.ask(b"SUB beta.requests 1\r\n")
            found.append(await peer.ask(b"PUB beta.requests inbox.beta 1\r\nx\r\n"))
            found.append(await answering.ask(b""))
        await peer.ask(b"SUB work.b group 2\r\n")
        if world.busy:
            for _ in range(5):
                await other.ask(b"SUB work.b group 2\r\n")
        found.append(await peer.ask(b"PUB work.b 1\r\nx\r\n" * 20))
        if world.busy:
            assert await other.ask(b"") == []
    return found


async def public(world: World) -> object:
    """What everyone is told."""
    found = []
    for path in ("/healthz", "/readyz", "/mist.js", "/mist.d.ts", "/", "/openapi.json"):
        answer = await world.ask("GET", path)
        found.append((path, answer.status, answer.body))
    answer = await world.ask("GET", "/v1/endpoints")
    found.append(("/v1/endpoints", answer.status, sorted(answer.json())))
    return found


async def ticket(world: World) -> object:
    host = next(url for url in world.server.urls if url.startswith("http"))
    answer = await world.ask("POST", "/v1/tickets", headers={"Origin": host.rstrip("/")}, json={})
    return answer.status, sorted(answer.json())


async def presence(world: World) -> object:
    """Who is there: both sites are, where there is another."""
    found: list[object] = []
    query = "/v1/presence{}?tags=room.1"
    async with AsyncExitStack() as stack:
        for token in (A, B) if world.busy else (B,):
            socket = await stack.enter_async_context(web(world.server, PATH, token))
            await socket.send_message('{"command":"subscribe","tags":["room.1"]}')
            await socket.get_message()
        answer = (await world.ask("GET", query.format(""))).json()
        found.append((answer["count"], len(answer["present"])))
        async with connect(world.server) as client:
            headers = {"X-Auth-Token": B}
            path = query.format("/stream")
            async with client.stream("GET", path, headers) as response:
                found.append((await Events(response).get("presence"))["count"])
        for subprotocols in ((), ("mist.json",)):
            async with web(world.server, PATH, B, subprotocols) as socket:
                await socket.send_message('{"command":"presence","tags":["room.1"]}')
                found.append(json.loads(await socket.get_message())["count"])
    return found


REFUSED = {
    "GET /api/subscribers/{topic}": "/api/subscribers/rooms/1",
    "GET /metrics": "/metrics",
    "GET /v1/connections": "/v1/connections",
    "GET /v1/connections/{name}": "/v1/connections/tcp-1",
    "DELETE /v1/connections/{name}": "/v1/connections/tcp-1",
    "POST /v1/log/erase": "/v1/log/erase",
    "POST /v1/log/seal": "/v1/log/seal",
    "GET /v1/nodes": "/v1/nodes",
    "POST /v1/revocations": "/v1/revocations",
    "GET /v1/stats": "/v1/stats",
    "GET /v1/stats/history": "/v1/stats/history",
    "GET /v1/stats/subscriptions": "/v1/stats/subscriptions",
    "GET /v1/subscriptions": "/v1/subscriptions",
    "GET /v1/tags": "/v1/tags",
    "GET /v1/tokens": "/v1/tokens",
    "PUT /v1/tokens": "/v1/tokens",
    "POST /v1/token-lookup": "/v1/token-lookup",
    "GET /v1/tokens/{id}": "/v1/tokens/0123456789abcdef",
    "PATCH /v1/tokens/{id}": "/v1/tokens/0123456789abcdef",
    "DELETE /v1/tokens/{id}": "/v1/tokens/0123456789abcdef",
}


async def refused(world: World) -> object:
    """What only services may ask."""
    found = []
    for operation, path in REFUSED.items():
        method = operation.split()[0]
        body = None if method == "GET" else {}
        answer = await world.ask(method, path, json=body)
        assert answer.status == 403, (operation, answer)
        found.append(answer.json()["code"])
    return found


@attrs.frozen
class Row:
    """A way to look, and the endpoints that it covers: operations of HTTP, protocols."""

    look: Callable[[World], Awaitable[object]]
    covers: frozenset[str]
    hears: bool = True  # whether it sees messages of its own site


def row(look: Callable[[World], Awaitable[object]], *covers: str, hears: bool = True) -> Row:
    return Row(look, frozenset(covers), hears)


FEW = ("stream", "messages", "poll")
ROWS = {
    "frames": row(live("frames"), "FrameProtocol"),
    "json frames": row(live("json_frames"), "JsonFrameProtocol"),
    "events": row(live("events"), "GET /v1/stream"),
    "polls": row(live("polls"), "GET /v1/poll"),
    "subjects": row(live("subjects"), "SubjectProtocol"),
    "topics": row(live("topics"), "TopicProtocol"),
    "channels": row(live("channels"), "POST /message-bus/{client_id}/poll"),
    "frames, replayed": row(frames_again, "FrameProtocol"),
    "events, replayed": row(events_again, "GET /v1/stream"),
    "topics, replayed": row(topics_again, "TopicProtocol"),
    "channels, replayed": row(channels_again, "POST /message-bus/{client_id}/poll"),
    "search": row(search, "GET /v1/messages"),
    "the last few": row(
        the_last_few, "FrameProtocol", "TopicProtocol", *(f"GET /v1/{each}" for each in FEW)
    ),
    "log": row(read_log, "GET /v1/log"),
    "position": row(position, "GET /v1/log/position", hears=False),
    "lists": row(lists, "FrameProtocol", "JsonFrameProtocol", hears=False),
    "responders": row(responders, "SubjectProtocol", hears=False),
    "public": row(
        public,
        *(
            "GET /",
            "GET /healthz",
            "GET /mist.d.ts",
            "GET /mist.js",
            "GET /mist.min.js.map",
            "GET /openapi.json",
        ),
        *("GET /readyz", "GET /v1/endpoints"),
        hears=False,
    ),
    "presence": row(
        presence,
        *("GET /v1/presence", "GET /v1/presence/stream", "FrameProtocol", "JsonFrameProtocol"),
        hears=False,
    ),
    "ticket": row(ticket, "POST /v1/tickets", hears=False),
    "refused": row(refused, *REFUSED, hears=False),
}
# What only publishes, which site a does in every row; and what tells nothing.
PUBLISHING = {
    "POST /v1/messages",
    "POST /api/message/{topic}",
    "PUT /v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{part}",
    "POST /v1/log/commit",
    "DELETE /v1/log/stage/{txn}/{batch}",
    "OPTIONS /message-bus/{client_id}/poll",
}
# Those of services, who have no token and are told everything; and what has none of its own.
OF_SERVICES = {"LineProtocol", "JsonProtocol", "JsonDialect", "Undecided"}


def protocols(kind: type = Protocol) -> Iterator[str]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("mist."):
            yield each.__name__
        yield from protocols(each)


async def test_every_endpoint_is_in_the_table(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        page = (await request(server, "GET", "/openapi.json")).json()
    there = {
        f"{method.upper()} {path}" for path, methods in page["paths"].items() for method in methods
    }
    there |= set(protocols())
    covered = set().union(*(each.covers for each in ROWS.values()))
    assert there == covered | PUBLISHING | OF_SERVICES
    assert not covered & (PUBLISHING | OF_SERVICES)


@pytest.mark.parametrize("name", ["tags", "channel", "topic", "subject"])
async def test_nothing_of_one_site_reaches_another(tmp_path: Path, name: str) -> None:
    seen: dict[bool, dict[str, object]] = {}
    for busy in (False, True):
        async with world_with(tmp_path / str(busy), SCENARIOS[name], busy) as world:
            seen[busy] = {}
            for each, row in ROWS.items():
                with trio.fail_after(30):
                    seen[busy][each] = await row.look(world)
    for each, row in ROWS.items():
        assert seen[True][each] == seen[False][each], each
        if row.hears and seen[True][each] is not None:
            assert "before" in repr(seen[True][each]) or "last" in repr(seen[True][each]), each
    assert "alpha" not in repr(seen[True])


async def test_the_busy_world_is_busy(tmp_path: Path) -> None:
    for scenario in SCENARIOS.values():
        async with world_with(tmp_path / scenario.tags.replace("/", "_"), scenario, True) as world:
            path = f"/v1/messages?tags={scenario.asked.replace('>', '%3E')}&since=0"
            of_a = (await world.ask("GET", path, A)).json()["messages"]
            # Not those that can say one address only, where the scenario has several.
            least = 4 if "," in scenario.tags else len(PUBLISH) - 4
            assert [each["data"] for each in of_a].count("alpha") >= 2 * least
