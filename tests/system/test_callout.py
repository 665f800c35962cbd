"""A backend over HTTP decides who may do what, at every endpoint; and what if it does not."""

import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed

from mist.auth.callout import questions
from mist.client import State, connect
from mist.server import Server
from tests.auth.jwt.issuer import Site, claims, sign, site, write_jwks
from tests.endpoints import LISTEN, SCENARIOS, publish_http, web
from tests.http.client import request
from tests.http.events import listen
from tests.servers import running
from tests.system.test_jwt import GRANTS, REFUSALS, WAYS, refused_http, refused_line
from tests.test_docs import DOCS
from tests.transports.lines import talk
from tests.transports.websockets import open_websocket
from tests.waiting import until

Subscribe = Callable[[Server, str, Mapping[str, str]], Awaitable[None]]

ALL = SCENARIOS["all at once"]
SECRET = "0123456789abcdef0123456789abcdef"


class Backend(Site):
    """Knows one credential.

    Attributes:
        says: its answer to that one, or what gives it for a question.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.says: Any = {**GRANTS, "attributes": {"user": "marvin"}}

    def answer(self, asked: bytes) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b""
        if json.loads(asked)["credential"] != "hush":
            return 403, b""
        says = self.says(json.loads(asked)) if callable(self.says) else self.says
        return 200, says if isinstance(says, bytes) else json.dumps(says).encode()

    @property
    def told(self) -> list[tuple[object, object]]:
        """What clients wanted, of each question: client and tags."""
        return [(each["client"], each["tags"]) for each in map(json.loads, self.asked)]


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[tuple[Server, Backend]]:
    with site(answers=Backend) as backend:
        assert isinstance(backend, Backend)
        async with running(
            folder,
            failed_auth_delay=0.01,
            **{
                "listen": LISTEN,
                "history": "memory://",
                "auth_url": backend.url,
                "grants": {"known": ["urgent"]},
                **settings,
            },
        ) as server:
            yield server, backend


def outcomes(server: Server) -> dict[str, int]:
    [authority] = server.hub.credentials.authorities
    return {name: count for name, count in authority.counts["callout"].items() if count}


@pytest.mark.parametrize("way", WAYS)
async def test_a_credential_subscribes_everywhere(tmp_path: Path, way: str) -> None:
    async with serving(tmp_path) as (server, backend):
        with trio.fail_after(10):
            async with WAYS[way](server, ALL, "hush") as receive:
                await publish_http(server, ALL, "one", "")
                assert await receive() == "one"
    assert len(backend.asked) == 1
    asked = json.loads(backend.asked[0])
    assert asked["address"] == "127.0.0.1"
    assert asked["endpoint"] in ("tcp", "ws", "http", "nats")
    assert asked["origin"] is None


# what is asked

HUSH = {"X-Auth-Token": "hush"}
WISH = "tags=b,a&tags=a,c&client=tab-1"
PROXY = {"X-Forwarded-For": "203.0.113.9"}


async def stream(server: Server, query: str, headers: Mapping[str, str]) -> None:
    async with listen(server, query, headers) as events:
        await events.get("ready")


async def poll(server: Server, query: str, headers: Mapping[str, str]) -> None:
    answer = await request(server, "GET", f"/v1/poll?{query}&timeout=0", headers)
    assert answer.status == 200, answer


async def handshake(server: Server, query: str, headers: Mapping[str, str]) -> None:
    async with open_websocket(server, f"/subscribe/websocket?{query}", headers=headers):
        pass


@pytest.mark.parametrize("subscribe", [stream, poll])
async def test_streams_and_polls_say_who_they_are_and_what_they_ask_for(
    tmp_path: Path, subscribe: Subscribe
) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"tags": ["a", "b", "c"]}
        await subscribe(server, WISH, HUSH)
        await subscribe(server, "tags=c&tags=a,b&client=tab-1", HUSH)  # the same, if flat
        await subscribe(server, "tags=a", HUSH)
        assert backend.told == [("tab-1", ["a", "b", "c"]), (None, ["a"])]
        assert outcomes(server) == {"accepted": 2, "cached": 1}


async def test_an_answer_for_some_tags_is_none_for_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = lambda asked: {"tags": ["*"] if asked["tags"] == ["a"] else []}
        found = []
        for tags in ("a", "b", "a&tags=b", "a", "b"):
            path = f"/v1/poll?tags={tags}&timeout=0"
            found.append((await request(server, "GET", path, HUSH)).status)
        assert found == [200, 401, 401, 200, 401]
        assert backend.told == [(None, ["a"]), (None, ["b"]), (None, ["a", "b"])]


async def test_a_client_keeps_its_id_when_it_asks_for_other_tags(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {"tags": ["a", "b"]}  # no user's
        async with listen(server, "tags=a&client=tab-1", HUSH) as events:
            await events.get("ready")
            await poll(server, "tags=b&client=tab-1", HUSH)
        assert len(backend.asked) == 2


async def test_who_changes_its_tags_has_no_other_rate(tmp_path: Path) -> None:
    async with serving(tmp_path, token_rate=1) as (server, backend):
        backend.says = {"tags": ["*"]}  # no user's
        found = set()
        for number in range(20):
            path = f"/v1/poll?tags=t{number}&timeout=0"
            found.add((await request(server, "GET", path, HUSH)).status)
        assert found == {200, 429}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "empty_tag"),
        ("tags=", "empty_tag"),
        ("tags=a%20b&client=tab-1", "invalid_tag"),
        ("tags=a&since=x", "invalid_position"),
        ("tags=a&client=x&client=y", "invalid_query"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/stream", "/v1/poll"])
async def test_a_query_that_is_invalid_says_nothing_and_is_refused_after_the_credential(
    tmp_path: Path, path: str, query: str, code: str
) -> None:
    async with serving(tmp_path) as (server, backend):
        for text, status in (("wrong", 401), ("hush", 400)):
            answer = await request(server, "GET", f"{path}?{query}", {"X-Auth-Token": text})
            assert answer.status == status
        assert answer.json()["code"] == code
        assert backend.told == [(None, [])] * 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages?tags=a&client=tab-1"),
        ("GET", "/v1/messages?tags=urgent&client=tab-1"),
        ("GET", "/v1/log?subscribe=urgent&tags=a&client=tab-1"),
    ],
)
async def test_what_subscribes_to_nothing_says_nothing_of_tags(
    tmp_path: Path, method: str, path: str
) -> None:
    body = {"tags": ["urgent"], "data": "x"} if method == "POST" else None
    async with serving(tmp_path) as (server, backend):
        assert (await request(server, method, path, HUSH, json=body)).status == 200
        assert backend.told == [(None, [])]


async def test_a_handshake_says_its_client_and_no_tags(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        await handshake(server, WISH, HUSH)
        async with talk(server) as peer:
            assert await peer.ask(b"auth hush\nsubscribe urgent\n") == []
        assert backend.told == [("tab-1", []), (None, [])]


@pytest.mark.parametrize("subscribe", [stream, poll, handshake])
@pytest.mark.parametrize(
    ("trusted", "address"), [("127.0.0.1/32", "203.0.113.9"), ("10.0.0.0/8", "127.0.0.1")]
)
async def test_the_address_is_the_clients_behind_a_trusted_proxy_and_else_the_peers(
    tmp_path: Path, subscribe: Subscribe, trusted: str, address: str
) -> None:
    async with serving(tmp_path, trusted_proxies=(ip_network(trusted),)) as (server, backend):
        await subscribe(server, "tags=urgent", {**HUSH, **PROXY})
        assert [json.loads(each)["address"] for each in backend.asked] == [address]


# what is answered


@pytest.mark.parametrize("way", [way for way in REFUSALS if way != "bearer"])
async def test_another_credential_is_refused_in_the_protocols_own_form(
    tmp_path: Path, way: str
) -> None:
    present, expected = REFUSALS[way]
    async with serving(tmp_path) as (server, _):
        with trio.fail_after(10):
            found = await present(server, "wrong")
        assert found == re.sub("the token has expired.*", "the token is not accepted", expected)
        assert outcomes(server) == {"denied": 1}
        assert server.hub.failed_auths.total() == 1


async def test_registered_tokens_and_jwts_are_not_asked_about(tmp_path: Path) -> None:
    keys = write_jwks(tmp_path / "jwks.json", "ed")
    async with serving(tmp_path, jwt_jwks=(str(keys),)) as (server, backend):
        for text in ("known", sign(claims(mist=GRANTS), "ed")):
            path = "/v1/poll?tags=urgent&timeout=0"
            assert (await request(server, "GET", path, {"X-Auth-Token": text})).status == 200
        assert backend.asked == []


async def unavailable_frame(server: Server) -> str:
    async with web(server, "/subscribe/websocket", "hush", ["mist.v1"]) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        assert closed.value.reason is not None
        return str(closed.value.reason.code)


@pytest.mark.parametrize(
    "says", [b"nonsense", {"tags": ["mist:*"]}, {"tags": ["urgent", ">mist:x"]}, 500, 302]
)
async def test_without_an_answer_nobody_gets_in_and_everyone_is_told_why(
    tmp_path: Path, says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (server, backend):
        if isinstance(says, int):
            backend.status = says
            backend.headers["location"] = backend.url
        else:
            backend.says = says
        assert await refused_http(server, "hush") == "503 Registry is unavailable"
        assert await unavailable_frame(server) == "1013"
        async with talk(server) as peer:
            answer = await peer.ask(b"auth hush\n")
            assert answer == [b"error Registry is unavailable\n"]
        assert sum(outcomes(server).values()) == 3
        assert len(backend.asked) == 3
        assert server.hub.failed_auths.total() == 0
        async with WAYS["frames"](server, ALL, "known") as receive:
            await publish_http(server, ALL, "hello", "")
            assert await receive() == "hello"
    assert "hush" not in caplog.text


async def test_while_the_backend_hangs_nobody_else_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "TIMEOUT", 3.0)
    async with serving(tmp_path) as (server, backend):
        backend.delay = 6.0
        refused: list[str] = []

        async def login() -> None:
            refused.append(await refused_http(server, "hush"))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(login)
            await trio.sleep(0.1)
            with trio.fail_after(2.5):
                async with WAYS["frames"](server, ALL, "known") as receive:
                    await publish_http(server, ALL, "hello", "")
                    assert await receive() == "hello"
                    assert not refused
        assert refused == ["503 Registry is unavailable"] * 20
        assert len(backend.asked) == 1
        assert outcomes(server) == {"timeout": 1}


async def test_a_session_ends_where_the_backend_says_no_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {**GRANTS, "ttl": 1}
        async with web(server, "/subscribe/websocket", "hush", ["mist.v1"]) as socket:
            await trio.sleep(2.5)  # which it outlives
            await socket.send_message('{"command":"ping"}')
            assert json.loads(await socket.get_message())["success"]
            backend.status = 403
            with trio.fail_after(5), pytest.raises(ConnectionClosed) as closed:
                await socket.get_message()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 4401


async def test_a_session_ends_in_time_where_the_backend_is_gone(tmp_path: Path) -> None:
    """As what can't be told, not as a credential that is no good: clients come back."""
    async with serving(tmp_path) as (server, backend):
        backend.says = {**GRANTS, "ttl": 2}
        async with (
            web(server, "/subscribe/websocket", "hush", ["mist.v1"]) as socket,
            talk(server) as lines,
            listen(server, "tags=urgent", HUSH) as events,
            trio.open_nursery() as nursery,
        ):
            await events.get("ready")
            assert await lines.ask(b"auth hush\n") == []

            @nursery.start_soon
            async def wait() -> None:
                answer = await request(server, "GET", "/v1/poll?tags=urgent&timeout=30", HUSH)
                assert (answer.status, answer.json()["code"]) == (503, "registry_unavailable")

            await until(lambda: server.hub.sessions.connections["poll"])
            backend.status = 500
            with trio.fail_after(10):
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.get_message()
                # A reply would be taken for that to a command.
                assert await lines.rest() == b""
                end = await events.get("end")
            assert closed.value.reason is not None
            reason = closed.value.reason
            assert (reason.code, reason.reason) == (1013, "token registry is unavailable")
            assert end == {"code": 1013, "reason": "token registry is unavailable"}


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_a_client_comes_back_once_the_backend_does(tmp_path: Path, scheme: str) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.says = {**GRANTS, "ttl": 1}
        [url] = [each for each in server.urls if each.startswith(f"{scheme}://")]
        who = {"token": "hush"} if scheme == "ws" else {"secret": "hush"}
        states: list[State] = []
        with trio.fail_after(20):
            async with (
                connect(url, on_state=states.append, backoff_cap=0.1, **who) as client,
                client.subscribe(["urgent"]) as subscription,
            ):
                backend.status = 500
                await until(lambda: State.RECONNECTING in states)
                await publish_http(server, ALL, "meanwhile", "")
                backend.status = 200
                assert (await anext(subscription)).text == "meanwhile"


async def test_a_secret_is_not_asked_about_and_what_is_none_may_be_a_credential(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, secret="sesame") as (server, backend):
        async with talk(server) as peer:
            assert await peer.ask(b"auth sesame\nregister x a\n") == []
        assert backend.asked == []
        assert await refused_line(server, "wrong") == "error Unauthorized\n"
        async with talk(server) as peer:
            assert await peer.ask(b"auth hush\nregister y a\n") == [b"error not allowed\n"]
        assert len(backend.asked) == 2


async def test_the_signature_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "auth.txt"
    path.write_text(f"{SECRET}\n")
    async with serving(tmp_path, auth_url_secret_file=path) as (server, backend):
        await refused_http(server, "wrong")
    page = (DOCS / "authentication.md").read_text()
    [code] = re.findall(r"```python\n(import hashlib.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    header, body = backend.seen[0]["mist-signature"], backend.asked[0]
    assert names["is_from_mist"](header, body, SECRET.encode())
    assert not names["is_from_mist"](header, body + b" ", SECRET.encode())
    assert not names["is_from_mist"](header, body, b"x" * 32)
    old = b"1." + body
    forged = f"t=1,v1={hmac.new(SECRET.encode(), old, hashlib.sha256).hexdigest()}"
    assert not names["is_from_mist"](forged, body, SECRET.encode())
    assert SECRET not in str(backend.seen)
