"""No secret leaks: canaries through every endpoint, and a search for them."""

import base64
import contextlib
import logging

import attrs
import pytest
import trio

from tests.http.client import request
from tests.log_files import logging_to
from tests.servers import listeners, port_of, running

LISTEN = listeners("tcp", "ws", "http")
# None is a part of another, and each is found as it is and in Base64.
SECRET = "c4nary-SECRET-qqzzqx"
GIVEN = "c4nary-GIVEN-TOKEN-wwkkwj"
WRONG_SECRET = "c4nary-WRONG-SECRET-ppvvpb"
WRONG_TOKEN = "c4nary-WRONG-TOKEN-ggffgd"
WRONG_TICKET = "c4nary-WRONG-TICKET-rrttry"
ALL = (SECRET, GIVEN, WRONG_SECRET, WRONG_TOKEN, WRONG_TICKET)

BEARER = {"Authorization": f"Bearer {SECRET}"}
WRONG_BEARER = {"Authorization": f"Bearer {WRONG_SECRET}"}
TOKEN = {"X-Auth-Token": GIVEN}
BAD_TOKEN = {"X-Auth-Token": WRONG_TOKEN}


def forms(canary):
    """How it may look where it is found."""
    text = canary.encode()
    yield text
    yield base64.b64encode(text)[:-4]
    yield base64.urlsafe_b64encode(text).rstrip(b"=")[:-2]
    yield text.hex().encode()
    yield text[::-1]


def found_in(content, canaries=ALL):
    return [canary for canary in canaries if any(form in content for form in forms(canary))]


@attrs.define
class Journey:
    """All that a server said meanwhile, but for the answer to the request that makes a token."""

    said: list = attrs.field(factory=list)
    tickets: list = attrs.field(factory=list)
    generated: str = ""

    def hear(self, where, content):
        self.said.append((where, content))


@pytest.fixture(params=["console", "json"])
def log(request, tmp_path):
    """The log as `mist serve --log-level debug` writes it, into a file."""
    with logging_to(tmp_path / "log", request.param) as path:
        yield path


async def ask(server, journey, method, path, headers=None, body=None, **more):
    response = await request(server, method, path, headers, body, **more)
    journey.hear(f"{method} {path}", response.body)
    journey.hear(f"{method} {path}: headers", repr(response.headers).encode())
    return response


async def http_endpoints(server, journey):
    """Every route, with right and wrong credentials, in right and wrong places."""
    made = await request(server, "PUT", "/v1/tokens", BEARER, json={"tags": ["a", ">a"]})
    assert made.status == 201
    journey.generated = made.json()["token"]
    given = {"tags": ["a", ">a"], "token": GIVEN}
    assert (await request(server, "PUT", "/v1/tokens", BEARER, json=given)).status == 201
    again = await ask(server, journey, "PUT", "/v1/tokens", BEARER, json=given)
    assert again.status == 409
    listed = await ask(server, journey, "GET", "/v1/tokens", BEARER)
    ids = [each["id"] for each in listed.json()["tokens"]]
    routes = [
        ("GET", "/v1/stats", None),
        ("GET", "/v1/connections", None),
        ("GET", "/v1/subscriptions", None),
        ("GET", "/v1/tags", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
        ("GET", "/v1/endpoints", None),
        ("GET", f"/v1/tokens/{ids[0]}", None),
        ("PATCH", f"/v1/tokens/{ids[0]}", {"add": ["b"]}),
        ("POST", "/v1/messages", {"tags": ["a"], "data": "x"}),
        ("GET", "/v1/messages?tags=a", None),
        ("GET", "/v1/poll?tags=a&timeout=0", None),
        ("GET", "/nowhere", None),
        ("GET", "/", None),
    ]
    bare_token = {"Authorization": f"Bearer {GIVEN}"}
    basic = base64.b64encode(f"user:{WRONG_SECRET}".encode()).decode()
    for method, path, body in routes:
        for headers in (
            {},
            BEARER,
            TOKEN,
            WRONG_BEARER,
            BAD_TOKEN,
            bare_token,
            {"X-Auth-Token": SECRET},
            {"Authorization": f"Basic {basic}"},
            {**BEARER, **TOKEN},
            {**BEARER, "Origin": f"https://{WRONG_SECRET}.example"},
            {"X-Request-Id": f"{WRONG_TOKEN} {WRONG_TOKEN}", **BEARER},
        ):
            await ask(server, journey, method, path, headers, json=body)
    for path in (
        f"/v1/stats?secret={SECRET}",
        f"/v1/poll?tags=a&timeout=0&ticket={WRONG_TICKET}",
        f"/v1/stream?tags=a&ticket={WRONG_TICKET}",
        f"/v1/poll?tags=a&timeout=0&x-auth-token={GIVEN}",
        f"/v1/poll?tags=a&token={GIVEN}&since=nonsense",
        f"/v1/tokens/{GIVEN}",
        f"/v1/tokens?after={GIVEN}",
        f"/v1/connections?after={WRONG_TOKEN}",
    ):
        for headers in ({}, BEARER, TOKEN):
            await ask(server, journey, "GET", path, headers)
    # Bodies that can't be understood, with a token in them.
    for body in (
        b'{"tags":["a"],"token":"%b"' % WRONG_TOKEN.encode(),
        b'{"tags":["a"],"token":["%b"]}' % WRONG_TOKEN.encode(),
        b'{"tags":["a"],"token":"%b \\n"}' % WRONG_TOKEN.encode(),
        b'{"tags":[],"token":"%b"}' % WRONG_TOKEN.encode(),
        b'{"tags":["a"],"token":"%b\xff"}' % WRONG_TOKEN.encode(),
    ):
        headers = {**BEARER, "Content-Type": "application/json"}
        assert (await ask(server, journey, "PUT", "/v1/tokens", headers, body)).status == 400
    await tickets(server, journey)


async def tickets(server, journey):
    page = {"Sec-Fetch-Site": "same-origin"}
    for headers in ({**TOKEN, **page}, {**BAD_TOKEN, **page}, {**BEARER, **page}):
        made = await request(server, "POST", "/v1/tickets", headers, json={})
        if made.status != 201:
            journey.hear("POST /v1/tickets", made.body)
            continue
        ticket = made.json()["ticket"]
        journey.tickets.append(ticket)
        # Used, used again, and used beside a token.
        path = f"/v1/poll?tags=a&timeout=0&ticket={ticket}"
        assert (await ask(server, journey, "GET", path, page)).status == 200
        assert (await ask(server, journey, "GET", path, page)).status == 401
        assert (await ask(server, journey, "GET", path, {**TOKEN, **page})).status == 400
    assert len(journey.tickets) == 1


async def raw(server, journey, url, sent):
    """Bytes into a listener, and all that comes back until it closes or falls silent."""
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(url))
    heard = b""
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(sent)
        with trio.move_on_after(0.3):
            while data := await stream.receive_some():
                heard += data
    await stream.aclose()
    journey.hear(url, heard)
    return heard


async def other_endpoints(server, journey):
    tcp, ws, http = server.urls
    lines = [
        f"auth {SECRET}\nunregister {WRONG_TOKEN}\nregister a {WRONG_TOKEN}\n"
        f"set b,c {WRONG_TOKEN}\nunset b {WRONG_TOKEN}\nregister a {GIVEN}\n"
        f"unregister {WRONG_TOKEN}\ntags {WRONG_TOKEN}\nlist\n",
        f"auth {SECRET}\nnonsense {WRONG_TOKEN}\ntags {GIVEN}\n",
        f"auth {WRONG_SECRET}\n",
        f"register a {WRONG_TOKEN}\n",
        f"auth {SECRET} {WRONG_SECRET}\nping\n",
        f"GET /?x-auth-token={GIVEN} HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    for line in lines:
        heard = await raw(server, journey, tcp, line.encode())
        if "nonsense" in line:
            # The protocol repeats these to their sender, and that is all right.
            where, _ = journey.said.pop()
            assert set(found_in(heard)) == {WRONG_TOKEN, GIVEN}, where
    host = ws.rpartition("//")[2]
    for token, extra in [
        (None, f"X-Auth-Token: {GIVEN}\r\n"),
        (None, f"X-Auth-Token: {WRONG_TOKEN}\r\n"),
        (None, f"X-Auth-Token: {WRONG_TOKEN}\xff\r\n"),
        (GIVEN, ""),
        (WRONG_TOKEN, ""),
        (WRONG_TOKEN, f"X-Auth-Token: {GIVEN}\r\n"),
    ]:
        offer = ""
        if token is not None:
            text = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
            offer = f"Sec-WebSocket-Protocol: mist.v1, mist.token.{text}\r\n"
        for query in ("", f"?ticket={WRONG_TICKET}", f"?x-auth-token={WRONG_TOKEN}"):
            head = (
                f"GET /subscribe/websocket{query} HTTP/1.1\r\nHost: {host}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{offer}{extra}\r\n"
            )
            await raw(server, journey, ws, head.encode("latin-1"))
    for junk in (
        f"GET /?secret={SECRET} HTTP/9.9\r\nAuthorization: Bearer {SECRET}\r\n\r\n",
        f"{SECRET}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization Bearer {SECRET}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {WRONG_SECRET}\r\n\r\n",
    ):
        await raw(server, journey, http, junk.encode())


async def mistake(server, journey, monkeypatch):
    """A mistake of ours in the middle of a request: its traceback is logged, its values aren't."""

    def fail(*about):
        secret_in_a_frame = about
        raise RuntimeError(f"a mistake, {len(secret_in_a_frame)}")

    with monkeypatch.context() as patch:
        patch.setattr(type(server.hub.registry), "lookup", fail)
        with contextlib.suppress(Exception):
            await ask(server, journey, "GET", "/v1/stats", TOKEN)
        patch.setattr(type(server.hub), "is_secret", fail)
        with contextlib.suppress(Exception):
            await ask(server, journey, "GET", "/v1/stats", BEARER)


async def test_no_credential_is_ever_told(tmp_path, log, monkeypatch):
    data = tmp_path / "data"
    journey = Journey()
    settings = {
        "listen": LISTEN,
        "secret": SECRET,
        "tokens": None,
        "history": None,
        "durability": "process",
        "token_rate": 10_000,
    }
    async with running(data, **settings, failed_auth_delay=0.0) as server:
        await http_endpoints(server, journey)
        await other_endpoints(server, journey)
        await mistake(server, journey, monkeypatch)
        for path in ("/v1/stats", "/v1/connections", "/metrics", "/openapi.json", "/", "/mist.js"):
            assert (await ask(server, journey, "GET", path, BEARER)).status in (200, 404)
        generated, used = journey.generated, journey.tickets
        key = server.hub.registry._store.key
        digests = [each.digest for each in server.hub.registry.page(99)]
    for handler in logging.getLogger().handlers:
        handler.flush()
    canaries = (*ALL, generated, *used)
    assert len(set(canaries)) == 7
    for where, content in journey.said:
        # `where` may hold one: it is what was asked for, not what was answered.
        assert not found_in(content, canaries), where
        assert not any(digest.hex().encode() in content for digest in [*digests, key]), where
    text = log.read_bytes()
    assert text.count(b"\n") > 100, "the log is not what is searched"
    assert b"a mistake" in text
    assert not found_in(text, canaries)
    assert not any(digest.hex().encode() in text for digest in [*digests, key])
    files = [path for path in data.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"tokens.db", "history.db"}
    for path in files:
        assert not found_in(path.read_bytes(), canaries), path


def test_a_canary_is_found_in_each_of_its_forms():
    for canary in ALL:
        for form in forms(canary):
            assert found_in(b"x" * 99 + form + b"y" * 99) == [canary]
    assert found_in(base64.b64encode(GIVEN.encode())) == [GIVEN]
