"""`/v1/connections`: searched, sorted, one of them, and its end."""

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from trio_websocket import ConnectionClosed

from mist.attributes import Attributes
from mist.auth.issued import IssuedRecord
from mist.client import connect
from mist.commands import Register
from mist.engine.opening import open_engine
from mist.protocols.line.forms import PLAIN
from mist.server import Server
from mist.sessions import questions
from mist.sessions.inspection import Page, list_page
from mist.sessions.session import Session
from mist.terms import Terms
from tests.endpoints import web
from tests.http.client import Response, request
from tests.http.events import listen
from tests.http.test_nodes import Nodes, nodes_when, realm, realm_of
from tests.http.test_stats import Peer, dial
from tests.servers import listeners, running
from tests.transports.lines import talk
from tests.waiting import until

__all__ = ["realm", "realm_of"]  # fixtures

LISTEN = listeners("tcp", "ws", "http", "nats")
PATH = "/subscribe/websocket"
ENDED = {"code": 4410, "reason": "session ended by an operator"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": LISTEN, "history": "memory://"}


async def listed(server: Server, query: str = "") -> list[str]:
    """The names that one page has."""
    response = await request(server, "GET", f"/v1/connections?{query}")
    assert response.status == 200, response.body
    return [each["name"] for each in response.json()["connections"]]


async def every(server: Server, query: str, limit: int) -> tuple[list[dict[str, Any]], int]:
    """All pages, joined, and the count of the last one."""
    found: list[dict[str, Any]] = []
    after, count = "", 0
    while after is not None:
        more = f"&after={quote(after)}" if after else ""
        response = await request(server, "GET", f"/v1/connections?{query}&limit={limit}{more}")
        assert response.status == 200, response.body
        page = response.json()
        found += page["connections"]
        after, count = page["next"], page["count"]
    return found, count


async def end(server: Server, name: str, **headers: str) -> Response:
    return await request(server, "DELETE", f"/v1/connections/{name}", headers)


def names(server: Server) -> set[str]:
    return {each.name for each in server.hub.sessions}


async def token_of(server: Server, text: str, tags: str, **terms: Any) -> Any:
    change = Register(text, frozenset(tags.split(",")), terms=Terms(**terms))
    [record] = await server.hub.registry.execute([change])
    return record


# searched


@pytest.fixture
async def crowd(server: Server) -> list[Peer]:
    """Sessions that differ in all that is searched and sorted by."""
    peers = [Peer(server.hub, f"tcp-{number}") for number in range(101, 141)]
    for number, peer in enumerate(peers):
        peer.peer = f"10.0.{number // 10}.{number % 10}"
        peer.outbox.sent_messages = number * 7 % 40
        peer.outbox.sent_bytes = number * 11 % 40
        peer.outbox.dropped_full = number % 3
        peer.subscriptions = tuple(range(number % 5))
        server.hub.sessions.attach(peer)
    peers[7].record = await token_of(server, "the-seventh-token", "a", name="Nightly EXPORT")
    peers[8].transport = "ws"
    return peers


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("tcp-108", ["tcp-108"]),
        ("TCP-13", [f"tcp-{number}" for number in range(130, 140)]),
        ("10.0.2.", [f"tcp-{number}" for number in range(121, 131)]),
        ("night", ["tcp-108"]),
        ("export", ["tcp-108"]),
        ("ws", ["tcp-109"]),
        ("the-seventh", []),  # nothing of a token's text is looked at
        ("nothing", []),
        (".*", []),
        ("", [f"tcp-{number}" for number in range(101, 141)]),
    ],
)
async def test_connections_are_found_by_a_text(
    server: Server, crowd: list[Peer], search: str, found: list[str]
) -> None:
    page, count = await every(server, f"search={quote(search)}", 3)
    assert [each["name"] for each in page] == found
    assert count == len(found)


async def test_connections_are_found_by_their_tokens_id(server: Server, crowd: list[Peer]) -> None:
    record = crowd[7].record
    assert await listed(server, f"search={record.id}") == ["tcp-108"]
    assert await listed(server, f"search={record.id[:8].upper()}") == ["tcp-108"]


@pytest.mark.parametrize("sort", ["sent", "sent_bytes", "dropped", "subscriptions", "queued_bytes"])
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_those_with_the_most_come_first(
    server: Server, crowd: list[Peer], sort: str, limit: int
) -> None:
    for number, peer in enumerate(crowd):
        peer.outbox.put(b"x" * (number * 13 % 40), 1)
    found, count = await every(server, f"sort={sort}", limit)
    keys = [(-each[sort], int(each["name"][4:])) for each in found]
    assert keys == sorted(keys)
    assert len({each["name"] for each in found}) == len(found) == count == 40
    assert len({each[sort] for each in found}) > 2


async def test_the_newest_or_the_oldest_come_first(server: Server, crowd: list[Peer]) -> None:
    names = [peer.name for peer in crowd]
    for sort, expected in (("oldest", names), ("newest", names[::-1])):
        found, _ = await every(server, f"sort={sort}", 7)
        assert [each["name"] for each in found] == expected


async def test_a_search_is_sorted_as_well(server: Server, crowd: list[Peer]) -> None:
    found, count = await every(server, "search=10.0.1.&sort=sent", 4)
    sent = [each["sent"] for each in found]
    assert sent == sorted(sent, reverse=True)
    assert len(found) == count == 10


async def test_what_has_ended_is_not_listed(server: Server, crowd: list[Peer]) -> None:
    crowd[3].ended = object()
    found, count = await every(server, "", 9)
    assert len(found) == count == 39
    assert (await request(server, "GET", f"/v1/connections/{crowd[3].name}")).status == 404


@pytest.mark.parametrize(
    "query",
    ["sort=", "sort=name", "sort=sent&sort=sent", "search=a&search=b", "search=" + "a" * 201,
     "search=%FF", "sort=sent&after=x", "sort=sent&after=-1:1", "sort=sent&after=g/1:1",
     "sort=sent&after=1:" + "1" * 16, "sort=sent&after=" + "1" * 19 + ":1", "nodes=some&sort=sent"],
)  # fmt: skip
async def test_a_query_that_means_nothing_is_refused(server: Server, query: str) -> None:
    assert (await request(server, "GET", f"/v1/connections?{query}")).status == 400


async def test_a_place_of_another_order_is_one_as_well(server: Server, crowd: list[Peer]) -> None:
    assert await listed(server, "after=17:138") == ["tcp-139", "tcp-140"]
    assert set(await listed(server, "sort=sent&after=tcp-1")) == {"tcp-101"}  # of those with none


async def test_searching_many_lets_others_run(server: Server) -> None:
    for number in range(20_000):
        server.hub.sessions.attach(Peer(server.hub, f"tcp-{number}"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for query in ("search=nothing", "search=tcp&sort=queued_bytes", "sort=newest"):
            turns = 0
            await listed(server, query)
            assert turns >= 20
        turns = 0
        assert (await end(server, "tcp-20000")).status == 404
        assert turns >= 8
        nursery.cancel_scope.cancel()


async def test_many_who_search_take_turns(server: Server, monkeypatch: Any) -> None:
    looking = most = 0

    async def look(*about: Any, **more: Any) -> Page:
        nonlocal looking, most
        looking += 1
        most = max(most, looking)
        try:
            return await list_page(*about, **more)
        finally:
            looking -= 1

    monkeypatch.setattr("mist.http.inspect.list_page", look)
    for number in range(5_000):
        server.hub.sessions.attach(Peer(server.hub, f"tcp-{number}"))
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(listed, server, f"search=tcp-{number}")
    assert most == 2


# one


async def test_one_is_shown_with_what_it_is_subscribed_to(server: Server) -> None:
    record = await token_of(server, "t0ken-t0ken-t0ken", "*", name="pages", expires=4e9)
    async with listen(server, "tags=b&tags=a,c&client=me", {"X-Auth-Token": "t0ken-t0ken-t0ken"}):
        [session] = server.hub.sessions
        response = await request(server, "GET", f"/v1/connections/{session.name}")
        assert response.status == 200
        assert b"t0ken" not in response.body
        assert response.headers["cache-control"] == "no-store"
        found = response.json()
        assert found == {
            "name": session.name,
            "transport": "sse",
            "peer": "127.0.0.1",
            "token": record.id,
            "token_name": "pages",
            "subscriptions": 2,
            "queued": 0,
            "queued_bytes": 0,
            "sent": found["sent"],
            "sent_bytes": found["sent_bytes"],
            "dropped": 0,
            "behind": False,
            "since": session.since,
            "attributes": {"client": "me"},
            "expires": 4e9,
            "is_issued": False,
            "owed": 0,
            "subscribed": [{"tags": ["a", "c"]}, {"tags": ["b"]}],
            "next": None,
            "node": None,
        }


async def test_subscriptions_of_one_come_in_pages(server: Server) -> None:
    stream = await dial(server, b"".join([b"subscribe t,%03d\n" % number for number in range(250)]))
    [session] = server.hub.sessions
    found, after = [], ""
    while after is not None:
        where = f"/v1/connections/{session.name}?limit=40{after and f'&after={quote(after)}'}"
        page = (await request(server, "GET", where)).json()
        assert len(page["subscribed"]) <= 40
        assert page["subscriptions"] == 250
        found += [each["tags"] for each in page["subscribed"]]
        after = page["next"]
    assert found == [[f"{number:03}", "t"] for number in range(250)]
    await stream.aclose()


async def test_named_subscriptions_are_shown_with_their_names(server: Server) -> None:
    async with talk(server, 3) as nats:
        assert b"INFO" in await nats.line()
        await nats.send(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nSUB a 2\r\nSUB b q x\r\nPING\r\n')
        assert await nats.line() == b"PONG\r\n"
        [session] = server.hub.sessions
        first = f"/v1/connections/{session.name}?limit=1"
        page = (await request(server, "GET", first)).json()
        assert page["subscriptions"] == 3
        assert page["subscribed"][0]["name"] == "1"
        rest = (await request(server, "GET", f"{first}&after={quote(page['next'])}")).json()
        assert rest["subscribed"][0] == {**page["subscribed"][0], "name": "2"}


async def test_one_that_is_behind_says_by_how_much(server: Server) -> None:
    stream = await dial(server, b"subscribe a\n")
    [session] = server.hub.sessions
    session.outbox.pause()
    session.outbox.owed = 12
    found = (await request(server, "GET", f"/v1/connections/{session.name}")).json()
    assert (found["behind"], found["owed"]) == (True, 12)
    await stream.aclose()


@pytest.mark.parametrize(
    "name", ["tcp-99", "tcp", "tcp-", "x", "TCP-1", "tcp-1%0A", "%2e%2e", "tcp-" + "9" * 400]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_nothing_of_another_name(server: Server, method: str, name: str) -> None:
    stream = await dial(server)
    response = await request(server, method, f"/v1/connections/{name}")
    assert (response.status, response.json()["code"]) == (404, "connection_not_found")
    await stream.aclose()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("node=n1", "node_not_found"),
        ("node=", "invalid_query"),
        ("node=a&node=b", "invalid_query"),
        ("node=%3Cimg%3E", "invalid_query"),
        ("limit=0", "invalid_limit"),
        ("after=", "invalid_position"),
        ("after=" + "x" * 6_501, "invalid_position"),
    ],
)
async def test_what_can_not_be_asked_of_one_is_refused(
    server: Server, query: str, code: str
) -> None:
    stream = await dial(server)
    [session] = server.hub.sessions
    response = await request(server, "GET", f"/v1/connections/{session.name}?{query}")
    assert response.json()["code"] == code
    await stream.aclose()


# its end


async def test_a_service_is_told_that_its_session_was_ended(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with talk(server) as lines, talk(server) as other:
        assert await lines.ask(b"subscribe a\n") == []
        assert await other.ask(b"subscribe a\n") == []
        first, second = server.hub.sessions
        with caplog.at_level(logging.INFO, "mist.sessions"):
            assert (await end(server, first.name)).status == 204
        with trio.fail_after(5):
            assert await lines.rest() == b"error Session ended by an operator\n"
        assert (await end(server, first.name)).status == 404
        assert server.hub.sessions.close_codes[4410] == 1
        [said] = [each for each in caplog.records if "operator" in each.message]
        assert (said.session, said.peer, said.token) == (first.name, "127.0.0.1", "")
        # The other one is as it was.
        await until(lambda: server.hub.sessions.connected == 1)
        server.hub.publish(frozenset("a"), b"1")
        assert await other.line() == b"publish a 1\n"
        assert list(server.hub.sessions) == [second]


async def test_a_service_that_speaks_json_is_told_so_as_well(server: Server) -> None:
    async with talk(server) as lines:
        await lines.send(b'{"command":"ping"}\n')
        await lines.line()
        [session] = server.hub.sessions
        assert (await end(server, session.name)).status == 204
        with trio.fail_after(5):
            assert b"Session ended by an operator" in await lines.rest()


async def test_one_that_has_said_nothing_yet_just_ends(server: Server) -> None:
    async with talk(server) as lines:
        with trio.fail_after(5):
            await until(lambda: server.hub.sessions.connected == 1)
        [session] = server.hub.sessions
        assert (await end(server, session.name)).status == 204
        with trio.fail_after(5):
            assert await lines.rest() == b""
    assert (await request(server, "GET", "/healthz")).status == 200


async def test_a_websocket_is_closed_with_a_code_of_its_own(server: Server) -> None:
    await token_of(server, "t0ken", "a")
    async with web(server, PATH, "t0ken") as socket:
        [session] = server.hub.sessions
        assert (await end(server, session.name)).status == 204
        with trio.fail_after(5), pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        assert closed.value.reason.code == ENDED["code"]
        assert closed.value.reason.reason == ENDED["reason"]
    # Its token is as good as before.
    async with web(server, PATH, "t0ken") as socket:
        await socket.send_message('{"command":"subscribe","tags":["a"]}')
        assert '"success":true' in await socket.get_message()


async def test_an_event_stream_ends_with_an_event(server: Server) -> None:
    async with listen(server, "tags=a") as events:
        await events.get("ready")
        [session] = server.hub.sessions
        assert (await end(server, session.name)).status == 204
        with trio.fail_after(5):
            assert await events.get("end") == ENDED
            assert await events.rest() == []


async def test_a_poll_is_answered_that_it_may_try_again(server: Server) -> None:
    answers: list[Response] = []

    async def poll() -> None:
        answers.append(await request(server, "GET", "/v1/poll?tags=a&timeout=20"))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await until(lambda: server.hub.sessions.connected == 1)
            [session] = server.hub.sessions
            assert (await end(server, session.name)).status == 204
    [response] = answers
    assert (response.status, response.json()["code"]) == (503, "session_ended")
    assert response.headers["retry-after"] == "1"


async def test_nats_gets_no_error_that_would_keep_its_clients_away(server: Server) -> None:
    async with talk(server, 3) as nats:
        await nats.line()
        await nats.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert await nats.line() == b"PONG\r\n"
        [session] = server.hub.sessions
        assert (await end(server, session.name)).status == 204
        with trio.fail_after(5):
            assert await nats.rest() == b""


# who may


PATHS = [("GET", "/v1/connections/{}"), ("DELETE", "/v1/connections/{}")]


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(
        tmp_path / "secured", listen=LISTEN, secret="s3cret", failed_auth_delay=0.01
    ) as server:
        await server.hub.registry.execute([Register("t0ken", frozenset({"*", ">*"}))])
        yield server


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_only_services_may(secured: Server, method: str, path: str) -> None:
    async with web(secured, PATH, "t0ken"):
        [session] = secured.hub.sessions
        for headers, status in [
            ({}, 401),
            ({"X-Auth-Token": "t0ken"}, 403),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer t0ken"}, 401),
        ]:
            response = await request(secured, method, path.format(session.name), headers)
            assert response.status == status
            # Whether there is such a connection is nothing that it tells.
            other = await request(secured, method, path.format("ws-99999"), headers)
            assert (other.status, other.json()) == (response.status, response.json())
        assert session.ended is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"X-Forwarded-For": "203.0.113.9"},
    ],
)
async def test_a_foreign_page_ends_nothing(server: Server, headers: dict[str, str]) -> None:
    stream = await dial(server)
    [session] = server.hub.sessions
    response = await end(server, session.name, **headers)
    assert response.status in (403, 421)
    assert session.ended is None
    await stream.aclose()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_no_form_ends_anything(server: Server, method: str) -> None:
    stream = await dial(server)
    [session] = server.hub.sessions
    response = await request(
        server,
        method,
        f"/v1/connections/{session.name}?_method=DELETE",
        {"Content-Type": "application/x-www-form-urlencoded", "X-HTTP-Method-Override": "DELETE"},
        b"_method=DELETE",
    )
    assert response.status == 405
    assert session.ended is None
    await stream.aclose()


# of other nodes


async def test_the_connections_of_all_nodes_are_searched_and_sorted(realm_of: Nodes) -> None:
    async with realm_of(2) as [one, two]:
        streams = [
            await dial(server, b"".join([b"subscribe t%d\n" % each for each in range(number)]))
            for number, server in enumerate([one, two, one, two, two], 1)
        ]
        for limit in (1, 2, 100):
            found, count = await every(one, "sort=subscriptions", limit)
            assert [(each["subscriptions"], each["node"]) for each in found] == [
                (5, "n2"), (4, "n2"), (3, "n1"), (2, "n2"), (1, "n1"),
            ]  # fmt: skip
            assert count == 5
        names = [each["name"] for each in found]
        for sort in ("oldest", "newest"):
            found, _ = await every(two, f"sort={sort}", 2)
            numbers = [int(re.sub(r"\D", "", each["name"])) for each in found]
            assert numbers == sorted(numbers, reverse=sort == "newest")
            assert len(found) == 5
        found, count = await every(one, f"search={names[0]}", 1)
        assert {each["name"] for each in found} >= {names[0]}
        for stream in streams:
            await stream.aclose()


async def test_one_of_another_node_is_shown_and_ended(realm_of: Nodes) -> None:
    async with realm_of(2) as [one, two], talk(two) as lines:
        await nodes_when(one, lambda found: len(found) == 2)
        await lines.ask(b"subscribe b\nsubscribe a\n")
        [session] = two.hub.sessions
        for node in ("n2", two.hub.nodes.name):
            where = f"/v1/connections/{session.name}?node={node}&limit=1"
            found = (await request(one, "GET", where)).json()
            assert (found["node"], found["subscriptions"]) == ("n2", 2)
            assert found["subscribed"] == [{"tags": ["a"]}]
            rest = (await request(one, "GET", f"{where}&after={found['next']}")).json()
            assert rest["subscribed"] == [{"tags": ["b"]}]
        # Here there is none of this name, or another one.
        assert (await end(one, session.name)).status == 404
        assert (await end(one, f"{session.name}?node=n3")).json()["code"] == "node_not_found"
        assert session.ended is None
        assert (await end(one, f"{session.name}?node=n2")).status == 204
        with trio.fail_after(5):
            assert await lines.rest() == b"error Session ended by an operator\n"
        await trio.sleep(1.1)  # the same question within a second has the same answer
        assert (await end(one, f"{session.name}?node=n2")).status == 404


async def test_a_node_s_own_connection_may_be_named_with_it(realm_of: Nodes) -> None:
    async with realm_of(1) as [one], talk(one) as lines:
        await lines.ask(b"subscribe a\n")
        [session] = one.hub.sessions
        found = (await request(one, "GET", f"/v1/connections/{session.name}?node=n1")).json()
        assert found["node"] == "n1"
        assert (await end(one, f"{session.name}?node=n1")).status == 204


async def test_a_node_that_does_not_answer_is_told(realm_of: Nodes, realm: str) -> None:
    async with realm_of(1) as [one], await open_engine(realm) as engine:
        await engine.members.beat("f" * 16, b'{"name": "deaf"}')
        await nodes_when(one, lambda found: len(found) == 2)
        for method in ("GET", "DELETE"):
            response = await request(one, method, "/v1/connections/tcp-1?node=deaf")
            assert (response.status, response.json()["code"]) == (503, "node_silent")


# What is large, and what comes back


async def test_one_of_another_node_is_whole_though_answers_have_to_be_short(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_ANSWER", 1_000)
    lines = b"".join([b"subscribe long-tag-%03d\n" % number for number in range(90)])
    async with realm_of(2) as [one, two], talk(two) as peer:
        await nodes_when(one, lambda found: len(found) == 2)
        await peer.ask(lines)
        [session] = two.hub.sessions
        found, after = [], ""
        while after is not None:
            more = f"&after={quote(after)}" if after else ""
            where = f"/v1/connections/{session.name}?node=n2&limit=90{more}"
            page = (await request(one, "GET", where)).json()
            assert 0 < len(page["subscribed"]) < 90
            found += [each["tags"][0] for each in page["subscribed"]]
            after = page["next"]
        assert found == [f"long-tag-{number:03}" for number in range(90)]


async def test_of_a_token_from_elsewhere_its_user_is_shown(server: Server) -> None:
    record = IssuedRecord(
        id="0123456789abcdef",
        digest=b"d" * 32,
        tags=frozenset({"*"}),
        created=1.0,
        attributes=Attributes.of_json({"user": "auth0|7"}),
        expires=4e9,
        token_mark=b"m" * 32,
    )
    session = Session(server.hub, PLAIN, lambda notice: b"", transport="ws", peer="203.0.113.9")
    session.adopt(record)
    response = await request(server, "GET", f"/v1/connections/{session.name}")
    found = response.json()
    assert (found["is_issued"], found["token"]) == (True, record.id)
    assert found["attributes"] == {"user": "auth0|7"}
    assert b"dddd" not in response.body
    assert b"mmmm" not in response.body
    assert await listed(server, "search=0123456789") == [session.name]
    await session.aclose()


async def test_a_client_of_ours_comes_back_and_goes_on(server: Server) -> None:
    [url] = [each for each in server.urls if each.startswith("tcp:")]
    with trio.fail_after(20):
        async with connect(url) as client, client.subscribe(["a"]) as messages:
            [session] = server.hub.sessions
            assert (await end(server, session.name)).status == 204
            await until(lambda: names(server) - {session.name})
            await until(lambda: all(len(each.subscriptions) for each in server.hub.sessions))
            server.hub.publish(frozenset("a"), b"after")
            assert (await anext(messages)).data == b"after"
