"""Tokens that expire, at every endpoint, live and on a replay."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import mist.schedule
from mist.commands import Register
from mist.server import Server
from mist.terms import Terms
from tests.http.client import connect, request
from tests.http.events import listen
from tests.servers import listeners
from tests.transports.lines import talk
from tests.transports.test_websocket import PATH, browse, code, status
from tests.waiting import until

TOKEN = "t0ken-that-expires"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
A = frozenset("a")
HOUR = 3_600.0
NATS = b'CONNECT {"lang":"go","version":"1.2.3","auth_token":"%b"}\r\nPING\r\n' % TOKEN.encode()
HEAD = (
    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: publisher\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
PAGE = {"Origin": "http://localhost:3000"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": listeners("tcp", "ws", "http", "nats"),
        "history": "memory://",
        "secret": "s3cret",
        "token_rate": 10_000,
        "failed_auth_delay": 0.0,
    }


@pytest.fixture
async def expire(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The token, which is good for an hour, and has expired once this is called."""
    monkeypatch.setattr(mist.schedule, "_LOOK", 0.01)
    hub = server.hub
    await hub.registry.execute([Register(TOKEN, A, Terms(hub.now() + HOUR))])

    def expire() -> None:
        hub.registry.now = hub.expiry._schedule._now = lambda: time.time() + HOUR + 1

    return expire


async def test_a_websocket_ends(server: Server, expire: Callable[[], None]) -> None:
    async with browse(server, TOKEN) as page, browse(server, TOKEN, ours=False) as other:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        assert (await other.ask("ping"))["success"]
        expire()
        assert await page.closed() == 4401
        assert page.socket.closed.reason == "token expired"
        assert await other.closed() == 4401
    assert server.hub.expiry.ended == 2


async def test_a_websocket_that_is_replayed_to_ends(
    server: Server, expire: Callable[[], None]
) -> None:
    for number in range(2_000):
        await server.hub.store(A, b"%d" % number * 1_000)
    async with browse(server, TOKEN) as page:
        await page.socket.send_message('{"command":"subscribe","tags":["a"],"since":0}')
        expire()
        assert await page.closed() == 4401


async def test_a_nats_client_is_told_in_its_own_words(
    server: Server, expire: Callable[[], None]
) -> None:
    async with talk(server, 3) as lines:
        await lines.send(NATS)
        assert (await lines.line()).startswith(b"INFO")
        assert await lines.line() == b"PONG\r\n"
        expire()
        assert await lines.rest() == b"-ERR 'User Authentication Expired'\r\n"
    async with talk(server, 3) as lines:
        await lines.send(NATS)
        assert (await lines.rest()).endswith(b"-ERR 'Authorization Violation'\r\n")


async def test_an_event_stream_ends_and_says_why(
    server: Server, expire: Callable[[], None]
) -> None:
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        expire()
        assert await events.get("end") == {"code": 4401, "reason": "token expired"}
        assert await events.next() is None


@pytest.mark.parametrize("path", ["/v1/poll?tags=a&timeout=30"])
async def test_a_poll_that_waits_is_answered(
    server: Server, expire: Callable[[], None], path: str
) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def poll() -> None:
            response = await request(server, "GET", path, WITH_TOKEN)
            assert (response.status, response.json()["detail"]) == (401, "token expired")

        await until(lambda: server.hub.sessions.connections["poll"])
        expire()


async def test_an_expired_token_is_refused_everywhere_as_an_unknown_one_is(
    server: Server, expire: Callable[[], None]
) -> None:
    expire()
    assert server.hub.failed_auths.total() == 0
    for headers in (WITH_TOKEN, {"X-Auth-Token": "unknown"}):
        for path in ("/v1/stream?tags=a", "/v1/poll?tags=a", "/v1/messages?tags=a"):
            response = await request(server, "GET", path, headers)
            assert (response.status, response.json()["code"]) == (401, "unauthorized"), path
    for token in (TOKEN, "unknown"):
        assert await code(server, token=token) == 4401
        assert await status(server, token=token, ours=False) == 401
    assert server.hub.failed_auths == {"http": 6, "ws": 4}


async def test_a_ticket_dies_with_its_token(server: Server, expire: Callable[[], None]) -> None:
    tickets = []
    for _ in range(2):
        response = await request(server, "POST", "/v1/tickets", WITH_TOKEN | PAGE, json={})
        tickets.append(response.json()["ticket"])
    expire()
    path = f"/v1/poll?tags=a&timeout=0&ticket={tickets[0]}"
    assert (await request(server, "GET", path, PAGE)).status == 401
    path = f"{PATH}?ticket={tickets[1]}"
    assert await code(server, token=None, path=path, headers=PAGE) == 4401


async def test_a_publication_that_is_under_way_as_the_token_expires_is_refused(
    server: Server, expire: Callable[[], None]
) -> None:
    await server.hub.registry.execute(
        [Register("publisher", frozenset({">a"}), Terms(server.hub.now() + HOUR))]
    )
    body = b'{"tags":["a"],"data":"x"}'
    head = {"X-Auth-Token": "publisher", "Content-Type": "application/json"}
    assert (await request(server, "POST", "/v1/messages", head, body)).status == 200
    async with connect(server) as client:
        await client.connection.send_all(HEAD % len(body) + body[:5])
        await wait_all_tasks_blocked(0.02)
        expire()
        await client.connection.send_all(body[5:])
        assert (await client.receive_some()).startswith(b"HTTP/1.1 401 ")
    assert await server.hub.sequencer.latest() == 1  # type: ignore[union-attr]


async def test_a_new_token_in_band_outlives_the_old_one(
    server: Server, expire: Callable[[], None]
) -> None:
    await server.hub.registry.execute([Register("next", A, Terms(server.hub.now() + 9 * HOUR))])
    async with browse(server, TOKEN) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        assert (await page.ask("auth", token="next"))["success"]
        expire()
        await trio.sleep(0.05)
        await server.hub.store(A, b"x")
        assert (await page.get())["data"] == "x"


async def test_lines_say_so(server: Server, expire: Callable[[], None]) -> None:
    # Credentials of a line with an expiry are those that are no registered tokens.
    async with talk(server) as lines:
        assert await lines.ask(b"auth s3cret\n") == []
        record = server.hub.registry.lookup(TOKEN)
        assert record is not None
        [session] = [each for each in server.hub.sessions if each.transport == "tcp"]
        session.adopt(record)  # type: ignore[attr-defined]
        expire()
        assert await lines.rest() == b"error Token expired\n"


async def test_tokens_are_listed_and_shown_on_a_line_and_revoked_by_id(server: Server) -> None:
    async with talk(server) as lines:
        assert await lines.ask(b"auth s3cret\n") == []
        assert await lines.ask(b"tokens\n") == [b'tokens {"tokens":[],"count":0,"next":null}\n']
        assert (
            await lines.ask(b"register-with name=n a s3cret-text\nset-attr s3cret-text user=7\n")
            == []
        )
        [line] = await lines.ask(b"tokens\n")
        page = json.loads(line.removeprefix(b"tokens "))
        [found] = page["tokens"]
        assert (found["name"], found["tags"], found["attributes"]) == ("n", ["a"], {"user": "7"})
        assert b"s3cret-text" not in line
        [shown] = await lines.ask(b"token %b\n" % found["id"].encode())
        assert json.loads(shown.removeprefix(b"token ")) == found
        assert await lines.ask(b"token s3cret-text\n") == [shown]
        [line] = await lines.ask(b"tokens %b\n" % found["id"].encode())
        assert json.loads(line.removeprefix(b"tokens "))["tokens"] == []
        async with browse(server, "s3cret-text") as page:
            assert await lines.ask(b"revoke %b\n" % found["id"].encode()) == []
            assert await page.closed() == 4401
        missing = [b"error Token not found\n"]
        assert await lines.ask(b"revoke %b\n" % found["id"].encode()) == missing
        assert await lines.ask(b"token s3cret-text\n") == missing
        assert await lines.ask(b"tokens a b\n") == [
            b"error Incorrect number of arguments for '[tokens a b]'\n"
        ]


async def test_who_has_only_a_token_learns_of_no_other(
    server: Server, expire: Callable[[], None]
) -> None:
    for command in ("tokens", "token", "revoke", "register-with", "set-terms"):
        async with browse(server, TOKEN) as page:
            answer = await page.ask(command, token=TOKEN)
            assert (answer["success"], answer["error"]) == (False, "unknown command")
    async with talk(server) as lines:
        assert await lines.ask(b"auth s3cret\n") == []
        [session] = [each for each in server.hub.sessions if each.transport == "tcp"]
        record = server.hub.registry.lookup(TOKEN)
        assert record is not None
        session.adopt(record)  # type: ignore[attr-defined]
        for line in (b"tokens", b"token " + record.id.encode(), b"revoke " + record.id.encode()):
            assert await lines.ask(line + b"\n") == [b"error not allowed\n"]
    assert server.hub.registry.lookup(TOKEN) is not None


async def test_terms_are_set_on_a_line_and_over_http(server: Server) -> None:
    soon = time.time() + HOUR
    service = {"Authorization": "Bearer s3cret"}
    async with talk(server) as lines:
        register = b"register-with expires=%d&name=nightly%%20export a,b u\n" % soon
        assert await lines.ask(b"auth s3cret\n" + register) == []
        record = server.hub.registry.lookup("u")
        assert record is not None
        path = f"/v1/tokens/{record.id}"
        shown = (await request(server, "GET", path, service)).json()
        assert (shown["expires"], shown["name"]) == (math.floor(soon), "nightly export")
        assert await lines.ask(b"set-terms u expires=&name=\n") == []
        shown = (await request(server, "GET", path, service)).json()
        assert (shown["expires"], shown["name"]) == (None, "")
        body = {"expires": soon, "name": "ä"}
        assert (await request(server, "PATCH", path, service, json=body)).json()["name"] == "ä"
        assert (await request(server, "PATCH", path, service, json={})).json()["expires"] == soon
        wrong = {
            b"register-with expires=1 a v": b"error Invalid expiry: it has passed\n",
            b"register-with expires=x a v": b"error Invalid expiry: it is Unix seconds\n",
            b"register-with name=\xff a v": b"error Invalid name\n",
            b"set-terms u user=1": b"error Invalid name: a token has expires and name, once each\n",
            b"set-terms v name=a": b"error Token not found\n",
            b"set-terms v": b"error Incorrect number of arguments for '[set-terms v]'\n",
            b"register-with name=a v": (
                b"error Incorrect number of arguments for '[register-with name=a v]'\n"
            ),
        }
        for line, answer in wrong.items():
            assert await lines.ask(line + b"\n") == [answer]
        assert server.hub.registry.lookup("v") is None
        assert server.hub.registry.tags("u") == frozenset("ab")
