"""A backend decides on subscriptions that a token doesn't grant, at every endpoint."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.attributes import Attributes
from mist.auth.callout import questions
from mist.commands import SetAttributes
from mist.http.log_pages import LogPage, LogReader, Wanted
from mist.server import Server
from tests.auth.jwt.issuer import Site, site
from tests.endpoints import LISTEN, RECEIVERS, SCENARIOS, publish_http, web
from tests.http.client import request
from tests.http.events import listen
from tests.servers import running
from tests.system.test_jwt import first_frame, subprotocol
from tests.transports.lines import talk
from tests.waiting import until

ALL = SCENARIOS["all at once"]
SERVICES = ("lines", "json_lines")  # no token
HISTORY = ("/v1/messages?tags=", "/v1/log?subscribe=")
WAYS = {
    name: way
    for name, way in (RECEIVERS | {"first_frame": first_frame, "subprotocol": subprotocol}).items()
    if name not in SERVICES
}


class Backend(Site):
    """Allows subscriptions by a function of their tags."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.says: Any = {"allow": True}

    def answer(self, asked: bytes) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b""
        return 200, self.says if isinstance(self.says, bytes) else json.dumps(self.says).encode()


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[tuple[Server, Backend]]:
    with site(answers=Backend) as backend:
        assert isinstance(backend, Backend)
        async with running(
            folder,
            **{
                "listen": LISTEN,
                "history": "memory://",
                "auth_url_subscribe": backend.url,
                "grants": {"t": ["mine"]},
                **settings,
            },
        ) as server:
            yield server, backend


async def ask(socket: Any, **fields: Any) -> dict[str, Any]:
    await socket.send_message(json.dumps(fields))
    found: dict[str, Any] = json.loads(await socket.get_message())
    return found


def outcomes(server: Server) -> dict[str, int]:
    assert server.hub.subscription_callout is not None
    counts = server.hub.subscription_callout.counts["callout_subscribe"]
    assert {"accepted", "denied", "timeout", "status", "connection"} <= {*counts}  # from zero on
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_backend_allows_is_delivered(tmp_path: Path, way: str) -> None:
    async with serving(tmp_path) as (server, backend):
        await publish_http(server, ALL, "zero", "")
        with trio.fail_after(10):
            async with WAYS[way](server, ALL, "t") as receive:
                await publish_http(server, ALL, "one", "")
                found = await receive()
                assert found == ("zero" if way in ("polls", "channels") else "one")
    asked = json.loads(backend.asked[0])
    assert asked["tags"]
    assert asked["address"] == "127.0.0.1"
    assert asked["attributes"] is not None
    assert asked["token"] != "t"


async def test_it_is_asked_again_in_time_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            earlier = server.hub.now() - 3_600.0
            monkeypatch.setattr(time, "time", lambda: earlier)
            with trio.fail_after(10):
                await until(lambda: len(backend.asked) > 2)


async def test_what_the_token_grants_is_not_asked_about_and_nor_is_what_none_may_have(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (server, backend):
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            for tags in (["mine"], ["mine", "other"]):
                assert (await ask(socket, command="subscribe", tags=tags))["success"]
            for tags in (["*"], ["mist:connected"], ["other", "mist:connected"]):
                refused = await ask(socket, command="subscribe", tags=tags)
                assert refused["error"] == "not granted by the token"
        async with talk(server) as service:
            assert await service.ask(b"subscribe anything\n") == []
    assert backend.asked == []


@pytest.mark.parametrize(
    "says", [{"allow": False}, {}, {"allow": 1}, {"allow": "true"}, {"tags": ["other"]}]
)
async def test_what_is_no_clear_yes_is_a_no(tmp_path: Path, says: Any) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = says
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            for _ in range(2):
                answer = await ask(socket, command="subscribe", tags=["other"])
                assert answer["error"] == "not granted by the token"
            answer = await ask(socket, command="subscribe", tags=["other"], since=0)
            assert answer["error"] == "not granted by the token"
        path = "/v1/poll?tags=other&timeout=0"
        assert (await request(server, "GET", path, {"X-Auth-Token": "t"})).status == 403
        assert len(backend.asked) == 2  # as a WebSocket, and over HTTP
        assert outcomes(server) == {"denied": 4}


async def test_a_no_that_does_not_say_for_how_long_is_asked_about_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_TTL_OF_NO", 1.0)
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": False}
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert not (await ask(socket, command="subscribe", tags=["other"]))["success"]
            backend.says = {"allow": True}
            with trio.fail_after(20):
                while not (await ask(socket, command="subscribe", tags=["other"]))["success"]:
                    assert len(backend.asked) == 1


@pytest.mark.parametrize("says", [500, b"nonsense"])
async def test_without_an_answer_there_is_no_subscription_and_the_rest_goes_on(
    tmp_path: Path, says: Any
) -> None:
    async with serving(tmp_path) as (server, backend):
        if isinstance(says, int):
            backend.status = says
        backend.says = says
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["mine"]))["success"]
            answer = await ask(socket, command="subscribe", tags=["other"])
            assert answer["error"] == "Registry is unavailable"
            await server.hub.store(frozenset({"mine", "other"}), b"x")
            assert json.loads(await socket.get_message())["data"] == "x"
        for path in ("/v1/poll?tags=other&timeout=0", "/v1/stream?tags=other"):
            assert (await request(server, "GET", path, {"X-Auth-Token": "t"})).status == 503


async def test_while_the_backend_hangs_nobody_else_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "TIMEOUT", 3.0)
    async with serving(tmp_path) as (server, backend):
        backend.delay = 6.0
        async with (
            web(server, "/subscribe/websocket", "t", ["mist.v1"]) as slow,
            web(server, "/subscribe/websocket", "t", ["mist.v1"]) as other,
        ):
            await slow.send_message('{"command":"subscribe","tags":["other"]}')
            await trio.sleep(0.05)
            with trio.fail_after(2.5):
                assert (await ask(other, command="subscribe", tags=["mine"]))["success"]
            with trio.fail_after(5):
                assert "unavailable" in str(await slow.get_message())


async def test_a_subscription_is_asked_about_again_and_ends_where_the_answer_is_no(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["mine"]))["success"]
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            await until(lambda: len(backend.asked) >= 3)
            backend.says = {"allow": False}
            with trio.fail_after(5):
                revoked = json.loads(await socket.get_message())
            assert "other" in json.dumps(revoked)
            await server.hub.store(frozenset({"other"}), b"secret")
            await server.hub.store(frozenset({"mine"}), b"x")
            assert json.loads(await socket.get_message())["data"] == "x"


async def test_a_subscription_ends_in_time_where_the_backend_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            backend.status = 500
            with trio.fail_after(5):
                assert "other" in str(await socket.get_message())


async def test_nothing_is_asked_about_what_nobody_is_subscribed_to_any_more(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            assert (await ask(socket, command="unsubscribe", tags=["other"]))["success"]
            await trio.sleep(1.5)
            assert len(backend.asked) == 1
            [session] = server.hub.sessions
            assert session.allowed == set()  # type: ignore[attr-defined]
        callout = server.hub.subscription_callout
        assert callout is not None
        await until(lambda: not callout.watched)


async def test_nothing_is_kept_of_sessions_that_have_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 3600}
        callout = server.hub.subscription_callout
        assert callout is not None
        for _ in range(3):
            path = "/v1/poll?tags=other&timeout=0"
            assert (await request(server, "GET", path, {"X-Auth-Token": "t"})).status == 200
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            assert callout.watched == 1
        await until(lambda: not callout.watched)
        assert len(backend.asked) == 2


async def test_a_session_is_allowed_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.sessions.subscription_callout._MOST_OF_SESSION", 3)
    async with serving(tmp_path) as (server, _):
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            for number in range(3):
                assert (await ask(socket, command="subscribe", tags=[f"o{number}"]))["success"]
            answer = await ask(socket, command="subscribe", tags=["o3"])
            assert answer["error"] == "Too many subscriptions"


async def test_what_one_token_was_allowed_another_is_not(tmp_path: Path) -> None:
    grants = {"t": ["mine"], "u": ["mine"]}
    async with serving(tmp_path, grants=grants) as (server, backend):
        async with web(server, "/subscribe/websocket", "t", ["mist.v1"]) as socket:
            assert (await ask(socket, command="subscribe", tags=["other"]))["success"]
            backend.says = {"allow": False}
            await socket.send_message('{"command":"auth","token":"u"}')
            answers = [json.loads(await socket.get_message()) for _ in range(2)]
            assert any("other" in json.dumps(answer) for answer in answers)
            answer = await ask(socket, command="subscribe", tags=["other"])
            assert answer["error"] == "not granted by the token"


@pytest.mark.parametrize("path", HISTORY)
async def test_what_the_backend_allows_is_read_from_the_history(tmp_path: Path, path: str) -> None:
    token = {"X-Auth-Token": "t"}
    async with serving(tmp_path) as (server, backend):
        await server.hub.store(frozenset({"other"}), b"hello")
        for tags, asked in (("mine", 0), ("other", 1), ("other", 1), ("another", 2)):
            found = await request(server, "GET", path + tags, token)
            assert found.status == 200
            assert (b"hello" in found.body) is (tags == "other")
            assert len(backend.asked) == asked
        said = json.loads(backend.asked[0])
        assert (said["endpoint"], said["address"]) == ("http", "127.0.0.1")
        assert said["tags"] == ["other"]
        assert outcomes(server) == {"accepted": 3}


@pytest.mark.parametrize("path", HISTORY)
async def test_nothing_is_read_that_the_backend_does_not_allow(tmp_path: Path, path: str) -> None:
    token = {"X-Auth-Token": "t"}
    async with serving(tmp_path) as (server, backend):
        await server.hub.store(frozenset({"other"}), b"hello")
        backend.says = {"allow": False}
        for tags in ("other", "others"):
            assert (await request(server, "GET", path + tags, token)).status == 403
        backend.status = 500
        assert (await request(server, "GET", path + "another", token)).status == 503
        backend.asked.clear()
        for tags in ("*", "mist:connected"):
            assert (await request(server, "GET", path + tags, token)).status == 403
        assert backend.asked == []


async def test_a_token_that_changes_while_the_log_is_read_is_asked_about_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (server, backend):
        await server.hub.store(frozenset({"other"}), b"hello")
        read = LogReader.read

        async def revoked_meanwhile(self: LogReader, wanted: Wanted) -> LogPage:
            page = await read(self, wanted)
            backend.says = {"allow": False}
            await server.hub.registry.execute([SetAttributes("t", Attributes(user="8"))])
            return page

        monkeypatch.setattr(LogReader, "read", revoked_meanwhile)
        found = await request(server, "GET", "/v1/log?subscribe=other", {"X-Auth-Token": "t"})
        assert found.status == 403
        assert b"hello" not in found.body


async def test_a_poll_ends_where_its_last_subscription_is_allowed_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        found: list[int] = []

        async def poll() -> None:
            path = "/v1/poll?tags=other&timeout=5"
            found.append((await request(server, "GET", path, {"X-Auth-Token": "t"})).status)

        with trio.fail_after(8):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await until(lambda: any(each.subscriptions for each in server.hub.sessions))
                backend.says = {"allow": False}
        assert found == [403]


async def test_a_stream_ends_where_its_last_subscription_is_allowed_no_more(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"allow": True, "ttl": 1}
        async with listen(server, "tags=other", {"X-Auth-Token": "t"}) as events:
            await events.get("ready")
            backend.says = {"allow": False}
            with trio.fail_after(5):
                assert await events.get("revoked") == {"tags": ["other"]}
                assert await events.get("end") == {
                    "code": 1000,
                    "reason": "no subscription is left",
                }
