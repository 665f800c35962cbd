"""`--token-policy strict`, end to end: a token subscribes to nothing that isn't granted wholly.

For each endpoint that takes a token: what is asked for, and whether it is allowed. With the default
policy one granted tag suffices, for the same requests by the same token.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
from trio_websocket import WebSocketConnection

from mist.server import Server
from tests.endpoints import LISTEN, web
from tests.http.client import connect, request
from tests.servers import running
from tests.system.test_sites import ROWS, nats, protocols
from tests.transports.lines import talk

TOKEN = "strict-token"
GRANTS = ("room:1", "eu:*", "/rooms/1", ".order.>")
PATH = "/subscribe/websocket"

# What is asked for: allowed by `strict`, allowed by default.
SINGLE = {
    "room:1": (True, True),
    "eu:west": (True, True),
    "room:2": (False, False),
    "*": (False, False),
    "/rooms/1": (True, True),
    "/rooms/1/desk": (True, True),
    "=/rooms/1": (True, True),
    "/rooms": (False, False),
    "=/rooms": (False, False),
    ".order.eu": (True, True),
    ".order.*": (True, True),
    ".order.>": (True, True),
    ".*.eu": (False, False),
    ".>": (False, False),
}
SEVERAL = {
    "eu:west,room:1": (True, True),
    "/rooms/1,room:1": (True, True),
    ".order.*,eu:west,room:1": (True, True),
    "room:1,urgent": (False, True),
    "room:1,room:2": (False, True),
    "/rooms,room:1": (False, True),
    ".>,room:1": (False, True),
    "=/rooms/1,urgent": (False, True),
    "room:2,urgent": (False, False),
}
ALL = {**SINGLE, **SEVERAL}


def quoted(tags: str) -> str:
    return tags.replace(",", "%2C").replace(">", "%3E").replace("=", "%3D").replace("*", "%2A")


async def by_frames(server: Server, tags: str) -> bool:
    async with web(server, PATH, TOKEN) as socket:
        return await ask_frames(socket, [tags.split(",")])


async def ask_frames(socket: WebSocketConnection, subscriptions: Sequence[Sequence[str]]) -> bool:
    asked = {"command": "subscribe", "subscriptions": subscriptions}
    await socket.send_message(json.dumps(asked))
    return bool(json.loads(await socket.get_message())["success"])


async def by_frames_behind_one_that_is_granted(server: Server, tags: str) -> bool:
    async with web(server, PATH, TOKEN) as socket:
        return await ask_frames(socket, [["room:1"], tags.split(",")])


async def by_frames_since(server: Server, tags: str) -> bool:
    async with web(server, PATH, TOKEN) as socket:
        asked = {"command": "subscribe", "tags": tags.split(","), "since": 0}
        await socket.send_message(json.dumps(asked))
        return bool(json.loads(await socket.get_message())["success"])


async def by_json_frames(server: Server, tags: str) -> bool:
    async with web(server, PATH, TOKEN, ["mist.json"]) as socket:
        asked = {"command": "subscribe", "tags": tags.split(",")}
        await socket.send_message(json.dumps(asked))
        await socket.send_message('{"command":"ping"}')
        return "error" not in json.loads(await socket.get_message())


async def by_events(server: Server, tags: str) -> bool:
    async with connect(server) as client:
        headers = {"X-Auth-Token": TOKEN}
        async with client.stream("GET", f"/v1/stream?tags={quoted(tags)}", headers) as answer:
            assert answer.status in (200, 403)
            return answer.status == 200


def by_request(path: str) -> Callable[[Server, str], Awaitable[bool]]:
    async def allowed(server: Server, tags: str) -> bool:
        headers = {"X-Auth-Token": TOKEN}
        answer = await request(server, "GET", path.format(tags=quoted(tags)), headers)
        assert answer.status in (200, 403), answer
        return answer.status == 200

    return allowed


async def by_subject(server: Server, tags: str) -> bool:
    async with nats(server, TOKEN) as peer:
        return await peer.ask(f"SUB {tags.removeprefix('.')} 1\r\n".encode()) == []


async def by_queue(server: Server, tags: str) -> bool:
    async with nats(server, TOKEN) as peer:
        return await peer.ask(f"SUB {tags.removeprefix('.')} group 1\r\n".encode()) == []


async def by_topic(server: Server, tags: str) -> bool:
    async with web(server, "/stream/user/u", TOKEN) as socket:
        await socket.get_message()
        await socket.send_message(f"+ {tags}")
        return (await socket.get_message()).startswith("#subscribed-to ")


async def by_fetch(server: Server, tags: str) -> bool:
    async with web(server, "/stream/user/u", TOKEN) as socket:
        await socket.get_message()
        await socket.send_message(f"+ {tags} 0 10")
        return (await socket.get_message()).startswith("#fetch-start ")


async def by_channel(server: Server, tags: str) -> bool:
    path, headers = "/message-bus/u/poll?dlp=t", {"X-Auth-Token": TOKEN}
    channel = tags.removeprefix("=")
    answer = await request(server, "POST", path, headers, json={channel: -1})
    assert answer.status in (200, 403), answer
    return answer.status == 200


SUBJECTS = {tags: both for tags, both in SINGLE.items() if tags.startswith(".")}
TOPICS = {tags: both for tags, both in SINGLE.items() if tags.startswith("/")}
CHANNELS = {tags: both for tags, both in SINGLE.items() if tags.startswith("=")}

# Each way to subscribe or to read: what can be asked for in it, and which endpoint that is.
ENDPOINTS = {
    by_frames: (ALL, "FrameProtocol"),
    by_frames_behind_one_that_is_granted: (ALL, "FrameProtocol"),
    by_frames_since: (ALL, "FrameProtocol"),
    by_json_frames: (ALL, "JsonFrameProtocol"),
    by_events: (ALL, "GET /v1/stream"),
    by_request("/v1/poll?tags={tags}&timeout=0"): (ALL, "GET /v1/poll"),
    by_request("/v1/poll?tags=room:1&tags={tags}&timeout=0"): (ALL, "GET /v1/poll"),
    by_request("/v1/messages?tags={tags}"): (ALL, "GET /v1/messages"),
    by_request("/v1/messages?tags=room:1&tags={tags}"): (ALL, "GET /v1/messages"),
    by_request("/v1/log?subscribe={tags}"): (ALL, "GET /v1/log"),
    by_request("/v1/log?subscribe=room:1%3B{tags}"): (ALL, "GET /v1/log"),
    by_subject: (SUBJECTS, "SubjectProtocol"),
    by_queue: (SUBJECTS, "SubjectProtocol"),
    by_topic: (TOPICS, "TopicProtocol"),
    by_fetch: (TOPICS, "TopicProtocol"),
    by_channel: (CHANNELS, "POST /message-bus/{client_id}/poll"),
}


async def register(server: Server) -> None:
    async with talk(server) as peer:
        assert await peer.ask(f"register {','.join(GRANTS)} {TOKEN}\n".encode()) == []


@pytest.mark.parametrize("policy", ["strict", "any"])
async def test_what_a_token_may_ask_for(tmp_path: Path, policy: str) -> None:
    settings = {"listen": LISTEN, "history": "memory://", "token_rate": 100_000}
    async with running(tmp_path, token_policy=policy, **settings) as server:
        await register(server)
        with trio.fail_after(100):
            for allowed, (asked, endpoint) in ENDPOINTS.items():
                for tags, (strictly, by_default) in asked.items():
                    expected = strictly if policy == "strict" else by_default
                    assert await allowed(server, tags) is expected, (endpoint, tags)


def test_every_endpoint_that_delivers_is_in_the_table() -> None:
    delivering = set().union(*(row.covers for row in ROWS.values() if row.hears))
    assert {endpoint for _, endpoint in ENDPOINTS.values()} == delivering
    # Those of services have no token, so no policy holds for them.
    assert set(protocols()) - delivering == {
        "LineProtocol",
        "JsonProtocol",
        "JsonDialect",
        "Undecided",
    }


async def test_a_tag_that_is_taken_ends_what_is_not_granted_wholly_any_more(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, listen=LISTEN, token_policy="strict") as server:
        await register(server)
        with trio.fail_after(30):
            async with web(server, PATH, TOKEN) as socket, talk(server) as admin:
                for tags in (["room:1"], ["room:1", "eu:west"], ["room:1", "/rooms/1"]):
                    assert await ask_frames(socket, [tags])
                assert await admin.ask(f"unset eu:* {TOKEN}\n".encode()) == []
                revoked = json.loads(await socket.get_message())
                assert (revoked["command"], revoked["tags"]) == ("revoked", ["eu:west", "room:1"])
                await admin.ask(b"publish eu:west,room:1 seen\npublish /rooms/1,room:1 too\n")
                got = [json.loads(await socket.get_message())["data"] for _ in range(2)]
                assert got == ["seen", "too"]  # each once, for `room:1`
                assert await admin.ask(f"unset room:1 {TOKEN}\n".encode()) == []
                for _ in range(2):
                    assert json.loads(await socket.get_message())["command"] == "revoked"
                await admin.ask(b"publish /rooms/1,room:1 unseen\n")
                await socket.send_message('{"command":"list"}')
                assert json.loads(await socket.get_message())["subscriptions"] == []


async def test_services_are_held_to_no_policy(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, token_policy="strict") as server:
        async with talk(server) as peer:
            assert await peer.ask(b"subscribe anything,at-all\nsubscribe *\n") == []
