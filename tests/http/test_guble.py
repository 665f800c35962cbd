"""`/api/message` and `/api/subscribers`: topics, as guble's clients publish to them."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mist.attributes import Attributes
from mist.auth import Record
from mist.commands import Register, RemoveTags, SetAttributes, SubscribeNamed
from mist.errors import HistoryUnavailable
from mist.protocols.line import LineProtocol
from mist.protocols.subjects.forms import subject_form
from mist.protocols.topics import TopicProtocol
from mist.protocols.topics.forms import TopicForm
from mist.server import Server
from mist.sessions.receiving import CommandSession
from tests.http.client import connect, request, told_before_the_body
from tests.servers import listeners, running

LISTEN = listeners("http")
FORM = TopicForm(lambda: 0.0)
CURL = {"Content-Type": "application/x-www-form-urlencoded"}
MAY = {"X-Auth-Token": "may"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": LISTEN, "history": "memory://", "token_rate": 10_000}


without_history = pytest.mark.parametrize("server_settings", [{"listen": LISTEN}], ids=["live"])


async def register(server: Server, token: str, *tags: str, **attributes: str) -> Record:
    registry = server.hub.registry
    await registry.execute([Register(token, frozenset(tags))])
    if attributes:
        await registry.execute([SetAttributes(token, Attributes.of_json(attributes))])
    record = registry.lookup(token)
    assert record is not None
    return record


async def subscribe(
    server: Server, topic: str, record: Record | None = None, user: str | None = None
) -> CommandSession:
    """A session of guble's where it names a user, else one of lines."""
    hub = server.hub
    protocol: Any = LineProtocol(hub.limits)
    if user is not None:
        protocol = TopicProtocol(
            hub.limits,
            FORM,
            user=lambda: user,
            application="",
            clock=lambda: 0.0,
            stores=hub.sequencer is not None,
        )
    session = CommandSession(hub, protocol, transport="test")
    hub.sessions.attach(session)
    if record is not None:
        session.adopt(record)
    session.subscribe(frozenset({topic}))
    taken(session)
    return session


def taken(session: CommandSession) -> bytes:
    data = bytes(session.outbox.peek())
    session.outbox.sent(len(data))
    return data


def delivered(session: CommandSession) -> list[bytes]:
    """The small frames that came, with their times left out."""
    found, data = [], taken(session)
    while data:
        size = data[1]
        assert size < 126
        head, _, rest = data[2 : 2 + size].partition(b"\n")
        found.append(head.rpartition(b",")[0] + b"\n" + rest)
        data = data[2 + size :]
    return found


async def test_what_is_posted_reaches_the_topic_and_those_above_it(server: Server) -> None:
    guble = await subscribe(server, "/my", user="arthur")
    lines = await subscribe(server, "/my/topic")
    other = await subscribe(server, "/my/topic/below")
    path = "/api/message/my/topic?userId=marvin&messageId=42"
    sent: dict[str, Any] = {
        **CURL,
        "x-Guble-Key": "Value",
        "X-GUBLE-other-key": "ä".encode(),
        "X-Other": "x",
    }
    response = await request(server, "POST", path, sent, b"Hello\n\xff")
    assert (response.status, response.body) == (200, b"OK")
    assert response.headers["content-type"].startswith("text/plain")
    [delivery] = delivered(guble)
    head, headers, body = delivery.split(b"\n", 2)
    assert (head, body) == (b"/my/topic,1,marvin,,42", b"Hello\n\xff")
    assert json.loads(headers) == {"Key": "Value", "Other-Key": "ä"}
    assert not taken(lines)  # a line can't carry it
    assert not taken(other)
    assert lines.outbox.dropped_unframable == 1


@without_history
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "image/png", ""])
async def test_a_body_is_of_any_kind_and_nothing_is_needed_beside_it(
    server: Server, kind: str
) -> None:
    guble = await subscribe(server, "/foo", user="arthur")
    headers = {"Content-Type": kind} if kind else {}
    assert (await request(server, "POST", "/api/message/foo", headers, b"")).body == b"OK"
    assert delivered(guble) == [b"/foo,0,,,\n\n"]


async def test_it_is_stored_before_it_is_answered(server: Server) -> None:
    assert (await request(server, "POST", "/api/message/a/b?messageId=1", CURL, b"x")).status == 200
    assert server.hub.sequencer is not None
    [stored] = (await server.hub.sequencer.history.read()).messages()
    assert (stored.tags, stored.data, stored.meta) == (
        frozenset({"/a/b"}),
        b"x",
        {"guble.id": b"1"},
    )


async def test_what_can_not_be_stored_is_not_published(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    guble = await subscribe(server, "/foo", user="arthur")

    async def append(*args: Any) -> int:
        raise HistoryUnavailable("disk is full at /srv")

    assert server.hub.sequencer is not None
    monkeypatch.setattr(server.hub.sequencer.history, "append", append)
    response = await request(server, "POST", "/api/message/foo", CURL, b"x")
    assert response.status == 503
    assert b"/srv" not in response.body
    assert not taken(guble)


# targeted delivery


async def test_filters_choose_who_gets_it_and_all_of_them_hold(server: Server) -> None:
    sessions = {}
    for token, attributes in {
        "m": {"user": "marvin", "client": "p1", "plan_name": "pro"},
        "n": {"user": "marvin", "client": "p2"},
        "a": {"user": "arthur", "plan_name": "pro"},
        "x": {},
    }.items():
        record = await register(server, token, "/foo", **attributes)
        sessions[token] = await subscribe(server, "/foo", record, user="marvin")

    async def reached(query: str) -> str:
        path = f"/api/message/foo?{query}"
        assert (await request(server, "POST", path, CURL, b"x")).status == 200
        return "".join(token for token, session in sessions.items() if delivered(session))

    assert await reached("") == "mnax"
    assert await reached("filterUserID=marvin") == "mn"
    assert await reached("filterUserId=arthur") == "a"
    assert await reached("filterUserID=zaphod") == ""
    assert await reached("filterApplicationID=p2") == "n"
    assert await reached("filterPlanName=pro") == "ma"
    assert await reached("filterPlanName=pro&filterUserID=marvin") == "m"
    assert await reached("filterUserID=marvin&filterApplicationID=p1&filterPlanName=x") == ""
    assert await reached("userId=a&messageId=b&filterUserID=marvin") == "mn"


@without_history
@pytest.mark.parametrize(
    "query",
    [
        "filterUserID=",
        "filterUserID=a&filterUserID=b",
        "filterUserID=a&filteruser_id=b",
        "filter=a",
        "filterGroups=a",
        "filterFoo%2C=a",
        "filterFoo=%00",
        "FilterUserID=a",
        "userID=a",
        "userId=a&userId=b",
        "userId=a%2Cb",
        "userId=a%0Ab",
        "messageId=a%2Cb",
        "messageId=" + "x" * 256,
        "userId=%FF",
    ],
)
async def test_what_can_not_be_said_reaches_nobody(server: Server, query: str) -> None:
    guble = await subscribe(server, "/foo", user="arthur")
    response = await request(server, "POST", f"/api/message/foo?{query}", CURL, b"x")
    assert response.status == 400
    assert not taken(guble)


@without_history
@pytest.mark.parametrize("topic", ["a,b", "a%20b", "a*", "%00", "x" * 255, "x/" * 32])
async def test_what_is_no_topic_is_refused(server: Server, topic: str) -> None:
    assert (await request(server, "POST", f"/api/message/{topic}", CURL, b"x")).status == 400


# who may


async def test_a_token_needs_the_right_to_publish_and_speaks_for_its_user(server: Server) -> None:
    await register(server, "may", "/foo", ">/foo", user="marvin", client="phone1")
    guble = await subscribe(server, "/", user="arthur")

    async def post(path: str, token: str = "may") -> int:
        sent = {**CURL, "X-Auth-Token": token}
        return (await request(server, "POST", path, sent, b"x")).status

    assert await post("/api/message/foo/bar") == 200
    assert await post("/api/message/foo?userId=marvin") == 200
    assert await post("/api/message/foo?userId=arthur") == 403
    assert await post("/api/message/bar") == 403
    assert await post("/api/message/foo", "wrong") == 401
    await server.hub.registry.execute([RemoveTags("may", frozenset({">/foo"}))])
    assert await post("/api/message/foo") == 403
    assert delivered(guble) == [b"/foo/bar,1,marvin,phone1,\n\nx", b"/foo,2,marvin,phone1,\n\nx"]


async def test_a_token_of_a_site_publishes_for_that_site(server: Server) -> None:
    sessions = {}
    for site in ("one", "two"):
        record = await register(server, site, "/foo", ">/foo", site=site)
        sessions[site] = await subscribe(server, "/foo", record, user="marvin")
    path = "/api/message/foo?filterSite=two"
    sent = {**CURL, "X-Auth-Token": "one"}
    assert (await request(server, "POST", path, sent, b"x")).status == 200
    assert len(delivered(sessions["one"])) == 1
    assert not delivered(sessions["two"])


async def test_a_right_lost_while_the_body_comes_is_lost(server: Server) -> None:
    await register(server, "may", "/foo", ">/foo")
    guble = await subscribe(server, "/foo", user="arthur")
    async with connect(server) as client:
        head = (
            b"POST /api/message/foo HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: may\r\n"
            b"Content-Length: 1\r\n\r\n"
        )
        await client.connection.send_all(head)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await server.hub.registry.execute([RemoveTags("may", frozenset({">/foo"}))])
        await client.connection.send_all(b"x")
        assert b" 403 " in (await client.receive_some()).partition(b"\r\n")[0]
    assert not taken(guble)


async def test_a_token_without_the_right_is_refused_before_the_body_arrives(server: Server) -> None:
    await register(server, "may", "/foo", ">/bar")
    head = (
        b"POST /api/message/foo HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: may\r\n"
        b"Content-Length: 3000000\r\n\r\n"
    )
    assert b" 403 " in await told_before_the_body(server, head)


async def test_with_a_secret_nobody_publishes_without_a_credential(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        secret = {"Authorization": "Bearer s3cret"}
        for path in ("/api/message/foo", "/api/subscribers/foo"):
            method = "POST" if "message" in path else "GET"
            assert (await request(server, method, path, body=b"x")).status == 401
            assert (await request(server, method, path, secret, b"x")).status == 200


# methods


@without_history
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused_in_gubles_words(server: Server, method: str) -> None:
    response = await request(server, method, "/api/message/foo")
    assert (response.status, response.body) == (405, b"Method not allowed")
    assert response.headers["allow"] == "HEAD, POST"


@without_history
async def test_the_list_is_for_reading_only(server: Server) -> None:
    response = await request(server, "POST", "/api/subscribers/foo", body=b"x")
    assert (response.status, response.body) == (405, b"Method not allowed")
    assert response.headers["allow"] == "GET, HEAD"


@without_history
@pytest.mark.parametrize("path", ["/api/message/foo", "/api/message/", "/api/subscribers/foo"])
async def test_a_head_is_answered_with_nothing(server: Server, path: str) -> None:
    response = await request(server, "HEAD", path)
    assert (response.status, response.body) == (200, b"")


@without_history
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/message/"),
        ("POST", "/api/message"),
        ("GET", "/api/subscribers/"),
        ("GET", "/api/subscribers"),
        ("POST", "/api/other/foo"),
    ],
)
async def test_without_a_topic_nothing_is_found(server: Server, method: str, path: str) -> None:
    assert (await request(server, method, path, body=b"x")).status == 404


async def test_too_long_a_body_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, max_data=100) as server:
        response = await request(server, "POST", "/api/message/foo", CURL, b"x" * 101)
        assert response.status == 413


# subscribers


async def test_the_list_tells_who_would_get_a_message(server: Server) -> None:
    path = "/api/subscribers/foo/bar"
    assert (await request(server, "GET", path)).json() == []
    record = await register(server, "m", "/foo", user="marvin", client="phone1")
    await subscribe(server, "/foo", record, user="marvin")
    await subscribe(server, "/foo/bar", user="arthur")
    await subscribe(server, "/foo/bar")
    await subscribe(server, "/foo/bar/below", user="zaphod")
    await subscribe(server, "/bar", user="ford")
    queued = await subscribe(server, "/nothing")
    named = SubscribeNamed(frozenset({"/foo/bar"}), b"1", subject_form(b"1"), "queue")
    await queued.dispatch(named)
    response = await request(server, "GET", path)
    assert response.headers["content-type"] == "application/json"
    assert response.json() == [
        {"user_id": "", "application_id": ""},
        {"user_id": "", "application_id": ""},
        {"user_id": "arthur", "application_id": ""},
        {"user_id": "marvin", "application_id": "phone1"},
    ]


async def test_the_list_is_for_services(server: Server) -> None:
    await register(server, "may", "/foo", ">/foo")
    assert (await request(server, "GET", "/api/subscribers/foo", MAY)).status == 403
