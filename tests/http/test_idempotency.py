"""`Idempotency-Key`: a repeated publish publishes nothing and is answered as the first was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mist.commands import Register, RemoveTags
from mist.errors import HistoryUnavailable
from mist.server import Server
from tests.http.client import Client, Response, connect, request
from tests.servers import listeners, running

LISTEN = listeners("http", "http")
ONE = {"tags": ["a"], "data": "1"}
TWO = {"tags": ["a"], "data": "2"}


@pytest.fixture(params=["memory", "sqlite"])
def server_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    history = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/h.db"
    return {"listen": LISTEN, "history": history}


async def post(
    server: Server, what: object, key: str = "k", headers: Mapping[str, str] | None = None
) -> Response:
    sent = {"Idempotency-Key": key, **(headers or {})}
    return await request(server, "POST", "/v1/messages", sent, json=what)


async def stored(server: Server) -> list[bytes]:
    assert server.hub.sequencer is not None
    return [each.data for each in (await server.hub.sequencer.history.read()).messages()]


async def test_a_repeat_is_answered_as_the_first_was_and_stores_nothing(server: Server) -> None:
    first = await post(server, ONE)
    await post(server, TWO, "other")
    again = await post(server, ONE)
    assert (again.status, again.json()) == (first.status, first.json()) == (200, {"id": 1})
    assert await stored(server) == [b"1", b"2"]


async def test_a_repeated_list_is_answered_as_a_list(server: Server) -> None:
    await post(server, TWO, "other")
    for _ in range(2):
        assert (await post(server, [ONE, TWO])).json() == {"ids": [2, 3], "count": 2}
    assert await stored(server) == [b"2", b"1", b"2"]


async def test_a_key_for_another_body_is_a_conflict(server: Server) -> None:
    await post(server, ONE)
    for other in (TWO, [ONE], [ONE, ONE]):
        answered = await post(server, other)
        assert (answered.status, answered.json()["code"]) == (422, "idempotency_conflict")
    assert await stored(server) == [b"1"]


async def test_the_same_body_as_lines_is_another_request(server: Server) -> None:
    await post(server, ONE)
    kind = {"Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
    body = b'{"tags": ["a"], "data": "1"}'
    assert (await request(server, "POST", "/v1/messages", kind, body)).status == 422


async def test_a_key_belongs_to_the_credential_it_came_with(server: Server) -> None:
    await server.hub.registry.execute([Register(name, frozenset({">a"})) for name in ("t", "u")])
    answers = [
        (await post(server, what, headers=headers)).json()
        for what, headers in [
            (ONE, {}),
            (TWO, {"X-Auth-Token": "t"}),
            (TWO, {"X-Auth-Token": "u"}),
            (TWO, {"X-Auth-Token": "t"}),
        ]
    ]
    assert answers == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 2}]


async def test_a_request_that_was_refused_has_not_used_its_key(server: Server) -> None:
    await server.hub.registry.execute([Register("t", frozenset({">b"}))])
    token = {"X-Auth-Token": "t"}
    assert (await post(server, {"tags": ["a b"], "data": ""}, headers=token)).status == 400
    assert (await post(server, ONE, headers=token)).status == 403
    assert (await post(server, {"tags": ["b"], "data": "x"}, headers=token)).json() == {"id": 1}


async def test_a_repeat_is_answered_though_the_right_is_gone(server: Server) -> None:
    await server.hub.registry.execute([Register("t", frozenset({">a", "b"}))])
    token = {"X-Auth-Token": "t"}
    await post(server, ONE, headers=token)
    await server.hub.registry.execute([RemoveTags("t", frozenset({">a"}))])
    assert (await post(server, ONE, headers=token)).json() == {"id": 1}
    assert (await post(server, ONE, "new", token)).status == 403


async def test_what_could_not_be_stored_has_not_used_its_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(publications: object) -> int:
        raise HistoryUnavailable

    assert server.hub.sequencer is not None
    with monkeypatch.context() as patch:
        patch.setattr(server.hub.sequencer.history, "append", fail)
        assert (await post(server, ONE)).status == 503
    assert (await post(server, ONE)).json() == {"id": 1}
    assert await stored(server) == [b"1"]


async def test_two_at_once_with_another_body_are_both_a_conflict(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await post(server, ONE)).status == 200
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    recall, let_go = history.recall, trio.Event()

    async def held(name: bytes) -> object:
        await let_go.wait()
        return await recall(name)

    monkeypatch.setattr(history, "recall", held)
    answers = []

    async def ask(body: object) -> None:
        answered = await post(server, body)
        answers.append((answered.status, answered.json().get("id")))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for body in (TWO, TWO, ONE):
                nursery.start_soon(ask, body)
                await trio.testing.wait_all_tasks_blocked(0.05)
            let_go.set()
    assert sorted(answers, key=str) == [(200, 1), (422, None), (422, None)]
    assert await stored(server) == [b"1"]


@pytest.mark.parametrize("first_goes", [False, True])
async def test_repeats_at_once_publish_once_whichever_listener_they_come_to(
    server: Server, monkeypatch: pytest.MonkeyPatch, first_goes: bool
) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    append, begun, let_go = history.append, trio.Event(), trio.Event()
    answers = []

    async def held(publications: object) -> int:
        begun.set()
        await let_go.wait()
        return await append(publications)  # type: ignore[arg-type]

    monkeypatch.setattr(history, "append", held)
    endpoints = [tuple(url.removeprefix("http://").split(":")) for url in server.urls]

    async def ask(host: str, port: str) -> None:
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            client = Client(stream, f"{host}:{port}")
            key = {"Idempotency-Key": "k"}
            answers.append((await client.request("POST", "/v1/messages", key, json=ONE)).json())

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            async with connect(server) as client:
                key = {"Idempotency-Key": "k"}
                await client.send_request("POST", "/v1/messages", key, json=ONE)
                await begun.wait()
                if first_goes:
                    await client.connection.aclose()
                for host, port in endpoints * 3:
                    nursery.start_soon(ask, host, port)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert answers == []
                let_go.set()
    assert answers == [{"id": 1}] * 6
    assert await stored(server) == [b"1"]


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\tb", "\x7f"])
async def test_what_can_not_be_a_key_is_refused(server: Server, key: str) -> None:
    async with connect(server) as client:
        body = b'{"tags":["a"],"data":"1"}'
        lines = [
            b"POST /v1/messages HTTP/1.1",
            b"Host: localhost",
            b"Content-Type: application/json",
            b"Idempotency-Key: " + key.encode(),
            b"Content-Length: %d" % len(body),
        ]
        await client.connection.send_all(b"\r\n".join([*lines, b"", body]))
        assert (await client.receive_some()).startswith(b"HTTP/1.1 400 ")
    assert await stored(server) == []


@pytest.mark.parametrize("key", ["x", "a ~!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~", "x" * 255])
async def test_any_printable_text_can_be_a_key(server: Server, key: str) -> None:
    assert [(await post(server, ONE, key)).json() for _ in range(2)] == [{"id": 1}] * 2


async def test_two_keys_are_refused(server: Server) -> None:
    async with connect(server) as client:
        await client.connection.send_all(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 0\r\n\r\n"
        )
        assert (await client.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_a_key_outlives_the_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    for _ in range(2):
        async with running(tmp_path, listen=LISTEN, history=url) as server:
            assert (await post(server, ONE)).json() == {"id": 1}
            assert (await post(server, TWO)).status == 422
            assert await stored(server) == [b"1"]


async def test_without_a_history_a_repeat_publishes_nothing_either(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        for _ in range(2):
            answered = await post(server, ONE)
            assert (answered.status, answered.json()) == (202, {})
        assert (await post(server, TWO)).status == 422
        assert server.hub.statistics().broker.published == 1
