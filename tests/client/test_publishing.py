"""Publishing over a WebSocket, by tokens that grant it."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from mist.audience import Audience
from mist.client import HistoryOff, RemoteError, Unconfirmed
from mist.client.dialect import PublishFailed, Request
from mist.client.frames import FrameDialect, PublishFrame
from mist.commands import Ping
from mist.errors import DataTooLong, EmptyTag
from mist.message import Limits
from mist.server import Server
from tests.client.loops import connect
from tests.client.test_client import Proxy, States
from tests.servers import running
from tests.waiting import until

GRANTS = {"T": {"a", "b", ">a", ">room:*"}, "reader": {"a"}}
TEXTS = ["hello", "", 'zwei\nZeilen ☃ " \\ \x00', b"\xff\x00", b"x" * 100_000, b"\x01" * 90_000]


@pytest.fixture(params=["memory://", "none"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path, history=request.param, grants=GRANTS) as server:
        with trio.fail_after(30):
            yield server


@pytest.fixture
def ws(server: Server) -> str:
    return server.urls[1]


def octets(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


async def test_each_subscriber_gets_what_was_published(server: Server, ws: str) -> None:
    async with (
        connect(server.urls[0]) as service,
        service.subscribe(["a", "room:1"]) as subscription,
        connect(ws, token="T") as client,
    ):
        for data in TEXTS:
            await client.publish(["room:1", "a"], data)
        await client.flush()
        for data in TEXTS:
            message = await anext(subscription)
            assert message.data == octets(data)
            assert message.tags == {"a", "room:1"}
        assert client.refused == 0


async def test_an_audience_is_sent_along(server: Server, ws: str) -> None:
    async with connect(ws, token="T") as client, client.subscribe(["a"]) as subscription:
        await client.publish(["a"], "to nobody here", to=Audience.parse("users=7"))
        await client.publish(["a"], "to all")
        assert (await anext(subscription)).data == b"to all"


async def test_refusals_are_reported_by_flush_and_the_rest_goes_on(ws: str) -> None:
    async with connect(ws, token="T") as client, client.subscribe(["a"]) as subscription:
        for tags in (["a"], ["b"], ["b"], ["a"]):
            await client.publish(tags, "x")
        with pytest.raises(RemoteError, match="not granted by the token"):
            await client.flush()
        assert client.refused == 2
        await client.flush()
        assert [(await anext(subscription)).data for _ in "12"] == [b"x", b"x"]
    async with connect(ws, token="reader") as client:
        await client.publish(["a"], "x")
        with pytest.raises(RemoteError, match="publishing is not allowed over websockets"):
            await client.flush()


async def test_a_refusal_is_reported_at_the_end_of_the_block(ws: str) -> None:
    with pytest.raises(RemoteError, match="not granted by the token"):
        async with connect(ws, token="T") as client:
            await client.publish(["b"], "x")


async def test_a_message_is_stored_and_its_id_told(server: Server, ws: str) -> None:
    async with connect(ws, token="T") as client:
        if server.hub.sequencer is None:
            with pytest.raises(HistoryOff):
                await client.store(["a"], "x")
            return
        assert [await client.store(["a"], data) for data in TEXTS] == [1, 2, 3, 4, 5, 6]
        with pytest.raises(RemoteError, match="not granted by the token"):
            await client.store(["b"], "x")
        stored = (await server.hub.sequencer.history.read()).messages()
        assert [each.data for each in stored] == [octets(each) for each in TEXTS]


async def test_what_can_not_be_sent_is_told_at_once(ws: str) -> None:
    async with connect(ws, token="T") as client:
        for data in (b"x" * 131_072, b"\xff" * 99_000, b"\x01" * 99_000):
            with pytest.raises(DataTooLong):
                await client.publish(["a"], data)
            with pytest.raises(DataTooLong):
                await client.store(["a"], data)
        with pytest.raises(EmptyTag):
            await client.publish([""], "x")
        await client.flush()


@pytest.mark.parametrize("server", ["memory://"], indirect=True)
async def test_what_is_stored_fits_into_a_frame_or_is_refused(server: Server, ws: str) -> None:
    rest = len(FORM.message(FORM.head(frozenset("a")), b""))
    async with connect(ws, token="T") as client:
        stored = []
        for size in range(Limits().frame - rest - 25, Limits().frame - rest + 1):
            with contextlib.suppress(DataTooLong):
                stored.append(await client.store(["a"], b"x" * size))
        assert len(stored) > 3


@pytest.mark.parametrize("server", ["memory://"], indirect=True)
@pytest.mark.parametrize("index", [0, 1])
async def test_tags_may_be_given_by_what_is_read_once(server: Server, index: int) -> None:
    async with (
        connect(server.urls[index], token="T" if index else None) as client,
        client.subscribe(tag for tag in "a") as subscription,
    ):
        await client.store((tag for tag in ("a", "room:1")), "stored")
        await client.publish(iter({"a": 1}), "published")
        assert [(await anext(subscription)).text for _ in range(2)] == ["stored", "published"]


async def test_what_was_not_answered_is_reported(
    server: Server, ws: str, nursery: trio.Nursery
) -> None:
    proxy: Proxy = await nursery.start(Proxy(ws.replace("ws", "tcp")).run)
    states = States()
    url = proxy.url.replace("tcp", "ws")
    async with connect(url, token="T", backoff_base=0.01, on_state=states) as client:
        await client.publish(["a"], "confirmed")
        await client.flush()
        proxy.deaf = True
        await client.publish(["a"], "one")
        await client.publish(["a"], "two")
        await until(lambda: client._state._supervisor.unconfirmed == 2)
        proxy.deaf = False
        await proxy.cut()
        with pytest.raises(Unconfirmed) as caught:
            while True:
                await client.flush()
        assert caught.value.count == 2
        await client.publish(["a"], "three")
        await client.flush()


# The frames

FORM = PublishFrame(Limits().frame)


def frames(*items: bytes | Request) -> Iterator[dict[str, object]]:
    for frame in FrameDialect().write(items):
        yield msgspec.json.decode(frame)


def test_a_frame_is_as_a_browser_writes_it() -> None:
    one = FORM.message(FORM.head(frozenset("ba")), b"x")
    two = FORM.message(FORM.head(frozenset("a"), Audience.parse("users=7")), b"\xff")
    assert [*frames(one, two)] == [
        {"command": "publish", "tags": ["a", "b"], "data": "x"},
        {"command": "publish", "tags": ["a"], "to": {"users": ["7"]}, "data64": "/w=="},
    ]


def test_answers_are_counted() -> None:
    dialect = FrameDialect()
    one = FORM.message(FORM.head(frozenset("a")), b"x")
    dialect.write([one, one, Request(Ping()), one])
    assert dialect.unconfirmed == 3
    assert dialect.receive(b'{"success":true,"command":"publish","id":1}') == []
    failed = dialect.receive(b'{"success":false,"command":"publish","error":"no"}')
    assert failed == [PublishFailed("no")]
    assert dialect.unconfirmed == 1
    for _ in range(3):  # more than were asked for
        dialect.receive(b'{"success":true,"command":"publish"}')
    assert dialect.unconfirmed == 0
