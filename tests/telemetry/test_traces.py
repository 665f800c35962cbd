"""What whole servers tell a collector, and what they don't."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from opentelemetry.trace import format_span_id, get_current_span

from mist.config import Config
from mist.server import Server, open_server
from mist.sessions.occasions import Occasion
from tests.auth.jwt.issuer import site
from tests.http.client import connect, request
from tests.servers import listeners, running
from tests.system.test_callout import Backend
from tests.telemetry.collector import PARENT, TRACE, TRACEPARENT, Collector
from tests.transports.lines import talk
from tests.waiting import until

LISTEN = listeners("tcp", "http", "nats")
TRACED = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "baggage": "user=hush"}


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[Server]:
    settings = {"listen": LISTEN, "history": "memory://", "telemetry": True, **settings}
    async with running(folder, **settings) as server:
        yield server


def message(*tags: str) -> dict[str, object]:
    return {"tags": list(tags), "data": "1"}


@pytest.mark.parametrize("nodes", [False, True])
async def test_a_publish_and_its_commit_belong_to_the_clients_trace(
    tmp_path: Path, collector: Collector, nodes: bool
) -> None:
    engine = {"engine": f"memory://{secrets.token_hex(4)}"} if nodes else {}
    async with serving(tmp_path, **engine) as server:
        answer = await request(server, "POST", "/v1/messages", TRACED, json=message("a"))
        assert answer.status == 200
        await until(lambda: len(collector.spans) == 2)
    publish, commit = sorted(collector.spans, key=lambda span: span.name)
    assert (publish.name, publish.kind) == ("POST /v1/messages", "server")
    assert (publish.trace, publish.parent) == (TRACE, PARENT)
    assert publish.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/messages",
        "http.response.status_code": 200,
    }
    assert (commit.name, commit.kind) == ("commit", "internal")
    assert (commit.trace, commit.parent) == (TRACE, publish.id)
    assert commit.attributes == {"mist.messages": 1}
    assert not publish.failed
    assert not commit.failed


async def test_consumers_are_told_the_trace_of_a_message(
    tmp_path: Path, collector: Collector
) -> None:
    async with serving(tmp_path) as server, talk(server, 2) as line:
        await line.send(b'CONNECT {"headers":true,"verbose":false}\r\nSUB order.* 1\r\nPING\r\n')
        while await line.line() != b"PONG\r\n":
            pass
        for headers in (TRACED, {}):
            await request(server, "POST", "/v1/messages", headers, json=message(".order.eu"))
        with trio.fail_after(10):
            assert (await line.line()).startswith(b"HMSG order.eu 1 ")
            assert await line.line() == b"NATS/1.0\r\n"
            told = await line.line()
            assert await line.line() == b"tracestate: vendor=1\r\n"
            assert [await line.line() for _ in range(2)] == [b"\r\n", b"1\r\n"]
            # It was published without a trace, so it has none.
            assert await line.line() == b"MSG order.eu 1 1\r\n"
        await until(lambda: len(collector.named("POST /v1/messages")) == 2)
    [publish] = [each for each in collector.named("POST /v1/messages") if each.trace == TRACE]
    assert told.decode() == f"traceparent: 00-{TRACE}-{publish.id}-01\r\n"


async def test_targeted_messages_have_it_too(tmp_path: Path, collector: Collector) -> None:
    async with serving(tmp_path) as server:
        body = [message("a"), {**message("a"), "to": {"users": [1]}}]
        await request(server, "POST", "/v1/messages", TRACED, json=body)
        assert server.hub.sequencer is not None
        history = server.hub.sequencer.history
        page = await history.read()
        kept = [stored.meta for stored in page.stored]
        audiences = [stored.audience for stored in page.stored]
    assert audiences == [None, "users=1"]
    assert all(meta is not None and TRACE.encode() in meta["nats.headers"] for meta in kept)


async def test_a_callout_continues_the_trace(tmp_path: Path, collector: Collector) -> None:
    with site(answers=Backend) as backend:
        async with serving(tmp_path, auth_url=backend.url) as server:
            headers = {**TRACED, "X-Auth-Token": "hush"}
            answer = await request(server, "GET", "/v1/messages?tags=urgent", headers)
            assert answer.status == 200
            await until(lambda: len(collector.spans) == 2)
        [asked] = backend.seen
    [question] = collector.named("POST 127.0.0.1")
    [read] = collector.named("GET /v1/messages")
    assert asked["traceparent"] == f"00-{TRACE}-{question.id}-01"
    assert asked["tracestate"] == "vendor=1"
    assert "baggage" not in asked
    assert (question.kind, question.trace, question.parent) == ("client", TRACE, read.id)
    assert question.attributes["http.response.status_code"] == 200
    assert question.attributes["server.address"] == "127.0.0.1"


async def test_a_callout_without_an_answer_has_failed(tmp_path: Path, collector: Collector) -> None:
    async with serving(tmp_path, auth_url="http://127.0.0.1:1/") as server:
        answer = await request(server, "GET", "/v1/messages?tags=a", {"X-Auth-Token": "hush"})
        assert answer.status == 503
        await until(lambda: len(collector.spans) == 2)
    [question] = collector.named("POST 127.0.0.1")
    [read] = collector.named("GET /v1/messages")
    assert (question.failed, question.attributes["error.type"]) == (True, "connection")
    assert (read.failed, read.attributes["error.type"]) == (True, "503")


async def test_hooks_are_called_in_spans(tmp_path: Path, collector: Collector) -> None:
    seen: dict[str, str] = {}

    async def hook(occasion: Occasion) -> None:
        await trio.lowlevel.checkpoint()
        seen[occasion.kind.value] = format_span_id(get_current_span().get_span_context().span_id)
        if occasion.kind.value == "connected":
            raise ValueError("with a name of a person")

    config = Config(
        data=tmp_path, listen=LISTEN, tokens="memory://", history="none", telemetry=True
    )
    async with open_server(config, hooks=[hook]) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async with talk(server) as line:
            await line.ask(b"")
        await until(lambda: len(collector.spans) == 3)
        nursery.cancel_scope.cancel()
    assert {f"hook {name}": span for name, span in seen.items()} == {
        span.name: span.id for span in collector.spans
    }
    failures = {span.name: span.attributes for span in collector.spans if span.failed}
    assert failures == {"hook connected": {"error.type": "ValueError"}}


async def test_messages_over_lines_have_no_spans_of_their_own(
    tmp_path: Path, collector: Collector
) -> None:
    async with serving(tmp_path) as server, talk(server) as line:
        await line.ask(b"subscribe a\n")
        await line.ask(b"publish a 1\n" * 300)
        await request(server, "GET", "/")
        await until(lambda: collector.named("GET /"))
    commits = [span for span in collector.spans if span.name != "GET /"]
    assert {span.name for span in commits} == {"commit"}
    assert sum(int(str(span.attributes["mist.messages"])) for span in commits) == 300
    assert len(commits) < 100


async def test_no_secret_is_in_a_span(tmp_path: Path, collector: Collector) -> None:
    async with serving(tmp_path, grants={"hush-hush": ["a"]}) as server:
        headers = {"X-Auth-Token": "hush-hush", "Authorization": "Bearer hush", "Cookie": "hush"}
        for method, path in [
            ("GET", "/v1/messages?tags=a&token=hush"),
            ("GET", "/v1/tokens/hush"),
            ("DELETE", "/v1/tokens/hush?hush=hush"),
            ("GET", "/hush/nowhere"),
            ("POST", "/v1/messages"),
        ]:
            await request(server, method, path, headers, b"hush")
        await until(lambda: len(collector.spans) == 5)
    assert not [body for body in collector.endpoint.asked if b"hush" in body.lower()]
    assert sorted(span.name for span in collector.spans) == [
        "DELETE /v1/tokens/{id}",
        "GET",
        "GET /v1/messages",
        "GET /v1/tokens/{id}",
        "POST /v1/messages",
    ]


async def test_an_event_stream_is_a_span_until_it_begins(
    tmp_path: Path, collector: Collector
) -> None:
    async with serving(tmp_path) as server, connect(server) as client:
        async with client.stream("GET", "/v1/stream?tags=a") as response:
            assert response.status == 200
            await until(lambda: collector.named("GET /v1/stream"))
    [span] = collector.spans
    assert span.attributes["http.response.status_code"] == 200


async def test_what_monitors_ask_has_no_span(tmp_path: Path, collector: Collector) -> None:
    async with serving(tmp_path) as server:
        for path in ("/healthz", "/readyz", "/metrics", "/"):
            await request(server, "GET", path)
        await until(lambda: collector.spans)
    assert [span.name for span in collector.spans] == ["GET /"]
