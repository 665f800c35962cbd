"""MessageBus's own client, as npm has it, in a browser."""

import json
from contextlib import asynccontextmanager

import pytest
import trio

from mist.bus import Bus
from mist.commands import Register
from mist.config import Listen
from tests.http.bus.polls import SETTINGS, TOKEN
from tests.servers import port_of, running
from tests.waiting import until

_START = """
(() => {
  window.got = [];
  MessageBus.baseUrl = %s;
  MessageBus.headers["X-Auth-Token"] = %s;
  MessageBus.enableChunkedEncoding = %s;
  // As soon as may be; else it waits for a quarter of a minute after a failure.
  MessageBus.callbackInterval = 300;
  MessageBus.minPollInterval = 20;
  window.requests = [];
  window.failures = [];
  const ajax = MessageBus.ajax;
  MessageBus.ajax = (options) => {
    const request = ajax(options);
    requests.push(options.data.__seq);
    request.catch((it) => failures.push(it.status));
    return request;
  };
  window.listen = (channel, last) => MessageBus.subscribe(channel, (data, global_id, message_id) =>
    got.push([channel, data, message_id]), last);
})()
"""


@asynccontextmanager
async def serving(folder, site, port=0, **more):
    listen = (Listen("http", "127.0.0.1", port),)
    settings = {**SETTINGS, "listen": listen, "allow_origin": (site,), **more}
    settings["history"] = f"sqlite:///{folder}/history.db"
    async with running(folder, **settings) as server:
        await server.hub.registry.execute(
            [Register(TOKEN, frozenset({"/foo", "/bar", "/private/*"}))]
        )
        with trio.fail_after(60):
            yield server, Bus(server.hub)


@pytest.fixture
async def served(tmp_path, site):
    async with serving(tmp_path, site) as served:
        yield served


async def start(page, server, *, chunked=True, token=TOKEN):
    (url,) = server.urls
    values = (f"{url.rstrip('/')}/", token, chunked)
    await page.evaluate(_START % tuple(map(json.dumps, values)))


async def got(page, number):
    await page.until(f"got.length >= {number}")
    return [tuple(each) for each in await page.evaluate("got")]


async def subscribed(server, number=1):
    await until(lambda: server.hub.broker.tag_sets() >= number)


@pytest.mark.parametrize("chunked", [True, False])
async def test_backlog_comes_from_where_it_is_asked_for(page, served, chunked):
    server, bus = served
    for number in range(1, 6):
        await bus.publish("/foo", {"n": number})
        await bus.publish("/bar", f"text {number}")
    await start(page, server, chunked=chunked)
    await page.evaluate("listen('/foo', 3); listen('/bar', -3)")
    assert await got(page, 4) == [
        ("/foo", {"n": 4}, 4),
        ("/bar", "text 4", 4),
        ("/foo", {"n": 5}, 5),
        ("/bar", "text 5", 5),
    ]
    assert page.errors == []


@pytest.mark.parametrize("chunked", [True, False])
async def test_what_comes_comes_once_and_in_order(page, served, chunked):
    server, bus = served
    await bus.publish("/foo", "before")
    await start(page, server, chunked=chunked)
    await page.evaluate("listen('/foo')")
    await page.until("MessageBus.callbacks[0].last_id === 1")  # which a status has told it
    await subscribed(server)
    for number in range(20):
        assert await bus.publish("/foo", [number, "\r\n|\r\n", "ä ", None]) == number + 2
        if number % 5 == 0:
            await page.until(f"got.length > {number}")
    assert await got(page, 20) == [
        ("/foo", [number, "\r\n|\r\n", "ä ", None], number + 2) for number in range(20)
    ]
    assert page.errors == []


async def test_chunks_need_one_request_and_long_polls_one_for_each_message(page, served):
    server, bus = served
    await start(page, server)
    await page.evaluate("listen('/foo', 0)")
    await subscribed(server)
    before = await page.evaluate("requests.length")
    for number in range(5):
        await bus.publish("/foo", number)
        await page.until(f"got.length > {number}")
    assert await page.evaluate("requests.length") == before
    await page.evaluate(
        "MessageBus.enableChunkedEncoding = false; void MessageBus.longPoll.abort()"
    )
    await page.until(f"requests.length > {before}")
    for number in range(5, 8):
        await bus.publish("/foo", number)
        await page.until(f"got.length > {number}")
    assert await page.evaluate("requests.length") >= before + 3
    assert [each[1] for each in await got(page, 8)] == list(range(8))


async def test_another_channel_joins_while_it_polls(page, served):
    server, bus = served
    await bus.publish("/bar", "old")
    await start(page, server)
    await page.evaluate("listen('/foo', 0)")
    await subscribed(server)
    await page.evaluate("listen('/bar', 0)")
    await subscribed(server, 2)
    await bus.publish("/foo", "new")
    assert sorted(await got(page, 2)) == [("/bar", "old", 1), ("/foo", "new", 1)]


async def test_it_finds_its_way_back_after_a_restart(page, site, tmp_path):
    async with serving(tmp_path, site) as (server, bus):
        await start(page, server)
        port = port_of(server.urls[0])
        await page.evaluate("listen('/foo', 0); listen('/bar')")
        await subscribed(server, 2)
        await bus.publish("/foo", "one")
        await bus.publish("/bar", "one")
        await got(page, 2)
        with trio.move_on_after(2):
            server.drain()
            await trio.sleep_forever()
    async with serving(tmp_path, site, port) as (_server, bus):
        await bus.publish("/foo", "two")
        await bus.publish("/bar", "two")
        assert sorted(await got(page, 4)) == [
            ("/bar", "one", 1),
            ("/bar", "two", 2),
            ("/foo", "one", 1),
            ("/foo", "two", 2),
        ]
        await bus.publish("/foo", "three")
        assert (await got(page, 5))[4] == ("/foo", "three", 3)


async def test_messages_are_for_those_they_are_meant_for(page, served):
    server, bus = served
    await start(page, server)
    mine = await page.evaluate("MessageBus.clientId")
    await page.evaluate("listen('/private/a', 0)")
    await subscribed(server)
    await bus.publish("/private/a", "not you", client_ids=["somebody-else"])
    await bus.publish("/private/a", "you", client_ids=[mine])
    await bus.publish("/private/a", "no user is known of you", user_ids=[1])
    await bus.publish("/private/a", "all")
    assert await got(page, 2) == [("/private/a", "you", 2), ("/private/a", "all", 4)]


async def test_what_is_not_allowed_is_refused(page, served):
    server, bus = served
    await start(page, server)
    await page.evaluate("listen('/secret', 0)")
    await bus.publish("/secret", "x")
    await page.until("failures.length >= 2")
    assert set(await page.evaluate("failures")) == {403}
    assert await page.evaluate("got") == []


# The client's own intervals: after an answer that it got while it was paused it polls no sooner
# than a quarter of a minute after it polled last, and what its page subscribes to meanwhile waits.
_OWN_INTERVALS = "MessageBus.callbackInterval = 15000; MessageBus.minPollInterval = 100; void 0"


@pytest.mark.parametrize("chunked", [True, False])
async def test_who_subscribes_after_a_pause_gets_all_from_then_on(page, served, chunked):
    server, bus = served
    await bus.publish("/bar", "long ago")
    await start(page, server, chunked=chunked)
    await page.evaluate(_OWN_INTERVALS)
    await page.evaluate("listen('/foo', -1)")
    await subscribed(server)
    await page.evaluate("MessageBus.pause()")
    await bus.publish("/foo", "while paused")
    if not chunked:
        await page.until("MessageBus.longPoll === null")  # it was answered, and waits
    await page.evaluate("MessageBus.resume(); listen('/bar', -1)")
    if chunked:  # it asks at once, and is told where the channel is
        await page.until("MessageBus.callbacks[1].last_id === 1")
    for number in range(3):
        await bus.publish("/bar", number)
    found = await got(page, 4)
    assert [each for each in found if each[0] == "/bar"] == [("/bar", n, n + 2) for n in range(3)]
    assert ("/foo", "while paused", 1) in found
    await bus.publish("/bar", "later")
    assert (await got(page, 5))[4] == ("/bar", "later", 5)


@pytest.mark.parametrize("chunked", [True, False])
async def test_who_subscribes_during_a_pause_gets_all_from_then_on(page, served, chunked):
    server, bus = served
    await bus.publish("/bar", "long ago")
    await start(page, server, chunked=chunked)
    await page.evaluate("MessageBus.minPollInterval = 100; listen('/foo', -1)")
    await subscribed(server)
    await page.evaluate("MessageBus.pause(); listen('/bar', -1)")
    for number in range(3):
        # It asks again from now on, as often as it polls, until it is resumed.
        polls = await page.evaluate("requests.length")
        if not chunked:
            await page.until(f"requests.length > {polls + 1}")
        elif not number:
            await page.until(f"requests.length > {polls}")
            await subscribed(server, 2)
        await bus.publish("/bar", number)
    await page.evaluate("MessageBus.resume()")
    found = await got(page, 3)
    assert [each for each in found if each[0] == "/bar"] == [("/bar", n, n + 2) for n in range(3)]


async def test_a_page_beyond_the_rate_of_its_token_is_slowed_down_and_not_sent_away(
    page, site, tmp_path
):
    async with serving(tmp_path, site, token_rate=5) as (server, bus):
        await start(page, server, chunked=False)
        await page.evaluate("listen('/foo', 0)")
        for number in range(20):
            await bus.publish("/foo", number)
            await page.until(f"got.length > {number}")
        assert await page.evaluate("failures") == []
