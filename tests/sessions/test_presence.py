"""Presence at every endpoint of a real server: who is told what, and what tokens may not do."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import mist.broker.presence_view
import mist.sessions.presence
from mist.attributes import Attributes
from mist.auth.opening import open_registry
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import MistError, TooManyWatches
from mist.protocols.line.forms import PLAIN
from mist.server import Server
from mist.sessions.hub import Hub
from mist.sessions.presence import PresenceService
from mist.sessions.presence_opening import open_presence
from mist.sessions.session import Session
from tests.http.client import connect, request
from tests.http.events import Events
from tests.servers import listeners, running
from tests.transports.lines import talk
from tests.transports.test_websocket import Browser, browse
from tests.transports.websockets import open_websocket
from tests.waiting import until

LISTEN = listeners("tcp", "ws", "http")
PATH = "/v1/presence?tags=room:7"
GONE = 0.3  # seconds, in the place of 5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.broker.presence_view, "LINGER", GONE)
    monkeypatch.setattr(mist.sessions.presence, "_ROUND", 0.01)
    monkeypatch.setattr(mist.sessions.presence, "_CROWDED", 0.02)


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": LISTEN, "presence": ("room:*",), "failed_auth_delay": 0.0}


async def give(server: Server, token: str, *tags: str, **attributes: str) -> None:
    """Register a token, with attributes."""
    changes: list[Any] = [Register(token, frozenset(tags))]
    if attributes:
        changes.append(SetAttributes(token, Attributes.of_json(attributes)))
    outcomes = await server.hub.registry.execute(changes)
    assert not [each for each in outcomes if isinstance(each, MistError)]


@pytest.fixture
async def tokens(server: Server) -> None:
    for user in "abc":
        await give(server, f"token-{user}", "room:*", user=user)
    await give(server, "asks", "lobby", "@room:*", user="asker")


@asynccontextmanager
async def present(server: Server, token: str, *tags: str) -> AsyncIterator[Browser]:
    async with browse(server, token) as page:
        assert (await page.ask("subscribe", tags=list(tags or ("room:7",))))["success"]
        yield page


def service(server: Server) -> PresenceService:
    assert server.hub.presence is not None
    return server.hub.presence


def users(listed: object) -> list[str]:
    assert isinstance(listed, list)
    return [each["user"] for each in listed]


async def test_frames(server: Server, tokens: None) -> None:
    async with browse(server, "asks") as page, AsyncExitStack() as stack:
        await stack.enter_async_context(present(server, "token-a"))
        told = await page.ask("presence", tags=["room:7"], ref=5)
        [first] = told.pop("present")  # type: ignore[misc]
        assert told == {
            "success": True,
            "command": "presence",
            "tags": ["room:7"],
            "count": 1,
            "listed": True,
            "ref": 5,
        }
        assert sorted(first) == ["since", "user"]
        assert first["user"] == "a"
        async with present(server, "token-b", "room:7", "urgent"):
            told = await page.get()
            assert users(told.pop("joined")) == ["b"]
            assert told == {"command": "presence", "tags": ["room:7"], "left": [], "count": 2}
        told = await page.get()
        assert users(told.pop("left")) == ["b"]
        assert told == {"command": "presence", "tags": ["room:7"], "joined": [], "count": 1}
        assert await page.ask("unpresence", tags=["room:7"]) == {
            "success": True,
            "command": "unpresence",
        }
        await stack.enter_async_context(present(server, "token-c"))
        await trio.sleep(0.05)
        assert await page.ask("ping") == {"success": True, "command": "ping"}
        assert service(server).watches == 0


async def test_lines(server: Server, tokens: None) -> None:
    async with talk(server) as line, AsyncExitStack() as stack:
        await stack.enter_async_context(present(server, "token-a"))
        [told] = await line.ask(b"presence room:7\n")
        words = told.decode().split()
        assert words[:3] == ["present", "room:7", "1"]
        assert words[3].startswith("since=")
        assert words[3].endswith("&user=a")
        async with present(server, "token-b"):
            told = await line.line()
            assert told.startswith(b"joined room:7 2 since=")
            assert told.endswith(b"&user=b\n")
        told = await line.line()
        assert told.startswith(b"left room:7 1 since=")
        assert await line.ask(b"unpresence room:7\n") == []
        assert await line.ask(b"presence lobby\n") == [b"error Presence is off for these tags\n"]
        assert await line.ask(b"presence room:7,lobby\n") == [
            b"error Presence is off for these tags\n"
        ]
        assert await line.ask(b"presence\n") == [
            b"error Incorrect number of arguments for '[presence]'\n"
        ]
        assert await line.ask(b"presence a,,b\n") == [b"error Empty tag\n"]
        assert service(server).refused == {"presence_off": 2}


async def test_json_objects(server: Server, tokens: None) -> None:
    async with (
        open_websocket(
            server,
            "/subscribe/websocket",
            subprotocols=["mist.json"],
            headers={"X-Auth-Token": "asks"},
        ) as socket,
        present(server, "token-a"),
    ):
        await socket.send_message('{"command":"presence","tags":["room:7"]}')
        told = json.loads(await socket.get_message())
        assert users(told.pop("present")) == ["a"]
        assert told == {"command": "presence", "tags": ["room:7"], "count": 1, "listed": True}
        async with present(server, "token-b"):
            assert users(json.loads(await socket.get_message())["joined"]) == ["b"]
        await socket.send_message('{"command":"presence","tags":["lobby"]}')
        assert json.loads(await socket.get_message()) == {
            "command": "presence",
            "error": "not granted by the token",
        }


async def test_http(server: Server, tokens: None) -> None:
    headers = {"X-Auth-Token": "asks"}
    async with present(server, "token-a"):
        answer = await request(server, "GET", PATH, headers=headers)
        told = answer.json()
        assert answer.status == 200
        assert users(told.pop("present")) == ["a"]
        assert told == {"tags": ["room:7"], "count": 1, "listed": True}
        assert (await request(server, "GET", PATH)).status == 200  # a service, on loopback
        async with events(server, headers) as stream, AsyncExitStack() as stack:
            assert users((await stream.get("presence"))["present"]) == ["a"]
            await stack.enter_async_context(present(server, "token-b"))
            assert users((await stream.get("presence"))["joined"]) == ["b"]
            async with events(server, headers) as other:
                assert users((await other.get("presence"))["present"]) == ["a", "b"]
                async with present(server, "token-c"):
                    assert users((await stream.get("presence"))["joined"]) == ["c"]
                assert users((await stream.get("presence"))["left"]) == ["c"]
    await until(lambda: service(server).watches == 0)


@asynccontextmanager
async def events(server: Server, headers: dict[str, str]) -> AsyncIterator[Events]:
    path = PATH.replace("?", "/stream?")
    async with connect(server) as client, client.stream("GET", path, headers) as response:
        assert response.status == 200, (response.status, await response.read())
        yield Events(response)


@pytest.mark.parametrize("path", [PATH, PATH.replace("?", "/stream?")])
async def test_what_http_refuses(server: Server, tokens: None, path: str) -> None:
    async def code(query: str, token: str) -> tuple[int, str]:
        where = path.partition("?")[0] + query
        answer = await request(server, "GET", where, headers={"X-Auth-Token": token})
        return answer.status, answer.json()["code"]

    assert await code("?tags=room:7", "token-a") == (403, "not_granted")
    assert await code("?tags=lobby", "asks") == (403, "not_granted")
    await give(server, "all", "@*")
    assert await code("?tags=lobby", "all") == (409, "presence_off")
    assert await code("?tags=room:7", "unknown") == (401, "unauthorized")
    assert await code("", "asks") == (400, "empty_tag")
    assert await code("?tags=room:7&tags=room:8", "asks") == (400, "invalid_query")
    assert await code("?tags=room:*", "asks") == (400, "invalid_tag")
    assert service(server).refused == {"not_granted": 2, "presence_off": 1}


@pytest.mark.parametrize("server_settings", [{"listen": LISTEN}])
async def test_where_it_is_off_nothing_is_kept(server: Server) -> None:
    assert server.hub.presence is None
    assert server.hub.broker.presence is None
    async with talk(server) as line:
        assert await line.ask(b"presence room:7\nunpresence room:7\n") == [
            b"error Presence is off for these tags\n"
        ]
    assert (await request(server, "GET", PATH)).status == 409


# who may ask


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("@room:7", True),
        ("@room:*", True),
        ("@*", True),
        ("@room:8", False),
        ("@", False),
        ("room:7", False),
        ("*", False),
        (">@room:7", False),
        ("room:7@", False),
        ("@@room:7", False),
    ],
)
async def test_the_right_to_ask(server: Server, grant: str, allowed: bool) -> None:
    await give(server, "one", grant, "x")
    async with browse(server, "one") as page:
        told = await page.ask("presence", tags=["room:7"])
        assert told["success"] is allowed
        if not allowed:
            assert told["error"] == "not granted by the token"


async def test_every_tag_needs_the_right(server: Server) -> None:
    await give(server, "one", "@room:7", "room:*")
    async with browse(server, "one") as page:
        assert (await page.ask("presence", tags=["room:7"]))["success"]
        assert not (await page.ask("presence", tags=["room:7", "room:8"]))["success"]


async def test_a_site_sees_no_other(server: Server) -> None:
    for site in ("one", "two"):
        await give(server, f"asks-{site}", "@*", site=site)
        await give(server, f"there-{site}", "room:*", site=site, user=site)
    async with (
        present(server, "there-one"),
        present(server, "there-two"),
        browse(server, "asks-one") as page,
        talk(server) as line,
    ):
        told = await page.ask("presence", tags=["room:7"])
        assert users(told["present"]) == ["one"]
        [all_of_them] = await line.ask(b"presence room:7\n")
        assert all_of_them.split()[2] == b"2"
        headers = {"X-Auth-Token": "asks-two"}
        answer = await request(server, "GET", PATH, headers=headers)
        assert users(answer.json()["present"]) == ["two"]


# tokens that change


async def test_a_right_that_is_taken_ends_the_watch_at_once(server: Server, tokens: None) -> None:
    headers = {"X-Auth-Token": "asks"}
    async with browse(server, "asks") as page, events(server, headers) as stream:
        await page.ask("presence", tags=["room:7"])
        await stream.get("presence")
        await server.hub.registry.execute([RemoveTags("asks", frozenset({"@room:*"}))])
        assert service(server).watches == 0
        async with present(server, "token-a"):
            assert await page.get() == {
                "success": False,
                "command": "unpresence",
                "tags": ["room:7"],
                "error": "not granted by the token",
            }
            assert (await stream.get("end"))["code"] == 1000
            await trio.sleep(0.05)
            assert await page.ask("ping") == {"success": True, "command": "ping"}
        assert service(server).ended == 2


async def test_a_revoked_token_is_told_nothing_more(server: Server, tokens: None) -> None:
    async with browse(server, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        await server.hub.registry.execute([Unregister("asks")])
        assert service(server).watches == 0
        assert await page.closed() == 4401


async def test_a_token_swapped_in_band_takes_its_rights_with_it(
    server: Server, tokens: None
) -> None:
    async with browse(server, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        await page.socket.send_message('{"command":"auth","token":"token-a"}')
        answers = [await page.get(), await page.get()]
        assert {each["command"] for each in answers} == {"auth", "unpresence"}
        assert service(server).watches == 0


async def test_who_gets_another_user_leaves_and_joins(server: Server, tokens: None) -> None:
    async with present(server, "token-a"), browse(server, "asks") as page:
        assert users((await page.ask("presence", tags=["room:7"]))["present"]) == ["a"]
        change = SetAttributes("token-a", Attributes.of_json({"user": "new"}))
        await server.hub.registry.execute([change])
        assert users((await page.get())["joined"]) == ["new"]
        assert users((await page.get())["left"]) == ["a"]


async def test_a_subscription_that_is_revoked_leaves(server: Server, tokens: None) -> None:
    async with present(server, "token-a"), browse(server, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        await server.hub.registry.execute(
            [AddTags("token-a", frozenset({"x"})), RemoveTags("token-a", frozenset({"room:*"}))]
        )
        assert users((await page.get())["left"]) == ["a"]


async def test_who_reconnects_in_time_is_not_told_of(server: Server, tokens: None) -> None:
    async with browse(server, "asks") as page:
        async with present(server, "token-a"):
            await page.ask("presence", tags=["room:7"])
        async with present(server, "token-a"), present(server, "token-b"):
            assert users((await page.get())["joined"]) == ["b"]
            await trio.sleep(GONE * 2)
            assert await page.ask("ping") == {"success": True, "command": "ping"}


# what a token can make the server keep


async def test_watches_are_bounded(
    server: Server, tokens: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.sessions.presence, "_OF_SESSION", 3)
    monkeypatch.setattr(mist.sessions.presence, "_OF_TOKEN", 4)
    async with browse(server, "asks") as one, browse(server, "asks") as two:
        for number in range(3):
            assert (await one.ask("presence", tags=[f"room:{number}"]))["success"]
        assert (await one.ask("presence", tags=["room:0"]))["success"]  # again
        told = await one.ask("presence", tags=["room:3"])
        assert told["error"] == "Too many presence watches"
        assert (await two.ask("presence", tags=["room:0"]))["success"]
        assert not (await two.ask("presence", tags=["room:1"]))["success"]
        assert service(server).watches == 4
        await one.ask("unpresence", tags=["room:2"])
        assert (await two.ask("presence", tags=["room:1"]))["success"]
        # What was only asked about makes room, what is watched doesn't.
        monkeypatch.setattr(mist.sessions.presence, "_MOST", len(service(server).keys) + 1)
        await two.ask("unpresence", tags=["room:1"])
        for number in range(10, 20):
            answer = await request(server, "GET", f"/v1/presence?tags=room:{number}")
            assert answer.status == 200
        assert len(service(server).keys) <= 5
        monkeypatch.setattr(mist.sessions.presence, "_MOST", 2)
        service(server)._rooms._idle.clear()  # as if they were watched
        headers = {"X-Auth-Token": "asks"}
        answer = await request(server, "GET", "/v1/presence?tags=room:9", headers=headers)
        assert answer.status == 429
        assert answer.json()["code"] == "too_many_watches"
    await until(lambda: service(server).watches == 0)


@pytest.mark.parametrize(
    "change",
    [
        RemoveTags("asks", frozenset({"@room:*"})),
        SetAttributes("asks", Attributes.of_json({"site": "eu"})),
    ],
)
async def test_a_token_that_changes_while_it_asks_is_told_nothing_by_what_it_was(
    server: Server, tokens: None, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    presence = service(server)
    look = presence.look

    async def changed_meanwhile(*asked: Any) -> object:
        told = await look(*asked)
        await server.hub.registry.execute([change])
        return told

    monkeypatch.setattr(presence, "look", changed_meanwhile)
    async with present(server, "token-a"):
        answer = await request(server, "GET", PATH, {"X-Auth-Token": "asks"})
    assert (answer.status, answer.json()["code"]) == (403, "not_granted")


async def test_what_had_to_make_room_while_others_catch_up_keeps_nobody_from_it(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.sessions.presence, "_MOST", 2)
    hub = Hub(await open_registry("memory://"))
    open_presence(hub, ["room:*"])
    presence = hub.presence
    assert presence is not None
    watcher = Session(hub, PLAIN, lambda notice: b"", transport="tcp")
    one, other, new = (frozenset({f"room:{number}"}) for number in range(3))
    for tags in (one, other):
        await presence.watch(watcher, tags)
    monkeypatch.setattr(mist.sessions.presence, "_BEHIND", -1)  # as if much were queued
    for room in presence._rooms:
        presence._tell(room, watcher, room.view.present)
    assert len(presence._behind) == 2
    presence.unwatch(watcher, other)
    monkeypatch.undo()
    monkeypatch.setattr(mist.sessions.presence, "_MOST", 2)
    told = presence.told
    steps = presence._catch_up()
    next(steps)
    await presence.look(None, new)  # in the place of the other one
    for _ in steps:
        pass
    assert presence.told == told + 1
    assert not presence._behind
    await watcher.aclose()


async def test_what_had_to_make_room_while_it_was_looked_at_is_not_watched(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.sessions.presence, "_MOST", 1)
    hub = Hub(await open_registry("memory://"))
    open_presence(hub, ["room:*"])
    presence = hub.presence
    assert presence is not None
    watcher = Session(hub, PLAIN, lambda notice: b"", transport="tcp")
    one, other = frozenset({"room:1"}), frozenset({"room:2"})

    async def look() -> None:
        await presence.look(None, one)
        with suppress(TooManyWatches):  # for which the first one made room
            await presence.look(None, other)

    async def watch() -> None:
        with pytest.raises(TooManyWatches):
            await presence.watch(watcher, one)

    async with presence._looking:
        for task in (look, watch):
            nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
    await trio.testing.wait_all_tasks_blocked()
    assert presence.watches == 0
    await watcher.aclose()


async def test_nothing_is_left_of_those_who_are_gone(
    server: Server, tokens: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.sessions.presence_rooms._KEPT", 0.05)
    presence = service(server)
    async with browse(server, "asks") as page, present(server, "token-a"):
        await page.ask("presence", tags=["room:7"])
    await request(server, "GET", PATH)
    await until(lambda: not presence.keys)
    assert not presence.presence.watched
    assert presence.presence.tag_count == 0
    assert not presence.presence.changed


async def test_an_unauthenticated_peer_may_not_ask(server: Server, tokens: None) -> None:
    async with browse(server, None) as page:
        await page.socket.send_message('{"command":"presence","tags":["room:7"]}')
        assert await page.closed() == 4401
    assert service(server).watches == 0


async def test_asking_again_and_again_keeps_nothing(server: Server, tokens: None) -> None:
    async with browse(server, "asks") as page, present(server, "token-a"):
        for _ in range(20):
            assert (await page.ask("presence", tags=["room:7"]))["count"] == 1
        assert service(server).watches == 1
        for _ in range(3):
            await page.ask("unpresence", tags=["room:7"])
        assert service(server).watches == 0
        assert service(server)._of_token == {}


@pytest.mark.parametrize(
    "tags", [["*"], [".a.>"], ["room:*"], ["..a"], [">room:7"], [""], ["a b"], []]
)
async def test_tags_that_nobody_is_present_at(server: Server, tags: list[str]) -> None:
    await give(server, "all", "@*", "x")
    async with browse(server, "all") as page:
        assert not (await page.ask("presence", tags=tags))["success"]


async def test_who_does_not_read_is_told_all_of_it_later(
    server: Server, tokens: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browse(server, "asks") as page, present(server, "token-a"):
        await page.ask("presence", tags=["room:7"])
        monkeypatch.setattr(mist.sessions.presence, "_BEHIND", -1)  # as if much were queued
        async with present(server, "token-b"):
            presence = service(server)
            await until(lambda: presence._behind)
            monkeypatch.undo()
            told = await page.get()
            assert users(told["present"]) == ["a", "b"]
            assert told["listed"] is True
            assert "success" not in told


async def test_a_crowd_is_counted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.broker.presence.MOST_LISTED", 2)
    monkeypatch.setattr("mist.broker.presence_view.RELISTED", 1)
    for user in "abc":
        await give(server, f"token-{user}", "room:*", user=user)
    async with talk(server) as line, present(server, "token-a"):
        await line.ask(b"presence room:7\n")
        async with present(server, "token-b"):
            assert (await line.line()).startswith(b"joined room:7 2 ")
            async with present(server, "token-c"):
                assert await line.line() == b"crowded room:7 3\n"
                answer = await request(server, "GET", PATH)
                assert answer.json() == {"tags": ["room:7"], "count": 3, "listed": False}
            assert await line.line() == b"crowded room:7 2\n"
        assert (await line.line()).startswith(b"present room:7 1 since=")


async def test_names_of_all_kinds_are_written_so_that_they_can_be_read(server: Server) -> None:
    name = 'a b&c=d;"é\u2028%'
    await give(server, "one", "room:*", user=name)
    async with present(server, "one"), talk(server) as line, browse(server, "one") as page:
        [told] = await line.ask(b"presence room:7\n")
        assert len(told.split(b" ")) == 4
        assert Attributes.parse(told.split(b" ")[3].decode().strip()).user == name
        assert not (await page.ask("presence", tags=["room:7"]))["success"]
        async with events(server, {}) as stream:
            assert users((await stream.get("presence"))["present"]) == [name]


async def test_counts_are_metrics(server: Server, tokens: None) -> None:
    async with browse(server, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        await page.ask("presence", tags=["lobby"])
        text = (await request(server, "GET", "/metrics")).body.decode()
    assert "mist_presence_watches 1.0" in text
    assert 'mist_presence_refused_total{reason="not_granted"} 1.0' in text


async def test_it_goes_on_after_a_mistake(
    server: Server, tokens: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    presence = service(server)

    def fail(*args: object) -> Iterator[None]:
        raise RuntimeError("a mistake")

    async with browse(server, "asks") as page:
        await page.ask("presence", tags=["room:7"])
        with monkeypatch.context() as patch:
            patch.setattr(presence, "_mark", fail)
            await until(lambda: "presence can't be told" in caplog.text)
        async with present(server, "token-a"):
            assert users((await page.get())["joined"]) == ["a"]


async def test_with_a_history(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, presence=("*",), history="memory://") as server:
        async with talk(server) as line:
            assert await line.ask(b"presence room:7\n") == [b"present room:7 0\n"]
