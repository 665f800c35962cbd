"""JWTs and credentials of a callout that are revoked: sessions end at once, at every node."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from mist.server import Server
from tests.auth.jwt.issuer import write_jwks
from tests.endpoints import LISTEN, SCENARIOS, publish_http, web
from tests.http.client import request
from tests.processes import token_key
from tests.servers import running
from tests.system.nodes import ON_REDIS, engine_server
from tests.system.test_callout import serving as serving_callout
from tests.system.test_jwt import ENDS, ended_lines, token
from tests.system.test_jwt import serving as serving_jwt
from tests.transports.lines import talk
from tests.waiting import until

ALL = SCENARIOS["all at once"]
PATH = "/subscribe/websocket"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving_jwt(tmp_path) as server:
        yield server


async def revoke(server: Server, kind: str, value: str) -> None:
    async with talk(server) as service:
        assert await service.ask(f"revoke-jwt {kind} {value}\n".encode()) == []


@asynccontextmanager
async def subscribed(server: Server, text: str) -> AsyncIterator[WebSocketConnection]:
    async with web(server, PATH, text, ["mist.v1"]) as socket:
        await socket.send_message('{"command":"subscribe","tags":["urgent"]}')
        assert json.loads(await socket.get_message())["success"]
        yield socket


async def closed(socket: WebSocketConnection) -> str:
    with trio.fail_after(5), pytest.raises(ConnectionClosed) as caught:
        await socket.get_message()
    assert caught.value.reason is not None
    return f"{caught.value.reason.code} {caught.value.reason.reason}"


async def hears(server: Server, socket: WebSocketConnection) -> bool:
    await publish_http(server, ALL, "still here", "")
    return bool(json.loads(await socket.get_message())["data"] == "still here")


@pytest.mark.parametrize("way", ENDS)
async def test_a_session_ends_when_its_jwt_is_revoked(server: Server, way: str) -> None:
    end, said = ENDS[way]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def session() -> None:
                assert (await end(server, token(jti="t1"))).lower() == said.format(
                    "revoked"
                ).lower()

            await until(lambda: server.hub.sessions.connected)
            await trio.sleep(0.05)
            await revoke(server, "jti", "t1")


async def test_a_line_ends_when_its_jwt_is_revoked(server: Server) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def session() -> None:
                assert await ended_lines(server, token(jti="t1")) == "error Token revoked\n"

            await until(lambda: any(each.record for each in server.hub.sessions))
            await revoke(server, "jti", "t1")


async def test_by_jti_one_token_ends_and_by_sub_all_of_the_user(server: Server) -> None:
    async with (
        subscribed(server, token(jti="t1")) as one,
        subscribed(server, token(jti="t2")) as two,
        subscribed(server, token(jti="t3", sub="ford")) as other,
    ):
        await revoke(server, "jti", "t1")
        assert await closed(one) == "4401 token revoked"
        assert await hears(server, two)
        await revoke(server, "sub", "marvin")
        assert await closed(two) == "4401 token revoked"
        await other.get_message()
        assert await hears(server, other)


async def test_a_revoked_jwt_is_refused_and_counted(server: Server) -> None:
    await revoke(server, "jti", "t1")
    path = "/v1/poll?tags=urgent&timeout=0"
    answer = await request(server, "GET", path, {"X-Auth-Token": token(jti="t1")})
    assert (answer.status, answer.json()["detail"]) == (401, "the token was revoked")
    [authority] = server.hub.credentials.authorities
    assert authority.counts["jwt"]["revoked"] == 1


async def test_a_user_gets_in_with_what_is_issued_later(server: Server) -> None:
    before = token()
    await revoke(server, "sub", "marvin")
    path = "/v1/poll?tags=urgent&timeout=0"
    assert (await request(server, "GET", path, {"X-Auth-Token": before})).status == 401
    later = token(iat=int(server.hub.now()) + 1)
    assert (await request(server, "GET", path, {"X-Auth-Token": later})).status == 200


async def test_a_session_that_has_another_jwt_by_now_stays(server: Server) -> None:
    async with subscribed(server, token(jti="t1")) as socket:
        await socket.send_message(json.dumps({"command": "auth", "token": token(jti="t2")}))
        assert json.loads(await socket.get_message())["success"]
        await revoke(server, "jti", "t1")
        assert await hears(server, socket)
        await revoke(server, "jti", "t2")
        assert await closed(socket) == "4401 token revoked"
    await until(lambda: not server.hub.sessions._by_mark)


async def test_a_ticket_dies_with_a_jwt_that_is_revoked(server: Server) -> None:
    page = {"Origin": "http://localhost:3000"}
    headers = {"X-Auth-Token": token(jti="t1"), **page}
    ticket = (await request(server, "POST", "/v1/tickets", headers, json={})).json()["ticket"]
    await revoke(server, "jti", "t1")
    path = f"/v1/poll?tags=urgent&timeout=0&ticket={ticket}"
    assert (await request(server, "GET", path, page)).status == 401


async def test_over_http(server: Server) -> None:
    async with subscribed(server, token(jti="t1")) as socket:
        answer = await request(server, "POST", "/v1/revocations", json={"jti": "t1"})
        assert answer.status == 201
        assert answer.json()["name"] == "revoked: jti t1"
        assert answer.json()["expires"] > answer.json()["created"] + 30 * 86_400
        assert await closed(socket) == "4401 token revoked"
    location = answer.headers["location"]
    assert (await request(server, "GET", location)).json()["tags"] == []
    assert (await request(server, "DELETE", location)).status == 204
    async with subscribed(server, token(jti="t1")):
        pass


@pytest.mark.parametrize(
    "body",
    [{}, {"jti": "a", "sub": "b"}, {"jti": ""}, {"sub": "x" * 256}, {"jti": 7}, {"iss": "a"}, []],
)
async def test_what_is_no_revocation_is_refused_over_http(server: Server, body: Any) -> None:
    answer = await request(server, "POST", "/v1/revocations", json=body)
    assert (answer.status, answer.json()["code"]) == (400, "invalid_body")


@pytest.mark.parametrize("line", ["iss a", "jti " + "x" * 256, "jti \xff"])
async def test_what_is_no_revocation_is_refused_on_a_line(server: Server, line: str) -> None:
    async with talk(server) as service:
        answer = await service.ask(f"revoke-jwt {line}\n".encode("latin-1"))
        assert answer == [b"error Invalid revocation: expected jti or sub, and its value\n"]


async def test_only_services_revoke(server: Server) -> None:
    async with talk(server) as peer:
        assert await peer.ask(f"auth {token()}\nrevoke-jwt sub ford\n".encode()) == [
            b"error not allowed\n"
        ]
    headers = {"X-Auth-Token": token()}
    answer = await request(server, "POST", "/v1/revocations", headers, json={"sub": "ford"})
    assert answer.status == 403


async def test_a_user_of_a_callout_is_revoked_and_asked_about_again(tmp_path: Path) -> None:
    async with serving_callout(tmp_path) as (server, backend):
        async with subscribed(server, "hush") as socket:
            await revoke(server, "sub", "marvin")
            assert await closed(socket) == "4401 token revoked"
        async with subscribed(server, "hush"):
            assert len(backend.asked) == 2


# at many nodes


@pytest.fixture(params=("memory", *ON_REDIS))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an engine of its own."""
    if request.param == "memory":
        yield f"memory://{secrets.token_hex(4)}"
    else:
        with engine_server(request.param, tmp_path) as server:
            yield server.url()


@pytest.fixture
async def nodes(tmp_path: Path, engine: str) -> AsyncIterator[list[Server]]:
    """Two of one engine."""
    keys = write_jwks(tmp_path / "jwks.json", "rsa")
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("one", "two"):
            settings: dict[str, Any] = {
                "engine": engine,
                "tokens": engine,
                "token_key_file": token_key(tmp_path),
                "history": "memory://",
                "listen": LISTEN,
                "jwt_jwks": (str(keys),),
            }
            nodes.append(await stack.enter_async_context(running(tmp_path / name, **settings)))
        yield nodes


async def test_a_jti_revoked_at_one_node_ends_the_session_at_another(nodes: list[Server]) -> None:
    one, two = nodes
    async with (
        subscribed(two, token(jti="t1")) as socket,
        subscribed(two, token(jti="t2")) as other,
    ):
        await revoke(one, "jti", "t1")
        await publish_http(one, ALL, "secret", "")
        assert await closed(socket) == "4401 token revoked"
        assert json.loads(await other.get_message())["data"] == "secret"
        path = "/v1/poll?tags=urgent&timeout=0"
        for node in nodes:
            answer = await request(node, "GET", path, {"X-Auth-Token": token(jti="t1")})
            assert answer.status == 401
        await revoke(one, "sub", "marvin")
        assert await closed(other) == "4401 token revoked"


async def test_a_user_has_the_same_id_at_all_nodes(nodes: list[Server]) -> None:
    text = token()
    async with subscribed(nodes[0], text), subscribed(nodes[1], text):
        ids = [{each.record.id for each in node.hub.sessions if each.record} for node in nodes]
        assert ids[0] == ids[1]
        assert len(ids[0]) == 1


async def test_a_ticket_for_a_jwt_is_good_once_at_any_node(nodes: list[Server]) -> None:
    one, two = nodes
    page = {"Origin": "http://localhost:3000"}
    tickets = []
    for number in (1, 2):
        headers = {"X-Auth-Token": token(jti=f"t{number}"), **page}
        answer = await request(one, "POST", "/v1/tickets", headers, json={})
        tickets.append(answer.json()["ticket"])
    path = "/v1/poll?tags=urgent&timeout=0&ticket="
    assert (await request(two, "GET", path + tickets[0], page)).status == 200
    assert (await request(two, "GET", path + tickets[0], page)).status == 401
    await revoke(one, "jti", "t2")
    assert (await request(two, "GET", path + tickets[1], page)).status == 401
