"""A backend over HTTP decides who may do what, at every endpoint; and what if it does not."""

import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed

from mist.server import Server
from tests.auth.jwt.issuer import Site, claims, sign, site, write_jwks
from tests.endpoints import LISTEN, SCENARIOS, publish_http, web
from tests.http.client import request
from tests.servers import running
from tests.system.test_jwt import GRANTS, REFUSALS, WAYS, refused_http, refused_line
from tests.test_docs import DOCS
from tests.transports.lines import talk

ALL = SCENARIOS["all at once"]
SECRET = "0123456789abcdef0123456789abcdef"


class Backend(Site):
    """Knows one credential.

    Attributes:
        says: its answer to that one.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.says: Any = {**GRANTS, "attributes": {"user": "marvin"}}

    def answer(self, asked: bytes) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b""
        if json.loads(asked)["credential"] != "hush":
            return 403, b""
        return 200, self.says if isinstance(self.says, bytes) else json.dumps(self.says).encode()


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


async def test_while_the_backend_hangs_nobody_else_waits(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, backend):
        backend.delay = 3.0
        refused: list[str] = []

        async def login() -> None:
            refused.append(await refused_http(server, "hush"))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(login)
            await trio.sleep(0.1)
            with trio.fail_after(0.9):
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
    async with serving(tmp_path) as (server, backend):
        backend.says = {**GRANTS, "ttl": 1}
        async with web(server, "/subscribe/websocket", "hush", ["mist.v1"]) as socket:
            backend.status = 500
            with trio.fail_after(5), pytest.raises(ConnectionClosed) as closed:
                await socket.get_message()
            assert closed.value.reason is not None
            assert (closed.value.reason.code, closed.value.reason.reason) == (4401, "token expired")


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
