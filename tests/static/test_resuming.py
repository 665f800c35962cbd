"""mist.js over time: what it resubscribes to and what not, its backoff, and when it gives up."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mist.client import Client, connect
from mist.config import Listen
from mist.errors import HistoryUnavailable, RegistryUnavailable
from mist.history import Policy
from mist.server import Server
from mist.sessions.connection_details import end_connection
from mist.sessions.receiving import CommandSession
from tests.servers import port_of, running
from tests.static.pages import ClientPage, Proxy
from tests.waiting import until

TOKEN = "T"
OPEN = {"token": TOKEN}
UPGRADES = b"Upgrade: websocket"
STREAMS = b"GET /v1/stream"
NO_JITTER = "Math.random = () => 1; 0"
BACKOFF = {"baseSeconds": 0.05, "capSeconds": 0.4}
WAITS = "events('state').filter((it) => it.state === 'waiting')"
# Every frame that the page sends, read.
WATCH_FRAMES = """
window.frames = [];
{
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) {
    frames.push(JSON.parse(text));
    send.call(this, text);
  };
}
"""


@attrs.define
class Place:
    """Servers that come and go, one at a time, and proxies before each of a page's endpoints."""

    ws: Proxy
    http: Proxy
    folder: Path
    server: Server = attrs.field(init=False)
    services: Client = attrs.field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @asynccontextmanager
    async def serving(self, **more: object) -> AsyncIterator[None]:
        listen = tuple(Listen(each, "127.0.0.1", 0) for each in ("tcp", "ws", "http"))
        settings = {"history": "memory://", "listen": listen, **more}
        async with (
            running(self.folder / "data", **settings) as self.server,
            connect(self.server.urls[0]) as self.services,
        ):
            await self.services.register(["a", "b", "room:*"], TOKEN)
            ws, http = (port_of(url) for url in self.server.urls[1:])
            self.ws.target, self.http.target = ws, http
            self.http.moved = {ws: self.ws.port}
            yield

    async def publish(self, *texts: str, tags: str = "a") -> None:
        for text in texts:
            await self.services.store(tags.split(","), text)

    async def cut(self) -> None:
        await self.ws.cut()
        await self.http.cut()

    async def left(self, sessions: int) -> None:
        """Wait until the server has so many sessions beside the services' own."""
        await until(lambda: self.server.hub.sessions.connected == 1 + sessions)

    async def asked_for(self, tag_sets: int) -> None:
        """Wait until the server knows of so many subscriptions, each once."""
        await until(lambda: self.server.hub.broker.tag_sets() == tag_sets)


@pytest.fixture
async def away(tmp_path: Path, nursery: trio.Nursery) -> Place:
    """No server yet."""
    return Place(await nursery.start(Proxy(0).run), await nursery.start(Proxy(0).run), tmp_path)


@pytest.fixture
async def place(away: Place) -> AsyncIterator[Place]:
    """A server with a history; TOKEN allows `a`, `b` and `room:*`."""
    async with away.serving():
        yield away


@pytest.fixture(params=["websocket", "sse", "polling"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def delays(page: ClientPage, count: int) -> list[Any]:
    """How long the page wanted to wait, the first times."""
    await page.until(f"{WAITS}.length >= {count}")
    return list(await page.evaluate(f"{WAITS}.slice(0, {count}).map((it) => it.delay)"))


# what is asked for


async def test_who_has_left_is_asked_for_no_more(page: ClientPage, place: Place, kind: str) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await page.evaluate("window.other = listen(['b']); other.ready")
    await place.asked_for(2)
    await page.evaluate("other.unsubscribe()")
    await place.asked_for(1)
    await place.cut()
    await place.publish("1", tags="a,b")
    assert await page.got(1) == ["a: 1"]
    await place.asked_for(1)


async def test_latest_values_come_first_and_then_what_comes(
    page: ClientPage, away: Place, kind: str
) -> None:
    async with away.serving(latest=("room:*",)):
        for number in range(3):
            for room in range(3):
                await away.publish(f"{room}.{number}", tags=f"a,room:{room}")
        await away.publish("of b", tags="a,b,room:0")
        await away.publish("another", tags="a")
        await page.start(away.url, transports=[kind], **OPEN)
        await page.listen("a", since={"latest": "room:*"})
        await page.listen("b", since={"latest": "room:*"}, name="b")
        assert await page.got(4) == ["a: 1.2", "a: 2.2", "a: of b", "b: of b"]
        await away.publish("live", tags="a,room:1")
        assert (await page.got(5))[4:] == ["a: live"]
        await away.cut()
        await away.publish("1", "2", tags="a,room:1")
        assert (await page.got(7))[5:] == ["a: 1", "a: 2"]
        refused = "listen(['a'], {since: {latest: 'x:*'}}).ready.catch((error) => error.code)"
        assert await page.evaluate(refused) == "latest_off"
        wrong = "try { listen(['a'], {since: {latest: 1}}) } catch (error) { error.name }"
        assert await page.evaluate(wrong) == "TypeError"


async def test_more_latest_values_than_one_answer_holds_come_all(
    page: ClientPage, away: Place
) -> None:
    async with away.serving(latest=("room:*",)):
        for number in range(2_500):
            await away.services.publish(["a", f"room:{number % 1_250}"], str(number))
        await away.services.flush()
        await page.start(away.url, transports=["polling"], **OPEN)
        await page.listen("a", since={"latest": "room:*"})
        got = await page.got(1_250)
        assert got == [f"a: {number}" for number in range(1_250, 2_500)]


async def test_who_closes_leaves_nothing_behind(page: ClientPage, place: Place, kind: str) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await place.left(1)
    await page.evaluate("client.close()")
    await place.left(0)
    assert await page.evaluate("client.state") == "closed"


async def test_who_moves_to_a_better_way_leaves_the_other(page: ClientPage, place: Place) -> None:
    place.ws.refused = {UPGRADES}
    await page.hold_time()
    await page.evaluate(
        "window.looks = 0; const real = fetch; window.fetch = (url, options) => {"
        "  if (url.endsWith('/v1/endpoints')) looks += 1;"
        "  return real(url, options);"
        "}; 0"
    )
    # Less than a stream may be silent for.
    await page.start(place.url, retryBetterSeconds=20, then="window.one = listen(['a']); 0", **OPEN)
    await page.evaluate("one.ready")
    assert await page.evaluate("client.transport") == "sse"
    await place.ws.asked(UPGRADES)
    await page.pass_time(19)
    assert await page.evaluate("looks") == 1  # not before its time
    place.ws.refused = set()
    await page.pass_time(1)
    await page.until("client.transport === 'websocket'")
    await place.left(1)


async def test_a_poll_goes_on_where_the_one_before_has_ended(
    page: ClientPage, place: Place
) -> None:
    await page.start(place.url, transports=["polling"], **OPEN)
    await page.listen("a")
    await place.publish("1")
    await page.got(1)
    with trio.fail_after(20):
        await place.http.asked(b"%3A1 HTTP/1.1")


async def test_many_subscriptions_are_asked_for_in_frames_that_a_server_takes(
    page: ClientPage, place: Place
) -> None:
    await page.evaluate(WATCH_FRAMES)
    await page.start(place.url, transports=["websocket"], **OPEN)
    await page.is_state("open")
    await page.evaluate(
        "Promise.all(Array.from({length: 700}, (_, each) => listen([`room:${each}`]).ready))"
    )
    await page.evaluate(
        "Promise.all(Array.from({length: 300}, (_, each) =>"
        " listen([`room:${each}${'x'.repeat(200)}`]).ready))"
    )
    asked = await page.evaluate(
        "frames.filter((it) => it.command === 'subscribe')"
        ".map((it) => [it.subscriptions.length, JSON.stringify(it).length])"
    )
    assert [count for count, _ in asked[:2]] == [500, 200]
    assert sum(count for count, _ in asked) == 1000
    assert len(asked) == 4
    assert max(size for _, size in asked) < 45_000


async def test_tags_are_in_the_servers_order(page: ClientPage, place: Place) -> None:
    await page.start(place.url, transports=["websocket"], **OPEN)
    await page.evaluate("window.one = listen(['\\u{1f600}', '\\uff5e', 'a']); one.ready")
    assert await page.evaluate("one.tags") == ["a", "\uff5e", "\U0001f600"]
    await place.publish("1", tags="a,\uff5e,\U0001f600")
    await page.got(1)
    await place.services.unset(["a"], TOKEN)
    await page.until("events('revoked').length === 1")


async def test_a_handler_finds_the_place_of_what_it_was_given(
    page: ClientPage, place: Place, kind: str
) -> None:
    await place.publish("1", "2", "3")
    await page.start(place.url, transports=[kind], **OPEN)
    await page.evaluate(
        "window.one = client.subscribe(['a'], ({id}) => {"
        "  got.push(['a', one.position.id, id]); }, {since: 0})"
    )
    assert await page.got(3) == ["a: 1", "a: 2", "a: 3"]


async def test_who_listens_to_an_event_no_more_is_not_told(page: ClientPage, place: Place) -> None:
    await page.evaluate("window.heard = []")
    await page.start(
        place.url,
        transports=["websocket"],
        then="window.end = client.on('state', ({state}) => heard.push(state)); 0",
        **OPEN,
    )
    await page.is_state("open")
    await page.evaluate("end(); client.close()")
    assert await page.evaluate("heard") == ["open"]


async def test_what_comes_for_another_is_not_taken_for_an_answer(
    page: ClientPage, place: Place
) -> None:
    await place.publish("1")
    await page.start(place.url, transports=["websocket"], **OPEN)
    await page.listen("a")
    await page.evaluate(
        "const send = WebSocket.prototype.send; window.sent = [];"
        "WebSocket.prototype.send = function (text) {"
        "  sent ? sent.push(() => send.call(this, text)) : send.call(this, text);"
        "}; listen(['a'], {since: 0}, 'late'); 0"
    )
    await page.until("sent.length === 2")
    await place.publish("2")
    assert await page.got(1) == ["a: 2"]
    await page.evaluate("sent.forEach((each) => each()); sent = null")
    assert await page.got(3) == ["a: 2", "late: 1", "late: 2"]


@pytest.mark.parametrize("kind", ["sse", "polling"])
async def test_what_is_brought_for_one_is_not_taken_for_all_that_another_misses(
    page: ClientPage, place: Place, kind: str
) -> None:
    await place.publish("1")
    # The second of two questions is not asked before there is more.
    await page.evaluate(
        "const real = fetch; window.fetch = async (url, options) => {"
        "  if (url.includes('since=-1')) await new Promise((go) => { window.go = go; });"
        "  return real(url, options);"
        "}; 0"
    )
    listening = "listen(['a'], {since: 0}, 'one'); listen(['a'], {since: -1}, 'other'); 0"
    await page.start(place.url, transports=[kind], then=listening, **OPEN)
    await page.until("window.go")
    await place.publish("2", "3")
    await page.evaluate("go()")
    assert sorted(await page.got(4)) == ["one: 1", "one: 2", "one: 3", "other: 3"]


# what was lost


async def test_a_history_that_comes_late_is_a_gap_and_no_second_beginning(
    page: ClientPage, away: Place
) -> None:
    async with away.serving():
        await away.publish("1")
        await page.start(away.url, transports=["websocket"], **OPEN)
        await page.listen("a", since=0)
        await page.got(1)
    async with away.serving(history="none"):
        await page.until("events('gap').length === 1")
        away.http.refused = {b"GET"}
    async with away.serving():
        await away.publish("long ago")
        away.http.refused = set()
        await page.until("events('gap').length === 2")
        await away.publish("2")
        assert await page.got(2) == ["a: 1", "a: 2"]
    reasons = [each["reason"] for each in await page.events("gap")]
    assert reasons == ["no_history", "history"]


async def test_a_log_that_was_put_back_is_a_gap_and_its_new_messages_come(
    page: ClientPage, away: Place, kind: str
) -> None:
    log, kept = away.folder / "history.db", away.folder / "kept.db"
    history = f"sqlite:///{log}"
    async with away.serving(history=history):
        await away.publish("1")
    shutil.copy(log, kept)
    async with away.serving(history=history):
        await page.start(away.url, transports=[kind], **OPEN)
        await page.listen("a")
        await page.listen("b")
        await away.publish("2", "3")
        await page.got(2)
    for each in away.folder.glob("history.db*"):
        each.unlink()
    shutil.copy(kept, log)
    async with away.serving(history=history):
        await page.until("events('gap').length >= 1")
        await page.listen("a", name="late")
        await away.publish("2 again", "3 again", "4")
        new = [f"{name}: {it}" for it in ("2 again", "3 again", "4") for name in ("a", "late")]
        assert await page.got(8) == ["a: 2", "a: 3", *new]
        await away.cut()
        await away.publish("5")
        assert (await page.got(10))[8:] == ["a: 5", "late: 5"]


@pytest.mark.parametrize("kind", ["websocket", "sse"])
async def test_what_is_trimmed_under_a_replay_is_a_gap(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await place.publish("1")
    await page.got(1)
    place.ws.refused = place.http.refused = {b"GET"}
    await place.cut()
    await page.until("client.state !== 'open'")
    await place.publish("2", "3")
    sequencer = place.server.hub.sequencer
    assert sequencer is not None
    history = sequencer.history
    read = history.read

    async def read_too_late(*args: Any, **options: Any) -> Any:
        while (await history.trim(Policy(0.0, 0, None, ()), now=4e9)).more:
            pass
        return await read(*args, **options)

    history.read = read_too_late  # type: ignore[method-assign]
    place.ws.refused = place.http.refused = set()
    await page.until("events('gap').length === 1")
    assert await page.events("gap") == [{"reason": "history", "subscriptions": ["a"]}]


async def test_a_history_that_fails_is_waited_for(page: ClientPage, place: Place) -> None:
    sequencer = place.server.hub.sequencer
    assert sequencer is not None
    position = sequencer.history.position

    async def broken() -> Any:
        raise HistoryUnavailable("a full disk")

    await place.publish("1")
    sequencer.history.position = broken  # type: ignore[method-assign]
    await page.start(
        place.url,
        transports=["websocket"],
        then="window.one = listen(['a'], {since: 0}); 0",
        **OPEN,
    )
    await page.until(f"{WAITS}.length > 0")
    assert await page.evaluate(f"{WAITS}[0].error.code") == "history_unavailable"
    sequencer.history.position = position  # type: ignore[method-assign]
    assert await page.got(1) == ["a: 1"]
    assert await page.events("error") == []


@pytest.mark.parametrize("where", ["at the handshake", "at a subscription"])
async def test_tokens_that_cannot_be_checked_are_waited_for(
    page: ClientPage, place: Place, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> None:
        raise RegistryUnavailable

    await place.publish("1")
    with monkeypatch.context() as patch:
        if where == "at the handshake":
            patch.setattr(place.server.hub.registry, "check_contact", fail)
        else:
            patch.setattr(CommandSession, "_check_contact", fail)
        await page.start(
            place.url,
            transports=["websocket"],
            then="window.one = listen(['a'], {since: 0}); 0",
            **OPEN,
        )
        await page.until(f"{WAITS}.length > 0")
        assert await page.evaluate(f"{WAITS}[0].error.code") == "registry_unavailable"
    assert await page.got(1) == ["a: 1"]
    assert await page.events("error") == []


# how long it waits


async def test_a_connection_that_was_well_lets_it_wait_as_at_first(
    page: ClientPage, place: Place
) -> None:
    await page.hold_time()
    await page.evaluate(NO_JITTER)
    place.ws.refused = {UPGRADES}
    await page.start(place.url, transports=["websocket"], backoff=BACKOFF, **OPEN)
    assert await delays(page, 3) == pytest.approx([0.05, 0.1, 0.2])
    place.ws.refused = set()
    await page.is_state("open")
    await page.pass_time(6)
    await page.evaluate("told.length = 0")
    place.ws.refused = {UPGRADES}
    await place.cut()
    # Once at once; and as from the first where that is for nothing.
    assert await delays(page, 3) == pytest.approx([0, 0.05, 0.1])


async def test_clients_of_a_server_that_drains_do_not_all_reconnect_at_once(
    page: ClientPage, place: Place
) -> None:
    await page.hold_time()
    await page.evaluate(NO_JITTER)
    await page.start(place.url, transports=["websocket"], backoff=BACKOFF, **OPEN)
    await page.is_state("open")
    await page.pass_time(6)
    place.ws.refused = {UPGRADES}
    place.server.drain()
    assert await delays(page, 1) == pytest.approx([0.05])
    assert await page.evaluate(f"{WAITS}[0].error.code") == "going_away"


async def test_a_client_whose_session_was_ended_by_an_operator_comes_back(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.start(place.url, transports=[kind], backoff=BACKOFF, **OPEN)
    await page.listen("a")
    await place.left(1)
    [session] = [each for each in place.server.hub.sessions if each.transport != "tcp"]
    assert await end_connection(place.server.hub.sessions, session.name)
    await page.until(f"{WAITS}.length >= 1")
    assert await page.evaluate(f"{WAITS}[0].error.code") == "session_ended"
    await page.is_state("open")
    await place.server.hub.store(frozenset("a"), b"after")
    assert await page.got(1) == ["a: after"]


async def test_no_wait_is_longer_than_the_longest(page: ClientPage, place: Place) -> None:
    await page.evaluate(NO_JITTER)
    place.http.refused = {b"GET"}
    backoff = {"baseSeconds": 0.05, "capSeconds": 0.12}
    await page.start(place.url, backoff=backoff, **OPEN)
    assert await delays(page, 4) == pytest.approx([0.05, 0.1, 0.12, 0.12])


async def test_it_waits_as_long_as_the_server_asks_for(page: ClientPage, away: Place) -> None:
    async with away.serving(max_connections_per_address=1):
        await page.start(away.url, transports=["sse"], **OPEN)
        await page.listen("a")
        first = "window.first = client; told.length = 0"
        await page.evaluate(first)
        await page.start(
            away.url, transports=["sse"], then="void listen(['b'])", backoff=BACKOFF, **OPEN
        )
        [wait] = await delays(page, 1)
        assert wait >= 1  # and not a part of 0.05 s
        assert await page.evaluate(f"{WAITS}[0].error.code") == "too_many_streams"
        await page.evaluate("first.close()")


async def test_a_page_that_is_looked_at_again_does_not_wait(page: ClientPage, place: Place) -> None:
    await page.hold_time()
    await page.evaluate(NO_JITTER)
    place.ws.refused = {UPGRADES}
    backoff = {"baseSeconds": 1000, "capSeconds": 1000}
    await page.start(place.url, transports=["websocket"], backoff=backoff, **OPEN)
    await page.is_state("waiting")
    place.ws.refused = set()
    looked_at = (
        "Object.defineProperty(document, 'visibilityState', {value: %s, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    await page.evaluate(looked_at % "'hidden'" + "0")
    # A turn of the loop later it would be on its way.
    turn = "new Promise((resolve) => setTimeout(() => resolve(client.state)))"
    assert await page.evaluate(turn) == "waiting"
    await page.evaluate(looked_at % "'visible'" + "0")
    await page.is_state("open")


# when it gives up


@pytest.mark.parametrize("kind", ["sse", "polling"])
async def test_a_way_that_falls_silent_is_given_up(
    page: ClientPage, place: Place, kind: str
) -> None:
    await page.hold_time()
    await page.start(place.url, transports=[kind], **OPEN)
    await page.listen("a")
    await place.publish("1")
    await page.got(1)
    place.http.deaf = True
    await place.publish("2")
    await page.pass_time(60)
    await page.until("client.state !== 'open'")
    place.http.deaf = False
    await place.cut()
    assert await page.got(2) == ["a: 1", "a: 2"]


async def test_a_laptop_that_slept_looks_at_once_whether_it_is_still_connected(
    page: ClientPage, place: Place
) -> None:
    await page.hold_time()
    await page.start(place.url, transports=["websocket"], **OPEN)
    await page.listen("a")
    place.ws.deaf = True
    await page.evaluate("sleep(3600); pass(0)")
    await page.pass_time(5)
    await page.until("client.state !== 'open'")
    place.ws.deaf = False
    await place.cut()
    await place.publish("1")
    assert await page.got(1) == ["a: 1"]


async def test_an_answer_that_stands_in_line_behind_its_deadline_counts(
    page: ClientPage, place: Place
) -> None:
    await page.hold_time()
    await page.start(place.url, transports=["websocket"], **OPEN)
    await page.listen("a")
    await page.evaluate("dispatchEvent(new Event('online')); sleep(60); pass(0)")
    await place.publish("1")
    await page.got(1)
    await page.pass_time(6)
    await place.publish("2")
    assert await page.got(2) == ["a: 1", "a: 2"]
    assert place.ws.connections == 1
