"""`publish` of mist.js, over each transport, and across reconnects; the events of subscriptions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mist.attributes import Attributes
from mist.commands import RemoveTags, SetAttributes
from mist.server import Server
from tests.servers import listeners, running
from tests.static.pages import ClientPage, Proxy
from tests.static.test_fallback import port
from tests.waiting import until

GRANTS = {"T": {"a", "b", ">a", ">room:*"}, "reader": {"a"}}
LISTEN = listeners("tcp", "http")
TRANSPORTS = ("websocket", "sse", "polling")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(
        tmp_path, listen=LISTEN, history="memory://", grants=GRANTS, failed_auth_delay=0.0
    ) as server:
        yield server


@pytest.fixture
async def proxy(server: Server, nursery: trio.Nursery) -> Proxy:
    proxy = await nursery.start(Proxy(port(server, "http")).run)
    proxy.moved = {proxy.target: proxy.port}
    return proxy


async def kept(server: Server) -> list[bytes]:
    assert server.hub.sequencer is not None
    return [each.data for each in (await server.hub.sequencer.history.read()).messages()]


async def start(page: ClientPage, proxy: Proxy, **options: object) -> None:
    await page.start(f"http://127.0.0.1:{proxy.port}", **{"token": "T", **options})


# The value, or the code, that a publish comes to.
CODE = "%s.then((it) => it, (error) => error.code ?? error.name)"


async def outcome(page: ClientPage, call: str) -> object:
    return await page.evaluate(CODE % f"client.publish({call})")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_publishes_over_each_transport(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    await start(page, proxy, transports=[transport])
    await page.listen("a")
    assert await outcome(page, '["room:1", "a"], "hällo"') == {"id": 1}
    assert await outcome(page, '["a"], new Uint8Array([255, 0])') == {"id": 2}
    assert await page.got(2) == ["a: hällo", "a: [255, 0]"]
    assert [await outcome(page, '["b"], "x"'), await outcome(page, '["a", "b"], "x"')] == [
        "not_granted",
        "not_granted",
    ]
    assert await outcome(page, '["a"], "x", {to: {}}') == (
        "refused" if transport == "websocket" else "invalid_audience"
    )
    assert len(await kept(server)) == 2


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
async def test_many_keep_their_order(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    await start(page, proxy, transports=[transport])
    await page.evaluate(
        "Promise.all(Array.from({length: 20}, (_, n) => client.publish(['a'], String(n))))"
    )
    assert await kept(server) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_was_not_answered_is_published_once(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    await start(page, proxy, transports=[transport])
    await page.listen("a")
    marks = {b"POST /v1/messages", b"/subscribe/websocket"}
    proxy.stalled |= marks  # the server does it, and the page never hears
    await page.evaluate("void (window.sent = client.publish(['a'], 'once'))")
    sequencer = server.hub.sequencer
    assert sequencer is not None
    await until(lambda: sequencer.newest == 1)
    proxy.stalled -= marks
    await proxy.cut()
    assert await page.evaluate("sent") == {"id": 1}
    assert await outcome(page, '["a"], "next"') == {"id": 2}
    assert await kept(server) == [b"once", b"next"]


async def test_what_is_published_without_a_connection_waits_for_one(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    target, proxy.target = proxy.target, 1
    await start(page, proxy)
    await page.evaluate("void (window.sent = client.publish(['a'], 'x'))")
    await page.is_state("waiting")
    proxy.target = target
    assert await page.evaluate("sent") == {"id": 1}


async def test_no_answer_in_time_is_an_error(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    proxy.target = 1
    await start(page, proxy)
    assert await outcome(page, '["a"], "x", {timeoutSeconds: 0.2}') == "timed_out"
    assert await page.evaluate(
        "Promise.allSettled(Array.from({length: 1001}, () => "
        "client.publish(['a'], 'x', {timeoutSeconds: 0.1})))"
        ".then((all) => [...new Set(all.map((it) => it.reason.code))].sort())"
    ) == ["timed_out", "too_many_publishes"]
    await page.evaluate("void (window.sent = client.publish(['a'], 'x').catch((it) => it.code))")
    await page.evaluate("client.close()")
    assert await page.evaluate("sent") == "closed"
    assert await outcome(page, '["a"], "x"') == "closed"


async def test_what_can_be_no_message_is_not_sent(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    await start(page, proxy)
    for call in ('[], "x"', '["a b"], "x"', '["a"], {}', '["a"]', '["a"], "x", {key: "ä"}'):
        assert await outcome(page, call) == "TypeError"
    assert await kept(server) == []


async def test_what_is_too_long_for_a_frame_goes_over_http(
    page: ClientPage, server: Server, proxy: Proxy
) -> None:
    await start(page, proxy, transports=["websocket"])
    assert await outcome(page, "['a'], 'x'.repeat(200_000)") == {"id": 1}
    assert await outcome(page, "['a'], 'ä'.repeat(100_000)") == {"id": 2}
    assert await outcome(page, "['a'], 'x'.repeat(2_000_000)") == "data_too_long"
    assert await page.evaluate("[client.transport, client.state]") == ["websocket", "open"]
    await page.evaluate("client.close()")
    await page.start(f"ws://127.0.0.1:{proxy.port}", token="T")
    assert await outcome(page, "['a'], 'x'.repeat(200_000)") == "payload_too_large"


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
async def test_a_key_of_the_programs_is_published_once(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    await start(page, proxy, transports=[transport])
    assert [await outcome(page, "['a'], 'x\\n\\u2028ä', {key: 'k'}") for _ in range(2)] == [
        {"id": 1},
        {"id": 1},
    ]
    assert await outcome(page, "['a'], 'y', {key: 'k'}") == "idempotency_conflict"
    # By the other way, too: its digest is the same.
    await page.evaluate("client.close()")
    other = "sse" if transport == "websocket" else "websocket"
    await start(page, proxy, transports=[other])
    assert await outcome(page, "['a'], 'x\\n\\u2028ä', {key: 'k'}") == {"id": 1}


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_rate_limit_is_waited_for(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    limits = SetAttributes("T", Attributes.of_json({"rate": "4"}))
    await server.hub.registry.execute([limits])
    await start(page, proxy, transports=[transport])
    found: list[int] = []
    while not server.hub.token_limits.refusals["rate"]:  # a machine may be too slow for the limit
        published = await page.evaluate(
            "Promise.all(Array.from({length: 10}, (_, n) => client.publish(['a'], String(n))))"
        )
        found += [each["id"] for each in published]
    assert sorted(found) == list(range(1, len(found) + 1))
    assert await page.evaluate("client.state") == "open"


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
async def test_a_token_that_is_unknown_ends_the_client(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    await start(page, proxy, transports=[transport], token="nobody")
    assert await outcome(page, '["a"], "x"') == "unauthorized"
    await page.is_state("closed")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_subscriptions_tell_when_they_hold_and_when_they_end(
    page: ClientPage, server: Server, proxy: Proxy, transport: str
) -> None:
    watch = """
      window.seen = [];
      for (const event of ["subscribed", "unsubscribed"]) {
        client.on(event, ({subscription, again, reason}) => {
          seen.push([event, subscription.tags.join(), again ?? reason]);
        });
      }
      window.first = listen(["a"]);
      listen(["other"]).ready.catch(() => {});
    """
    await start(page, proxy, transports=[transport], then=watch)
    await page.until("seen.length === 2")
    await page.evaluate("void (window.second = listen(['b'])); second.ready")
    await page.until("seen.length === 3")
    assert sorted(await page.evaluate("seen")) == [
        ["subscribed", "a", False],
        ["subscribed", "b", False],
        ["unsubscribed", "other", "refused"],
    ]
    before = 3
    if transport != "polling":  # where the browser asks again by itself
        await proxy.cut()
        await page.until("seen.length === 5")
        assert sorted(await page.evaluate("seen.slice(3)")) == [
            ["subscribed", "a", True],
            ["subscribed", "b", True],
        ]
        before = 5
    await page.evaluate("first.unsubscribe()")
    await server.hub.registry.execute([RemoveTags("T", frozenset({"b"}))])
    await page.until(f"seen.length === {before + 2}")
    assert await page.evaluate(f"seen.slice({before})") == [
        ["unsubscribed", "a", "unsubscribed"],
        ["unsubscribed", "b", "revoked"],
    ]
    await page.evaluate("client.close()")
    assert await page.evaluate("seen.length") == before + 2
