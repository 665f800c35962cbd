"""Server-Sent Events, by a real client of a real server."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h11
import pytest
import trio
import trio.lowlevel
import trio.testing

from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.commands import AddTags, Register, RemoveTags, Unregister
from mist.config import Config, Listen
from mist.errors import HistoryUnavailable
from mist.http import Context, HttpTransport, Site
from mist.http.access import Access
from mist.http.open_streams import _STALLED, Streams
from mist.http.ticket_store import Tickets
from mist.server import Server
from mist.sessions.hub import Hub
from mist.sessions.known_nodes import NodeState
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.handshake import Origins
from tests.http.client import Client, connect, request, stalled_connection
from tests.http.events import EventReader, Events, listen
from tests.passes import counted
from tests.processes import serving
from tests.servers import listeners, port_of, running
from tests.transports.lines import talk
from tests.transports.test_tcp import certificate
from tests.waiting import until

TOKEN = "t0ken-that-no-log-may-hold"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
LISTEN = listeners("tcp", "http")
A = frozenset({"a"})


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "history": "memory://",
        "secret": "s3cret",
        "token_rate": 10_000,
        "grants": {TOKEN: {"a", "b", "room:*"}},
    }


without_history = pytest.mark.parametrize("server_settings", [{"listen": LISTEN}], ids=["live"])


async def unregister(server: Server) -> None:
    await server.hub.registry.execute([Unregister(TOKEN)])


async def refused(
    server: Server, query: str, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and code of a request that is not let in."""
    response = await request(server, "GET", f"/v1/stream{query}", headers)
    assert response.headers["content-type"] == "application/problem+json"
    return response.status, response.json()["code"]


def epoch_of(server: Server) -> str:
    assert server.hub.sequencer is not None
    return server.hub.sequencer.epoch


# what comes


async def test_a_stream_begins_with_its_place_and_goes_on_with_messages(server: Server) -> None:
    async with listen(server, "tags=a,b&tags=room:1", WITH_TOKEN) as events:
        epoch = epoch_of(server)
        assert await events.get("ready") == {"epoch": epoch, "id": 0, "recovered": True}
        await server.hub.store(frozenset({"b", "a", "c"}), b"one")
        await server.hub.store(A, b"not wanted")
        await server.hub.store(frozenset({"room:1"}), b"\xff")
        first, second = await events.take(2)
        assert first == {"keys": ["a", "b", "c"], "data": "one", "id": 1}
        assert second == {"keys": ["room:1"], "data64": "/w==", "id": 3}
        assert events.reader.last_id == f"{epoch}:3"


async def test_its_head_says_what_proxies_and_browsers_need_to_know(server: Server) -> None:
    headers = WITH_TOKEN | {"Origin": "http://localhost:3000"}
    async with listen(server, "tags=a", headers) as events:
        head = events.response.headers
    assert head["content-type"] == "text/event-stream"
    assert head["cache-control"] == "no-store, no-transform"
    assert head["x-accel-buffering"] == "no"
    assert head["x-content-type-options"] == "nosniff"
    assert head["access-control-allow-origin"] == "http://localhost:3000"
    assert head["connection"] == "close"


@without_history
async def test_without_a_history_there_are_no_ids_and_no_past(server: Server) -> None:
    async with listen(server, "tags=a") as events:
        assert await events.get("ready") == {"epoch": None, "id": None, "recovered": None}
        server.hub.publish(A, b"x")
        assert await events.get() == {"keys": ["a"], "data": "x"}
        assert events.reader.last_id == ""
    assert await refused(server, "?tags=a&since=1") == (409, "history_off")
    assert await refused(server, "?tags=a", {"Last-Event-ID": "e:1"}) == (409, "history_off")


async def test_a_message_that_matches_twice_comes_once(server: Server) -> None:
    async with listen(server, "tags=a&tags=b&tags=a,b&tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        await server.hub.store(frozenset("ab"), b"1")
        await server.hub.store(A, b"2")
        assert [each["data"] for each in await events.take(2)] == ["1", "2"]


async def test_no_published_data_forges_an_event(server: Server) -> None:
    forged = "\n\nevent: end\ndata: {}\n\n"
    texts = [forged, forged.replace("\n", "\r"), forged.replace("\n", "\u2028"), "\x00\x85"]
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        for text in texts:
            await server.hub.store(A, text.encode())
        assert [each["data"] for each in await events.take(4)] == texts


async def test_what_line_clients_publish_arrives_as_published(server: Server) -> None:
    async with talk(server) as service, listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        await service.ask(b"auth s3cret\n")
        await service.send(b"".join(b"publish a %d\\n\r\n" % n for n in range(500)))
        data = [each["data"] for each in await events.take(500)]
    assert data == [f"{n}\\n\r" for n in range(500)]


# where it begins


@pytest.mark.parametrize(
    ("query", "headers", "expected", "recovered"),
    [
        ("&since=0", {}, "12345", True),
        ("&since=3", {}, "45", True),
        ("&since=5", {}, "", True),
        ("&since=6", {}, "12345", False),
        ("&since=-2", {}, "45", True),
        ("&since=-99", {}, "12345", True),
        ("&since=EPOCH:4", {}, "5", True),
        ("&since=EPOCH%3A4", {}, "5", True),
        ("&since=other:4", {}, "12345", False),
        ("", {"Last-Event-ID": "EPOCH:4"}, "5", True),
        ("&since=0", {"Last-Event-ID": "EPOCH:2"}, "345", True),
        ("&since=1", {"Last-Event-ID": "other:2"}, "12345", False),
        ("&since=3", {"Last-Event-ID": ""}, "45", True),
        ("", {}, "", True),
    ],
)
async def test_a_stream_begins_where_it_is_told_to(
    server: Server, query: str, headers: dict[str, str], expected: str, recovered: bool
) -> None:
    epoch = epoch_of(server)
    for data in b"12345":
        await server.hub.store(A, bytes([data]))
    headers = {name: value.replace("EPOCH", epoch) for name, value in headers.items()}
    query = query.replace("EPOCH", epoch)
    async with listen(server, f"tags=a{query}", WITH_TOKEN | headers) as events:
        ready = await events.get("ready")
        assert ready == {"epoch": epoch, "id": 5, "recovered": recovered}
        await server.hub.store(A, b"!")
        seen = [each["data"] for each in await events.take(len(expected) + 1)]
    assert "".join(seen) == expected + "!"


async def test_a_browser_that_lost_its_stream_before_the_first_message_misses_nothing(
    server: Server,
) -> None:
    await server.hub.store(A, b"before")
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        place = events.reader.last_id
    await server.hub.store(A, b"between")
    async with listen(server, "tags=a", WITH_TOKEN | {"Last-Event-ID": place}) as events:
        assert (await events.get("ready"))["recovered"]
        assert (await events.get())["data"] == "between"


async def test_the_place_of_a_replay_is_not_taken_for_reached_before_it_came(
    server: Server,
) -> None:
    await server.hub.store(A, b"1")
    async with listen(server, "tags=a&since=0", WITH_TOKEN) as events:
        await events.get("ready")
        assert events.reader.last_id in ("", f"{epoch_of(server)}:1")
        assert (await events.get())["data"] == "1"


# who gets in


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("?tags=a", {}, (401, "unauthorized")),
        ("?tags=a", {"X-Auth-Token": "nobody's"}, (401, "unauthorized")),
        ("?tags=a", {"Authorization": "Bearer wrong"}, (401, "unauthorized")),
        ("?tags=a", WITH_TOKEN | {"Authorization": "Bearer s3cret"}, (400, "two_credentials")),
        ("?tags=a&ticket=x", WITH_TOKEN, (400, "two_credentials")),
        ("?tags=a&ticket=x&ticket=x", {}, (400, "two_credentials")),
        ("?tags=a&ticket=x", {}, (401, "unauthorized")),
        ("?tags=a&ticket=", {}, (401, "unauthorized")),
        ("?tags=a&token=" + TOKEN, {}, (401, "unauthorized")),
        ("?tags=a&x-auth-token=" + TOKEN, {}, (401, "unauthorized")),
        ("?tags=c", WITH_TOKEN, (403, "not_granted")),
        ("?tags=a&tags=c", WITH_TOKEN, (403, "not_granted")),
        ("?tags=c&since=0", WITH_TOKEN, (403, "not_granted")),
        ("", WITH_TOKEN, (400, "empty_tag")),
        ("?tags=", WITH_TOKEN, (400, "empty_tag")),
        ("?tags=a,,b", WITH_TOKEN, (400, "empty_tag")),
        ("?tags=a&tags=", WITH_TOKEN, (400, "empty_tag")),
        ("?tags=a%20b", WITH_TOKEN, (400, "invalid_tag")),
        ("?tags=a+b", WITH_TOKEN, (400, "invalid_tag")),
        ("?tags=room:*", WITH_TOKEN, (400, "invalid_tag")),
        ("?tags=a%0d%0ax", WITH_TOKEN, (400, "invalid_tag")),
        ("?tags=%ff", WITH_TOKEN, (400, "invalid_query")),
        ("?tags=a&since=%ff", WITH_TOKEN, (400, "invalid_query")),
        ("?tags=" + ",".join(f"a{n}" for n in range(17)), WITH_TOKEN, (400, "too_many_tags")),
        ("?" + "tags=a&" * 1_001, WITH_TOKEN, (429, "too_many_subscriptions")),
        ("?" + "x&" * 2_001, WITH_TOKEN, (400, "invalid_query")),
        ("?tags=a&since=x", WITH_TOKEN, (400, "invalid_position")),
        ("?tags=a&since=", WITH_TOKEN, (400, "invalid_position")),
        ("?tags=a&since=1&since=2", WITH_TOKEN, (400, "invalid_query")),
        ("?tags=a&since=e:1%0d%0ax", WITH_TOKEN, (400, "invalid_position")),
        ("?tags=a", WITH_TOKEN | {"Last-Event-ID": "x"}, (400, "invalid_position")),
        ("?tags=a", WITH_TOKEN | {"Last-Event-ID": "e:-1"}, (400, "invalid_position")),
    ],
)
async def test_what_can_not_be_is_refused_with_a_code(
    server: Server, query: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    assert await refused(server, query, headers) == expected
    assert server.hub.sessions.connected == 0
    assert server.hub.broker.tag_sets() == 0


async def test_a_query_has_a_length_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, max_header=1 << 20) as server:
        query = "?" + "tags=a&" * 900
        with trio.fail_after(30):
            padded = query + "x" * (16_384 - len(query) + 1)
            async with listen(server, padded[1:]) as events:
                await events.get("ready")
            assert await refused(server, padded + "x") == (400, "invalid_query")


async def test_a_service_streams_anything_with_the_secret(server: Server) -> None:
    async with listen(server, "tags=c", {"Authorization": "Bearer s3cret"}) as events:
        await events.get("ready")
        await server.hub.store(frozenset("c"), b"x")
        assert (await events.get())["keys"] == ["c"]


async def test_a_token_needs_one_granted_tag_in_each_subscription(server: Server) -> None:
    async with listen(server, "tags=a,zzz&tags=room:7,y", WITH_TOKEN) as events:
        await events.get("ready")


@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE"])
async def test_a_stream_can_only_be_got(server: Server, method: str) -> None:
    json = {} if method == "POST" else None
    response = await request(server, method, "/v1/stream?tags=a", WITH_TOKEN, json=json)
    assert response.status == 405
    assert server.hub.sessions.connected == 0


async def test_a_token_has_so_many_streams_and_no_more(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, max_connections_per_address=2) as server:
        other = {"X-Auth-Token": "other"}
        await server.hub.registry.execute([Register(TOKEN, A), Register("other", A)])
        with trio.fail_after(30):
            async with listen(server, "tags=a", WITH_TOKEN) as one:
                async with listen(server, "tags=a", WITH_TOKEN) as two:
                    await one.get("ready")
                    await two.get("ready")
                    assert await refused(server, "?tags=a", WITH_TOKEN) == (
                        429,
                        "too_many_streams",
                    )
                    async with listen(server, "tags=a", other):
                        pass
                await until(lambda: server.hub.sessions.connected == 1)
                async with listen(server, "tags=a", WITH_TOKEN) as three:
                    await three.get("ready")


async def test_subscriptions_of_a_token_are_limited_as_over_a_websocket(tmp_path: Path) -> None:
    settings = {"max_token_subscriptions": 2, "history": "memory://"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        await server.hub.registry.execute([Register(TOKEN, frozenset("abc"))])
        with trio.fail_after(30):
            for since in ("", "&since=0"):
                too_many = await refused(server, "?tags=a&tags=b&tags=c" + since, WITH_TOKEN)
                assert too_many == (429, "too_many_subscriptions")
            assert server.hub.broker.tag_sets() == 0
            async with listen(server, "tags=a&tags=b", WITH_TOKEN) as events:
                await events.get("ready")


# revocation


async def test_a_revoked_token_ends_its_streams_at_once_and_says_so(server: Server) -> None:
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        async with talk(server) as admin:
            await admin.ask(f"auth s3cret\nunregister {TOKEN}\n".encode())
        streams = [each for each in server.hub.sessions if each.transport == "sse"]
        assert all(session.ended is not None for session in streams)
        await server.hub.store(A, b"after")
        with trio.fail_after(5):
            assert await events.get("end") == {"code": 4401, "reason": "token revoked"}
            assert await events.rest() == []
        assert not await events.response.receive()
    assert await refused(server, "?tags=a", WITH_TOKEN) == (401, "unauthorized")


async def test_a_token_without_tags_ends_its_streams_too(server: Server) -> None:
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        tags = frozenset({"a", "b", "room:*"})
        await server.hub.registry.execute([RemoveTags(TOKEN, tags)])
        assert (await events.get("end"))["code"] == 4401


async def test_a_subscription_that_is_no_longer_granted_ends_and_the_others_live_on(
    server: Server,
) -> None:
    async with listen(server, "tags=a&tags=b", WITH_TOKEN) as events:
        await events.get("ready")
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset("b"))])
        await server.hub.store(frozenset("b"), b"1")
        await server.hub.store(A, b"2")
        assert await events.get("revoked") == {"tags": ["b"]}
        assert (await events.get())["data"] == "2"
        # More rights change nothing; the last one to go ends the stream.
        await server.hub.registry.execute([AddTags(TOKEN, frozenset("c"))])
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset("a"))])
        assert await events.get("revoked") == {"tags": ["a"]}
        assert await events.get("end") == {"code": 1000, "reason": "no subscription is left"}
        assert await events.rest() == []


async def test_a_revocation_in_the_middle_of_a_replay_stops_it(server: Server) -> None:
    count = 3_000
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(server.hub.store, A, b"x" * 10_000)  # 30 MB
    async with connect(server) as client:
        async with client.stream("GET", "/v1/stream?tags=a&since=0", WITH_TOKEN) as response:
            events = Events(response)
            assert (await events.get("ready"))["id"] == count
            await events.take(3)
            await unregister(server)
            assert all(session.ended is not None for session in server.hub.sessions)
            with trio.fail_after(10):
                rest = await events.rest()
            # What was queued may still come, if it is taken at once; no more is read.
            assert len(rest) < count / 2
            assert all(event.name == "message" for event in rest[:-1])
    await until(lambda: server.hub.sessions.connected == 0)


async def test_a_revocation_in_the_middle_of_a_replay_takes_one_of_two_subscriptions(
    server: Server,
) -> None:
    of_a: list[int] = []

    async def store(tag: str) -> None:
        id_ = await server.hub.store(frozenset(tag), b"x" * 10_000)
        if tag == "a":
            of_a.append(id_)

    async with trio.open_nursery() as nursery:
        for n in range(3_000):
            nursery.start_soon(store, "ab"[n % 2])
    async with listen(server, "tags=a&tags=b&since=0", WITH_TOKEN) as events:
        await events.get("ready")
        await events.take(3)
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset("b"))])
        of_a.append(await server.hub.store(A, b"last"))
        seen = []
        revoked = 0
        while not seen or seen[-1]["data"] != "last":
            event = await events.next()
            assert event is not None
            if event.name == "revoked":
                revoked += 1
                seen.clear()
            else:
                seen.append(event.data)
        assert revoked == 1
        # Nothing for it is queued behind the word that says so; of the other all comes.
        ids = [each["id"] for each in seen]
        assert ids == [id_ for id_ in sorted(of_a) if id_ >= ids[0]]


async def test_a_subscription_revoked_before_the_answer_is_told_behind_it(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    position = history.position

    async def slow_position() -> object:
        await server.hub.registry.execute([RemoveTags(TOKEN, frozenset("b"))])
        return await position()

    await server.hub.store(A, b"x")
    history.position = slow_position  # type: ignore[method-assign,assignment]
    async with listen(server, "tags=a&tags=b&since=0", WITH_TOKEN) as events:
        await events.get("ready")
        assert await events.get("revoked") == {"tags": ["b"]}
        assert (await events.get())["data"] == "x"


async def test_a_revocation_between_request_and_answer_is_a_refusal(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    position = history.position

    async def slow_position() -> object:
        await unregister(server)
        return await position()

    history.position = slow_position  # type: ignore[method-assign,assignment]
    await server.hub.store(A, b"x")
    assert await refused(server, "?tags=a&since=0", WITH_TOKEN) == (401, "unauthorized")
    assert server.hub.sessions.connected == 0


# many, slow, and gone


async def test_two_hundred_streams_at_once_get_everything_in_order(server: Server) -> None:
    streams, messages = 200, 30
    done = 0

    async def follow(events: Events) -> None:
        nonlocal done
        data = [each["data"] for each in await events.take(messages)]
        assert data == [str(n) for n in range(messages)]
        done += 1

    async with AsyncExitStack() as stack:
        opened = []
        for n in range(streams):
            query = "tags=a" if n % 2 else "tags=a&since=0"
            events = await stack.enter_async_context(listen(server, query, WITH_TOKEN))
            await events.get("ready")
            opened.append(events)
        assert server.hub.sessions.connected == streams
        assert {session.transport for session in server.hub.sessions} == {"sse"}
        async with trio.open_nursery() as nursery:
            for events in opened:
                nursery.start_soon(follow, events)
            for n in range(messages):
                await server.hub.store(A, b"%d" % n)
    assert done == streams
    await until(lambda: server.hub.sessions.connected == 0)
    assert server.hub.statistics().delivered == streams * messages
    assert server.hub.broker.tag_sets() == 0


async def test_an_event_is_one_bytes_object_for_all_streams(server: Server) -> None:
    async with (
        listen(server, "tags=a", WITH_TOKEN) as one,
        listen(server, "tags=a&tags=b", WITH_TOKEN) as other,
    ):
        for events in (one, other):
            await events.get("ready")
        outboxes = [session.outbox for session in server.hub.sessions]
        for outbox in outboxes:
            outbox.flush = lambda: None
        await server.hub.store(A, b"shared")
        first, second = [outbox.peek() for outbox in outboxes]
        assert first is second
        assert b'"shared"' in first


async def test_an_idle_stream_has_one_task(server: Server) -> None:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(listen(server, "tags=a", WITH_TOKEN))]
        await opened[0].get("ready")
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(10):
            opened.append(await stack.enter_async_context(listen(server, "tags=a", WITH_TOKEN)))
            await opened[-1].get("ready")
        await server.hub.store(A, b"x")
        for events in opened:
            assert (await events.get())["data"] == "x"
        assert trio.lowlevel.current_statistics().tasks_living - before == 10


@asynccontextmanager
async def stalled(server: Server, query: str) -> AsyncIterator[Events]:
    """A stream whose client has a small window and doesn't read yet."""
    async with stalled_connection(server) as client:
        async with client.stream("GET", f"/v1/stream?{query}", WITH_TOKEN) as response:
            yield Events(response)


async def test_a_stalled_stream_is_bounded_and_costs_the_others_nothing(tmp_path: Path) -> None:
    settings = {"outbox_bytes": 1_000_000, "history": "memory://"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        await server.hub.registry.execute([Register(TOKEN, A)])
        count = 300
        with trio.fail_after(60):
            async with (
                stalled(server, "tags=a") as slow,
                stalled(server, "tags=a&since=0") as late,
                listen(server, "tags=a", WITH_TOKEN) as healthy,
            ):
                for events in (slow, late, healthy):
                    await events.get("ready")
                for n in range(count):
                    await server.hub.store(A, b"%06d" % n + b"x" * 30_000)
                    assert (await healthy.get())["id"] == n + 1
                for session in server.hub.sessions:
                    assert session.outbox.size <= 1_100_000
                assert server.hub.broker.statistics().dropped["full"] > 0
                # Who asked for history is late and misses nothing.
                assert [each["id"] for each in await late.take(count)] == list(range(1, count + 1))
                # Who didn't gets what there was room for.
                await server.hub.store(A, b"still there")
                ids = []
                while not ids or ids[-1] <= count:
                    ids.append((await slow.get())["id"])
                assert ids == sorted(set(ids))
                assert len(ids) < count


async def test_a_slow_stream_ends_where_slow_consumers_are_disconnected(tmp_path: Path) -> None:
    settings = {"outbox_bytes": 200_000, "slow_consumer": "disconnect"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        await server.hub.registry.execute([Register(TOKEN, A)])
        with trio.fail_after(30):
            async with stalled(server, "tags=a") as slow:
                await slow.get("ready")
                while any(session.ended is None for session in server.hub.sessions):
                    server.hub.publish(A, b"x" * 50_000)
                    await trio.lowlevel.checkpoint()
                rest = await slow.rest()
                assert rest[-1].name != "end" or rest[-1].data["code"] == 4008
            await until(lambda: server.hub.sessions.connected == 0)


async def test_a_client_that_hangs_up_is_noticed(server: Server) -> None:
    async with listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        assert server.hub.sessions.connected == 1
    with trio.fail_after(5):
        await until(lambda: server.hub.sessions.connected == 0)
    assert server.hub.broker.tag_sets() == 0


async def test_what_a_client_says_behind_its_request_is_not_heard(server: Server) -> None:
    async with connect(server) as client:
        async with client.stream("GET", "/v1/stream?tags=a", WITH_TOKEN) as response:
            events = Events(response)
            await events.get("ready")
            await client.connection.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await client.connection.send_all(b"x" * 100_000)
            await server.hub.store(A, b"x")
            assert (await events.get())["data"] == "x"
    with trio.fail_after(5):
        await until(lambda: server.hub.sessions.connected == 0)


async def test_a_stream_is_the_last_answer_of_its_connection(server: Server) -> None:
    async with connect(server) as client:
        async with client.stream("GET", "/v1/stream?tags=a", WITH_TOKEN) as response:
            events = Events(response)
            await events.get("ready")
            await unregister(server)
            await events.get("end")
            assert await events.next() is None
        assert await client.closed()


async def test_a_body_means_nothing_and_can_not_be_endless(server: Server) -> None:
    async with connect(server) as client:
        body = b"x" * 100_000
        async with client.stream("GET", "/v1/stream?tags=a", WITH_TOKEN, body) as response:
            assert response.status == 200
            await Events(response).get("ready")
    async with connect(server) as client:
        head = "GET /v1/stream?tags=a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        await client.connection.send_all(f"{head}X-Auth-Token: {TOKEN}\r\n\r\n".encode())
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await client.connection.send_all(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
    await until(lambda: server.hub.sessions.connected == 0)


async def test_a_client_of_http_1_0_gets_events_too(server: Server) -> None:
    async with connect(server) as client:
        head = "GET /v1/stream?tags=a HTTP/1.0\r\nHost: localhost\r\n"
        await client.connection.send_all(f"{head}X-Auth-Token: {TOKEN}\r\n\r\n".encode())
        held = b""
        while b"event: ready" not in held:
            held += await client.receive_some()
        assert b"chunked" not in held.lower()
        await server.hub.store(A, b"x")
        reader = EventReader()
        found = reader.receive(held.partition(b"\r\n\r\n")[2])
        while len(found) < 2:
            found += reader.receive(await client.receive_some())
        assert found[1].data["data"] == "x"


# history that fails


async def test_a_history_that_can_not_be_read_is_a_refusal_without_its_reasons(
    server: Server,
) -> None:
    assert server.hub.sequencer is not None

    async def broken(*_: object, **__: object) -> object:
        raise HistoryUnavailable("/secret/path is full")

    server.hub.sequencer.history.position = broken  # type: ignore[method-assign,assignment]
    response = await request(server, "GET", "/v1/stream?tags=a&since=0", WITH_TOKEN)
    assert (response.status, response.json()["code"]) == (503, "history_unavailable")
    assert "retry-after" in response.headers
    assert b"secret" not in response.body
    assert server.hub.sessions.connected == 0


async def test_a_history_that_fails_on_the_way_ends_the_stream(server: Server) -> None:
    assert server.hub.sequencer is not None
    await server.hub.store(A, b"x")

    async def broken(*_: object, **__: object) -> object:
        raise HistoryUnavailable("/secret/path is full")

    server.hub.sequencer.history.read = broken  # type: ignore[method-assign,assignment]
    async with listen(server, "tags=a&since=0", WITH_TOKEN) as events:
        await events.get("ready")
        assert await events.get("end") == {"code": 1011, "reason": "history is unavailable"}
        assert await events.rest() == []


# time


@asynccontextmanager
async def endpoint(hub: Hub, *, stalling: bool = False) -> AsyncIterator[Client]:
    """A connection to the application without a socket, on the test's clock.

    Args:
        stalling: whether the client takes nothing from the answer.
    """
    listen = Listen("http", "127.0.0.1", 8080)
    config = Config()
    streams = Streams(hub, most_of_token=10)
    context = Context(
        hub=hub,
        config=config,
        listening=(listen,),
        access=Access(hub, 50),
        is_draining=lambda: hub.ending,
        started=0.0,
        tickets=Tickets(hub.registry),
        streams=streams,
        describe=NodeState,
    )
    limiter = ConnectionLimiter()
    app = Site(context, limiter, ()).behind(Origins(loopback=True))
    transport = HttpTransport(app, limiter, listen)
    if stalling:
        ours, theirs = trio.testing.lockstep_stream_pair()
    else:
        ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.watch)
        nursery.start_soon(transport.handle, theirs, nursery)
        yield Client(ours, "127.0.0.1:8080")
        nursery.cancel_scope.cancel()


async def test_a_quiet_stream_has_a_comment_every_fifteen_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    async with endpoint(hub) as client:
        async with client.stream("GET", "/v1/stream?tags=a") as response:
            events = Events(response)
            await events.get("ready")
            times = []
            while len(times) < 5:
                assert await response.receive() == b":\n\n"
                times.append(trio.current_time())
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert all(14 < gap < 19 for gap in gaps)
    assert times[-1] < 80


async def test_many_streams_have_their_comments_in_turns(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(Hub(LocalRegistry(MemoryStore())), most_of_token=10)
    passes = counted(monkeypatch)
    told: list[int] = []

    def reply(wire: bytes) -> None:
        told.append(passes.count)

    for _ in range(5):
        session: Any = Mock(outbox=Mock(size=0, sent_bytes=0, reply=reply))
        streams.add(session, streams.form_for("1.1"))
    nursery.start_soon(streams.watch)
    await trio.sleep(16)
    assert len(told) == len(set(told)) == 5


async def test_a_stream_that_nobody_reads_any_more_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hub = Hub(LocalRegistry(MemoryStore()))
    async with endpoint(hub, stalling=True) as client:
        await client.send_request("GET", "/v1/stream?tags=a")
        await until(lambda: hub.sessions.connected == 1)
        began = trio.current_time()
        while hub.sessions.connected:  # noqa: ASYNC110  # `until` would stop the clock
            await trio.sleep(1.0)
        assert 15 < trio.current_time() - began < 60


# the server goes away


def test_the_page_about_slow_consumers_says_when() -> None:
    page = Path(__file__).parents[2] / "docs" / "slow-consumers.md"
    assert f"An event stream ends after {_STALLED:.0f} s" in page.read_text()


async def test_a_draining_server_says_so_and_lets_nobody_in(server: Server) -> None:
    async with connect(server) as idle, listen(server, "tags=a", WITH_TOKEN) as events:
        await events.get("ready")
        await server.hub.store(A, b"x")
        server.drain()
        assert (await events.get())["data"] == "x"
        end = {"code": 1001, "reason": "server is going away"}
        assert await events.get("end") == end
        assert await events.rest() == []
        with pytest.raises((trio.BrokenResourceError, h11.RemoteProtocolError)):
            await idle.request("GET", "/v1/stream?tags=a", WITH_TOKEN)


async def test_a_stream_whose_server_is_killed_goes_on_without_gap_or_repeat(
    tmp_path: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listeners = ("--listen", "tcp://127.0.0.1:0", "--listen", f"http://127.0.0.1:{port}")
    seen: list[dict[str, object]] = []
    stored: list[int] = []
    reader = EventReader()

    async def publish(port_of_lines: int, name: str) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of_lines)
        number = 0
        async with stream:
            try:
                while True:
                    await stream.send_all(b"store a %b.%d\n" % (name.encode(), number))
                    number += 1
                    answer = await stream.receive_some(1_000)
                    if not answer.endswith(b"\n"):
                        return
                    stored.append(int(answer.removeprefix(b"stored ")))
            except trio.BrokenResourceError:
                return

    async def follow(goal: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            client = Client(stream, f"127.0.0.1:{port}")
            place = {"Last-Event-ID": reader.last_id} if reader.last_id else {}
            async with client.stream("GET", "/v1/stream?tags=a&since=0", place) as response:
                assert response.status == 200
                half = EventReader()  # a half event dies with its connection
                half.last_id = reader.last_id
                ready = False
                while True:
                    try:
                        data = await response.receive()
                    except h11.RemoteProtocolError:
                        return
                    for event in half.receive(data):
                        if event.name == "ready":
                            assert event.data["recovered"]
                            ready = True
                        else:
                            assert ready
                            seen.append(event.data)
                            reader.last_id = event.id
                    if len(seen) >= goal:
                        return

    with trio.fail_after(100):
        for kill in range(4):
            with serving(tmp_path, listen=listeners) as server:
                lines = port_of(server.urls[0])
                async with trio.open_nursery() as nursery:
                    for n in range(2):
                        nursery.start_soon(publish, lines, f"k{kill}w{n}")
                    nursery.start_soon(follow, 10**9)
                    goal = len(seen) + 100  # of this server's own, so that all are connected
                    await until(lambda goal=goal: len(seen) >= goal)  # type: ignore[misc]
                    server.popen.kill()
                await trio.to_thread.run_sync(server.popen.wait)
        with serving(tmp_path, listen=listeners) as server:
            lines = port_of(server.urls[0])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, lines, "last")
                await follow(max(len(stored), len(seen)) + 50)
                nursery.cancel_scope.cancel()
    ids = [each["id"] for each in seen]
    assert ids == sorted(set(ids)), "repeated or out of order"
    newest = ids[-1]
    assert isinstance(newest, int)
    assert {id_ for id_ in stored if id_ <= newest} <= set(ids), "lost"


# TLS


async def test_tls_carries_events_and_an_ending(tmp_path: Path) -> None:
    authority, files = certificate(tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    listen_tls = (Listen("https", "127.0.0.1", 0),)
    settings = {"listen": listen_tls, "history": "memory://", **files}
    async with running(tmp_path / "data", **settings) as server:
        await server.hub.registry.execute([Register(TOKEN, A)])
        port = int(server.urls[0].rpartition(":")[2])
        with trio.fail_after(30):
            stream = await trio.open_ssl_over_tcp_stream(
                "127.0.0.1", port, ssl_context=context, https_compatible=True
            )
            client = Client(stream, f"127.0.0.1:{port}")
            async with client.stream("GET", "/v1/stream?tags=a", WITH_TOKEN) as response:
                events = Events(response)
                await events.get("ready")
                for n in range(300):
                    await server.hub.store(A, b"%d" % n + b"x" * 10_000)
                assert [each["id"] for each in await events.take(300)] == list(range(1, 301))
                await unregister(server)
                assert (await events.get("end"))["code"] == 4401
                assert await events.rest() == []
            await trio.aclose_forcefully(stream)
            await until(lambda: not server.hub.sessions.connected)
