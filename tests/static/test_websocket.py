"""mist.js over WebSockets, in a real browser against real servers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.attributes import Attributes
from mist.client import Client, connect
from mist.commands import SetAttributes
from mist.config import Listen
from mist.server import Server
from tests.servers import port_of, running
from tests.static.pages import ClientPage, Proxy
from tests.waiting import until

TOKEN = "T"
OPEN = {"token": TOKEN}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"history": "memory://"}


@pytest.fixture
async def services(server: Server) -> AsyncIterator[Client]:
    """What publishes and registers; TOKEN allows `a`, `b` and `room:*`."""
    async with connect(server.urls[0]) as client:
        await client.register(["a", "b", "room:*"], TOKEN)
        yield client


@pytest.fixture
async def proxy(server: Server, nursery: trio.Nursery) -> Proxy:
    return await nursery.start(Proxy(port_of(server.urls[1])).run)


@pytest.fixture
def url(proxy: Proxy) -> str:
    return f"ws://127.0.0.1:{proxy.port}"


async def publish(services: Client, *texts: str, tags: str = "a") -> list[int]:
    return [await services.store(tags.split(","), text) for text in texts]


# what comes


async def test_each_handler_gets_exactly_what_matches(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.listen("b", "a")
    await page.listen("b", "secret")
    await publish(services, "1", tags="a")
    await publish(services, "2", tags="a,b,x")
    await publish(services, "3", tags="secret")
    await publish(services, "4", tags="b,secret")
    assert await page.got(4) == ["a: 1", "a: 2", "b,a: 2", "b,secret: 4"]
    assert await page.evaluate("client.transport") == "websocket"
    assert await page.evaluate("got[0][2]") == 1


async def test_the_token_comes_by_subprotocol_and_is_in_no_url(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await services.register(["a"], "Tö/ken?")
    await page.start(url, token="Tö/ken?")
    await page.is_state("open")
    assert proxy.sent[0].startswith(b"GET /subscribe/websocket HTTP/1.1\r\n")
    assert b"mist.v1, mist.token.VMO2L2tlbj8\r\n" in proxy.sent[0]


async def test_what_is_not_text_comes_as_bytes(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await services.store(["a"], b"\xff\x00")
    await services.store(["a"], 'ä"\u2028')
    await page.until("got.length === 2")
    assert await page.evaluate("got.map(([, data]) => data)") == [[255, 0], 'ä"\u2028']


async def test_subscriptions_made_in_one_go_are_one_question(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate("Promise.all(['a', 'b', 'room:1'].map((tag) => listen([tag]).ready))")
    assert await page.evaluate("events('state').map((it) => it.state)") == ["open"]
    await publish(services, "1", tags="b,room:1")
    assert await page.got(2) == ["b: 1", "room:1: 1"]


async def test_since_brings_what_was_and_goes_on_with_what_comes(
    page: ClientPage, services: Client, url: str
) -> None:
    ids = await publish(services, *"abcde")
    await page.start(url, **OPEN)
    await page.listen("a", since=-2, name="last two")
    await page.listen("a", since=ids[2], name="after c")
    await page.listen("a")
    assert await page.got(4) == ["last two: d", "last two: e", "after c: d", "after c: e"]
    await publish(services, "f")
    assert (await page.got(7))[4:] == ["last two: f", "after c: f", "a: f"]


async def test_a_position_that_was_kept_goes_on_where_it_was(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate("window.one = listen(['a'])")
    await page.evaluate("one.ready")
    await publish(services, "1", "2")
    await page.got(2)
    await page.evaluate("one.unsubscribe()")
    await publish(services, "3")
    await page.evaluate("listen(['a'], {since: one.position}, 'again').ready")
    assert await page.got(3) == ["a: 1", "a: 2", "again: 3"]
    assert await page.events("gap") == []


async def test_nothing_comes_for_who_has_unsubscribed(
    page: ClientPage, services: Client, url: str, server: Server
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate("window.one = listen(['a'], {}, 'one')")
    await page.listen("a", name="two")
    await page.listen("b")
    await page.evaluate("one.unsubscribe()")
    await publish(services, "1")
    assert await page.got(1) == ["two: 1"]


async def test_who_has_unsubscribed_from_what_was_refused_with_others_stays_so(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.is_state("open")
    await page.evaluate(
        "window.three = ['a', 'b', 'secret'].map((tag) => listen([tag]));"
        "new Promise((done) => queueMicrotask(() => queueMicrotask(done)))"
        "  .then(() => three[0].unsubscribe())"
    )
    await page.evaluate("three[1].ready")
    assert await services.list_all() == {"b"}


async def test_who_may_not_unsubscribe_yet_does_so_later(
    page: ClientPage, services: Client, url: str, server: Server
) -> None:
    limits = SetAttributes(TOKEN, Attributes.of_json({"rate": "4"}))
    await server.hub.registry.execute([limits])
    await page.hold_time()
    await page.start(url, **OPEN)
    await page.evaluate("window.all = Array.from({length: 12}, (_, n) => listen([`room:${n}`])); 0")
    await page.evaluate("Promise.all(all.map((each) => each.ready))")
    # More than may come at once, so that the last one is refused.
    await page.evaluate("all.slice(0, 10).forEach((each) => each.unsubscribe())")
    await page.evaluate("all[10].unsubscribe()")
    await until(lambda: server.hub.token_limits.refusals["rate"] > 0)
    with trio.fail_after(30):
        while "room:10" in await services.list_all():
            await page.pass_time(5)
    assert "room:11" in await services.list_all()


async def test_a_handler_that_fails_is_told_of_and_hurts_nobody(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate("client.subscribe(['a'], () => { throw new Error('mine') }).ready")
    await page.evaluate("client.subscribe(['a'], async () => { throw new Error('mine') }).ready")
    await page.listen("a")
    await publish(services, "1")
    assert await page.got(1) == ["a: 1"]
    await page.until("events('error').length === 2")
    for error in await page.events("error"):
        assert error["error"]["code"] == "handler_failed"
        assert error["subscription"] == "a"


async def test_it_works_in_a_worker(page: ClientPage, services: Client, url: str) -> None:
    script = (
        f"import {{connect}} from '${{location.origin}}/mist.js';"
        f"connect('{url}', {{token: '{TOKEN}'}}).subscribe(['a'], ({{data}}) => postMessage(data))"
        ".ready.then(() => postMessage('ready'));"
    )
    await page.evaluate(
        f"const blob = new Blob([`{script}`], {{type: 'text/javascript'}});"
        "window.worker = new Worker(URL.createObjectURL(blob), {type: 'module'});"
        "worker.onmessage = ({data}) => got.push(['worker', data, null])"
    )
    assert await page.got(1) == ["worker: ready"]
    await publish(services, "1")
    assert await page.got(2) == ["worker: ready", "worker: 1"]


async def test_arguments_that_can_not_be_are_refused_at_once(page: ClientPage) -> None:
    wrong = [
        "start('ws://127.0.0.1:1', {})",
        "start('ftp://127.0.0.1', {token: 'T'})",
        "listen([])",
        "listen('a')",
        "listen(['a,b'])",
        "listen(['a b'])",
        "listen(['a'], {since: 1.5})",
        "listen(['a'], {since: {epoch: 'e', id: -1}})",
        "client.subscribe(['a'])",
        "client.on('message', () => {})",
    ]
    await page.start("ws://127.0.0.1:1", **OPEN)
    for each in wrong:
        found = f"(() => {{ try {{ {each} }} catch (error) {{ return error.name }} }})()"
        assert await page.evaluate(found) in ("TypeError", "SyntaxError"), each


# who gets in, and who has to leave


async def test_a_token_nobody_knows_ends_it_for_good(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.start(url, token="nobody's", then="window.one = listen(['a']); 0")
    await page.is_state("closed")
    states = await page.events("state")
    assert [it["state"] for it in states] == ["closed"]
    assert states[-1]["error"] == {"code": "unauthorized", "closeCode": 4401}
    assert await page.evaluate("one.ready.catch((error) => error.code)") == "unauthorized"
    assert proxy.connections == 1


async def test_a_page_that_is_not_allowed_ends_for_good(page: ClientPage, tmp_path: Path) -> None:
    listen = (Listen("tcp", "127.0.0.1", 0), Listen("ws", "0.0.0.0", 0))
    async with running(tmp_path / "other", listen=listen, insecure=True) as other:
        await page.start(f"ws://127.0.0.1:{port_of(other.urls[1])}", **OPEN)
        await page.is_state("closed")
    assert (await page.events("state"))[-1]["error"]["closeCode"] == 4403


async def test_a_subscription_that_is_not_granted_is_refused_and_no_other(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate("window.refused = listen(['secret'])")
    await page.listen("a")
    code = await page.evaluate("refused.ready.catch((error) => error.code)")
    assert code == "not_granted"
    [error] = await page.events("error")
    assert (error["subscription"], error["error"]["code"]) == ("secret", "not_granted")
    await publish(services, "1", tags="a,secret")
    assert await page.got(1) == ["a: 1"]


async def test_a_token_that_is_gone_ends_it_for_good(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await publish(services, "1")
    await services.unregister(TOKEN)
    await page.is_state("closed")
    assert await page.got(1) == ["a: 1"]
    assert (await page.events("state"))[-1]["error"]["code"] == "unauthorized"
    assert proxy.connections == 1


async def test_a_subscription_that_is_revoked_ends_behind_its_last_message(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.listen("b")
    await publish(services, "1")
    await services.unset(["a"], TOKEN)
    await publish(services, "2")
    await publish(services, "3", tags="a,b")
    assert await page.got(2) == ["a: 1", "b: 3"]
    assert await page.events("revoked") == [{"tags": ["a"], "subscriptions": ["a"]}]
    assert await page.evaluate("client.state") == "open"


async def test_what_was_revoked_while_away_is_told_of_on_return(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.listen("b")
    proxy.refused = {b"Upgrade"}
    await proxy.cut()
    await page.until("client.state !== 'open'")
    await services.unset(["a"], TOKEN)
    await publish(services, "1", tags="a,b")
    proxy.refused = set()
    assert await page.got(1) == ["b: 1"]
    assert await page.events("revoked") == [{"tags": ["a"], "subscriptions": ["a"]}]


async def test_a_token_is_swapped_in_band(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await services.register(["b", "c"], "other")
    await page.evaluate("window.tokens = ['T', 'other']")
    await page.start(url, getToken="=>async () => tokens.shift()")
    await page.listen("a")
    await page.listen("b")
    await page.evaluate("client.refresh()")
    await page.until("events('revoked').length > 0")
    assert await page.events("revoked") == [{"tags": ["a"], "subscriptions": ["a"]}]
    await services.unregister(TOKEN)
    await page.listen("c")
    await publish(services, "1", tags="b,c")
    assert await page.got(2) == ["b: 1", "c: 1"]
    assert proxy.connections == 1


async def test_a_bad_token_in_band_ends_it(page: ClientPage, services: Client, url: str) -> None:
    await page.start(url, **OPEN)
    await page.is_state("open")
    code = await page.evaluate("client.refresh('nobody').catch((error) => error.code)")
    assert code == "unauthorized"
    await page.is_state("closed")


async def test_a_token_swapped_while_an_attempt_presents_the_old_one(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    swap = "window.swapped = client.refresh(TOKEN).then(() => true)".replace(
        "TOKEN", json.dumps(TOKEN)
    )
    socket = f"class extends WebSocket {{constructor(...all) {{super(...all); {swap};}}}}"
    await page.start(url, token="old", WebSocket=f"=>{socket}")
    await page.listen("a")
    await publish(services, "1")
    assert await page.got(1) == ["a: 1"]
    assert await page.evaluate("swapped")
    await services.unregister(TOKEN)
    await page.is_state("closed")


async def test_who_can_get_tokens_gets_another_when_one_is_gone(
    page: ClientPage, services: Client, url: str
) -> None:
    await services.register(["a"], "other")
    await page.evaluate("window.tokens = ['T', 'other', 'nobody']")
    await page.start(url, getToken="=>async () => tokens.shift()")
    await page.listen("a")
    await services.unregister(TOKEN)
    await publish(services, "1")
    assert await page.got(1) == ["a: 1"]
    await services.unregister("other")
    await page.is_state("closed")


async def test_a_get_token_that_fails_is_asked_again(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.evaluate("window.tries = 0")
    await page.start(
        url, getToken="=>() => { if (++tries < 3) throw new Error('offline'); return 'T' }"
    )
    await page.is_state("open")
    assert await page.evaluate("tries") == 3


# losing the server, and coming back


async def test_a_server_that_is_lost_and_back_costs_no_message_and_brings_none_twice(
    page: ClientPage, tmp_path: Path, nursery: trio.Nursery
) -> None:
    history = f"sqlite:///{tmp_path / 'history.db'}"
    tokens = f"sqlite:///{tmp_path / 'tokens.db'}"
    proxy = await nursery.start(Proxy(0).run)
    texts = [str(number) for number in range(40)]
    for turn in range(0, 40, 10):
        async with (
            running(tmp_path / "data", history=history, tokens=tokens) as server,
            connect(server.urls[0]) as services,
        ):
            if turn == 0:
                await services.register(["a", "b"], TOKEN)
            proxy.target = port_of(server.urls[1])
            # Half of them are stored before the page is back.
            await publish(services, *texts[turn : turn + 5], tags="a,b")
            if turn == 0:
                await page.start(f"ws://127.0.0.1:{proxy.port}", **OPEN)
                await page.listen("a", since=0)
                await page.listen("a", "b", since=0)
            await publish(services, *texts[turn + 5 : turn + 10], tags="a,b")
            await page.got(2 * turn + 20)
    await page.until("client.state !== 'open'")
    found = await page.got(80)
    for name in ("a", "a,b"):
        assert [it for it in found if it.startswith(f"{name}: ")] == [
            f"{name}: {it}" for it in texts
        ]
    assert await page.events("gap") == []


async def test_several_subscriptions_resume_as_one(
    page: ClientPage, services: Client, url: str, proxy: Proxy, server: Server
) -> None:
    await page.start(url, **OPEN)
    await page.evaluate(
        "window.frames = []; const send = WebSocket.prototype.send;"
        "WebSocket.prototype.send = function (it) { frames.push(it); send.call(this, it); }"
    )
    for tag in ("a", "b", "room:1"):
        await page.listen(tag)
    await publish(services, "1", tags="b")
    await page.got(1)
    await page.evaluate("frames.length = 0")
    await proxy.cut()
    await publish(services, "2", tags="a,room:1")
    assert (await page.got(3))[1:] == ["a: 2", "room:1: 2"]
    asked = "frames.map(JSON.parse).filter((it) => it.command === 'subscribe')"
    [frame] = await page.evaluate(asked)
    assert frame["subscriptions"] == [["a"], ["b"], ["room:1"]]
    assert frame["since"]["id"] == 1


async def test_who_joins_others_on_a_quiet_connection_is_given_nothing_old(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await publish(services, "old")
    await page.start(url, **OPEN)
    await page.listen("a", name="one")
    await page.listen("a", name="two")
    await proxy.cut()
    await publish(services, "new")
    assert await page.got(2) == ["one: new", "two: new"]


async def test_cut_again_and_again_while_messages_flow_nothing_is_lost(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a", since=0, name="early")
    await page.listen("a", "b")
    for number in range(300):
        await services.store(["a", "b"], str(number))
        if number % 23 == 0:
            await proxy.cut()
        if number == 150:
            await page.evaluate("void listen(['b'], {since: 0}, 'late')")
    found = await page.got(900)
    for name in ("early", "late", "a,b"):
        mine = [it.partition(": ")[2] for it in found if it.startswith(f"{name}: ")]
        assert mine == [str(number) for number in range(300)], name
    assert await page.events("gap") == []


async def test_without_a_history_a_lost_connection_is_a_gap(
    page: ClientPage, tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with running(tmp_path) as server, connect(server.urls[0]) as services:
        await services.register(["a"], TOKEN)
        proxy = await nursery.start(Proxy(port_of(server.urls[1])).run)
        await page.start(f"ws://127.0.0.1:{proxy.port}", **OPEN)
        await page.listen("a")
        code = "listen(['a'], {since: 0}).ready.catch((error) => error.code)"
        assert await page.evaluate(code) == "history_off"
        await proxy.cut()
        await page.until("events('gap').length === 1")
        assert await page.events("gap") == [{"reason": "no_history", "subscriptions": ["a"]}]
        await services.publish(["a"], "1")
        assert await page.got(1) == ["a: 1"]
        assert await page.evaluate("got[0][2]") is None


async def test_another_log_is_a_gap_and_brings_what_it_has(
    page: ClientPage, tmp_path: Path, nursery: trio.Nursery
) -> None:
    proxy = await nursery.start(Proxy(0).run)
    for turn in "12":
        async with (
            running(tmp_path / turn, history="memory://") as server,
            connect(server.urls[0]) as services,
        ):
            await services.register(["a", "b"], TOKEN)
            proxy.target = port_of(server.urls[1])
            if turn == "1":
                await publish(services, "x", "y", tags="b")
                await page.start(f"ws://127.0.0.1:{proxy.port}", **OPEN)
                await page.listen("a")
            await publish(services, turn)
            await page.got(int(turn))
    assert await page.got(2) == ["a: 1", "a: 2"]
    assert await page.events("gap") == [{"reason": "history", "subscriptions": ["a"]}]


async def test_it_waits_longer_and_longer_and_comes_back_at_once_when_the_network_does(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    proxy.refused = {b"Upgrade"}
    await page.evaluate("Math.random = () => 1; 0")  # no jitter
    backoff = {"baseSeconds": 0.05, "capSeconds": 60}
    await page.start(url, backoff=backoff, **OPEN)
    await page.until("events('state').filter((it) => it.state === 'waiting').length >= 4")
    waits = [it["delay"] for it in await page.events("state") if it["state"] == "waiting"]
    assert waits[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    await page.evaluate("client.close()")
    await page.evaluate("told.length = 0")
    await page.start(url, backoff={"baseSeconds": 1000, "capSeconds": 60}, **OPEN)
    await page.is_state("waiting")
    assert (await page.events("state"))[-1]["delay"] == 60
    proxy.refused = set()
    await page.evaluate("dispatchEvent(new Event('online'))")
    await page.is_state("open")


async def test_jitter_is_full(page: ClientPage, url: str, proxy: Proxy) -> None:
    proxy.refused = {b"Upgrade"}
    await page.evaluate("window.dice = [0, 1, 0.25, 0.5]; Math.random = () => dice.shift() ?? 0; 0")
    await page.start(url, backoff={"baseSeconds": 0.01, "capSeconds": 0.03}, **OPEN)
    await page.until("events('state').filter((it) => it.state === 'waiting').length >= 4")
    waits = [it["delay"] for it in await page.events("state") if it["state"] == "waiting"]
    assert waits[:4] == pytest.approx([0, 0.02, 0.0075, 0.015])


async def test_a_connection_that_died_without_a_word_is_replaced(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.hold_time()
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.pass_time(15)
    proxy.deaf = True
    await publish(services, "1")
    await page.pass_time(15)  # nothing came in that time, so it asks for a sign of life
    await page.pass_time(29)
    assert await page.evaluate("client.state") == "open"
    await page.pass_time(1)
    await page.until("client.state !== 'open'")
    proxy.deaf = False
    await proxy.cut()  # what it has begun meanwhile is deaf for good
    assert await page.got(1) == ["a: 1"]
    error = next(it["error"] for it in await page.events("state") if it["error"])
    assert error["code"] == "connection_lost"


async def test_a_network_that_is_back_has_the_connection_looked_at(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    await page.hold_time()
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.evaluate("dispatchEvent(new Event('online'))")
    await publish(services, "1")
    await page.got(1)
    await page.pass_time(6)
    await publish(services, "2")
    await page.got(2)
    assert proxy.connections == 1  # it is well, and stays
    proxy.deaf = True
    await page.evaluate("dispatchEvent(new Event('online'))")
    await publish(services, "3")
    await page.pass_time(5)
    await page.until("client.state !== 'open'")
    proxy.deaf = False
    await proxy.cut()
    assert await page.got(3) == ["a: 1", "a: 2", "a: 3"]


async def test_who_closes_hears_no_more(page: ClientPage, services: Client, url: str) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await page.evaluate("client.close()")
    await publish(services, "1")
    assert (await page.events("state"))[-1]["error"]["code"] == "closed"
    failed = "(() => { try { listen(['a']) } catch (error) { return error.code } })()"
    assert await page.evaluate(failed) == "closed"
    assert await page.evaluate("client.refresh('T').catch((error) => error.code)") == "closed"
    assert await page.evaluate("got") == []


# much at once


async def hold_turns(page: ClientPage) -> None:
    """From here on, `turns` holds what lets the client know of each next turn of the loop."""
    await page.evaluate(
        "const Channel = MessageChannel; window.turns = []; window.MessageChannel = class {"
        "  constructor() {"
        "    const made = new Channel();"
        "    const post = made.port2.postMessage.bind(made.port2);"
        "    made.port2.postMessage = () => (turns ? turns.push(() => post(0)) : post(0));"
        "    return made;"
        "  }"
        "}; 0"
    )


@pytest.mark.parametrize("since", [0, None], ids=["replayed", "live"])
async def test_handlers_have_a_slice_of_each_turn_however_much_comes(
    page: ClientPage, services: Client, url: str, since: int | None
) -> None:
    if since == 0:
        await publish(services, *map(str, range(100)))
    await hold_turns(page)
    await page.evaluate("window.clock = 1000; performance.now = () => clock; 0")
    await page.start(url, **OPEN)
    await page.evaluate(
        "client.subscribe(['a'], ({data}) => { got.push(['a', data, 0]); clock += 3; },"
        f" {{since: {json.dumps(since)}}}).ready"
    )
    if since is None:
        await publish(services, *map(str, range(100)))
        await page.listen("b")  # its answer stands behind them
    # 8 ms: the third handler begins within them, and none after it.
    rows = await page.evaluate(
        "(async () => {"
        "  const rows = [got.length];"
        "  while (got.length < 100) {"
        "    turns.shift()();"
        "    while (!turns.length) await new Promise((resolve) => setTimeout(resolve));"
        "    rows.push(got.length);"
        "  }"
        "  return rows;"
        "})()"
    )
    assert rows == [*range(3, 100, 3), 100]
    assert await page.got(100) == [f"a: {number}" for number in range(100)]


async def test_a_page_that_is_slow_loses_nothing_and_holds_little(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    texts = [str(number) for number in range(600)]
    for text in texts:
        await services.publish(["a"], text)
    await services.flush()
    # Handlers that are fast are called as messages come, so nothing waits. Here the first takes
    # longer than a slice, and the page comes to the next slice when the queue is full.
    await hold_turns(page)
    # By a clock of the test's: on a busy machine something before it could take as long.
    await page.evaluate("window.clock = 1000; performance.now = () => clock; 0")
    await page.start(url, maxQueue=100, **OPEN)
    await page.evaluate(
        "void client.subscribe(['a'], ({data}) => {"
        "  got.push(['a', data, 0]);"
        "  if (data === '0') clock += 20;"
        "}, {since: 0})"
    )
    await page.until("events('state').some((it) => it.previous === 'open')")
    # It takes first what it has, and only then comes back.
    for _ in range(5):
        await page.evaluate("new Promise(requestAnimationFrame)")
    assert await page.evaluate("got.length") == 1
    assert proxy.connections == 1
    await page.evaluate("turns.forEach((each) => each()); turns = null")
    assert await page.got(600) == [f"a: {text}" for text in texts]
    assert await page.events("gap") == []
    assert proxy.connections > 1


async def watch_frames(page: ClientPage) -> None:
    """From now on, remember how long the page's frames and its long tasks are."""
    await page.evaluate(
        "window.frames = []; window.tasks = []; window.drawn = new Set();"
        "let last = performance.now();"
        "new PerformanceObserver((list) => {"
        "  for (const it of list.getEntries()) tasks.push(it.duration);"
        "}).observe({type: 'longtask'});"
        "const draw = (time) => { frames.push(time - last); last = time; drawn.add(got.length);"
        "  requestAnimationFrame(draw); }; requestAnimationFrame(draw)"
    )


async def watched_frames(page: ClientPage) -> int:
    """Print what was seen; returns how many frames showed more messages than the one before."""
    frames = sorted((await page.evaluate("frames"))[1:])
    tasks = await page.evaluate("tasks")
    print(
        f"{len(frames)} frames: p50 {frames[len(frames) // 2]:.0f} ms, "
        f"p99 {frames[len(frames) * 99 // 100]:.0f} ms, longest {frames[-1]:.0f} ms; "
        f"{len(tasks)} tasks over 50 ms, longest {max(tasks, default=0):.0f} ms"
    )
    return int(await page.evaluate("drawn.size"))


async def test_a_thousand_messages_a_second_come_in_order_and_let_the_page_draw(
    page: ClientPage, services: Client, url: str
) -> None:
    await page.start(url, **OPEN)
    await page.listen("a")
    await watch_frames(page)
    began = trio.current_time()
    for number in range(5000):
        await services.publish(["a"], f"{number} {'x' * 100}")
        if number % 10 == 9:
            await trio.sleep_until(began + (number + 1) / 1000)
    print(f"5,000 messages published in {trio.current_time() - began:.2f} s")
    await page.until("got.length === 5000", 40)
    numbers = "got.map(([, data]) => parseInt(data))"
    assert await page.evaluate(f"{numbers}.every((it, index) => it === index)")
    assert await watched_frames(page) > 3  # how many more is the machine's affair


async def test_a_long_replay_comes_in_order_and_lets_the_page_draw(
    page: ClientPage, services: Client, url: str, proxy: Proxy
) -> None:
    for number in range(15_000):
        await services.publish(["a"], f"{number} {'x' * 100}")
    await services.flush()
    await page.start(url, **OPEN)
    await page.is_state("open")
    await watch_frames(page)
    began = trio.current_time()
    await page.listen("a", since=0)
    await page.until("got.length === 15000", 40)
    print(
        f"15,000 messages in {trio.current_time() - began:.2f} s, {proxy.connections} connections"
    )
    assert await page.evaluate("got.every(([, data], index) => parseInt(data) === index)")
    assert await watched_frames(page) > 3  # how many more is the machine's affair
