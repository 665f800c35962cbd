"""Latest values at every endpoint of a real server: first what is the newest of each tag, then
what comes; and on nodes as on one server."""

from pathlib import Path
from typing import Any

import pytest
import trio

from mist.attributes import Attributes
from mist.client import Latest, LatestOff, connect
from mist.commands import RemoveTags, SetAttributes
from mist.errors import InvalidPosition
from mist.server import Server
from tests.http.client import request
from tests.http.events import listen
from tests.servers import listeners, running
from tests.transports.lines import Lines, talk
from tests.transports.test_websocket import Browser, browse
from tests.waiting import until

TOKEN = "t0ken-that-no-log-may-hold"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
LISTEN = listeners("tcp", "ws", "http")
SINCE = "latest=order:*"
OLD = [
    *(("order:1,order,eu", "1 new"), ("order:2,order,us", "2 new"), ("order:3,order,eu", "3 new")),
    *(("order:1,order,eu", "1 paid"), ("other,order", "no order"), ("order:2,order,eu", "2 moved")),
]
LATEST = ["3 new", "1 paid", "2 moved"]


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "history": "memory://",
        "latest": ("order:*",),
        "token_rate": 10_000,
        "grants": {TOKEN: {"order", "eu", "us"}},
    }


@pytest.fixture
async def filled(server: Server) -> Server:
    await fill(server)
    return server


async def fill(server: Server) -> None:
    async with talk(server) as publisher:
        for tags, data in OLD:
            await publisher.ask(f"publish {tags} {data}\n".encode())


def data_of(lines: list[bytes]) -> list[str]:
    return [line.decode().split(" ", 2)[2][:-1] for line in lines if line.startswith(b"publish ")]


async def receive(lines: Lines, count: int) -> list[str]:
    """The data of so many deliveries."""
    found: list[str] = []
    while len(found) < count:
        found += data_of([await lines.line()])
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b"subscribe order since latest by order:*", LATEST),
        (b"subscribe order latest=order:*", LATEST),
        (b"subscribe order,us since latest by order:*", ["2 new"]),
        (b"subscribe order since latest by order:1", ["1 paid"]),
        (b"subscribe * since latest by order:*", LATEST),
        (b"resume latest=order:* order,us order:3", ["2 new", "3 new"]),
        (b"subscribe nothing since latest by order:*", []),
    ],
)
async def test_on_a_line(filled: Server, command: bytes, expected: list[str]) -> None:
    async with talk(filled) as lines, talk(filled) as publisher:
        await lines.send(command + b"\n")
        assert await receive(lines, len(expected)) == expected
        await lines.ask(b"ping\n")
        await publisher.ask(b"publish order:1,order,us,order:3,nothing live\n")
        assert await receive(lines, 1) == ["live"]


@pytest.mark.parametrize(
    "place",
    [
        "latest=",
        "latest=a b",
        "latest=a,b",
        "latest=\x01",
        "since latest by ",
        "since latest order",
    ],
)
async def test_a_line_that_asks_for_what_can_not_be_is_refused(server: Server, place: str) -> None:
    async with talk(server) as lines:
        (refused,) = await lines.ask(f"subscribe order {place}\n".encode())
        assert refused.startswith(b"error Invalid position"), refused
        assert await lines.ask(b"list\n") == [b"list \n"]


async def test_what_is_not_kept_is_refused_and_nothing_changes(server: Server) -> None:
    async with talk(server) as lines, browse(server) as browser:
        for pattern in (b"order*", b"user:*", b"*", b"orde*"):
            refused = await lines.ask(b"subscribe order since latest by %b\n" % pattern)
            assert refused == [b"error Latest values are off\n"]
        assert await lines.ask(b"list\n") == [b"list \n"]
        answer = await browser.ask("subscribe", tags=["order"], since={"latest": "user:*"})
        assert (answer["success"], answer["error"]) == (False, "Latest values are off")
    for path in ("messages", "poll", "stream"):
        refused = await request(server, "GET", f"/v1/{path}?tags=order&latest=user:*", WITH_TOKEN)
        assert (refused.status, refused.json()["code"]) == (409, "latest_off")


async def get_messages(browser: Browser, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        frame = await browser.get()
        if "data" in frame:
            found.append(str(frame["data"]))
    return found


async def test_on_a_websocket(filled: Server) -> None:
    async with browse(filled) as browser, talk(filled) as publisher:
        answer = await browser.ask("subscribe", tags=["order"], since={"latest": "order:*"})
        assert answer["success"] is True, answer
        assert await get_messages(browser, 3) == LATEST
        await publisher.ask(b"publish order:9,order live\n")
        assert await get_messages(browser, 1) == ["live"]
        several = [["order", "us"], ["order", "eu"]]
        await browser.ask("subscribe", subscriptions=several, since={"latest": "order:1"})
        assert await get_messages(browser, 1) == ["1 paid"]


@pytest.mark.parametrize(
    "since", [{"latest": ""}, {"latest": 1}, {"latest": "a", "id": 1}, {"latest": "a,b"}]
)
async def test_a_frame_that_asks_for_what_can_not_be_is_refused(
    server: Server, since: object
) -> None:
    async with browse(server) as browser:
        answer = await browser.ask("subscribe", tags=["order"], since=since)
        assert (answer["success"], answer["error"]) == (False, "Invalid position")


async def get(server: Server, path: str) -> Any:
    answer = await request(server, "GET", f"/v1/{path}", WITH_TOKEN)
    assert answer.status == 200, answer
    return answer.json()


async def test_over_http_in_pages(filled: Server) -> None:
    page = await get(filled, "messages?tags=order&latest=order:*")
    assert [each["data"] for each in page["messages"]] == LATEST
    assert page["complete"]
    found, since = [], ""
    for _ in range(10):
        page = await get(filled, f"messages?tags=order&latest=order:*&limit=1{since}")
        found += [each["data"] for each in page["messages"]]
        since = f"&since={page['epoch']}:{page['id']}"
        if page["complete"]:
            break
    assert found == LATEST
    page = await get(filled, "messages?tags=order&latest=order:*&since=-3")
    assert [each["data"] for each in page["messages"]] == LATEST[1:]


async def test_on_an_event_stream_and_after_a_break_all_that_came_since(filled: Server) -> None:
    query = "tags=order&latest=order:*"
    async with listen(filled, query, WITH_TOKEN) as events, talk(filled) as publisher:
        assert await events.get("ready")
        assert [each["data"] for each in await events.take(3)] == LATEST
        await publisher.ask(b"publish order:9,order live\n")
        assert (await events.get())["data"] == "live"
        last = events.reader.last_id
    async with talk(filled) as publisher:
        for data in ("a", "b"):
            await publisher.ask(f"publish order:9,order {data}\n".encode())
    back = {**WITH_TOKEN, "Last-Event-ID": last}
    async with listen(filled, query, back) as events:
        assert await events.get("ready")
        assert [each["data"] for each in await events.take(2)] == ["a", "b"]


async def test_with_a_poll(filled: Server) -> None:
    polled = await get(filled, "poll?tags=order&latest=order:*")
    assert [each["data"] for each in polled["messages"]] == LATEST
    async with talk(filled) as publisher:
        for data in ("a", "b"):
            await publisher.ask(f"publish order:9,order {data}\n".encode())
    since = f"since={polled['epoch']}:{polled['id']}"
    polled = await get(filled, f"poll?tags=order&{since}")
    assert [each["data"] for each in polled["messages"]] == ["a", "b"]
    polled = await get(filled, f"poll?tags=order&latest=order:*&{since}")
    assert [each["data"] for each in polled["messages"]] == ["b"]


@pytest.mark.parametrize("query", ["latest=", "latest=a,b", "latest=order:*&since=x"])
async def test_a_query_that_asks_for_what_can_not_be_is_refused(server: Server, query: str) -> None:
    for path in ("messages", "poll", "stream"):
        refused = await request(server, "GET", f"/v1/{path}?tags=order&{query}", WITH_TOKEN)
        assert (refused.status, refused.json()["code"]) == (400, "invalid_position")


@pytest.mark.parametrize("index", [0, 1], ids=["tcp", "ws"])
async def test_by_a_client(filled: Server, index: int) -> None:
    options = {} if index == 0 else {"token": TOKEN}
    url = filled.urls[index] + ("" if index == 0 else "/subscribe/websocket")
    async with connect(url, **options) as client:  # type: ignore[arg-type]
        async with client.subscribe(["order"], since=Latest("order:*")) as subscription:
            found = [(await anext(subscription)).text for _ in range(3)]
            assert found == LATEST
            async with talk(filled) as publisher:
                await publisher.ask(b"publish order:9,order live\n")
            assert (await anext(subscription)).text == "live"
        with pytest.raises(LatestOff):
            async with client.subscribe(["order"], since=Latest("user:*")):
                pass
        with pytest.raises(InvalidPosition):
            async with client.subscribe(["order"], since=Latest("a b")):
                pass


# who gets what


async def test_the_rights_are_those_of_the_subscription(filled: Server) -> None:
    await filled.hub.registry.execute([RemoveTags(TOKEN, frozenset({"order", "us"}))])
    async with browse(filled) as browser:
        refused = await browser.ask("subscribe", tags=["order"], since={"latest": "order:*"})
        assert refused["success"] is False
        await browser.ask("subscribe", tags=["eu"], since={"latest": "order:*"})
        assert await get_messages(browser, 3) == LATEST
    for path in ("messages", "poll", "stream"):
        query = f"/v1/{path}?tags=order&latest=order:*"
        assert (await request(filled, "GET", query, WITH_TOKEN)).status == 403


async def test_each_session_has_the_newest_that_it_may_get(filled: Server) -> None:
    user = Attributes.parse("user=ann")
    await filled.hub.registry.execute([SetAttributes(TOKEN, user)])
    async with talk(filled) as publisher:
        await publisher.ask(b"publish-to users=ann order:1,order ann's\n")
        await publisher.ask(b"publish-to users=bob order:1,order bob's\n")
        await publisher.ask(b"publish-to users=bob order:7,order bob's\n")
    expected = ["3 new", "2 moved", "ann's"]
    async with browse(filled) as browser:
        await browser.ask("subscribe", tags=["order"], since={"latest": "order:*"})
        assert await get_messages(browser, 3) == expected
    page = await get(filled, "messages?tags=order&latest=order:*")
    assert [each["data"] for each in page["messages"]] == expected
    polled = await get(filled, "poll?tags=order&latest=order:*")
    assert [each["data"] for each in polled["messages"]] == expected
    async with listen(filled, "tags=order&latest=order:*", WITH_TOKEN) as events:
        await events.get("ready")
        assert [each["data"] for each in await events.take(3)] == expected


# without a gap or a repeat


async def test_beside_publishers_each_key_ends_at_its_newest_and_nothing_comes_twice(
    server: Server,
) -> None:
    rounds, keys = 60, 20

    async def publish() -> None:
        async with talk(server) as publisher:
            for number in range(rounds):
                lines = [f"publish order,order:{key} {number}\n" for key in range(keys)]
                await publisher.ask("".join(lines).encode() + b"ping\n")

    async def follow() -> None:
        async with talk(server) as lines:
            await lines.ask(b"ids on\n")
            await lines.send(b"subscribe order since latest by order:*\n")
            seen: dict[bytes, int] = {}
            last, live = 0, False
            while len(seen) < keys or min(seen.values()) < rounds - 1:
                word, id_, tags, number = ((await lines.line()).rstrip() + b"   ").split(b" ")[:4]
                if word != b"message":
                    continue
                assert int(id_) > last
                last = int(id_)
                before = seen.get(tags)
                # The first of a key is its newest then; behind it nothing is left out.
                assert before is None or int(number) == before + 1 or not live
                live = live or before is not None
                seen[tags] = int(number)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for _ in range(4):
                nursery.start_soon(follow)
                await trio.sleep(0.02)


# the log's life


async def ask_line(server: Server) -> list[str]:
    async with talk(server) as lines:
        return data_of(await lines.ask(b"subscribe order since latest by order:*\n"))


async def test_a_restart_finds_them_and_one_without_them_leaves_nothing(tmp_path: Path) -> None:
    settings = {"history": f"sqlite:///{tmp_path}/h.db", "latest": ("order:*",)}
    file = tmp_path / "h.db-latest"
    async with running(tmp_path, **settings) as server:
        await fill(server)
        assert await ask_line(server) == LATEST
    async with running(tmp_path, **settings) as server:
        assert await ask_line(server) == LATEST
    assert file.exists()
    async with running(tmp_path, **{**settings, "latest": ()}) as server:
        assert await ask_line(server) == []
        assert not file.exists()
        async with talk(server) as publisher:
            await publisher.ask(b"publish order:3,order 3 sent\n")
    async with running(tmp_path, **settings) as server:
        assert await ask_line(server) == ["1 paid", "2 moved", "3 sent"]


async def test_at_every_node_alike(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "engine": "memory://latest",
        "latest": ("order:*",),
    }
    async with (
        running(tmp_path / "1", history=f"sqlite:///{tmp_path}/1.db", **settings) as one,
        running(tmp_path / "2", history="memory://", **settings) as two,
    ):
        await fill(one)
        assert await ask_line(one) == LATEST
        await until(lambda: two.hub.sequencer is not None and two.hub.sequencer.newest == 6)
        assert await ask_line(two) == LATEST
        async with running(tmp_path / "3", history="memory://", **settings) as three:
            assert await ask_line(three) == LATEST
