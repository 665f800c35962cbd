"""Validation of a request before a route sees it, as an attacker's page or client tries it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from starlette.responses import PlainTextResponse
from trio.testing import MockClock

from mist.commands import Register
from mist.config import Listen
from mist.http.guard import Guard
from mist.http.guarded import GuardLimits
from mist.http.rates import Rates
from mist.server import Server
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins
from tests.http.client import Client, connect, request
from tests.servers import listeners, port_of, running

LOCAL = Listen("http", "127.0.0.1", 8080)
OURS = "http://localhost:3000"
OPEN = Listen("http", "0.0.0.0", 8080)
JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@attrs.frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


async def passed(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("passed")(scope, receive, send)


def guard(origins: Origins | None = None, names: tuple[str, ...] = (), rate: float = 1e6) -> Guard:
    limits, rates = GuardLimits(body=1_000, body_seconds=10.0), Rates(rate, trio.current_time)
    return Guard(
        passed, ConnectionLimiter(), origins or Origins(loopback=True), names, limits, rates
    )


async def ask(
    guard: Guard,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    listen: Listen = LOCAL,
    peer: str = "127.0.0.1",
    path: str = "/",
) -> Answer:
    """What the guard answers to a request of these headers; as ASGI, so that any peer can ask."""
    sent = {"host": "localhost:8080", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        "state": {"listen": listen, "peer": peer},
    }
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    await guard(scope, receive, send)
    head, *rest = told
    found = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    return Answer(head["status"], found, b"".join(each.get("body", b"") for each in rest))


# under which name


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        (LOCAL, "localhost", 200),
        (LOCAL, "LOCALHOST:1", 200),
        (LOCAL, "app.localhost:8080", 200),
        (LOCAL, "127.0.0.1:8080", 200),
        (LOCAL, "127.9.9.9", 200),
        (LOCAL, "[::1]:8080", 200),
        (LOCAL, "mist.example", 200),  # configured
        (LOCAL, "MIST.example:443", 200),
        (LOCAL, "evil.example", 421),
        (LOCAL, "192.0.2.1", 421),
        (LOCAL, "mist.example.evil.example", 421),
        (LOCAL, "localhost.evil.example", 421),
        (LOCAL, "a." * 200 + "localhost", 421),
        (LOCAL, "notlocalhost", 421),
        (LOCAL, "evil.example:localhost", 421),
        (LOCAL, "user@localhost", 421),
        (LOCAL, "localhost@evil.example", 421),
        (LOCAL, "localhost/evil", 421),
        (LOCAL, "localhost, evil.example", 421),
        (LOCAL, "127.0.0.1.evil.example", 421),
        (LOCAL, "", 421),
        (LOCAL, ":8080", 421),
        (LOCAL, "[::1", 421),
        (LOCAL, "\xe9", 421),
        (LOCAL, "x" * 10_000, 421),
        (OPEN, "192.0.2.1:8080", 200),  # which DNS rebinding can't bring
        (OPEN, "[2001:db8::1]:8080", 200),
        (OPEN, "mist.example", 200),
        (OPEN, "evil.example", 421),
    ],
)
async def test_a_request_has_to_name_this_server(listen: Listen, host: str, status: int) -> None:
    answered = await ask(guard(names=("mist.example",)), headers={"host": host}, listen=listen)
    assert answered.status == status
    if status != 200:
        assert answered.code == "misdirected_request"


# from which page


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # no page
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "https://allowed.example"}, 200),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://allowed.example.evil.example"}, 403),
        ({"origin": "http://allowed.example"}, 403),
        ({"origin": "https://allowed.example:444"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "none"}, 403),
    ],
)
async def test_only_our_pages_change_something(
    method: str, headers: dict[str, str], status: int
) -> None:
    origins = Origins(["https://allowed.example"], loopback=True)
    answered = await ask(guard(origins), method, {**JSON, **headers})
    assert answered.status == status
    if status == 403:
        assert answered.code == "origin_not_allowed"
        assert "access-control-allow-origin" not in answered.headers


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON ; charset=utf-8", 200),
        ("application/x-ndjson", 200),
        # What a page can send anywhere without asking first (Fetch, 2.2.2).
        ("text/plain", 415),
        ("text/plain;application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
        ("", 415),
        ("application/json2", 415),
        ("application/jsonp, application/json", 415),
    ],
)
async def test_only_json_changes_something(kind: str, status: int) -> None:
    answered = await ask(guard(), "POST", {"content-type": kind} if kind else {})
    assert answered.status == status
    if status == 415:
        assert answered.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
        ({"content-type": "text/plain", "x-auth-token": "t", "sec-fetch-site": "none"}, 200),
        ({"content-type": "text/plain", "authorization": "Bearer s", "origin": OURS}, 200),
        ({"content-type": "application/json", "origin": OURS}, 200),
        # What a page can send anywhere without asking first.
        ({"content-type": "text/plain", "origin": OURS}, 415),
        ({"content-type": "text/plain", "sec-fetch-site": "cross-site"}, 415),
        ({"content-type": "text/plain", "referer": "http://evil.example/"}, 415),
        ({"content-type": "text/plain", "x-auth-token": "t", "origin": "http://evil.example"}, 403),
    ],
)
async def test_gubles_clients_send_what_they_like_and_pages_do_not(
    headers: dict[str, str], status: int
) -> None:
    answered = await ask(guard(), "POST", headers, path="/api/message/foo")
    assert answered.status == status


async def test_a_delete_needs_no_kind_but_no_other_either() -> None:
    assert (await ask(guard(), "DELETE")).status == 200
    assert (await ask(guard(), "DELETE", {"content-type": "text/plain"})).status == 415


async def test_a_page_may_read_where_it_is_allowed() -> None:
    origins = Origins(["https://allowed.example"])
    answered = await ask(guard(origins), headers={"origin": "https://allowed.example"})
    assert answered.headers["access-control-allow-origin"] == "https://allowed.example"
    assert "access-control-allow-credentials" not in answered.headers
    for origin in ("https://evil.example", "null", "*", "https://allowed.example.evil.example"):
        answered = await ask(guard(origins), headers={"origin": origin})
        assert "access-control-allow-origin" not in answered.headers
        assert answered.headers["vary"] == "Origin"


async def test_errors_can_be_read_by_pages_too() -> None:
    origins = Origins(["https://allowed.example"])
    sent = {"origin": "https://allowed.example", "content-type": "text/plain"}
    answered = await ask(guard(origins), "POST", sent)
    assert answered.status == 415
    assert answered.headers["access-control-allow-origin"] == "https://allowed.example"


async def test_a_preflight_is_answered_and_never_carried_out() -> None:
    origins = Origins(["https://allowed.example"])
    sent = {"origin": "https://allowed.example", "access-control-request-method": "POST"}
    answered = await ask(guard(origins), "OPTIONS", sent)
    assert (answered.status, answered.body) == (204, b"")
    assert answered.headers["access-control-allow-origin"] == "https://allowed.example"
    allowed = answered.headers["access-control-allow-headers"].lower()
    for name in ("x-auth-token", "authorization", "content-type", "idempotency-key"):
        assert name in allowed
    answered = await ask(guard(origins), "OPTIONS", {**sent, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answered.headers
    assert answered.body == b""


async def test_a_preflight_under_another_name_is_refused() -> None:
    sent = {"host": "evil.example", "access-control-request-method": "POST"}
    assert (await ask(guard(), "OPTIONS", sent)).status == 421


# how often


async def test_an_address_that_asks_too_often_is_told_when_to_ask_again(
    autojump_clock: MockClock,
) -> None:
    endpoint = guard(rate=10)
    answers = [(await ask(endpoint, peer="192.0.2.1")).status for _ in range(30)]
    assert answers == [200] * 20 + [429] * 10
    refused = await ask(endpoint, peer="192.0.2.1")
    assert refused.code == "too_many_requests"
    assert (await ask(endpoint, peer="192.0.2.2")).status == 200
    await trio.sleep(int(refused.headers["retry-after"]))
    assert (await ask(endpoint, peer="192.0.2.1")).status == 200


async def test_an_address_and_a_token_have_one_rate_whatever_listener_they_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loopback has no rate, and no test comes from elsewhere.
    monkeypatch.setattr(ConnectionLimiter, "counted", lambda limiter, address: "192.0.2.1")
    listen = tuple(Listen("http", "127.0.0.1", 0) for _ in range(3))
    settings = {"listen": listen, "history": "memory://", "secret": "s3cret"}

    async def ask_all(server: Server, headers: Mapping[str, str]) -> list[int]:
        statuses = []
        for url in server.urls * 2:
            port = port_of(url)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                client = Client(stream, f"127.0.0.1:{port}")
                answer = await client.request("GET", "/v1/messages?tags=a", headers)
                statuses.append(answer.status)
        return statuses

    # Each listener would let two pass; how many more pass of six is a matter of seconds.
    async with running(tmp_path / "1", token_rate=1, **settings) as server:
        await server.hub.registry.execute([Register("t", frozenset("a"))])
        found = await ask_all(server, {"x-auth-token": "t"})
        assert (found[:2], set(found)) == ([200, 200], {200, 429})
    async with running(tmp_path / "2", request_rate=1, **settings) as server:
        found = await ask_all(server, {"authorization": "Bearer s3cret"})
        assert (found[:2], set(found)) == ([200, 200], {200, 429})


async def test_polls_of_message_bus_are_delayed_before_they_are_refused(
    autojump_clock: MockClock,
) -> None:
    endpoint = guard(rate=1)
    answers: list[tuple[int, float]] = []

    async def poll() -> None:
        headers = {"content-type": "application/json"}
        path = "/message-bus/c1/poll"
        answer = await ask(endpoint, "POST", headers=headers, path=path, peer="192.0.2.1")
        answers.append((answer.status, trio.current_time() - began))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(14):
            nursery.start_soon(poll)
    assert sorted(status for status, _ in answers) == [200] * 12 + [429] * 2
    assert [round(wait) for status, wait in answers if status == 200] == [0, 0, *range(1, 11)]
    assert [wait for status, wait in answers if status == 429] == [0, 0]


async def test_one_customer_s_addresses_are_one(autojump_clock: MockClock) -> None:
    endpoint = guard(rate=1)
    peers = [f"2001:db8::{n}" for n in range(1, 4)]
    assert [(await ask(endpoint, peer=peer)).status for peer in peers] == [200, 200, 429]
    assert (await ask(endpoint, peer="::ffff:192.0.2.1")).status == 200


async def test_loopback_and_sockets_have_no_rate(autojump_clock: MockClock) -> None:
    endpoint = guard(rate=1)
    for peer in ("127.0.0.1", "::1", "", "::ffff:127.0.0.1"):
        assert [(await ask(endpoint, peer=peer)).status for _ in range(10)] == [200] * 10


async def test_an_address_can_not_be_claimed(autojump_clock: MockClock) -> None:
    endpoint = guard(rate=1)
    claims = {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "x-real-ip": "::1"}
    answers = [(await ask(endpoint, headers=claims, peer="192.0.2.1")).status for _ in range(3)]
    assert answers == [200, 200, 429]


def test_askers_are_remembered_within_bounds() -> None:
    now = 0.0
    rates = Rates(1.0, lambda: now)
    for number in range(10_500):
        assert rates.take(str(number)) == 0.0
    assert len(rates._buckets) == 10_000
    assert rates.take("10499") == 0.0
    assert rates.take("10499") > 0.0


def test_who_waits_has_a_place_in_the_queue() -> None:
    now = 0.0
    rates = Rates(5.0, lambda: now)
    waits = [rates.take("one", 1.0) for _ in range(17)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:15] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert waits[15:] == pytest.approx([1.2, 1.2])  # refused, and not counted
    assert rates.take("one") == pytest.approx(1.2)
    now = 1.1
    assert rates.take("one") == pytest.approx(0.1)
    now = 1.3
    assert rates.take("one") == 0.0


def test_a_rate_is_held_over_any_time() -> None:
    now = 0.0
    rates = Rates(5.0, lambda: now)
    passed = 0
    for step in range(10_000):
        now = step * 0.01
        passed += rates.take("one") == 0.0
    assert 500 <= passed <= 512
    now += 1_000_000  # a long rest saves up no more than the burst
    assert sum(rates.take("one") == 0.0 for _ in range(100)) == 10


# what every response carries


@pytest.mark.parametrize("sent", ["a" * 65, "a b", "a\xe9", "", "<script>", "a,b", "a:b"])
async def test_a_name_for_a_request_is_checked_before_it_is_repeated(sent: str) -> None:
    answered = await ask(guard(), headers={"x-request-id": sent})
    assert len(answered.headers["x-request-id"]) == 16


async def test_a_good_name_for_a_request_is_kept() -> None:
    answered = await ask(guard(), headers={"x-request-id": "Trace.1_2-3"})
    assert answered.headers["x-request-id"] == "Trace.1_2-3"


@pytest.mark.parametrize("headers", [{}, {"host": "evil.example"}])
async def test_nothing_is_sniffed_and_no_address_passed_on(headers: dict[str, str]) -> None:
    answered = await ask(guard(), headers=headers)
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert answered.headers["referrer-policy"] == "no-referrer"


# a whole server, over sockets


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": listeners("http"),
        "history": "memory://",
        "token_rate": 5,
    }


async def test_a_token_used_too_often_is_told_when_to_come_again(server: Server) -> None:
    await server.hub.registry.execute([Register(name, frozenset("a")) for name in ("t", "u")])
    path = "/v1/messages?tags=a"
    answers = [await request(server, "GET", path, {"X-Auth-Token": "t"}) for _ in range(14)]
    refused = [each for each in answers if each.status == 429]
    assert refused
    assert refused[0].json()["code"] == "too_many_requests"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert (await request(server, "GET", path, {"X-Auth-Token": "u"})).status == 200


async def test_an_answer_reaches_who_is_still_sending(server: Server) -> None:
    # Over TCP, a close with something unread would be a reset, and the answer might be lost.
    async with connect(server) as client:
        head = (
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        await client.connection.send_all(head + b"Content-Length: 50000000\r\n\r\n")
        for _ in range(30):
            await client.connection.send_all(bytes(100_000))
        found = b""
        while data := await client.receive_some():
            found += data
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in found


async def test_a_body_over_the_limit_is_not_taken_until_it_ends(server: Server) -> None:
    async with connect(server) as client:
        head = (
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        await client.connection.send_all(head + b"Transfer-Encoding: chunked\r\n\r\n")
        with trio.fail_after(20):
            try:
                while True:
                    await client.connection.send_all(b"10000\r\n" + b" " * 65_536 + b"\r\n")
            except trio.BrokenResourceError:
                pass
