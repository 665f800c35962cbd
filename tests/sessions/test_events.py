"""Events for services, hooks for programs that embed, and that no token gets any of it."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio_websocket import ConnectionClosed

import mist.sessions.events
import mist.sessions.occupancy
from mist.config import Config
from mist.errors import HistoryUnavailable
from mist.message import parse_tags
from mist.server import Server, open_server
from mist.sessions.events import EventService
from mist.sessions.occasions import Kind, Occasion, event_tags, tags_about
from tests.http.client import request
from tests.servers import listeners, running
from tests.sessions.test_presence import give, present
from tests.transports.lines import Lines, talk
from tests.transports.test_websocket import PATH, browse
from tests.transports.websockets import open_websocket
from tests.waiting import until

LISTEN = listeners("tcp", "ws", "http", "nats")
GONE = 0.3  # seconds, in the place of 5
EVERY = ["connected", "disconnected", "occupied", "vacated", "restarted"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.sessions.occupancy, "LINGER", GONE)
    monkeypatch.setattr(mist.sessions.occupancy, "_LOOK", 0.02)
    monkeypatch.setattr(mist.sessions.events, "_RETRY", 0.02)


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "presence": ("room:*",),
        "events": True,
        "history": "memory://",
        "node": "n1",
        "failed_auth_delay": 0.0,
    }


async def event(line: Lines) -> dict[str, Any]:
    """The next event that a service on the line is told."""
    with trio.fail_after(10):
        word, tags, data = (await line.line()).split(b" ", 2)
    assert word == b"publish"
    found: dict[str, Any] = json.loads(data)
    found["tagged"] = tags.decode()
    assert abs(found.pop("at") - time.time()) < 60
    return found


# what is told


async def test_sessions_that_begin_and_end(server: Server) -> None:
    await give(server, "one", "room:*", user="7")
    async with talk(server) as line:
        await line.ask(b"subscribe mist:connected\nsubscribe mist:disconnected\n")
        async with browse(server, "one"):
            told = await event(line)
            while told["endpoint"] == "tcp":  # its own
                told = await event(line)
            session = told.pop("session")
            token = told.pop("token")
            assert session.startswith("ws-")
            assert server.hub.registry.find(token) is not None
            expected = {"node": "n1", "user": "7", "endpoint": "ws"}
            assert told == {**expected, "event": "connected", "tagged": "mist:connected"}
        told = await event(line)
        assert told.pop("code") in (1000, 1001, 1006)
        assert told.pop("reason")
        assert (told.pop("session"), told.pop("token")) == (session, token)
        assert told == {**expected, "event": "disconnected", "tagged": "mist:disconnected"}
        # A service's, too, without a token; and they are replayed.
        async with talk(server) as other:
            await other.ask(b"")
            assert (await event(line))["endpoint"] == "tcp"
            replayed = await other.ask(b"subscribe mist:connected -1\n")
            assert json.loads(replayed[0].split(b" ", 2)[2])["endpoint"] == "tcp"


async def test_a_session_has_its_client_id_when_it_begins(server: Server) -> None:
    await give(server, "one", "room:*")
    async with talk(server) as line:
        await line.ask(b"subscribe mist:connected\n")
        for path in (f"{PATH}?client=tab", "/stream/user/marvin?client=tab", "/stream/user/marvin"):
            async with browse(server, "one", path=path):
                told = await event(line)
                while told["endpoint"] == "tcp":  # its own
                    told = await event(line)
                if "?" in path:
                    assert told["client"] == "tab"
                else:
                    assert len(told["client"]) == 20


async def test_one_that_is_refused_for_its_client_id_neither_begins_nor_ends(
    server: Server,
) -> None:
    for token in ("one", "two"):
        await give(server, token, "room:*")
    path = f"{PATH}?client=tab"
    async with browse(server, "one", path=path), talk(server) as line:
        await line.ask(b"subscribe mist:connected\nsubscribe mist:disconnected\n")
        async with browse(server, "two", path=path) as page:
            assert await page.closed() == 4409
        async with browse(server, None, path=path) as page:
            await page.socket.send_message('{"command":"auth","token":"two"}')
            with pytest.raises(ConnectionClosed) as closed:
                await page.get()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 4409
        assert (await line.ask(b"who\n"))[-1].split()[1] == b"2"
        # What has happened is told before what happens now.
        async with browse(server, "two", path=f"{PATH}?client=other"):
            told = await event(line)
            while told["endpoint"] == "tcp":  # its own
                told = await event(line)
            assert (told["event"], told["client"]) == ("connected", "other")


async def test_tags_that_are_occupied_and_vacated(server: Server) -> None:
    for user in "ab":
        await give(server, f"token-{user}", "room:*", user=user)
    async with talk(server) as line:
        await line.ask(b"subscribe mist:occupied\nsubscribe mist:vacated\n")
        async with present(server, "token-a", "room:7", "urgent"):
            told = await event(line)
            assert told == {
                "event": "occupied",
                "node": "n1",
                "tags": ["room:7"],
                "tagged": "mist:occupied,mist:tag:room:7",
            }
            async with present(server, "token-b"):
                pass
        # Back in time: neither is told.
        async with present(server, "token-b"):
            await trio.sleep(GONE * 2)
        told = await event(line)
        assert told == {
            "event": "vacated",
            "node": "n1",
            "tags": ["room:7"],
            "tagged": "mist:tag:room:7,mist:vacated",
        }
        await line.ask(b"unsubscribe mist:occupied\nsubscribe mist:tag:room:8\n")
        async with present(server, "token-a", "room:7"), present(server, "token-a", "room:8"):
            assert (await event(line))["tags"] == ["room:8"]


async def test_a_start_is_told(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"events": True, "history": f"sqlite:///{tmp_path}/h.db"}
    for number in (1, 2):
        async with running(tmp_path, listen=LISTEN, **settings) as server:
            found = await until_stored(server, "restarted", number)
            assert [sorted(each) for each in found] == [["at", "event", "node", "version"]] * number


async def test_where_they_are_off_nothing_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, history="memory://", presence=("*",)) as server:
        assert server.hub.events is None
        assert server.hub.sessions.events is None
        assert server.hub.broker.presence is not None
        assert server.hub.broker.presence.on_tag is None
        async with talk(server) as line:
            assert (await line.ask(b"last\n"))[0].endswith(b" 0\n")


async def test_without_a_history_they_are_live(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, events=True) as server, talk(server) as line:
        await line.ask(b"subscribe mist:connected\n")
        async with talk(server) as other:
            await other.ask(b"")
            assert (await event(line))["endpoint"] == "tcp"


# nothing of it for tokens

GRANTS = ("*", "mist:*", "mist:connected", "mist:tag:room:7", ">*", ">mist:*", ">mist:connected")


@pytest.fixture
async def greedy(server: Server) -> None:
    await give(server, "greedy", *GRANTS, "room:*", "@*", "@mist:*", user="7")


async def events_of(server: Server, kind: str) -> list[dict[str, Any]]:
    """All events of a kind that are stored."""
    answer = await request(server, "GET", f"/v1/messages?tags=mist:{kind}&since=0&limit=1000")
    return [json.loads(each["data"]) for each in answer.json()["messages"]]


async def until_stored(server: Server, kind: str, count: int) -> list[dict[str, Any]]:
    with trio.fail_after(20):
        while True:
            found = await events_of(server, kind)
            if len(found) >= count:
                return found
            await trio.sleep(0.02)


async def test_no_token_may_subscribe_to_them(server: Server, greedy: None) -> None:
    asked = [*(f"mist:{kind}" for kind in EVERY), "mist:tag:room:7", "mist:"]
    headers = {"X-Auth-Token": "greedy"}
    async with browse(server, "greedy") as page:
        for tag in asked:
            assert (await page.ask("subscribe", tags=[tag]))["error"] == "not granted by the token"
            told = await page.ask("subscribe", tags=[tag], since=0)
            assert told["error"] == "not granted by the token"
            told = await page.ask("presence", tags=[tag])
            assert told["error"] == "not granted by the token"
    async with open_websocket(
        server, "/subscribe/websocket", subprotocols=["mist.json"], headers=headers
    ) as socket:
        for tag in asked:
            await socket.send_message(json.dumps({"command": "subscribe", "tags": [tag]}))
            told = json.loads(await socket.get_message())
            assert told["error"] == "not granted by the token"
    for path in ("/v1/stream?", "/v1/poll?timeout=0&since=0&", "/v1/messages?since=0&"):
        for tag in asked:
            answer = await request(server, "GET", f"{path}tags={tag}", headers=headers)
            assert (answer.status, answer.json()["code"]) == (403, "not_granted"), path
    answer = await request(server, "GET", "/v1/log?after=0&subscribe=mist:connected", headers)
    assert answer.status == 403


async def test_no_token_is_told_by_other_subscriptions(server: Server, greedy: None) -> None:
    headers = {"X-Auth-Token": "greedy"}
    wide = [["room:7"], ["room:7", "mist:occupied"], ["room:7", "mist:tag:room:7"]]
    async with browse(server, "greedy") as page:
        for tags in wide:
            await page.ask("subscribe", tags=tags)
        await until_stored(server, "occupied", 1)
        assert await page.ask("ping") == {"success": True, "command": "ping"}
        told = await page.ask("subscribe", subscriptions=wide, since=0)
        assert told["recovered"] is True
        assert await page.ask("ping") == {"success": True, "command": "ping"}
    answer = await request(server, "GET", "/v1/messages?tags=room:7&since=0", headers=headers)
    assert answer.json()["messages"] == []
    answer = await request(server, "GET", "/v1/poll?tags=room:7&timeout=0&since=0", headers=headers)
    assert answer.json()["messages"] == []


async def test_no_token_is_told_by_latest_values_or_other_dialects(
    tmp_path: Path, server_settings: dict[str, Any]
) -> None:
    async with running(tmp_path, **server_settings, latest=("mist:*", "room:*")) as server:
        await give(server, "greedy", *GRANTS, "room:*", "/", ".>", user="7")
        headers = {"X-Auth-Token": "greedy"}
        async with present(server, "greedy", "room:7"):
            await until_stored(server, "occupied", 1)
            for tag, status in (("mist:occupied", 403), ("room:7", 200)):
                path = f"/v1/messages?tags={tag}&latest=mist:*"
                answer = await request(server, "GET", path, headers=headers)
                assert answer.status == status
                assert status != 200 or answer.json()["messages"] == []
            async with browse(server, "greedy") as page:
                since = {"latest": "mist:*"}
                told = await page.ask("subscribe", tags=["mist:occupied"], since=since)
                assert told["error"] == "not granted by the token"
            async with talk(server, 3) as nats:
                connect = {"verbose": False, "auth_token": "greedy"}
                await nats.line()
                await nats.send(f"CONNECT {json.dumps(connect)}\r\nSUB > 1\r\nPING\r\n".encode())
                assert await nats.line() == b"PONG\r\n"
                async with talk(server) as other:
                    await other.ask(b"")
                    await until_stored(server, "connected", 4)
                await nats.send(b"PUB mist:connected 1\r\nx\r\nPING\r\n")
                found = b""
                while not found.endswith(b"PONG\r\n"):
                    found += await nats.line()
                assert b'"event"' not in found
            stored = await events_of(server, "connected")
            assert all(each["event"] == "connected" for each in stored)


async def test_no_token_may_publish_them(server: Server, greedy: None) -> None:
    headers = {"X-Auth-Token": "greedy"}
    for tags in (["mist:connected"], ["mist:occupied", "mist:tag:room:7"], ["x", "mist:x"]):
        body = {"tags": tags, "data": "forged"}
        answer = await request(server, "POST", "/v1/messages", headers, json=body)
        assert (answer.status, answer.json()["code"]) == (403, "not_granted")
        async with browse(server, "greedy") as page:
            assert not (await page.ask("publish", tags=tags, data="forged"))["success"]
        async with open_websocket(
            server, "/subscribe/websocket", subprotocols=["mist.json"], headers=headers
        ) as socket:
            await socket.send_message(
                json.dumps({"command": "publish", "tags": tags, "data": "forged"})
            )
            assert "error" in json.loads(await socket.get_message())
    async with talk(server) as line:
        for tag in ("mist:connected", "mist:occupied", "mist:x"):
            told = await line.ask(f"subscribe {tag} 0\n".encode())
            assert not [each for each in told if b"forged" in each]


async def test_a_service_may_look_for_them(server: Server, greedy: None) -> None:
    async with present(server, "greedy", "room:7"):
        pass
    await until_stored(server, "vacated", 1)
    answer = await request(server, "GET", "/v1/messages?tags=mist:tag:room:7&since=0")
    keys = [each["keys"] for each in answer.json()["messages"]]
    assert keys == [["mist:occupied", "mist:tag:room:7"], ["mist:tag:room:7", "mist:vacated"]]


def test_a_tag_that_is_long_stands_in_the_data_only() -> None:
    long = "r" * 255
    assert event_tags(Kind.OCCUPIED, long) == {"mist:occupied"}
    assert event_tags(Kind.OCCUPIED, "é" * 123) == {"mist:occupied", "mist:tag:" + "é" * 123}
    assert event_tags(Kind.OCCUPIED, "é" * 124) == {"mist:occupied"}
    occasion = Occasion(Kind.OCCUPIED, 1.0, "n1", tag=long)
    assert json.loads(occasion.data)["tags"] == [long]
    assert tags_about(event_tags(Kind.VACATED, "room:7")) == ["room:7"]
    for tag in ("room:7", "/a/b", "a*b", ".x.y", "=", "*x"):
        assert parse_tags(event_tags(Kind.OCCUPIED, tag), 2)


# storms, and a history that refuses


@attrs.define
class Publisher:
    """In the place of a hub."""

    sequencer: object = True
    stored: list[list[Any]] = attrs.field(factory=list)
    keys: list[Any] = attrs.field(factory=list)
    failures: int = 0
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def store_all(self, messages: Sequence[Any], *, key: Any) -> int:
        await self.gate.wait()
        self.keys.append(key)
        if self.failures:
            self.failures -= 1
            raise HistoryUnavailable
        self.stored.append(list(messages))
        return 1


def occasion(number: int = 0) -> Occasion:
    return Occasion(Kind.CONNECTED, 1.0, "n1", session=f"ws-{number}")


async def test_a_storm_is_few_appends_and_bounded(nursery: trio.Nursery) -> None:
    publisher = Publisher()
    events = EventService(publisher, "n1", lambda: 1.0, publishes=True)  # type: ignore[arg-type]
    nursery.start_soon(events.run)
    for number in range(12_000):
        events.note(occasion(number))
    publisher.gate.set()
    await events.settled()
    assert events.dropped == {"message": 2_000}
    assert events.published == sum(map(len, publisher.stored)) == 10_000
    assert len(publisher.stored) == 20
    assert [json.loads(data)["session"] for _, data in publisher.stored[0]][:2] == ["ws-0", "ws-1"]


async def test_what_the_history_refuses_is_tried_again_under_the_same_key(
    nursery: trio.Nursery,
) -> None:
    publisher = Publisher(failures=3)
    publisher.gate.set()
    events = EventService(publisher, "n1", lambda: 1.0, publishes=True)  # type: ignore[arg-type]
    nursery.start_soon(events.run)
    events.note(occasion(1))
    await events.settled()
    events.note(occasion(2))
    await events.settled()
    assert events.refused == 3
    assert len(publisher.stored) == 2
    assert len(set(publisher.keys)) == 2
    assert events.dropped == {}


async def test_counts_are_metrics(server: Server) -> None:
    await until(lambda: server.hub.events is not None and server.hub.events.published)
    text = (await request(server, "GET", "/metrics")).body.decode()
    assert "mist_events_total" in text
    assert 'mist_events_dropped_total{what="message"} 0.0' in text


# hooks


@asynccontextmanager
async def embedded(folder: Path, *hooks: Any) -> AsyncIterator[Server]:
    config = Config(data=folder, listen=LISTEN, tokens="memory://", history="none")
    async with open_server(config, hooks=hooks) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def test_hooks_are_called_in_order_whatever_others_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    awaited: list[str] = []

    def hook(occasion: Occasion) -> None:
        seen.append(occasion.kind.value)

    async def wait(occasion: Occasion) -> None:
        await trio.lowlevel.checkpoint()
        awaited.append(occasion.kind.value)

    def fail(occasion: Occasion) -> None:
        raise ValueError("with a name of a person")

    async def hang(occasion: Occasion) -> None:
        await trio.sleep_forever()

    async with embedded(tmp_path, hook, wait, fail, hang) as server:
        for _ in range(2):
            async with talk(server) as line:
                await line.ask(b"")
        expected = ["restarted", *["connected", "disconnected"] * 2]
        await until(lambda: len(seen) == 5 and len(awaited) == 5)
        assert seen == awaited == expected
        events = server.hub.events
        assert events is not None
        await until(lambda: events.failed == 5)
        assert events.published == 0
    assert "a hook failed" in caplog.text
    assert "person" not in caplog.text


async def test_a_hook_that_hangs_is_given_no_more_than_there_is_room_for(
    nursery: trio.Nursery,
) -> None:
    async def hang(occasion: Occasion) -> None:
        await trio.sleep_forever()

    publisher = Publisher()
    events = EventService(
        publisher,  # type: ignore[arg-type]
        "n1",
        lambda: 1.0,
        publishes=False,
        hooks=[hang],
    )
    nursery.start_soon(events.run)
    for number in range(11_000):
        events.note(occasion(number))
    assert events.dropped == {"hook": 1_000}


# many nodes


@pytest.fixture
async def nodes(tmp_path: Path, nursery: trio.Nursery) -> list[tuple[Server, trio.CancelScope]]:
    engine = f"memory://{secrets.token_hex(4)}"
    scopes: list[trio.CancelScope] = []

    async def node(number: int, *, task_status: trio.TaskStatus[Server]) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            async with running(
                tmp_path / f"n{number}",
                listen=LISTEN[:3],
                history="memory://",
                tokens=None,
                engine=engine,
                node=f"n{number}",
                presence=("room:*",),
                events=True,
            ) as server:
                task_status.started(server)
                await trio.sleep_forever()

    servers = [await nursery.start(node, number) for number in (1, 2, 3)]
    for user in "abc":
        await give(servers[0], f"token-{user}", "room:*", user=user)
    return list(zip(servers, scopes, strict=True))


async def test_without_messages_the_hooks_of_one_node_are_told(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.sessions.occupancy, "_APART", 0.01)
    engine = f"memory://{secrets.token_hex(4)}"
    told: list[tuple[str, str]] = []
    dying = trio.CancelScope()

    def hook(occasion: Occasion) -> None:
        if occasion.tag:
            told.append((occasion.node, occasion.kind.value))

    async def node(number: int, *, task_status: trio.TaskStatus[Server]) -> None:
        config = Config(
            data=tmp_path / str(number),
            listen=LISTEN[:3],
            history="memory://",
            engine=engine,
            node=f"n{number}",
            presence=("room:*",),
        )
        with dying if number == 3 else trio.CancelScope():
            async with open_server(config, hooks=[hook]) as server, trio.open_nursery() as own:
                await own.start(server.run)
                task_status.started(server)
                await trio.sleep_forever()

    one, two, three = [await nursery.start(node, number) for number in (1, 2, 3)]
    await give(one, "token-a", "room:*", user="a")
    with trio.fail_after(30):
        for server in (one, two, three):
            assert server.hub.nodes is not None
            while len({*await server.hub.nodes.living()}) < 3:  # noqa: ASYNC110 (no event tells)
                await trio.sleep(0.05)
    async with present(three, "token-a"):
        async with present(two, "token-a"):
            await until(lambda: told == [("n2", "occupied")] or told == [("n3", "occupied")])
    await until(lambda: len(told) == 2)
    await trio.sleep(1)  # every node has had its turn
    assert told[1:] == [("n3", "vacated")]

    async def stay(*, task_status: trio.TaskStatus[None]) -> None:
        with suppress(ConnectionClosed):
            async with present(three, "token-a") as page:
                task_status.started()
                await page.get()

    await nursery.start(stay)
    await until(lambda: len(told) == 3)
    dying.cancel()
    await until(lambda: len(told) == 4)
    await trio.sleep(1)
    assert told[2] == ("n3", "occupied")
    assert told[3:] in ([("n1", "vacated")], [("n2", "vacated")])


async def until_told(server: Server, count: int) -> list[str]:
    """Kinds of all events about room:7, in order, once there are so many."""
    path = "/v1/messages?tags=mist:tag:room:7&since=0&limit=100"
    with trio.fail_after(30):
        while True:
            found = (await request(server, "GET", path)).json()["messages"]
            if len(found) >= count:
                return [json.loads(each["data"])["event"] for each in found]
            await trio.sleep(0.05)


async def test_all_nodes_together_occupy_and_vacate(
    nodes: list[tuple[Server, trio.CancelScope]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.sessions.occupancy, "_APART", 0.5)
    one, two, three = (server for server, _ in nodes)
    async with present(one, "token-a"):
        assert await until_told(three, 1) == ["occupied"]
        async with present(two, "token-b"):
            await trio.sleep(0.2)
    async with present(three, "token-c"):  # back in time, elsewhere
        await trio.sleep(GONE * 3)
        assert await until_told(one, 1) == ["occupied"]
    assert await until_told(two, 2) == ["occupied", "vacated"]
    await trio.sleep(2.0)  # every node has had its turn
    assert await until_told(two, 2) == ["occupied", "vacated"]
    async with present(two, "token-a"):
        assert await until_told(one, 3) == ["occupied", "vacated", "occupied"]


async def test_what_a_dead_node_had_is_vacated_unless_it_is_back(
    nodes: list[tuple[Server, trio.CancelScope]], nursery: trio.Nursery
) -> None:
    (one, _), (two, _), (three, dies) = nodes

    async def stay(room: str, *, task_status: trio.TaskStatus[None]) -> None:
        with suppress(ConnectionClosed):
            async with present(three, "token-a", room) as page:
                task_status.started()
                await page.get()

    for room in ("room:7", "room:8"):
        await nursery.start(stay, room)
    assert await until_told(one, 1) == ["occupied"]
    await until_stored(two, "occupied", 2)
    async with present(one, "token-b", "room:8"):
        dies.cancel()
        assert await until_told(two, 2) == ["occupied", "vacated"]
        assert [each["tags"] for each in await events_of(one, "vacated")] == [["room:7"]]
    assert len(await events_of(one, "occupied")) == 2
