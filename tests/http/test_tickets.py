"""Tickets: one use, half a minute, one page, as long as the token."""

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mist.auth import Record
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.auth.registry import Registry
from mist.commands import AddTags, Register, RemoveTags, Unregister
from mist.http.ticket_store import Tickets, pages_of
from mist.server import Server
from tests.http.client import Response, connect, http_address, request, told_before_the_body
from tests.http.events import Events, listen
from tests.processes import token_key
from tests.servers import listeners, running
from tests.transports.test_websocket import PATH, browse, code, status
from tests.waiting import until

TOKEN = "t0ken-that-no-log-may-hold"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
PAGE = {"Origin": "http://localhost:3000"}
OTHER = {"Origin": "http://localhost:4000"}
SAME = {"Sec-Fetch-Site": "same-origin"}
LISTEN = listeners("tcp", "ws", "http")
HEAD = (
    b"POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"%b\r\nContent-Length: %d\r\n\r\n"
)
A = frozenset({"a"})
HERE = frozenset({"http://localhost:3000"})
THERE = frozenset({"http://localhost:4000"})


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "history": "memory://",
        "secret": "s3cret",
        "token_rate": 10_000,
        "grants": {TOKEN: A},
    }


async def ask(server: Server, headers: dict[str, str]) -> Response:
    return await request(server, "POST", "/v1/tickets", WITH_TOKEN | headers, json={})


async def ticket(server: Server, headers: dict[str, str] = PAGE) -> str:
    response = await ask(server, headers)
    assert response.status == 201
    return str(response.json()["ticket"])


async def endpoint(server: Server, text: str, headers: dict[str, str], path: str = "poll") -> int:
    """The status with which a ticket is taken."""
    query = f"/v1/{path}?tags=a&timeout=0&ticket={text}"
    async with connect(server) as client, client.stream("GET", query, headers) as response:
        return response.status


# over HTTP


async def test_a_ticket_opens_a_stream_a_poll_or_a_websocket(server: Server) -> None:
    response = await ask(server, PAGE)
    assert response.status == 201
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["expires_in"] == 30
    async with listen(server, f"tags=a&ticket={response.json()['ticket']}", PAGE) as events:
        await events.get("ready")
        await server.hub.store(A, b"x")
        assert (await events.get())["data"] == "x"
    assert await endpoint(server, await ticket(server), PAGE) == 200
    path = f"{PATH}?ticket={await ticket(server)}"
    async with browse(server, None, path=path, headers=PAGE) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        assert not (await page.ask("subscribe", tags=["b"]))["success"]


async def test_a_ticket_has_the_rights_of_its_token_and_no_more(server: Server) -> None:
    query = f"/v1/stream?tags=b&ticket={await ticket(server)}"
    response = await request(server, "GET", query, PAGE)
    assert (response.status, response.json()["code"]) == (403, "not_granted")


@pytest.mark.parametrize("path", ["stream", "poll"])
async def test_a_ticket_is_good_once(server: Server, path: str) -> None:
    text = await ticket(server)
    assert await endpoint(server, text, PAGE, path) == 200
    assert await endpoint(server, text, PAGE, path) == 401
    assert await code(server, token=None, path=f"{PATH}?ticket={text}", headers=PAGE) == 4401


async def test_a_ticket_used_on_a_websocket_is_used_up_everywhere(server: Server) -> None:
    text = await ticket(server)
    path = f"{PATH}?ticket={text}"
    async with browse(server, None, path=path, headers=PAGE) as page:
        assert (await page.ask("ping"))["success"]
    assert await code(server, token=None, path=path, headers=PAGE) == 4401
    assert await status(server, token=None, path=path, ours=False, headers=PAGE) == 401
    assert await endpoint(server, text, PAGE) == 401


async def test_of_two_that_race_one_wins(server: Server) -> None:
    text = await ticket(server)
    results: list[int] = []

    async def use(path: str) -> None:
        results.append(await endpoint(server, text, PAGE, path))

    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(use, "stream" if n % 2 else "poll")
    assert sorted(results) == [200] + [401] * 9


@pytest.mark.parametrize(
    ("made", "used", "good"),
    [
        (PAGE, PAGE, True),
        (PAGE, OTHER, False),
        (PAGE, {}, False),
        (PAGE, {"Origin": "null"}, False),
        (PAGE, {"Origin": ""}, False),
        (PAGE, {"Origin": "HTTP://LOCALHOST:3000"}, True),
        (PAGE, {"Origin": "https://localhost:3000"}, False),
        (PAGE, SAME, False),
        ({}, {}, True),
        ({}, PAGE, False),
        ({}, SAME, False),
        ({}, {"Sec-Fetch-Site": "cross-site"}, True),
        (SAME, SAME, True),
        (SAME, {}, False),
        (SAME, {"Sec-Fetch-Site": "same-site"}, False),
        (SAME, {"Sec-Fetch-Site": "none"}, False),
        (SAME, {"Origin": "http://@"}, True),
        ({"Origin": "http://@"}, SAME, True),
        ({"Origin": "http://@"}, {"Origin": "http://@"}, True),
        ({"Origin": "http://@"}, {}, False),
        (SAME, OTHER | SAME, False),
    ],
)
async def test_a_ticket_is_good_on_the_page_that_asked_for_it(
    server: Server, made: dict[str, str], used: dict[str, str], good: bool
) -> None:
    host = "{}:{}".format(*http_address(server))
    made, used = (
        {name: value.replace("@", host) for name, value in each.items()} for each in (made, used)
    )
    assert await endpoint(server, await ticket(server, made), used) == (200 if good else 401)


async def test_the_wrong_page_uses_a_ticket_up(server: Server) -> None:
    text = await ticket(server)
    assert await endpoint(server, text, OTHER) == 401
    assert await endpoint(server, text, PAGE) == 401


async def test_a_websocket_of_another_page_gets_nowhere(server: Server) -> None:
    for headers in (OTHER, {}):
        path = f"{PATH}?ticket={await ticket(server)}"
        assert await code(server, token=None, path=path, headers=headers) == 4401


async def test_a_program_opens_a_websocket_with_a_ticket_that_a_program_asked_for(
    server: Server,
) -> None:
    path = f"{PATH}?ticket={await ticket(server, {})}"
    async with browse(server, None, path=path, ours=False) as page:
        assert (await page.ask("ping"))["success"]


async def test_a_page_behind_a_proxy_that_encrypts_has_the_same_host(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, server_names=("mist.example",)) as server:
        await server.hub.registry.execute([Register(TOKEN, A)])
        named = {"Host": "mist.example"}
        with trio.fail_after(30):
            text = await ticket(server, named | {"Origin": "https://mist.example"})
            assert await endpoint(server, text, named | SAME, "stream") == 200


@pytest.mark.parametrize("ours", [True, False])
async def test_a_ticket_and_another_credential_are_refused_and_the_ticket_stays_good(
    server: Server, ours: bool
) -> None:
    text = await ticket(server)
    path = f"{PATH}?ticket={text}"
    twice = f"{path}&ticket={text}"
    if ours:
        assert await code(server, token=TOKEN, path=path, headers=PAGE) == 4400
        assert await code(server, token=None, path=twice, headers=PAGE) == 4400
        assert await code(server, token=None, path=path, headers=PAGE | WITH_TOKEN) == 4400
    else:
        assert await status(server, token=TOKEN, path=path, ours=False, headers=PAGE) == 400
        assert await status(server, token=None, path=twice, ours=False, headers=PAGE) == 400
    for headers in (WITH_TOKEN, {"Authorization": "Bearer s3cret"}):
        assert await endpoint(server, text, PAGE | headers) == 400
    assert await endpoint(server, text, PAGE) == 200


async def test_a_ticket_is_no_credential_elsewhere(server: Server) -> None:
    text = await ticket(server)
    for method, path in (("GET", "/v1/messages?tags=a"), ("POST", "/v1/tickets")):
        joint = "&" if "?" in path else "?"
        json = {} if method == "POST" else None
        response = await request(server, method, f"{path}{joint}ticket={text}", PAGE, json=json)
        assert response.status in (401, 404)
    assert await endpoint(server, text, PAGE) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (401, "unauthorized")),
        ({"X-Auth-Token": "nobody's"}, (401, "unauthorized")),
        ({"Authorization": "Bearer s3cret"}, (403, "token_needed")),
        (WITH_TOKEN | {"Authorization": "Bearer s3cret"}, (400, "two_credentials")),
        (WITH_TOKEN | {"Origin": "http://evil.example"}, (403, "origin_not_allowed")),
        (WITH_TOKEN | {"Origin": "null"}, (403, "origin_not_allowed")),
        (WITH_TOKEN | {"Origin": "null"} | SAME, (403, "origin_not_allowed")),
        (WITH_TOKEN | {"Content-Type": "text/plain"}, (415, "unsupported_media_type")),
    ],
)
async def test_who_gets_no_ticket(
    server: Server, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    sent = {"Content-Type": "application/json"} | headers
    response = await request(server, "POST", "/v1/tickets", sent, b"{}")
    assert (response.status, response.json()["code"]) == expected


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"Accept: */*", b" 401 "), (b"Authorization: Bearer s3cret", b" 403 ")],
)
async def test_who_gets_none_is_told_so_before_the_body_arrives(
    server: Server, header: bytes, status: bytes
) -> None:
    assert status in await told_before_the_body(server, HEAD % (header, 3_000_000))


async def test_a_token_revoked_while_the_body_arrives_gets_no_ticket(server: Server) -> None:
    async with connect(server) as client:
        await client.connection.send_all(HEAD % (f"X-Auth-Token: {TOKEN}".encode(), 2))
        await trio.testing.wait_all_tasks_blocked(0.05)
        await server.hub.registry.execute([Unregister(TOKEN)])
        await client.connection.send_all(b"{}")
        assert b" 401 " in (await client.receive_some()).partition(b"\r\n")[0]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_a_ticket_is_asked_for_by_post_alone(server: Server, method: str) -> None:
    headers = WITH_TOKEN | {"Content-Type": "application/json"}
    assert (await request(server, method, "/v1/tickets", headers)).status == 405


async def test_a_connection_goes_on_after_a_ticket(server: Server) -> None:
    async with connect(server) as client:
        for _ in range(3):
            response = await client.request("POST", "/v1/tickets", WITH_TOKEN, json={"a": "b" * 9})
            assert response.status == 201


async def test_a_ticket_dies_with_its_token(server: Server) -> None:
    for change in (Unregister(TOKEN), RemoveTags(TOKEN, A)):
        texts = [await ticket(server) for _ in range(3)]
        await server.hub.registry.execute([change])
        assert await endpoint(server, texts[0], PAGE) == 401
        assert await endpoint(server, texts[1], PAGE, "stream") == 401
        path = f"{PATH}?ticket={texts[2]}"
        assert await code(server, token=None, path=path, headers=PAGE) == 4401
        await server.hub.registry.execute([Register(TOKEN, A), AddTags(TOKEN, A)])


async def test_a_token_registered_anew_brings_no_ticket_back(server: Server) -> None:
    text = await ticket(server)
    await server.hub.registry.execute([Unregister(TOKEN), Register(TOKEN, A)])
    assert await endpoint(server, text, PAGE) == 401


async def test_a_ticket_is_worth_what_its_token_is_when_it_is_used(server: Server) -> None:
    text = await ticket(server)
    await server.hub.registry.execute(
        [AddTags(TOKEN, frozenset("b")), RemoveTags(TOKEN, frozenset("a"))]
    )
    async with listen(server, f"tags=b&ticket={text}", PAGE) as events:
        await events.get("ready")
        # And from then on the stream's life is the token's.
        await server.hub.registry.execute([Unregister(TOKEN)])
        assert (await events.get("end"))["code"] == 4401


async def test_no_log_holds_a_ticket(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [await ticket(server) for _ in range(6)]
    async with AsyncExitStack() as stack:
        stream = await stack.enter_async_context(connect(server))
        await stream.send_request("GET", f"/v1/stream?tags=a&ticket={texts[0]}", PAGE)
        await Events(await stream.receive_head()).get("ready")
        await endpoint(server, texts[1], OTHER)
        await endpoint(server, texts[2], WITH_TOKEN)
        await endpoint(server, texts[3] + "%ff%0a", PAGE)
        await request(server, "GET", f"/nowhere?ticket={texts[3]}", PAGE)
        await code(server, token=None, path=f"{PATH}?ticket={texts[4]}", headers=OTHER)
        async with browse(server, None, path=f"{PATH}?ticket={texts[5]}", headers=PAGE) as page:
            await page.ask("ping")
    await until(lambda: "GET /v1/stream" in caplog.text)  # logged when it is over
    for text in [*texts, TOKEN]:
        assert text not in "\n".join(map(repr, (vars(record) for record in caplog.records)))


# the tickets themselves


def made(registry: Registry, token: str = TOKEN) -> Record:
    record = registry.lookup(token)
    assert record is not None
    return record


@pytest.fixture
async def registry() -> Registry:
    registry = LocalRegistry(MemoryStore())
    await registry.execute([Register(TOKEN, A), Register("other", A)])
    return registry


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_ticket_lives_half_a_minute(registry: Registry) -> None:
    clock = Clock()
    tickets = Tickets(registry, clock)
    early, late = (tickets.issue(made(registry), HERE) for _ in range(2))
    clock.now += 29.9
    assert tickets.redeem(early, HERE) == made(registry)
    clock.now += 0.1
    assert tickets.redeem(late, HERE) is None
    assert len(tickets) == 0


async def test_expired_tickets_are_forgotten(registry: Registry) -> None:
    clock = Clock()
    tickets = Tickets(registry, clock)
    for _ in range(50):
        tickets.issue(made(registry), HERE)
    clock.now += 30
    text = tickets.issue(made(registry, "other"), HERE)
    assert len(tickets) == 1
    assert tickets.redeem(text, HERE) == made(registry, "other")


async def test_one_token_uses_up_its_own_room(registry: Registry) -> None:
    tickets = Tickets(registry, Clock(), most=10, most_of_token=3)
    others = tickets.issue(made(registry, "other"), HERE)
    own = [tickets.issue(made(registry), HERE) for _ in range(5)]
    assert len(tickets) == 4
    found = [tickets.redeem(text, HERE) is not None for text in own]
    assert found == [False, False, True, True, True]
    assert tickets.redeem(others, HERE) == made(registry, "other")


async def test_the_oldest_goes_where_there_are_too_many(registry: Registry) -> None:
    tickets = Tickets(registry, Clock(), most=3, most_of_token=3)
    first = tickets.issue(made(registry, "other"), HERE)
    own = [tickets.issue(made(registry), HERE) for _ in range(3)]
    assert len(tickets) == 3
    assert tickets.redeem(first, HERE) is None
    assert all(tickets.redeem(text, HERE) for text in own)


async def test_a_room_of_one_holds_the_newest(registry: Registry) -> None:
    tickets = Tickets(registry, Clock(), most=1, most_of_token=1)
    old, new = (tickets.issue(made(registry), HERE) for _ in range(2))
    assert tickets.redeem(old, HERE) is None
    assert tickets.redeem(new, HERE) is not None


async def test_no_ticket_is_kept_as_it_is(registry: Registry) -> None:
    tickets = Tickets(registry, Clock())
    text = tickets.issue(made(registry), HERE)
    (kept,) = tickets._tickets.values()
    assert len(text) >= 43  # 32 random bytes
    assert text not in repr(vars(tickets))
    assert text.encode() not in kept.digest
    assert kept.digest.hex() not in repr(kept)
    assert tickets.redeem(text[:-1], HERE) is None
    assert tickets.redeem("", HERE) is None
    assert tickets.redeem("\ud800", HERE) is None
    assert tickets.redeem(text, HERE) is not None


async def test_redeeming_nothing_and_revoking_nothing_is_fine(registry: Registry) -> None:
    tickets = Tickets(registry, Clock())
    await registry.execute([Unregister("other")])
    text = tickets.issue(made(registry), HERE)
    await registry.execute([AddTags(TOKEN, frozenset("b"))])
    record = tickets.redeem(text, HERE)
    assert record is not None
    assert record.tags == frozenset("ab")
    assert tickets.redeem_from(tickets.issue(made(registry), HERE), "http://localhost:3000")
    assert tickets.redeem_from(tickets.issue(made(registry), HERE), None) is None
    assert tickets.redeem(tickets.issue(made(registry), HERE), frozenset()) is None


@pytest.mark.parametrize(
    ("headers", "host", "pages"),
    [
        ({}, "x", {""}),
        ({"origin": "http://a"}, "x", {"http://a"}),
        ({"origin": "http://A:80"}, "x", {"http://a"}),
        ({"origin": "null"}, "x", set()),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, "x", set()),
        ({"sec-fetch-site": "same-origin"}, "x:443", {"http://x:443", "https://x"}),
        ({"sec-fetch-site": "same-origin"}, "[::1]:80", {"http://[::1]", "https://[::1]:80"}),
        ({"sec-fetch-site": "same-origin"}, None, {""}),
        ({"sec-fetch-site": "same-site"}, "x", {""}),
    ],
)
def test_the_page_is_its_origin_or_where_a_browser_says_so_the_host(
    headers: dict[str, str], host: str | None, pages: set[str]
) -> None:
    assert pages_of(headers, host) == pages


# at many nodes


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Server]]:
    """Two of one engine."""
    key, url = token_key(tmp_path), f"memory://{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("one", "two"):
            settings: dict[str, Any] = {
                "engine": url,
                "tokens": url,
                "token_key_file": key,
                "history": "memory://",
                "secret": "s3cret",
                "listen": LISTEN,
            }
            nodes.append(await stack.enter_async_context(running(tmp_path / name, **settings)))
        await nodes[0].hub.registry.execute([Register(TOKEN, A)])
        yield nodes


async def test_a_ticket_of_one_node_is_valid_once_at_any(nodes: list[Server]) -> None:
    one, two = nodes
    assert await endpoint(two, await ticket(one), PAGE) == 200
    text = await ticket(one)
    assert await endpoint(two, text, PAGE) == 200
    assert [await endpoint(each, text, PAGE) for each in nodes] == [401, 401]
    assert await endpoint(one, await ticket(one), PAGE) == 200
    assert await endpoint(two, "x" * 43, PAGE) == 401


async def test_a_ticket_is_of_its_page_and_token_at_any_node(nodes: list[Server]) -> None:
    one, two = nodes
    text = await ticket(one)
    assert await endpoint(two, text, OTHER) == 401
    assert await endpoint(one, text, PAGE) == 401  # it was stolen
    text = await ticket(one)
    await one.hub.registry.execute([Unregister(TOKEN)])
    assert await endpoint(two, text, PAGE) == 401


async def test_a_websocket_takes_a_ticket_of_another_node(nodes: list[Server]) -> None:
    one, two = nodes
    text = await ticket(one)
    path = f"{PATH}?ticket={text}"
    async with browse(two, None, path=path, headers=PAGE) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
    assert await code(one, token=None, path=path, headers=PAGE) == 4401
