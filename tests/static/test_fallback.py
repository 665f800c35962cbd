"""Transport fallback in mist.js: event streams and polling, and the way there and back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

from mist.attributes import Attributes
from mist.client import Client, connect
from mist.commands import SetAttributes
from mist.config import Listen
from mist.history import Policy
from mist.server import Server
from tests.servers import port_of, running
from tests.static.pages import ClientPage, Proxy

TOKEN = "T"
OPEN = {"token": TOKEN}
UPGRADES = b"Upgrade: websocket"
STREAMS = b"GET /v1/stream"


def port(server: Server, scheme: str) -> int:
    [url] = [each for each in server.urls if each.startswith(f"{scheme}://")]
    return port_of(url)


@attrs.define
class Place:
    """A server, what publishes to it, and a proxy before each of a page's endpoints."""

    server: Server
    services: Client
    http: Proxy
    ws: Proxy

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    async def publish(self, *texts: str, tags: str = "a") -> list[int]:
        return [await self.services.store(tags.split(","), text) for text in texts]

    async def cut(self) -> None:
        await self.http.cut()
        await self.ws.cut()


class Endpoints:
    """The proxies, which outlive servers."""

    def __init__(self, http: Proxy, ws: Proxy) -> None:
        self.http, self.ws = http, ws

    def lead_to(self, server: Server, services: Client) -> Place:
        self.http.target = port(server, "http")
        self.ws.target = port(server, "ws")
        self.http.moved = {self.ws.target: self.ws.port}
        return Place(server, services, self.http, self.ws)


def settings(**more: object) -> dict[str, object]:
    listen = tuple(Listen(each, "127.0.0.1", 0) for each in ("tcp", "ws", "http"))
    return {"listen": listen, "history": "memory://", **more}


@pytest.fixture
async def endpoints(nursery: trio.Nursery) -> Endpoints:
    return Endpoints(await nursery.start(Proxy(0).run), await nursery.start(Proxy(0).run))


@pytest.fixture
async def place(tmp_path: Path, endpoints: Endpoints) -> AsyncIterator[Place]:
    """TOKEN allows `a`, `b` and `room:*`."""
    async with running(tmp_path, **settings()) as server, connect(server.urls[0]) as services:
        await services.register(["a", "b", "room:*"], TOKEN)
        yield endpoints.lead_to(server, services)


@pytest.fixture(params=["sse", "polling"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# which way


async def test_the_best_way_is_a_websocket(page: ClientPage, place: Place) -> None:
    await page.start(place.url + "/", **OPEN)
    await page.listen("a")
    await place.publish("1")
    assert await page.got(1) == ["a: 1"]
    assert await page.evaluate("client.transport") == "websocket"
    assert place.ws.connections == 1


async def test_one_port_carries_a_page_s_requests_and_its_websocket(
    page: ClientPage, tmp_path: Path
) -> None:
    listen = tuple(Listen(each, "127.0.0.1", 0) for each in ("tcp", "http"))
    async with running(tmp_path, listen=listen, history="memory://") as server:
        async with connect(server.urls[0]) as services:
            await services.register(["a", "/foo"], TOKEN)
            await page.start(server.urls[1], **OPEN)
            await page.listen("a")
            await services.store(["a"], "1")
            assert await page.got(1) == ["a: 1"]
            assert await page.evaluate("client.transport") == "websocket"
            # A page of guble's, which knows nothing of the subprotocol `mist.topics`.
            address = server.urls[1].replace("http://", "ws://") + "/stream/user/marvin"
            for offered in (["mist.token.VA"], ["guble", "mist.token.VA"]):
                opened = f"new WebSocket({json.dumps(address)}, {json.dumps(offered)})"
                told = await page.evaluate(
                    "new Promise((resolve, reject) => {"
                    f"  const socket = {opened};"
                    "  socket.onmessage = async (event) => resolve("
                    "    typeof event.data === 'string' ? event.data : await event.data.text());"
                    "  socket.onclose = () => reject(new Error('refused'));"
                    "})"
                )
                assert str(told).startswith("#connected ")


async def test_without_websockets_it_is_a_stream(page: ClientPage, place: Place) -> None:
    place.ws.refused = {UPGRADES}
    await page.start(place.url, **OPEN)
    await page.listen("a")
    await place.publish("1")
    assert await page.got(1) == ["a: 1"]
    assert await page.evaluate("client.transport") == "sse"


async def test_websockets_that_hang_are_no_way_either(page: ClientPage, place: Place) -> None:
    place.ws.stalled = {UPGRADES}
    await page.hold_time()
    await page.start(place.url, timeoutSeconds=5, **OPEN)
    await place.ws.asked(UPGRADES)
    await page.pass_time(5)
    await page.listen("a")
    assert await page.evaluate("client.transport") == "sse"


async def test_where_streams_are_held_back_too_it_polls(page: ClientPage, place: Place) -> None:
    place.ws.refused = {UPGRADES}
    place.http.stalled = {STREAMS}
    await page.hold_time()
    # It asks for a stream at once only if there is something to ask for.
    await page.start(place.url, timeoutSeconds=5, then="window.one = listen(['a']); 0", **OPEN)
    await place.http.asked(STREAMS)
    await page.pass_time(5)
    await page.evaluate("one.ready")
    await place.publish("1", "2")
    assert await page.got(2) == ["a: 1", "a: 2"]
    assert await page.evaluate("client.transport") == "polling"


async def test_websockets_that_are_cut_again_and_again_are_given_up(
    page: ClientPage, place: Place
) -> None:
    await page.hold_time()  # so that no connection lasts
    await page.start(place.url, **OPEN)
    await page.listen("a")
    for number in range(3):
        await page.is_state("open")
        await page.until("client.transport === 'websocket'")
        await place.ws.cut()
        await page.until(
            f"events('state').filter((it) => it.state === 'waiting').length > {number}"
        )
    await page.until("client.transport === 'sse'")
    await place.publish("1")
    assert await page.got(1) == ["a: 1"]
    assert await page.events("gap") == []


async def test_the_better_way_is_taken_once_it_is_there(page: ClientPage, place: Place) -> None:
    place.ws.refused = {UPGRADES}
    place.http.refused = {STREAMS}
    await page.hold_time()
    # Less than a poll or a stream may be silent for.
    await page.start(place.url, retryBetterSeconds=20, then="window.one = listen(['a']); 0", **OPEN)
    await page.evaluate("one.ready")
    assert await page.evaluate("client.transport") == "polling"
    await place.publish("1")
    place.http.refused = set()
    await page.pass_time(20)
    await page.until("client.transport === 'sse'")
    await place.publish("2")
    place.ws.refused = set()
    await page.pass_time(20)
    await page.until("client.transport === 'websocket'")
    await place.publish("3")
    assert await page.got(3) == ["a: 1", "a: 2", "a: 3"]
    assert await page.events("gap") == []
    assert [it["transport"] for it in await page.events("state") if it["state"] == "open"] == [
        "polling",
        "sse",
        "websocket",
    ]


async def test_a_server_that_is_away_is_waited_for(page: ClientPage, place: Place) -> None:
    place.http.refused = {b"GET "}
    await page.start(place.url, **OPEN)
    await page.is_state("waiting")
    place.http.refused = set()
    await page.is_state("open")


# what comes by the other ways


async def test_a_token_s_limit_is_waited_for_where_a_connection_asks_for_several_things(
    page: ClientPage, place: Place, kind: str
) -> None:
    limits = SetAttributes(TOKEN, Attributes.of_json({"rate": "1"}))
    await place.server.hub.registry.execute([limits])
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a", "b", since=0)
    await page.evaluate("window.other = listen(['a']); other.ready")
    await place.publish("1", tags="a,b")
    assert sorted(await page.got(2)) == ["a,b: 1", "a: 1"]
    assert place.server.hub.token_limits.refusals["rate"]
    assert [it["state"] for it in await page.events("state")] == ["open"]


async def test_each_handler_gets_exactly_what_matches(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await page.listen("a", "b")
    await page.listen("b", "secret")
    await place.publish("1", tags="a")
    await place.publish("2", tags="a,b,x")
    await place.publish("3", tags="secret")
    await place.publish("4", tags="b,secret")
    assert await page.got(4) == ["a: 1", "a: 2", "a,b: 2", "b,secret: 4"]
    assert await page.evaluate("client.transport") == kind
    assert b"mist.token" not in b"".join(place.http.sent)
    assert all(TOKEN.encode() not in sent.partition(b"\r\n")[0][4:-8] for sent in place.http.sent)


async def test_data_of_any_kind_comes_as_it_is(page: ClientPage, place: Place, kind: str) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await place.services.store(["a"], b"\xff\x00")
    await place.services.store(["a"], 'ä"\u2028\u0085data: x')
    await place.services.store(["a"], "x" * 500_000)
    await page.until("got.length === 3")
    assert await page.evaluate("got.slice(0, 2).map(([, data]) => data)") == [
        [255, 0],
        'ä"\u2028\u0085data: x',
    ]
    assert await page.evaluate("got[2][1].length") == 500_000


async def test_since_brings_what_was_and_goes_on_with_what_comes(
    page: ClientPage, place: Place, kind: str
) -> None:
    ids = await place.publish(*"abcde")
    await page.start(place.url, transports=[kind], **OPEN)
    await page.evaluate(
        "Promise.all([listen(['a'], {since: -2}, 'last two').ready,"
        f" listen(['a'], {{since: {ids[2]}}}, 'after c').ready, listen(['a']).ready])"
    )
    await place.publish("f")
    found = await page.got(7)
    for name, texts in {"last two": "def", "after c": "def", "a": "f"}.items():
        assert [it for it in found if it.startswith(name + ":")] == [
            f"{name}: {it}" for it in texts
        ]


@pytest.mark.parametrize("kind", ["websocket", "sse", "polling"])
async def test_the_last_of_each_are_not_the_last_of_all(
    page: ClientPage, place: Place, kind: str
) -> None:
    await place.publish("1", tags="b")
    await place.publish("2", "3")
    await page.start(place.url, transports=[kind], **OPEN)
    await page.evaluate(
        "Promise.all(['a', 'b', 'room:empty'].map((tag) => listen([tag], {since: -1}).ready))"
    )
    assert sorted(await page.got(2)) == ["a: 3", "b: 1"]
    await place.publish("4", tags="room:empty")
    assert (await page.got(3))[2] == "room:empty: 4"


async def test_who_leaves_in_the_middle_is_not_given_what_has_arrived(
    page: ClientPage, place: Place
) -> None:
    await place.publish(*"12345")
    await page.start(place.url, transports=["polling"], **OPEN)
    await page.evaluate(
        "window.one = client.subscribe(['a'], ({data}) => {"
        "  got.push(['one', data, 0]); one.unsubscribe(); }, {since: 0})"
    )
    await page.listen("a", since=0)
    assert await page.got(6) == ["one: 1", *(f"a: {text}" for text in "12345")]


async def test_cut_again_and_again_while_messages_flow_nothing_is_lost(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a", since=0, name="early")
    await page.listen("a", "b")
    for number in range(200):
        await place.services.store(["a", "b"], str(number))
        if number % 23 == 0:
            await place.cut()
            await trio.sleep(0.05)  # for what is under way to be cut at another place
        if number == 100:
            await page.evaluate("void listen(['b'], {since: 0}, 'late')")
    found = await page.got(600)
    for name in ("early", "late", "a,b"):
        mine = [it.partition(": ")[2] for it in found if it.startswith(f"{name}: ")]
        assert mine == [str(number) for number in range(200)], name
    assert await page.events("gap") == []


async def test_subscribing_and_leaving_while_messages_flow_loses_nothing(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    for number in range(100):
        await place.publish(str(number))
        if number % 20 == 10:
            await page.evaluate(f"window.other = listen(['room:{number}'])")
        if number % 20 == 0 and number:
            await page.evaluate("other.unsubscribe()")
    assert await page.got(100) == [f"a: {number}" for number in range(100)]


async def test_another_log_is_a_gap_and_brings_what_it_has(
    page: ClientPage, tmp_path: Path, endpoints: Endpoints, kind: str
) -> None:
    for turn in "12":
        async with (
            running(tmp_path / turn, **settings()) as server,
            connect(server.urls[0]) as services,
        ):
            await services.register(["a", "b"], TOKEN)
            place = endpoints.lead_to(server, services)
            if turn == "1":
                await place.publish("x", "y", tags="b")
                await page.start(place.url, transports=[kind], **OPEN)
                await page.listen("a")
            await place.publish(turn)
            await page.got(int(turn))
            await place.cut()
    assert await page.got(2) == ["a: 1", "a: 2"]
    assert await page.events("gap") == [{"reason": "history", "subscriptions": ["a"]}]


@pytest.mark.parametrize("kind", ["websocket", "sse", "polling"])
async def test_what_was_trimmed_meanwhile_is_a_gap_between_the_right_two(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.evaluate("client.on('gap', () => got.push(['gap', '', 0]))")
    await page.listen("a")
    await place.publish("1")
    await page.got(1)
    place.http.refused = {b" /v1/"}
    place.ws.refused = {UPGRADES}
    await place.cut()
    await page.until("client.state !== 'open'")
    await place.publish("x" * 500_000, "y" * 500_000, "last")
    sequencer = place.server.hub.sequencer
    assert sequencer is not None
    while (await sequencer.history.trim(Policy(max_bytes=400_000), now=0)).more:
        pass
    place.http.refused = place.ws.refused = set()
    found = await page.got(3)
    assert found[:2] == ["a: 1", "gap: "]
    assert found[-1] == "a: last"
    assert len(await page.events("gap")) == 1


async def test_without_a_history_a_stream_says_what_may_be_missing(
    page: ClientPage, tmp_path: Path, endpoints: Endpoints
) -> None:
    async with (
        running(tmp_path, **settings(history="none")) as server,
        connect(server.urls[0]) as services,
    ):
        await services.register(["a"], TOKEN)
        place = endpoints.lead_to(server, services)
        await page.start(place.url, transports=["sse", "polling"], **OPEN)
        await page.listen("a")
        code = "listen(['a'], {since: 0}).ready.catch((error) => error.code)"
        assert await page.evaluate(code) == "history_off"
        await services.publish(["a"], "1")
        assert await page.got(1) == ["a: 1"]
        await place.cut()
        await page.until("events('gap').length > 0")
        assert (await page.events("gap"))[0] == {"reason": "no_history", "subscriptions": ["a"]}
        await page.is_state("open")
        await services.publish(["a"], "2")
        assert await page.got(2) == ["a: 1", "a: 2"]


# tokens


async def test_a_token_nobody_knows_ends_it_for_good(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], token="nobody's", then="void listen(['a'])")
    await page.is_state("closed")
    assert (await page.events("state"))[-1]["error"]["code"] == "unauthorized"


async def test_a_subscription_that_is_not_granted_is_refused_and_no_other(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.evaluate("window.refused = listen(['secret'])")
    await page.listen("a")
    assert await page.evaluate("refused.ready.catch((error) => error.code)") == "not_granted"
    await place.publish("1", tags="a,secret")
    assert await page.got(1) == ["a: 1"]


async def test_a_token_that_is_gone_ends_it_for_good(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await place.services.unregister(TOKEN)
    await page.is_state("closed")
    assert (await page.events("state"))[-1]["error"]["code"] == "unauthorized"


async def test_a_subscription_that_is_revoked_ends_and_no_other(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await page.listen("b")
    await place.publish("1")
    await page.got(1)
    await place.services.unset(["a"], TOKEN)
    await place.publish("2")
    await place.publish("3", tags="b")
    assert await page.got(2) == ["a: 1", "b: 3"]
    await page.until("events('revoked').length === 1")  # polls learn of it with the next
    assert await page.events("revoked") == [{"tags": ["a"], "subscriptions": ["a"]}]
    await place.services.unset(["room:*"], TOKEN)
    await place.services.set(["c"], TOKEN)
    await place.services.unset(["b"], TOKEN)
    await page.until("events('revoked').length === 2")
    await page.listen("c")


async def test_a_token_is_refreshed(page: ClientPage, place: Place, kind: str) -> None:
    await place.services.register(["b", "c"], "other")
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await page.listen("b")
    await page.evaluate("client.refresh('other')")
    await page.until("events('revoked').length === 1")
    await place.services.unregister(TOKEN)
    await page.listen("c")
    await place.publish("1", tags="b,c")
    assert await page.got(2) == ["b: 1", "c: 1"]
