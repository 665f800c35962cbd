"""`/v1/messages`: what is published over HTTP, and what is read again."""

import base64
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mist.attributes import Attributes
from mist.audience import Audience
from mist.auth import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Subscribe, Unregister
from mist.errors import HistoryUnavailable
from mist.history import MAX_GROUP
from mist.http import publications, publishing
from mist.protocols.line import LineProtocol
from mist.server import Server
from mist.sessions.receiving import CommandSession
from mist.turns import Account
from tests.http.client import Response, connect, request, told_before_the_body
from tests.http.damage import LARGE, damage, keeping
from tests.servers import listeners, running

LISTEN = listeners("http")
NDJSON = {"Content-Type": "application/x-ndjson"}
MESSAGES = "/v1/messages"
MAY = {"X-Auth-Token": "may"}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": LISTEN, "history": "memory://", "token_rate": 10_000}


without_history = pytest.mark.parametrize("server_settings", [{"listen": LISTEN}], ids=["live"])


async def register(server: Server, token: str, *tags: str) -> Record:
    (record,) = await server.hub.registry.execute([Register(token, frozenset(tags))])
    assert isinstance(record, Record)
    return record


async def subscribe(server: Server, *tags: str) -> CommandSession:
    session = CommandSession(server.hub, LineProtocol(server.hub.limits), transport="tcp")
    server.hub.sessions.attach(session)
    for each in tags:
        await session.dispatch(Subscribe(frozenset(each.split(","))))
    return session


def taken(session: CommandSession) -> bytes:
    data = bytes(session.outbox.peek())
    session.outbox.sent(len(data))
    return data


async def stored(server: Server) -> list[tuple[int, list[str], bytes, str]]:
    assert server.hub.sequencer is not None
    page = await server.hub.sequencer.history.read()
    return [(each.id, sorted(each.tags), each.data, each.publisher) for each in page.messages()]


def told(response: Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status, response.json()["code"]


# publishing


class Steps(trio.abc.Instrument):
    """Counts how often each task runs."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of[task.name] += 1


@without_history
async def test_a_small_request_is_one_step_of_its_connection_and_nothing_else(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint, no cancel scope, no other task: what a small request doesn't need."""
    monkeypatch.setattr(server.hub.turns, "_clock", lambda: 0.0)  # no turn is over
    wire = b'{"tags":["a"],"data":"1"}'
    wire = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(wire),
        wire,
    )
    entered: Counter[str] = Counter()
    enter = trio.CancelScope.__enter__

    def entering(scope: trio.CancelScope) -> trio.CancelScope:
        entered[trio.lowlevel.current_task().name] += 1
        return enter(scope)

    async with connect(server) as client:
        sock = client.connection
        assert isinstance(sock, trio.SocketStream)
        await client.request("POST", MESSAGES, json={"tags": ["a"], "data": "0"})
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(trio.CancelScope, "__enter__", entering)
        trio.lowlevel.add_instrument(steps := Steps())
        for _ in range(10):
            await sock.socket.send(b"POST /v1/messages HTTP/1.1\r\n" + wire)
            assert (await sock.socket.recv(65_536)).startswith(b"HTTP/1.1 202 ")
        trio.lowlevel.remove_instrument(steps)
        monkeypatch.undo()
    [name] = [each for each in steps.of if "handle" in each]
    assert (steps.of[name], entered[name]) == (10, 0)


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (["application/json", "application/x-ndjson"], b"400"),
        (["application/x-ndjson", "application/json"], b"200"),
        (["APPLICATION/X-NDJSON ; charset=utf-8"], b"200"),
        (["text/plain", "application/x-ndjson"], b"415"),
        ([""], b"415"),
        ([], b"415"),
    ],
)
async def test_a_body_is_read_as_the_kind_that_was_checked(
    server: Server, kinds: list[str], status: bytes
) -> None:
    lines = b'{"tags":["a"],"data":"1"}\n{"tags":["a"],"data":"2"}\n'
    head = "".join(f"Content-Type: {kind}\r\n" for kind in kinds).encode()
    async with connect(server) as client:
        await client.connection.send_all(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b"
            % (head, len(lines), lines)
        )
        assert (await client.receive_some()).startswith(b"HTTP/1.1 " + status)
    assert len(await stored(server)) == (2 if status == b"200" else 0)


async def test_a_message_is_stored_and_delivered_before_its_id_is_told(server: Server) -> None:
    session = await subscribe(server, "a")
    answered = await request(server, "POST", MESSAGES, json={"tags": ["b", "a"], "data": "hé"})
    assert (answered.status, answered.json()) == (200, {"id": 1})
    assert taken(session) == "publish a,b hé\n".encode()
    assert await stored(server) == [(1, ["a", "b"], "hé".encode(), "")]


@without_history
async def test_without_a_history_it_is_delivered_and_has_no_id(server: Server) -> None:
    session = await subscribe(server, "a")
    answered = await request(server, "POST", MESSAGES, json=[{"tags": ["a"], "data": "x"}] * 2)
    assert (answered.status, answered.json()) == (202, {})
    assert taken(session) == b"publish a x\n" * 2


async def test_data_may_be_any_bytes(server: Server) -> None:
    data = bytes(range(256))
    sent = {"tags": ["a"], "data64": base64.b64encode(data).decode()}
    assert (await request(server, "POST", MESSAGES, json=sent)).status == 200
    assert [each[2] for each in await stored(server)] == [data]


async def test_a_list_has_ids_in_a_row_and_is_one_append(server: Server) -> None:
    await request(server, "POST", MESSAGES, json={"tags": ["a"], "data": "0"})
    sent = [{"tags": ["a"], "data": str(n)} for n in range(3)]
    answered = await request(server, "POST", MESSAGES, json=sent)
    assert answered.json() == {"ids": [2, 4], "count": 3}
    assert [each[2] for each in await stored(server)] == [b"0", b"0", b"1", b"2"]
    assert server.hub.sequencer is not None
    assert (await server.hub.sequencer.history.statistics()).blocks == 2


async def test_a_list_of_one_is_answered_as_a_list(server: Server) -> None:
    answered = await request(server, "POST", MESSAGES, json=[{"tags": ["a"], "data": "x"}])
    assert answered.json() == {"ids": [1, 1], "count": 1}


async def test_lines_are_a_list(server: Server) -> None:
    lines = b'\n{"tags":["a"],"data":"1"}\r\n\n {"tags":["a"],"data":"2"}'
    answered = await request(server, "POST", MESSAGES, NDJSON, lines)
    assert answered.json() == {"ids": [1, 2], "count": 2}
    assert [each[2] for each in await stored(server)] == [b"1", b"2"]


@pytest.mark.parametrize("kind", ["application/x-ndjson; charset=utf-8", "Application/X-NDJSON"])
async def test_the_kind_of_a_body_is_read_as_http_spells_it(server: Server, kind: str) -> None:
    lines = b'{"tags":["a"],"data":"1"}\n{"tags":["a"],"data":"2"}\n'
    assert (await request(server, "POST", MESSAGES, {"Content-Type": kind}, lines)).status == 200


async def test_a_message_with_lf_reaches_those_who_can_take_it(server: Server) -> None:
    session = await subscribe(server, "a")
    sent = [{"tags": ["a"], "data": text} for text in ["1", "t\nw\no", "3"]]
    assert (await request(server, "POST", MESSAGES, json=sent)).status == 200
    assert taken(session) == b"publish a 1\npublish a 3\n"
    assert session.outbox.dropped_unframable == 1
    assert [each[2] for each in await stored(server)] == [b"1", b"t\nw\no", b"3"]


async def test_data_can_not_forge_a_line(server: Server) -> None:
    session = await subscribe(server, "a")
    sent = {"tags": ["a"], "data": "x\npublish a forged"}
    await request(server, "POST", MESSAGES, json=sent)
    assert taken(session) == b""


GOOD = b'{"tags":["a"],"data":"x"}'


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_body"),
        (b"[]", 400, "invalid_body"),
        (b"null", 400, "invalid_body"),
        (b'"x"', 400, "invalid_body"),
        (b"[null]", 400, "invalid_body"),
        (b"{", 400, "invalid_body"),
        (GOOD + GOOD, 400, "invalid_body"),
        (GOOD + b"\0", 400, "invalid_body"),
        (b"\xff\xfe" + GOOD, 400, "invalid_body"),
        (b"[" * 1_000_000, 400, "invalid_body"),
        (b'{"tags":' + b"[" * 100_000, 400, "invalid_body"),
        (b'{"tags":["a"]}', 400, "invalid_body"),
        (b'{"data":"x"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":null}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":"x","data64":"eA=="}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":1}', 400, "invalid_body"),
        (b'{"tags":"a","data":"x"}', 400, "invalid_body"),
        (b'{"tags":[1],"data":"x"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":"x","dat":"y"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data64":"eA="}', 400, "invalid_body"),
        (b'{"tags":["a"],"data64":"-_-_"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data64":"e A=="}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":"\\ud800"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":"\\udc00"}', 400, "invalid_body"),
        (b'{"tags":["a"],"data":"\xff"}', 400, "invalid_body"),
        (b'{"tags":[],"data":"x"}', 400, "empty_tag"),
        (b'{"tags":[""],"data":"x"}', 400, "empty_tag"),
        (b'{"tags":["a b"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["a,b"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["a\\n"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["a\\u0000"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["..a"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":[">a"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["a*"],"data":"x"}', 400, "invalid_tag"),
        (b'{"tags":["' + b"a" * 256 + b'"],"data":"x"}', 400, "invalid_tag"),
        (
            json.dumps({"tags": [str(n) for n in range(65)], "data": "x"}).encode(),
            400,
            "too_many_tags",
        ),
        (b'{"tags":["a"],"data":"' + b"x" * 1_048_577 + b'"}', 413, "data_too_long"),
        (b"[" + b",".join([GOOD] * (MAX_GROUP + 1)) + b"]", 413, "payload_too_large"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
async def test_what_is_wrong_is_said_and_nothing_is_published(
    server: Server, body: bytes, status: int, code: str
) -> None:
    kind = {"Content-Type": "application/json"}
    assert told(await request(server, "POST", MESSAGES, kind, body)) == (status, code)
    # The same, as the last of a list and as the last line.
    if body.startswith(b"{") and code != "payload_too_large":
        among = b"[" + GOOD + b"," + body + b"]"
        found = told(await request(server, "POST", MESSAGES, kind, among))
        assert found == (status, code) or body == GOOD + GOOD
        assert told(await request(server, "POST", MESSAGES, NDJSON, GOOD + b"\n" + body)) == (
            status,
            code,
        )
    assert await stored(server) == []


@pytest.mark.parametrize("body", [b"", b"\n \r\n", b"[" + GOOD + b"]\n", GOOD + b" " + GOOD])
async def test_lines_that_are_no_objects_are_refused(server: Server, body: bytes) -> None:
    assert told(await request(server, "POST", MESSAGES, NDJSON, body)) == (400, "invalid_body")


async def test_the_line_that_is_wrong_is_named(server: Server) -> None:
    answered = await request(server, "POST", MESSAGES, NDJSON, GOOD + b"\n\n{}\n")
    assert "line 3: " in answered.json()["detail"]


async def test_the_largest_message_and_the_longest_list_pass(server: Server) -> None:
    sent = {"tags": ["a"], "data": "x" * 1_048_576}
    assert (await request(server, "POST", MESSAGES, json=sent)).json() == {"id": 1}
    body = b"\n".join([GOOD] * MAX_GROUP)
    answered = await request(server, "POST", MESSAGES, NDJSON, body)
    assert answered.json() == {"ids": [2, MAX_GROUP + 1], "count": MAX_GROUP}


# who may publish


async def test_a_token_publishes_with_the_tags_it_has_the_right_for(server: Server) -> None:
    record = await register(server, "may", ">room:*", "a")
    sent = [{"tags": ["room:1", "room:2"], "data": "x"}]
    assert (await request(server, "POST", MESSAGES, MAY, json=sent)).status == 200
    assert await stored(server) == [(1, ["room:1", "room:2"], b"x", record.id)]


@pytest.mark.parametrize("tags", [["a"], ["room:1", "a"], ["room"], ["b"]])
async def test_one_tag_without_the_right_refuses_the_whole_request(
    server: Server, tags: list[str]
) -> None:
    await register(server, "may", ">room:*", "a", "*")
    sent = [{"tags": ["room:1"], "data": "x"}, {"tags": tags, "data": "x"}]
    answered = await request(server, "POST", MESSAGES, MAY, json=sent)
    assert told(answered) == (403, "not_granted")
    assert await stored(server) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Unregister("reads"), (401, "unauthorized")),
        (RemoveTags("reads", frozenset("a")), (403, "not_granted")),
    ],
)
async def test_a_token_that_is_revoked_while_it_reads_gets_nothing(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    change: Unregister | RemoveTags,
    expected: tuple[int, str],
) -> None:
    sequencer = server.hub.sequencer
    assert sequencer is not None
    await register(server, "reads", "a", "b")

    async def changed_meanwhile(since: object) -> None:
        await server.hub.registry.execute([change])
        await server.hub.store(frozenset("a"), b"published behind the revocation")

    monkeypatch.setattr(sequencer, "reach", changed_meanwhile)
    answer = await request(server, "GET", f"{MESSAGES}?tags=a", {"X-Auth-Token": "reads"})
    assert told(answer) == expected


@pytest.mark.parametrize("change", [Unregister("may"), RemoveTags("may", frozenset({">a"}))])
async def test_a_token_revoked_while_the_body_comes_publishes_nothing(
    server: Server, change: Unregister | RemoveTags
) -> None:
    await register(server, "may", ">a", "b")
    async with connect(server) as client:
        head = {**MAY, "Content-Type": "application/json", "Content-Length": str(len(GOOD))}
        lines = [f"{name}: {value}" for name, value in {"Host": "localhost", **head}.items()]
        wire = "\r\n".join([f"POST {MESSAGES} HTTP/1.1", *lines, "", ""]).encode()
        await client.connection.send_all(wire + GOOD[:5])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await server.hub.registry.execute([change])
        await client.connection.send_all(GOOD[5:])
        answer = await client.receive_some()
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 403"))
    assert await stored(server) == []


async def test_where_there_is_a_secret_nobody_publishes_without(tmp_path: Path) -> None:
    settings = {"history": "memory://", "secret": "s3cret"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        sent = {"tags": ["a"], "data": "x"}
        assert told(await request(server, "POST", MESSAGES, json=sent)) == (401, "unauthorized")
        assert await stored(server) == []
        bearer = {"Authorization": "Bearer s3cret"}
        assert (await request(server, "POST", MESSAGES, bearer, json=sent)).status == 200


# where it can't be stored


async def test_what_can_not_be_stored_is_not_published(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.hub.sequencer is not None

    async def fail(publications: object) -> int:
        raise HistoryUnavailable("History is unavailable: /secret/path is full")

    session = await subscribe(server, "a")
    with monkeypatch.context() as patch:
        patch.setattr(server.hub.sequencer.history, "append", fail)
        answered = await request(server, "POST", MESSAGES, json={"tags": ["a"], "data": "x"})
    assert told(answered) == (503, "history_unavailable")
    assert int(answered.headers["retry-after"]) >= 1
    assert "/secret/path" not in answered.body.decode()
    assert taken(session) == b""
    again = await request(server, "POST", MESSAGES, json={"tags": ["a"], "data": "x"})
    assert again.json() == {"id": 1}


async def test_publishers_faster_than_the_disk_are_told_to_come_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    append, let_go = history.append, trio.Event()

    async def held(publications: Any) -> int:
        await let_go.wait()
        return await append(publications)

    monkeypatch.setattr(history, "append", held)
    for _ in range(33):
        server.hub.publish(frozenset("a"), bytes(1_048_576))
    answered = await request(server, "POST", MESSAGES, json={"tags": ["b"], "data": "x"})
    assert told(answered) == (503, "busy")
    assert int(answered.headers["retry-after"]) >= 1
    let_go.set()
    await server.hub.sequencer.settled()
    again = await request(server, "POST", MESSAGES, json={"tags": ["b"], "data": "x"})
    assert again.json() == {"id": 34}


# fairness

LARGE_LIST = [
    {"tags": [f"t{n}-{k}" for k in range(16)], "data": "x", "to": {"users": [1]}}
    for n in range(300)
]


async def test_who_may_not_publish_is_told_so_before_the_body_comes(server: Server) -> None:
    await register(server, "none", "a")
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: none\r\n"
        b"Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n"
    )
    assert b" 403 " in await told_before_the_body(server, head)


@pytest.mark.parametrize("lines", [False, True], ids=["list", "lines"])
async def test_others_have_their_turns_while_a_large_body_is_read_and_judged(
    server: Server, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(server, "may", ">*")
    turns, waited = server.hub.turns, 0
    wait = turns.wait

    async def counted(account: Account, *, late: bool = False) -> None:
        nonlocal waited
        waited += 1
        await wait(account)

    monkeypatch.setattr(turns, "wait", counted)
    monkeypatch.setattr(turns, "_clock", itertools.count().__next__)  # each step is too long
    if lines:
        body = b"\n".join(json.dumps(each).encode() for each in LARGE_LIST)
        answered = await request(server, "POST", MESSAGES, {**MAY, **NDJSON}, body)
    else:
        answered = await request(server, "POST", MESSAGES, MAY, json=LARGE_LIST)
    assert answered.status == 200
    assert waited >= len(LARGE_LIST)
    assert len(await stored(server)) == len(LARGE_LIST)


async def move(server: Server, token: str, site: str) -> None:
    change = SetAttributes(token, Attributes.of_json({"site": site}))
    await server.hub.registry.execute([change])


async def test_messages_are_bound_in_turns_to_the_site_that_the_token_has_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(server, "may", ">*")
    await move(server, "may", "s")
    turns, wait, for_site = server.hub.turns, server.hub.turns.wait, publishing.for_site
    bound: list[str] = []
    seen: set[int] = set()
    waited = 0  # once all were bound

    def binding(audience: Audience | None, site: str) -> Audience:
        bound.append(site)
        return for_site(audience, site)

    async def looking(account: Account, *, late: bool = False) -> None:
        nonlocal waited
        seen.add(len(bound))
        waited += len(bound) == 122
        if len(bound) == 50:
            await move(server, "may", "t")
        await wait(account)

    monkeypatch.setattr(publishing, "for_site", binding)
    monkeypatch.setattr(turns, "wait", looking)
    monkeypatch.setattr(turns, "_clock", itertools.count().__next__)  # each step is too long
    body = [{"tags": ["a"], "data": "x", "to": {"users": [number]}} for number in range(60)]
    everyone = [{"tags": ["a"], "data": "x"}] * 40
    assert (await request(server, "POST", MESSAGES, MAY, json=body + everyone)).status == 200
    assert bound == ["s"] * 61 + ["t"] * 61  # neighbours to everyone have one audience
    assert seen >= set(range(1, 122))
    assert waited >= 61  # each batch is made in a step
    page = (await request(server, "GET", f"{MESSAGES}?tags=a&since=0")).json()
    expected = [{"users": [str(number)], "site": "t"} for number in range(60)]
    assert [each["to"] for each in page["messages"]] == expected + [{"site": "t"}] * 40


@pytest.mark.parametrize("data", ["x", '"' * 100_000])
async def test_far_too_many_tags_are_refused_by_their_number(
    server: Server, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {"tags": ["a"] * 180_000, "data": data}
    monkeypatch.setattr(publications, "_decode", None)
    monkeypatch.setattr(publications, "_split_list", None)
    for wrapped in (sent, [sent], [sent, {"tags": ["b"], "data": "x"}]):
        answered = await request(server, "POST", MESSAGES, json=wrapped)
        assert told(answered) == (400, "too_many_tags")
    monkeypatch.undo()
    for sent in ({"tags": ["a"] * 1_000, "data": data}, {"tags": ["a"], "data": '"' * 400_000}):
        assert (await request(server, "POST", MESSAGES, json=sent)).status == 200


@pytest.mark.parametrize("moment", [50, 103], ids=["some is read", "all is read"])
@pytest.mark.parametrize("granted", [">t0-*", ">t*"])
async def test_a_token_that_changes_meanwhile_is_judged_as_it_is_in_the_end(
    server: Server, moment: int, granted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await register(server, "may", ">*")
    turns, waited = server.hub.turns, 0
    wait = turns.wait

    async def changing(account: Account, *, late: bool = False) -> None:
        nonlocal waited
        waited += 1
        if waited == moment:
            await server.hub.registry.execute(
                [AddTags("may", frozenset({granted})), RemoveTags("may", frozenset({">*"}))]
            )
        await wait(account)

    monkeypatch.setattr(turns, "wait", changing)
    monkeypatch.setattr(turns, "_clock", itertools.count().__next__)
    answered = await request(server, "POST", MESSAGES, MAY, json=LARGE_LIST)
    if granted == ">t*":
        assert answered.status == 200
        assert waited >= 2 * len(LARGE_LIST)  # read, then judged anew, all in turns
        assert len(await stored(server)) == len(LARGE_LIST)
    else:
        assert told(answered) == (403, "not_granted")
        assert waited > moment
        assert await stored(server) == []
    assert server.hub.registry.find(record.id) is not None


# reading


async def published(server: Server, *messages: tuple[str, str]) -> None:
    sent = [{"tags": tags.split(","), "data": data} for tags, data in messages]
    assert (await request(server, "POST", MESSAGES, json=sent)).status == 200


async def read(server: Server, query: str, **headers: str) -> Response:
    return await request(
        server, "GET", f"{MESSAGES}?{query}", {k.replace("_", "-"): v for k, v in headers.items()}
    )


async def test_what_matches_any_of_the_tag_sets_is_read_once_and_in_order(server: Server) -> None:
    await published(server, ("a", "1"), ("a,b", "2"), ("c,a,b", "3"), ("b", "4"), ("c", "5"))
    answered = (await read(server, "tags=a,b&tags=c")).json()
    assert [(each["id"], each["data"]) for each in answered["messages"]] == [
        (2, "2"),
        (3, "3"),
        (5, "5"),
    ]
    assert answered["messages"][1]["keys"] == ["a", "b", "c"]
    assert server.hub.sequencer is not None
    answered.pop("messages")
    assert answered == {
        "epoch": server.hub.sequencer.epoch,
        "first": 1,
        "newest": 5,
        "id": 5,
        "recovered": True,
        "complete": True,
        "lost": [],
    }


async def test_an_empty_history_is_an_empty_page(server: Server) -> None:
    answered = (await read(server, "tags=a")).json()
    assert answered["messages"] == []
    assert (answered["newest"], answered["id"], answered["complete"]) == (0, 0, True)


async def test_bytes_that_are_no_text_are_read_in_base64(server: Server) -> None:
    sent = {"tags": ["a"], "data64": "//4="}
    await request(server, "POST", MESSAGES, json=sent)
    (message,) = (await read(server, "tags=a")).json()["messages"]
    assert message["data64"] == "//4="
    assert "data" not in message


async def test_pages_go_on_by_id_without_a_gap_or_a_repeat(server: Server) -> None:
    await published(server, *((("a", "b")[n % 2], str(n)) for n in range(50)))
    found, place, pages = [], "0", 0
    while True:
        page = (await read(server, f"tags=a&limit=7&since={place}")).json()
        found += [each["data"] for each in page["messages"]]
        place, pages = f"{page['epoch']}:{page['id']}", pages + 1
        assert page["recovered"]
        if page["complete"]:
            break
    assert found == [str(n) for n in range(0, 50, 2)]
    assert pages == 4


async def test_a_page_ends_where_it_gets_large(server: Server) -> None:
    for n in range(4):
        sent = {"tags": ["a"], "data": str(n) * 600_000}
        await request(server, "POST", MESSAGES, json=sent)
    found: list[int] = []
    place = 0
    while place < 4:
        answered = await read(server, f"tags=a&limit=1000&since={place}")
        assert len(answered.body) < 2_000_000
        page = answered.json()
        found += [each["id"] for each in page["messages"]]
        place = page["id"]
        assert page["complete"] == (place == 4)
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("who", ["service", "of a site"])
async def test_a_page_ends_where_its_json_gets_large(server: Server, who: str) -> None:
    headers = {}
    if who == "of a site":
        await register(server, "may", "a", ">*")
        await move(server, "may", "s")
        headers = {"X_Auth_Token": "may"}
    # Each of these bytes is six in JSON.
    bodies = ["\x01" * (n * 3_000) for n in range(1, 31)]
    for n in range(0, 30, 5):
        sent = [{"tags": ["a"], "data": each} for each in bodies[n : n + 5]]
        response = await request(server, "POST", MESSAGES, MAY if headers else {}, json=sent)
        assert response.status == 200
    found: list[str] = []
    place, pages = 0, 0
    while place < 30:
        answered = await read(server, f"tags=a&limit=1000&since={place}", **headers)
        page = answered.json()
        assert page["messages"]
        assert len(answered.body) < 1_100_000
        pages += 1
        found += [each["data"] for each in page["messages"]]
        place = page["id"]
        assert page["complete"] == (place == 30)
    assert found == bodies
    assert pages < 15  # which are not of one message each


async def test_the_last_so_many_that_match_are_read(server: Server) -> None:
    await published(server, ("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"))
    page = (await read(server, "tags=a&since=-2")).json()
    assert [each["id"] for each in page["messages"]] == [2, 4]
    assert page["recovered"]


async def test_what_is_damaged_is_named_at_its_place_and_what_lies_behind_is_read(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as server:
        for _ in range(7):
            await server.hub.store(frozenset("a"), LARGE)
        damage(tmp_path, 2, 3, 5, 7)
        found = []
        place, complete = "0", False
        while not complete:
            page = (await read(server, f"tags=a&since={place}")).json()
            ids = [each["id"] for each in page["messages"]]
            found.append((page["recovered"], page["lost"], ids, page["id"]))
            place, complete = f"{page['epoch']}:{page['id']}", page["complete"]
        assert found == [
            (True, [], [1], 1),
            (False, [{"first": 2, "last": 3}], [4], 4),
            (False, [{"first": 5, "last": 5}], [6], 6),
            (False, [{"first": 7, "last": 7}], [], 7),
        ]


async def test_of_the_last_so_many_those_behind_the_damage_are_read(tmp_path: Path) -> None:
    async with keeping(tmp_path) as server:
        for _ in range(3):
            await server.hub.store(frozenset("a"), LARGE)
        damage(tmp_path, 1)
        page = (await read(server, "tags=a&since=-5")).json()
        assert (page["recovered"], page["lost"]) == (False, [{"first": 1, "last": 1}])
        assert [each["id"] for each in page["messages"]] == [2, 3]


async def test_a_page_does_not_look_for_what_is_left_of_a_ruin_for_ever(tmp_path: Path) -> None:
    async with keeping(tmp_path) as server:
        for _ in range(120):
            await server.hub.store(frozenset("a"), LARGE)
            await server.hub.store(frozenset("b"), LARGE)
        damage(tmp_path, *range(1, 240, 2))
        page = (await read(server, "tags=a&since=0")).json()
        assert len(page["lost"]) == 100
        assert (page["complete"], page["messages"]) == (False, [])
        page = (await read(server, f"tags=a&since={page['id']}")).json()
        assert len(page["lost"]) == 20
        assert page["complete"]


async def test_a_place_in_another_log_is_told_and_everything_read(server: Server) -> None:
    await published(server, ("a", "1"), ("a", "2"))
    for since in ("other:1", "3", "other:0"):
        page = (await read(server, f"tags=a&since={since}")).json()
        assert not page["recovered"]
        assert [each["id"] for each in page["messages"]] == [1, 2]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "empty_tag"),
        ("tag=a", 400, "empty_tag"),
        ("tags=", 400, "empty_tag"),
        ("tags=a,,b", 400, "empty_tag"),
        ("tags=a&tags=", 400, "empty_tag"),
        ("tags=a%20b", 400, "invalid_tag"),
        ("tags=a%00", 400, "invalid_tag"),
        ("tags=a%0d%0ab", 400, "invalid_tag"),
        ("tags=%ff", 400, "invalid_query"),
        ("tags=" + ",".join(map(str, range(17))), 400, "too_many_tags"),
        ("tags=a&since=", 400, "invalid_position"),
        ("tags=a&since=x", 400, "invalid_position"),
        ("tags=a&since=-0", 400, "invalid_position"),
        ("tags=a&since=9007199254740992", 400, "invalid_position"),
        ("tags=a&since=%C3%A9:1", 400, "invalid_position"),
        ("tags=a&since=1&since=2", 400, "invalid_query"),
        ("tags=a&limit=0", 400, "invalid_limit"),
        ("tags=a&limit=1001", 400, "invalid_limit"),
        ("tags=a&limit=-1", 400, "invalid_limit"),
        ("tags=a&limit=1e2", 400, "invalid_limit"),
        ("tags=a&limit=", 400, "invalid_limit"),
        ("tags=a&limit=%D9%A1", 400, "invalid_limit"),
        ("tags=a&limit=" + "9" * 5_000, 400, "invalid_limit"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    server: Server, query: str, status: int, code: str
) -> None:
    assert told(await read(server, query)) == (status, code)


async def test_a_token_reads_only_what_it_may_subscribe_to(server: Server) -> None:
    await register(server, "may", "room:*", ">secret")
    await published(server, ("room:1", "1"), ("secret", "2"), ("room:1,secret", "3"))
    page = (await read(server, "tags=room:1&tags=room:1,secret", X_Auth_Token="may")).json()
    assert [each["data"] for each in page["messages"]] == ["1", "3"]
    for query in ("tags=secret", "tags=room:1&tags=secret", "tags=%3Esecret"):
        answered = await read(server, query, X_Auth_Token="may")
        assert answered.status in (400, 403)
        assert b"messages" not in answered.body


async def test_where_grants_are_strict_every_tag_has_to_be_granted(tmp_path: Path) -> None:
    settings = {"history": "memory://", "token_policy": "strict"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        await register(server, "may", "a")
        assert (await read(server, "tags=a", X_Auth_Token="may")).status == 200
        assert told(await read(server, "tags=a,b", X_Auth_Token="may")) == (403, "not_granted")


async def test_only_services_are_told_who_published(server: Server) -> None:
    record = await register(server, "may", ">a", "a")
    await request(server, "POST", MESSAGES, MAY, json={"tags": ["a"], "data": "x"})
    (by_service,) = (await read(server, "tags=a")).json()["messages"]
    (by_client,) = (await read(server, "tags=a", X_Auth_Token="may")).json()["messages"]
    assert by_service["publisher"] == record.id
    assert "publisher" not in by_client
    assert by_client["time"] == by_service["time"] > 1_600_000_000


async def test_a_grant_that_grows_is_good_at_once(server: Server) -> None:
    await register(server, "may", "b")
    assert (await read(server, "tags=a", X_Auth_Token="may")).status == 403
    await server.hub.registry.execute([AddTags("may", frozenset("a"))])
    assert (await read(server, "tags=a", X_Auth_Token="may")).status == 200


@without_history
async def test_without_a_history_there_is_nothing_to_read(server: Server) -> None:
    assert told(await read(server, "tags=a")) == (409, "history_off")


async def test_another_method_is_told_which_ones_there_are(server: Server) -> None:
    answered = await request(server, "DELETE", MESSAGES)
    assert told(answered) == (405, "method_not_allowed")
    assert set(answered.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
