"""Publishing over a WebSocket: for tokens that grant it, with the same rules as over HTTP."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.commands import Register, RemoveTags, Unregister
from mist.errors import HistoryUnavailable
from mist.server import Server
from tests.http.client import request
from tests.servers import listeners, running
from tests.transports.test_websocket import Browser, browse

LISTEN = listeners("http", "ws")
GRANTS = {"T": {"a", "b", ">a", ">room:*"}, "reader": {"a"}, "other": {"a", ">a"}}
NO = "publishing is not allowed over websockets"
NOT_GRANTED = "not granted by the token"


@pytest.fixture(params=["none", "memory", "sqlite"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    urls = {"none": "none", "memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/h.db"}
    settings: dict[str, Any] = {"listen": LISTEN, "history": urls[request.param], "grants": GRANTS}
    async with running(tmp_path / "data", **settings) as server:
        with trio.fail_after(60):
            yield server


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(
        tmp_path, listen=LISTEN, history="memory://", grants=GRANTS, failed_auth_delay=0.0
    ) as server:
        with trio.fail_after(60):
            yield server


async def kept(server: Server) -> list[bytes]:
    assert server.hub.sequencer is not None
    return [each.data for each in (await server.hub.sequencer.history.read()).messages()]


async def post(server: Server, message: object, key: str, token: str = "T") -> tuple[int, Any]:
    headers = {"X-Auth-Token": token, "Idempotency-Key": key, "Content-Type": "application/json"}
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    response = await request(server, "POST", "/v1/messages", headers, body)
    return response.status, response.json()


async def refusal(page: Browser, **fields: object) -> object:
    answer = await page.ask("publish", **fields)
    assert (answer["success"], answer["command"]) == (False, "publish")
    return answer["error"]


@pytest.mark.parametrize("index", [0, 1])
async def test_a_token_that_grants_it_publishes(server: Server, index: int) -> None:
    async with (
        browse(server, "T", index=index) as page,
        browse(server, "reader", index=1 - index) as reader,
    ):
        assert (await reader.ask("subscribe", tags=["a"]))["success"]
        answer = await page.ask("publish", tags=["room:1", "a"], data="hällo\n", ref=0)
        ids = {} if server.hub.sequencer is None else {"id": 1}
        assert answer == {"success": True, "command": "publish", **ids, "ref": 0}
        assert await reader.get() == {"keys": ["a", "room:1"], "data": "hällo\n", **ids}
        assert (await page.ask("publish", tags=["a"], data64="/w=="))["success"]
        assert (await reader.get())["data64"] == "/w=="


async def test_who_may_publish_nothing_is_refused_as_ever(server: Server) -> None:
    async with browse(server, "reader") as page:
        for fields in ({"tags": ["a"], "data": "x"}, {}, {"tags": 7}, {"key": "k", "data": 1}):
            assert await refusal(page, **fields) == NO
        assert (await page.ask("ping"))["success"]


async def test_each_tag_needs_its_right(server: Server) -> None:
    async with browse(server, "T") as page:
        assert await refusal(page, tags=["b"], data="x") == NOT_GRANTED
        assert await refusal(page, tags=["a", "b"], data="x", key="k") == NOT_GRANTED
        assert (await page.ask("publish", tags=["a"], data="x", key="k"))["success"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"data": "x"}, "tags must be a list of strings"),
        ({"tags": ["a", 1], "data": "x"}, "tags must be a list of strings"),
        ({"tags": [], "data": "x"}, "Empty tag"),
        ({"tags": ["a b"], "data": "x"}, "Invalid tag"),
        ({"tags": ["..x"], "data": "x"}, "Invalid tag"),
        ({"tags": [f"room:{n}" for n in range(65)], "data": "x"}, "Too many tags"),
        ({"tags": ["a"]}, "a message has either data or data64"),
        ({"tags": ["a"], "data": "x", "data64": "eA=="}, "a message has either data or data64"),
        ({"tags": ["a"], "data": 7}, "data must be a string"),
        ({"tags": ["a"], "data64": "x!"}, "data64 must be base64"),
        ({"tags": ["a"], "data64": 7}, "data must be a string"),
        ({"tags": ["a"], "data": "x" * 2_000}, "Data too long"),
        ({"tags": ["a"], "data": "x", "to": None}, "to must be an object"),
        ({"tags": ["a"], "data": "x", "to": {}}, "it says nothing"),
        ({"tags": ["a"], "data": "x", "key": ""}, "key must be 1 to 255 ASCII letters"),
        ({"tags": ["a"], "data": "x", "key": "k" * 256}, "key must be 1 to 255 ASCII letters"),
        ({"tags": ["a"], "data": "x", "key": None}, "key must be 1 to 255 ASCII letters"),
        ({"tags": ["a"], "data": "x", "To": {"users": [1]}}, "a publish has tags, data or"),
    ],
)
async def test_a_message_that_is_wrong_is_refused_and_nothing_else(
    tmp_path: Path, fields: dict[str, object], error: str
) -> None:
    async with running(
        tmp_path, listen=LISTEN, history="memory://", grants=GRANTS, max_data=1_000
    ) as server:
        async with browse(server, "T") as page:
            told = await refusal(page, **fields)
            assert isinstance(told, str)
            assert error in told
            assert (await page.ask("publish", tags=["a"], data="y"))["id"] == 1
        assert await kept(server) == [b"y"]


async def test_a_frame_that_is_too_long_ends_the_connection(stored: Server) -> None:
    async with browse(stored, "T") as page:
        frame = json.dumps({"command": "publish", "tags": ["a"], "data": "x" * 131_072})
        await page.socket.send_message(frame)
        assert await page.closed() == 1009
    assert await kept(stored) == []


async def test_a_repeat_with_its_key_publishes_nothing(server: Server) -> None:
    async with browse(server, "T") as page, browse(server, "T") as again:
        first = await page.ask("publish", tags=["a"], data="x", key="k")
        assert await again.ask("publish", tags=["a"], data="x", key="k") == first
        assert await refusal(page, tags=["a"], data="y", key="k") == (
            "that key was used for another message"
        )
        async with browse(server, "other") as other:  # a key is its token's
            answer = await other.ask("publish", tags=["a"], data="y", key="k")
        assert answer["success"]
    assert server.hub.broker.statistics().published == 2


async def test_a_key_that_was_refused_can_be_used_again(stored: Server) -> None:
    async with browse(stored, "T") as page:
        assert await refusal(page, tags=["b"], data="x", key="k") == NOT_GRANTED
        await stored.hub.registry.execute([Register("U", frozenset({">b"}))])
        assert (await page.ask("publish", tags=["a"], data="x", key="k"))["id"] == 1


async def test_what_was_begun_here_is_repeated_over_http(server: Server) -> None:
    text = "".join(map(chr, range(0x20))) + '\x7f\u2028"\\/é😀'
    messages: list[dict[str, object]] = [
        {"tags": ["room:2", "a"], "data": text},
        {"tags": ["a"], "data64": "/w=="},
        {"tags": ["a"], "data": "x", "to": {"users": [1, "u"], "plan": "pro"}},
    ]
    async with browse(server, "T") as page:
        for number, message in enumerate(messages):
            here = await page.ask("publish", **message, key=f"h{number}")
            status, there = await post(server, message, f"h{number}")
            assert (status, there.get("id")) == (200 if "id" in here else 202, here.get("id"))
            status, there = await post(server, message, f"t{number}")
            answer = await page.ask("publish", **message, key=f"t{number}")
            assert (answer["success"], answer.get("id")) == (True, there.get("id"))
    assert server.hub.broker.statistics().published == 6


async def test_a_token_that_is_revoked_publishes_no_more(stored: Server) -> None:
    async with browse(stored, "T") as page:
        await page.ask("publish", tags=["a"], data="1")
        await stored.hub.registry.execute([RemoveTags("T", frozenset({">a"}))])
        assert await refusal(page, tags=["a"], data="2") == NOT_GRANTED
        await stored.hub.registry.execute([RemoveTags("T", frozenset({">room:*"}))])
        assert await refusal(page, tags=["a"], data="2") == NO
    assert await kept(stored) == [b"1"]


async def test_what_waits_for_its_turn_when_the_token_goes_is_not_published(
    stored: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browse(stored, "T") as page:
        check = stored.hub.check

        async def slow(*arguments: Any) -> None:
            await check(*arguments)
            await stored.hub.registry.execute([Unregister("T")])

        monkeypatch.setattr(stored.hub, "check", slow)
        frame = {"command": "publish", "tags": ["a"], "data": "x", "key": "k"}
        await page.socket.send_message(json.dumps(frame))
        assert await page.closed() == 4401
    assert await kept(stored) == []


async def test_who_has_not_authenticated_publishes_nothing(stored: Server) -> None:
    async with browse(stored, None) as page:
        frame = {"command": "publish", "tags": ["a"], "data": "x"}
        await page.socket.send_message(json.dumps(frame))
        assert await page.closed() == 4401
    assert await kept(stored) == []


async def test_a_disk_that_fails_is_told_and_the_key_can_be_used_again(
    stored: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequencer = stored.hub.sequencer
    assert sequencer is not None

    async def full(publications: object) -> int:
        raise HistoryUnavailable("no space left on /secret/path")

    async with browse(stored, "T") as page:
        with monkeypatch.context() as broken:
            broken.setattr(sequencer.history, "append", full)
            for fields in ({}, {"key": "k"}):
                told = await refusal(page, tags=["a"], data="x", **fields)
                assert told == "History is unavailable"
        assert (await page.ask("publish", tags=["a"], data="x", key="k"))["id"] == 1


async def test_too_much_that_waits_for_the_disk_is_refused(
    stored: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browse(stored, "T") as page:
        with monkeypatch.context() as busy:
            busy.setattr(type(stored.hub.sequencer), "congested", True)
            assert await refusal(page, tags=["a"], data="x") == "History is unavailable"
        assert (await page.ask("publish", tags=["a"], data="x"))["success"]


async def test_many_at_once_keep_their_order(server: Server) -> None:
    async with browse(server, "T") as page, browse(server, "reader") as reader:
        await reader.ask("subscribe", tags=["a"])
        for number in range(50):
            frame = {"command": "publish", "tags": ["a"], "data": str(number), "ref": number}
            await page.socket.send_message(json.dumps(frame))
        assert [(await page.get())["ref"] for _ in range(50)] == list(range(50))
        assert [(await reader.get())["data"] for _ in range(50)] == list(map(str, range(50)))


async def test_a_publisher_hears_its_own_message_before_its_reply(server: Server) -> None:
    async with browse(server, "T") as page:
        await page.ask("subscribe", tags=["a"])
        await page.socket.send_message('{"command":"publish","tags":["a"],"data":"x","ref":1}')
        first, second = await page.get(), await page.get()
        assert {"keys", "ref"} == {*(first.keys() & {"keys"}), *(second.keys() & {"ref"})}


async def test_at_another_node_it_is_delivered_and_its_key_known(tmp_path: Path) -> None:
    realm = f"memory://{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(
                running(
                    tmp_path / name,
                    listen=LISTEN,
                    history="memory://",
                    engine=realm,
                    tokens=realm,
                    node=name,
                )
            )
            for name in ("n1", "n2")
        ]
        await one.hub.registry.execute([Register("T", frozenset({"a", ">a"}))])
        with trio.fail_after(20):
            async with browse(one, "T") as page, browse(two, "T") as other:
                await other.ask("subscribe", tags=["a"])
                answer = await page.ask("publish", tags=["a"], data="x", key="k")
                assert await other.get() == {"keys": ["a"], "data": "x", "id": answer["id"]}
                assert await other.ask("publish", tags=["a"], data="x", key="k") == answer
                assert (await post(two, {"tags": ["a"], "data": "x"}, "k"))[1] == {
                    "id": answer["id"]
                }
                assert await refusal(other, tags=["a"], data="y", key="k") == (
                    "that key was used for another message"
                )
