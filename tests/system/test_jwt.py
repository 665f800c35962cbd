"""JWTs at every endpoint: good ones up to 8 KiB, expired ones, beside registered tokens."""

import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from mist.auth.jwt import key_set
from mist.server import Server
from tests.auth.jwt.issuer import (
    Site,
    claims,
    fails,
    huge,
    jwks,
    sign,
    site,
    slow,
    write_jwks,
)
from tests.endpoints import LISTEN, RECEIVERS, SCENARIOS, Receive, Scenario, publish_http, web
from tests.http.client import request
from tests.http.events import listen
from tests.servers import running
from tests.transports.lines import talk
from tests.waiting import until

ALL = SCENARIOS["all at once"]
GRANTS = {"tags": ["urgent", "/", ".>", ">urgent", ">/", ">.>"]}


def token(key: str = "rsa", *, size: int = 0, **changes: object) -> str:
    """A token; with a size, of about so many bytes."""
    said = claims(**{"mist": GRANTS, **changes})
    short = sign(said, key)
    return sign(said | {"x": "y" * ((size - len(short)) * 3 // 4 - 12)}, key) if size else short


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[Server]:
    keys = write_jwks(folder / "jwks.json", "rsa", "ed")
    async with running(
        folder,
        failed_auth_delay=0.01,
        **{
            "listen": LISTEN,
            "history": "memory://",
            "jwt_jwks": (str(keys),),
            "jwt_issuer": ("https://id.example",),
            "jwt_audience": ("mist",),
            **settings,
        },
    ) as server:
        yield server


@asynccontextmanager
async def lines(server: Server, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with talk(server) as peer:
        assert await peer.ask(f"auth {token}\nsubscribe {scenario.asked}\n".encode()) == []

        async def receive() -> str:
            return (await peer.line()).decode().removesuffix("\n").split(" ", 2)[2]

        yield receive


@asynccontextmanager
async def json_lines(server: Server, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with talk(server) as peer:
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        auth = {"command": "auth", "data": token}
        await peer.send(f'{json.dumps(auth)}{json.dumps(asked)}{{"command":"ping"}}'.encode())
        assert json.loads(await peer.line())["data"] == "pong"

        async def receive() -> str:
            return str(json.loads(await peer.line())["data"])

        yield receive


async def closing(socket: WebSocketConnection) -> str:
    """The code and the reason with which the server closes it, as the next that it says."""
    with pytest.raises(ConnectionClosed) as closed:
        await socket.get_message()
    assert closed.value.reason is not None
    return f"{closed.value.reason.code} {closed.value.reason.reason}"


async def frame(server: Server, text: str) -> str:
    """What answers a first frame with a token."""
    async with web(server, "/subscribe/websocket", "", ["mist.v1"]) as socket:
        await socket.send_message(json.dumps({"command": "auth", "token": text}))
        answer = json.loads(await socket.get_message())
        return f"{answer['error']} {await closing(socket)}"


@asynccontextmanager
async def first_frame(server: Server, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    async with web(server, "/subscribe/websocket", "", ["mist.v1"]) as socket:
        await socket.send_message(json.dumps({"command": "auth", "token": token}))
        assert json.loads(await socket.get_message())["success"]
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        await socket.send_message(json.dumps(asked))
        assert json.loads(await socket.get_message())["success"]

        async def receive() -> str:
            return str(json.loads(await socket.get_message())["data"])

        yield receive


@asynccontextmanager
async def subprotocol(server: Server, scenario: Scenario, token: str) -> AsyncIterator[Receive]:
    encoded = base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()
    async with web(
        server, "/subscribe/websocket", "", ["mist.v1", f"mist.token.{encoded}"]
    ) as socket:
        asked = {"command": "subscribe", "tags": scenario.asked.split(",")}
        await socket.send_message(json.dumps(asked))
        assert json.loads(await socket.get_message())["success"]

        async def receive() -> str:
            return str(json.loads(await socket.get_message())["data"])

        yield receive


WAYS = RECEIVERS | {each.__name__: each for each in (lines, json_lines, first_frame, subprotocol)}


@pytest.mark.parametrize("way", WAYS)
async def test_a_jwt_of_eight_kibibytes_subscribes_everywhere(tmp_path: Path, way: str) -> None:
    long = token(size=8_192)
    assert 8_100 < len(long) <= 8_192
    async with serving(tmp_path) as server:
        with trio.fail_after(10):
            async with WAYS[way](server, ALL, long) as receive:
                if way in ("polls", "channels"):  # which begin with what is kept
                    await publish_http(server, ALL, "one", "")
                    assert await receive() == "one"
                else:
                    await publish_http(server, ALL, "one", "")
                    await publish_http(server, ALL, "two", "")
                    assert [await receive(), await receive()] == ["one", "two"]
        [authority] = server.hub.credentials.authorities
        assert authority.counts["jwt"]["accepted"] > 0


Refused = Callable[[Server, str], Awaitable[str]]


async def refused_line(server: Server, text: str) -> str:
    async with talk(server) as peer:
        await peer.send(f"auth {text}\n".encode())
        return (await peer.rest()).decode()


async def refused_json(server: Server, text: str) -> str:
    async with talk(server) as peer:
        await peer.send(json.dumps({"command": "auth", "data": text}).encode())
        return (await peer.rest()).decode()


async def refused_header(server: Server, text: str, path: str = "/subscribe/websocket") -> str:
    try:
        async with web(server, path, text):
            return "accepted"
    except ConnectionRejected as rejected:
        return str(rejected.status_code)


async def refused_http(server: Server, text: str) -> str:
    answer = await request(server, "GET", "/v1/poll?tags=a", {"X-Auth-Token": text})
    return f"{answer.status} {answer.json()['detail']}"


async def refused_bearer(server: Server, text: str) -> str:
    answer = await request(server, "GET", "/v1/stream?tags=a", {"Authorization": f"Bearer {text}"})
    return f"{answer.status} {answer.json()['detail']}"


async def refused_subject(server: Server, text: str) -> str:
    async with talk(server, 3) as peer:
        await peer.line()
        await peer.send(f'CONNECT {{"verbose":false,"auth_token":"{text}"}}\r\n'.encode())
        return (await peer.rest()).decode()


async def refused_topic(server: Server, text: str) -> str:
    return await refused_header(server, text, "/stream/user/marvin")


async def refused_poll(server: Server, text: str) -> str:
    path, headers = "/message-bus/tab/poll", {"Dont-Chunk": "true", "X-Auth-Token": text}
    answer = await request(server, "POST", path, headers, json={"/rooms/1": 0})
    return f"{answer.status} {answer.json()['detail']}"


async def refused_json_frame(server: Server, text: str) -> str:
    async with web(server, "/subscribe/websocket", text, ["mist.json"]) as socket:
        return await closing(socket)


REFUSALS: dict[str, tuple[Refused, str]] = {
    "line": (refused_line, "error Unauthorized\n"),
    "json": (refused_json, ""),
    "first frame": (frame, "Unauthorized 4401 unauthorized"),
    "header": (refused_header, "401"),
    "http": (refused_http, "401 the token has expired (exp)"),
    "bearer": (refused_bearer, "401 the token has expired (exp)"),
    "json frames": (refused_json_frame, "4401 unauthorized"),
    "subjects": (refused_subject, "-ERR 'Authorization Violation'\r\n"),
    "topics": (refused_topic, "401"),
    "channels": (refused_poll, "401 the token has expired (exp)"),
}


@pytest.mark.parametrize("way", REFUSALS)
async def test_an_expired_jwt_is_refused_in_the_protocols_own_form(
    tmp_path: Path, way: str
) -> None:
    present, expected = REFUSALS[way]
    async with serving(tmp_path) as server:
        with trio.fail_after(10):
            assert await present(server, token(exp=int(time.time()) - 31)) == expected
        [authority] = server.hub.credentials.authorities
        assert authority.counts["jwt"]["expired"] == 1
        assert server.hub.failed_auths.total() == 1


@pytest.mark.parametrize("damage", [fails, huge, slow])
async def test_a_key_set_that_cannot_be_fetched_costs_others_nothing_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Site], None]
) -> None:
    monkeypatch.setattr(key_set, "_TIMEOUT", 0.5)
    monkeypatch.setattr(key_set, "_BACKOFF", (0.2,))
    text = token()
    with site(jwks("rsa")) as it:
        damage(it)
        async with serving(
            tmp_path, jwt_jwks=(it.url,), grants={"registered": GRANTS["tags"]}
        ) as server:
            [authority] = server.hub.credentials.authorities
            with trio.fail_after(30):
                async with WAYS["frames"](server, ALL, "registered") as receive:
                    while len(it.asked) < 3:  # tried again and again
                        await publish_http(server, ALL, str(len(it.asked)), "")
                        await receive()
                    async with talk(server) as peer:
                        await peer.send(f"auth {text}\n".encode())
                        assert await peer.line() == b"error Registry is unavailable\n"
                    for present in (refused_header, refused_topic):
                        assert await present(server, text) == "503"
                    for present in (refused_http, refused_bearer, refused_poll):
                        assert await present(server, text) == "503 Registry is unavailable"
                    closed = "1013 token registry is unavailable"
                    assert await refused_json_frame(server, text) == closed
                it.status, it.body, it.delay = 200, jwks("rsa"), 0.0
                await until(lambda: authority.counts["jwks"]["changed"] == 1)
                async with WAYS["frames"](server, ALL, text) as receive:
                    await publish_http(server, ALL, "at last", "")
                    assert await receive() == "at last"
            assert authority.counts["jwks"]["failed"] >= 2


async def test_a_jwt_and_a_registered_token_are_used_side_by_side(tmp_path: Path) -> None:
    async with serving(tmp_path, grants={"registered": ["urgent"]}) as server:
        async with (
            WAYS["frames"](server, ALL, "registered") as one,
            WAYS["frames"](server, ALL, token()) as two,
        ):
            await publish_http(server, ALL, "hello", "")
            assert await one() == await two() == "hello"


async def test_a_bearer_jwt_publishes_what_it_grants_and_nothing_else(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {token()}"}
    async with serving(tmp_path) as server:
        for tags, status in ((["urgent"], 200), (["other"], 403)):
            body = {"tags": tags, "data": "x"}
            answer = await request(server, "POST", "/v1/messages", headers, json=body)
            assert answer.status == status
        answer = await request(server, "GET", "/v1/tokens", headers)
        assert (answer.status, answer.json()["code"]) == (403, "secret_needed")


async def test_a_jwt_on_a_line_takes_the_rights_of_a_service_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, talk(server) as peer:
        assert await peer.ask(b"register t a\n") == []
        assert await peer.ask(f"auth {token()}\n".encode()) == []
        assert await peer.ask(b"register u a\n") == [b"error not allowed\n"]
        assert await peer.ask(b"subscribe other\n") == [b"error not granted by the token\n"]
        assert await peer.ask(b"publish other x\n") == [b"error not granted by the token\n"]
        assert await peer.ask(b"subscribe urgent\n") == []


async def test_with_a_secret_a_line_takes_the_secret_a_jwt_or_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, secret="sesame", grants={"registered": ["a"]}) as server:
        for text, answer in (
            ("sesame", []),
            (token(), [b"error not allowed\n"]),
            ("registered", [b"error not allowed\n"]),
        ):
            async with talk(server) as peer:
                assert await peer.ask(f"auth {text}\nregister x{len(text)} a\n".encode()) == answer


async def test_without_jwts_nothing_is_a_jwt(tmp_path: Path) -> None:
    async with serving(
        tmp_path, jwt_jwks=(), jwt_issuer=(), jwt_audience=(), secret="sesame"
    ) as server:
        assert await refused_bearer(server, token()) == "401 that is not the secret"
        assert await refused_http(server, token()) == "401 no such token"
        assert await refused_line(server, token()) == "error Unauthorized\n"


async def test_no_part_of_a_jwt_is_logged_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    good, bad = token(), token("other")
    async with serving(tmp_path) as server:
        assert await refused_http(server, bad) == (
            "401 the key of the token is not known (kid), or not for its alg"
        )
        async with WAYS["frames"](server, ALL, good):
            metrics = (await request(server, "GET", "/metrics")).body.decode()
            shown = (await request(server, "GET", "/v1/connections")).body.decode()
        assert 'mist_auth_total{kind="jwt",outcome="accepted"} 1.0' in metrics
        assert 'mist_auth_total{kind="jwt",outcome="key"} 1.0' in metrics
        assert 'mist_auth_total{kind="jwks",outcome="unchanged"}' in metrics
    for text in (good, bad):
        for part in text.split("."):
            assert part not in caplog.text + metrics + shown


# how a session ends


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


def soon() -> str:
    """A token that expires in a moment."""
    return token(exp=time.time() + 0.6, jti="soon")


async def ended_frames(server: Server, text: str) -> str:
    async with web(server, "/subscribe/websocket", text, ["mist.v1"]) as socket:
        await socket.send_message('{"command":"subscribe","tags":["urgent"]}')
        assert json.loads(await socket.get_message())["success"]
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        assert closed.value.reason is not None
        return f"{closed.value.reason.code} {closed.value.reason.reason}"


async def ended_lines(server: Server, text: str) -> str:
    async with talk(server) as peer:
        assert await peer.ask(f"auth {text}\nsubscribe urgent\n".encode()) == []
        return (await peer.rest()).decode()


async def ended_subjects(server: Server, text: str) -> str:
    async with talk(server, 3) as peer:
        await peer.line()
        await peer.send(f'CONNECT {{"verbose":false,"auth_token":"{text}"}}\r\nPING\r\n'.encode())
        assert await peer.line() == b"PONG\r\n"
        return (await peer.rest()).decode()


async def ended_stream(server: Server, text: str) -> str:
    async with listen(server, "tags=urgent", {"X-Auth-Token": text}) as stream:
        await stream.get("ready")
        return json.dumps(await stream.get("end"))


async def ended_poll(server: Server, text: str) -> str:
    path = "/v1/poll?tags=urgent&timeout=20"
    answer = await request(server, "GET", path, {"Authorization": f"Bearer {text}"})
    return f"{answer.status} {answer.json()['detail']}"


ENDS = {
    "frames": (ended_frames, "4401 token {}"),
    "subjects": (ended_subjects, "-ERR 'User Authentication {}'\r\n"),
    "stream": (ended_stream, '{{"code": 4401, "reason": "token {}"}}'),
    "poll": (ended_poll, "401 token {}"),
}


@pytest.mark.parametrize("way", ENDS)
async def test_a_session_ends_when_its_jwt_expires(server: Server, way: str) -> None:
    end, said = ENDS[way]
    with trio.fail_after(10):
        assert (await end(server, soon())).lower() == said.format("expired").lower()


async def test_a_line_ends_when_its_jwt_expires(server: Server) -> None:
    with trio.fail_after(10):
        assert await ended_lines(server, soon()) == "error Token expired\n"


async def test_another_jwt_in_band_goes_on_where_the_first_one_ends(server: Server) -> None:
    async with (
        web(server, "/subscribe/websocket", soon(), ["mist.v1"]) as socket,
        talk(server) as peer,
    ):
        await socket.send_message('{"command":"subscribe","tags":["urgent"]}')
        assert json.loads(await socket.get_message())["success"]
        await peer.ask(f"auth {soon()}\nsubscribe urgent\n".encode())
        await socket.send_message(json.dumps({"command": "auth", "token": token(jti="next")}))
        assert json.loads(await socket.get_message())["success"]
        assert await peer.ask(f"auth {token(jti='next')}\n".encode()) == []
        await trio.sleep(0.8)
        await publish_http(server, ALL, "hello", "")
        assert json.loads(await socket.get_message())["data"] == "hello"
        assert (await peer.line()).endswith(b" hello\n")


async def test_another_jwt_in_band_that_is_bad_ends_the_session(server: Server) -> None:
    async with web(server, "/subscribe/websocket", token(), ["mist.v1"]) as socket:
        await socket.send_message(json.dumps({"command": "auth", "token": token("other")}))
        assert json.loads(await socket.get_message())["error"] == "Unauthorized"
        with pytest.raises(ConnectionClosed):
            await socket.get_message()


async def test_another_jwt_with_less_takes_subscriptions_away(server: Server) -> None:
    async with web(server, "/subscribe/websocket", token(), ["mist.v1"]) as socket:
        await socket.send_message('{"command":"subscribe","tags":["urgent"]}')
        assert json.loads(await socket.get_message())["success"]
        less = token(mist={"tags": ["other"]})
        await socket.send_message(json.dumps({"command": "auth", "token": less}))
        answers = [json.loads(await socket.get_message()) for _ in range(2)]
        assert {"success": True, "command": "auth"} in answers
        assert any("urgent" in json.dumps(answer) for answer in answers)


async def test_a_ticket_has_what_its_own_jwt_grants(server: Server) -> None:
    page = {"Origin": "http://localhost:3000"}
    tickets = []
    for grants in (["other"], ["urgent"]):  # of the same user
        headers = {"X-Auth-Token": token(mist={"tags": grants}), **page}
        answer = await request(server, "POST", "/v1/tickets", headers, json={})
        tickets.append(answer.json()["ticket"])
    for ticket, status in zip(tickets, (403, 200), strict=True):
        path = f"/v1/poll?tags=urgent&timeout=0&ticket={ticket}"
        assert (await request(server, "GET", path, page)).status == status


async def test_a_ticket_dies_with_its_jwt(server: Server) -> None:
    page = {"Origin": "http://localhost:3000"}
    headers = {"X-Auth-Token": soon(), **page}
    ticket = (await request(server, "POST", "/v1/tickets", headers, json={})).json()["ticket"]
    await trio.sleep(0.7)
    path = f"/v1/poll?tags=urgent&timeout=0&ticket={ticket}"
    assert (await request(server, "GET", path, page)).status == 401


async def test_a_storm_of_forged_jwts_is_refused_and_counted_and_others_are_served(
    server: Server,
) -> None:
    async with WAYS["frames"](server, ALL, token()) as receive:
        with trio.fail_after(30):
            async with trio.open_nursery() as storm:
                for number in range(60):
                    storm.start_soon(refused_header, server, token("other", jti=str(number)))
                    forged = sign(claims(jti=str(number)), "other", {"kid": "rsa"})
                    storm.start_soon(refused_header, server, forged)
                for number in range(20):
                    await publish_http(server, ALL, str(number), "")
                    assert await receive() == str(number)
    [authority] = server.hub.credentials.authorities
    counts = authority.counts["jwt"]
    assert (counts["accepted"], counts["signature"], counts["key"]) == (1, 60, 60)
    assert authority.counts["jwks"] == {"changed": 0, "unchanged": 1, "failed": 0}
