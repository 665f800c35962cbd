"""Limits of a token at every endpoint: what is refused, in whose words, and what goes on."""

import json
from typing import Any

import pytest

from mist.attributes import Attributes
from mist.auth import Enroll
from mist.server import Server
from mist.sessions import token_limits
from tests.endpoints import web
from tests.http.client import Response, connect, request
from tests.http.events import listen
from tests.servers import listeners
from tests.transports.lines import talk
from tests.transports.test_websocket import browse, code, status
from tests.waiting import until

TOKEN = "t0ken-with-limits"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
JSON = {"Content-Type": "application/json", **WITH_TOKEN}
TAGS = frozenset({"a", ">a", ".a.>", ">.a.>", "/a", ">/a"})
BODY = b'{"tags":["a"],"data":"x"}'
NATS = (
    b'CONNECT {"verbose":false,"lang":"go","version":"1.2.3","auth_token":"%b"}\r\nPING\r\n'
    % TOKEN.encode()
)


@pytest.fixture(params=["none", "memory://"])
def server_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "listen": listeners("tcp", "ws", "http", "nats"),
        "history": request.param,
        "secret": "s3cret",
        "token_rate": 10_000,
        "failed_auth_delay": 0.0,
    }


async def make(server: Server, **limits: str) -> None:
    await server.hub.registry.execute([Enroll(TOKEN, TAGS, Attributes(others=limits))])


async def publish(server: Server, body: bytes = BODY) -> Response:
    return await request(server, "POST", "/v1/messages", JSON, body)


async def test_http_says_429_and_when_to_come_back(server: Server) -> None:
    await make(server, rate="0.02")  # one at once, and then one in 50 s
    assert (await publish(server)).status in (200, 202)
    for response in [
        await publish(server),
        await request(server, "GET", "/v1/messages?tags=a", WITH_TOKEN),
        await request(server, "GET", "/v1/stream?tags=a", WITH_TOKEN),
        await request(server, "GET", "/v1/poll?tags=a", WITH_TOKEN),
    ]:
        assert (response.status, response.json()["code"]) == (429, "too_many_requests")
        assert 40 <= int(response.headers["retry-after"]) <= 51
    assert server.hub.token_limits.refusals == {"rate": 4}
    metrics = (
        await request(server, "GET", "/metrics", {"Authorization": "Bearer s3cret"})
    ).body.decode()
    assert 'mist_token_refusals_total{limit="rate"} 4.0' in metrics
    assert 'mist_token_refusals_total{limit="bytes"} 0.0' in metrics


async def test_each_message_of_a_request_counts(server: Server) -> None:
    await make(server, rate="0.5")
    assert (await publish(server, b"[" + b",".join([BODY] * 21) + b"]")).status in (200, 202)
    response = await publish(server)
    assert response.status == 429
    assert 38 <= int(response.headers["retry-after"]) <= 43  # what is owed


async def test_bytes_of_bodies_are_limited_also_of_those_in_chunks(server: Server) -> None:
    await make(server, bytes="20")
    assert (await publish(server, BODY + b" " * 1_000)).status in (200, 202)
    response = await publish(server)
    assert (response.status, int(response.headers["retry-after"]) > 30) == (429, True)
    async with connect(server) as client:
        await client.connection.send_all(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: %b\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % TOKEN.encode()
        )
        assert (await client.receive_some()).startswith(b"HTTP/1.1 411 Length Required\r\n")


async def test_a_websocket_is_told_when_to_go_on_and_goes_on(server: Server) -> None:
    await make(server, rate="0.01")  # one at once
    async with browse(server, TOKEN) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        answer = await page.ask("list", ref=7)
        assert 50.0 < answer.pop("retry_after") <= 100.0  # type: ignore[operator]
        assert answer == {
            "success": False,
            "command": "list",
            "error": "Too many requests",
            "ref": 7,
        }
        assert (await page.ask("ping"))["success"]
    async with browse(server, TOKEN) as page:
        assert not (await page.ask("list"))["success"]


async def test_a_websocket_that_goes_on_regardless_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_limits, "_REFUSED", 10)
    await make(server, rate="0.1")
    async with browse(server, TOKEN) as page:
        for _ in range(13):
            await page.socket.send_message('{"command":"list"}')
        assert await page.closed() == 4429
        assert page.socket.closed.reason == "too many requests"


async def test_publishes_of_nats_are_refused_in_words_that_end_no_connection(
    server: Server,
) -> None:
    await make(server, rate="0.01")
    async with talk(server, 3) as lines:
        await lines.send(NATS)
        await lines.line()
        assert await lines.line() == b"PONG\r\n"
        for _ in range(3):
            await lines.send(b"PUB a.b 1\r\nx\r\nPING\r\n")
            answer = await lines.line()
            if answer != b"PONG\r\n":
                break
        assert answer == (
            b"-ERR 'Permissions Violation for Publish to \"a.b\": too many requests'\r\n"
        )
        assert await lines.line() == b"PONG\r\n"
        await lines.send(b"SUB a.c 1\r\nPING\r\n")
        assert await lines.line() == (
            b"-ERR 'Permissions Violation for Subscription to \"a.c\": too many requests'\r\n"
        )
    # In one read with what it has in common: all of it, or none.
    async with talk(server, 3) as lines:
        await lines.send(NATS.replace(b"false", b"true"))
        await lines.line()
        assert [await lines.line(), await lines.line()] == [b"+OK\r\n", b"PONG\r\n"]
        await lines.send(b"PUB a.b 1\r\nx\r\n" * 3 + b"PING\r\n")
        found = []
        while (line := await lines.line()) != b"PONG\r\n":
            found.append(line)
        assert b"+OK\r\n" not in found
        assert found[0].endswith(b"too many requests'\r\n")


async def test_lines_say_so_and_go_on(server: Server) -> None:
    await make(server, rate="0.01")
    async with talk(server) as lines:
        assert await lines.ask(b"auth s3cret\n") == []
        record = server.hub.registry.lookup(TOKEN)
        assert record is not None
        [session] = [each for each in server.hub.sessions if each.transport == "tcp"]
        session.adopt(record)  # type: ignore[attr-defined]
        assert await lines.ask(b"subscribe a\n") == []
        assert await lines.ask(b"publish a y\n") == [b"error Too many requests\n"]
        assert await lines.ask(b"bogus\n") == [b"error Too many requests\n"]


async def test_guble_and_message_bus_and_json_say_so_in_their_own_words(server: Server) -> None:
    await make(server, rate="0.01")
    async with web(server, "/stream/user/marvin", TOKEN) as socket:
        await socket.get_message()
        await socket.send_message("+ /a")
        assert await socket.get_message() == "#subscribed-to /a"
        await socket.send_message("> /a id1\n\nx")
        assert (await socket.get_message()).startswith("!error-send id1 Too many requests\n")
        await socket.send_message("+ /a/b")
        assert await socket.get_message() == "!error-subscribed-to /a/b Too many requests"
    responses = [await request(server, "POST", "/api/message/a?userId=marvin", WITH_TOKEN, b"x")]
    if server.hub.sequencer is not None:  # which MessageBus needs
        headers = {"Dont-Chunk": "true", **WITH_TOKEN}
        poll = await request(server, "POST", "/message-bus/tab/poll", headers, json={"/a": 0})
        responses.append(poll)
    for response in responses:
        assert (response.status, response.json()["code"]) == (429, "too_many_requests")
        assert "retry-after" in response.headers
    async with web(server, "/subscribe/websocket", TOKEN, ["mist.json"]) as socket:
        for command in ("subscribe", "publish"):
            await socket.send_message(f'{{"command":"{command}","tags":["a"],"data":"x"}}')
            answer = json.loads(await socket.get_message())
            assert answer == {"command": command, "error": "Too many requests"}
        await socket.send_message('{"command":"ping"}')
        assert json.loads(await socket.get_message()) == {"command": "ping", "data": "pong"}


async def test_connections_of_all_kinds_count_together(server: Server) -> None:
    await make(server, connections="2")
    async with browse(server, TOKEN) as page, listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        assert await code(server, token=TOKEN) == 4429
        assert await status(server, token=TOKEN, ours=False) == 429
        for path in ("/v1/stream?tags=a", "/v1/poll?tags=a"):
            response = await request(server, "GET", path, WITH_TOKEN)
            if server.hub.sequencer is None and "poll" in path:
                continue  # which needs a history
            assert (response.status, response.json()["code"]) == (429, "too_many_requests")
            assert "retry-after" in response.headers
        async with talk(server, 3) as lines:
            await lines.send(NATS)
            await lines.line()
            assert await lines.rest() == b"-ERR 'maximum connections exceeded'\r\n"
        async with browse(server, None) as late:
            await late.socket.send_message(f'{{"command":"auth","token":"{TOKEN}"}}')
            assert (await late.get())["error"] == "Too many connections"
            assert await late.closed() == 4429
        # The same token again, in band, is no other connection.
        assert (await page.ask("auth", token=TOKEN))["success"]
        assert (await publish(server)).status in (200, 202)  # a request is none
    await until(lambda: server.hub.sessions.count(TOKEN) == 0 and not server.hub.sessions.connected)
    async with browse(server, TOKEN) as page:
        assert (await page.ask("ping"))["success"]


async def test_what_is_no_limit_is_refused_where_it_is_set(server: Server) -> None:
    service = {"Authorization": "Bearer s3cret"}
    for attributes in ({"rate": "fast"}, {"bytes": 0}, {"connections": -1}, {"connections": "1.5"}):
        body = {"tags": ["a"], "attributes": attributes}
        response = await request(server, "PUT", "/v1/tokens", service, json=body)
        assert (response.status, response.json()["code"]) == (400, "invalid_audience")
    assert server.hub.registry.statistics().tokens == 0
    await make(server)
    async with talk(server) as lines:
        await lines.ask(b"auth s3cret\n")
        assert await lines.ask(b"set-attr %b rate=fast\n" % TOKEN.encode()) == [
            b"error Invalid audience or attributes: rate is a number above 0\n"
        ]
        assert await lines.ask(b"set-attr %b rate=2.5&bytes=9\n" % TOKEN.encode()) == []
