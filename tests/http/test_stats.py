"""`/v1/stats`: what the dashboard shows."""

import math

import pytest
import trio

from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.errors import HistoryUnavailable
from mist.http.session_aggregates import SessionAggregator
from mist.protocols.line.forms import PLAIN
from tests.http.client import request
from tests.servers import listeners, port_of, running
from tests.waiting import until

LISTEN = listeners("tcp", "http")


async def dial(server, lines=b""):
    """A TCP peer that has sent these lines, all of which the server has handled."""
    port = port_of(server.urls[0])
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(lines + b"ping\n")
    answer = b""
    while not answer.endswith(b"pong\n"):
        answer += await stream.receive_some()
    return stream


async def stats(server, **headers):
    response = await request(server, "GET", "/v1/stats", headers)
    assert response.status == 200
    return response.json()


async def test_a_fresh_server_has_every_field_and_nothing_to_tell(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        found = await stats(server)
    for name in ("published", "delivered", "delivered_bytes", "rejected", "unmatched", "lifetime"):
        assert found[name] == 0
    assert found["tag_sets"] == 0
    assert found["dropped"] == found["connections"] == found["auth_failures"] == {}
    assert found["slowest"] == found["top_tags"] == []
    assert found["history"] is None
    assert found["uptime"] >= 0
    assert found["cpu_seconds"] > 0
    assert found["resident_bytes"] > 1_000_000
    assert found["loop_lag"] >= 0
    assert found["version"]


async def test_what_happens_is_counted(tmp_path):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:
        reader = await dial(server, b"subscribe a\nsubscribe b,c\n")
        writer = await dial(server, b"publish a 1\npublish a 2\npublish x 3\npublish a* 4\n")
        found = await stats(server)
        assert found["published"] == 3
        assert found["rejected"] == 1
        assert found["unmatched"] == 1
        assert found["delivered"] == 2
        assert found["delivered_bytes"] >= len(b"a 1\na 2\n")
        assert found["connections"] == {"tcp": 2}
        assert found["lifetime"] == 2
        assert found["tag_sets"] == 2
        assert found["history"]["newest"] == found["history"]["messages"] == 3
        assert found["history"]["first"] == 1
        assert found["history"]["bytes"] > 0
        assert found["history"]["failing"] is False
        assert found["history"]["epoch"] == server.hub.sequencer.epoch
        await reader.aclose()
        await writer.aclose()


async def test_it_says_how_much_may_wait_for_one_connection(tmp_path):
    async with running(tmp_path, listen=LISTEN, outbox_bytes=123_456) as server:
        assert (await stats(server))["outbox_limit"] == 123_456


async def test_totals_outlive_the_connections_they_come_from(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        reader = await dial(server, b"subscribe a\npublish a 1\n")
        before = await stats(server)
        await reader.aclose()
        await until(lambda: not server.hub.sessions.connected)
        after = await stats(server)
    assert before["delivered"] == after["delivered"] == 1
    assert after["delivered_bytes"] == before["delivered_bytes"]
    assert after["connections"] == {}
    assert after["lifetime"] == 1


async def test_tags_that_are_published_most_come_first(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        peer = await dial(server, b"publish often 1\n" * 3 + b"publish often,seldom 1\n")
        for _ in range(30):
            server.hub.publish(frozenset(["often"]), b"x")
        tags = [each["tag"] for each in (await stats(server))["top_tags"]]
        assert tags[0] == "often"
        assert all(each["published_rate"] > 0 for each in (await stats(server))["top_tags"])
        await peer.aclose()


@pytest.mark.parametrize("history", ["none", "memory://"])
async def test_each_tag_of_a_burst_counts_as_often_as_it_came(tmp_path, history):
    # One look before and one behind each burst, as the dashboard looks at them.
    burst = b"".join([b"publish all,t%d x\n" % n for n in range(86)] * 2)
    burst += b"publish all,hot x\n" * 28
    async with running(tmp_path, listen=LISTEN, history=history) as server:
        peer = await dial(server)
        for _ in range(3):
            await stats(server)
            await peer.send_all(burst + b"ping\n")
            await peer.receive_some()
        top = (await stats(server))["top_tags"]
        rates = {each["tag"]: each["published_rate"] for each in top}
        assert [each["tag"] for each in top[:2]] == ["all", "hot"]
        assert rates["hot"] / rates["all"] == pytest.approx(28 / 200, rel=0.001)
        assert rates["t0"] / rates["all"] == pytest.approx(2 / 200, rel=0.001)
        await peer.aclose()


async def test_the_slowest_are_named_with_what_is_queued_for_them(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        peers = [await dial(server, b"subscribe t%d\n" % n) for n in range(25)]
        for n, session in enumerate(server.hub.sessions):
            session.outbox.flush = lambda: None  # a peer whose socket takes nothing
            server.hub.publish(frozenset([f"t{n}"]), b"x" * (n + 1))
        slowest = (await stats(server))["slowest"]
        assert len(slowest) == 20
        assert slowest[0]["queued"] == slowest[0]["subscriptions"] == 1
        sizes = [each["queued_bytes"] for each in slowest]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 0
        assert slowest[0]["name"].startswith("tcp-")
        assert slowest[0]["token"] is None
        assert slowest[0]["behind"] is False
        for peer in peers:
            await peer.aclose()


async def test_it_says_how_far_the_archive_is(tmp_path):
    settings = {"listen": LISTEN, "history": "memory://"}
    async with running(tmp_path / "one", **settings) as server:
        assert (await stats(server))["history"]["sealed"] is None
    async with running(tmp_path / "two", archive=tmp_path / "archive", **settings) as server:
        await server.hub.store(frozenset("a"), b"1")
        assert (await stats(server))["history"]["sealed"] == 0
        await server.hub.sealer.seal_now()
        assert (await stats(server))["history"]["sealed"] == 1


async def test_a_log_that_fails_is_told_and_the_rest_still_answers(tmp_path, monkeypatch):
    async with running(tmp_path, listen=LISTEN, history="memory://") as server:

        async def fail():
            await trio.lowlevel.checkpoint()
            raise HistoryUnavailable

        monkeypatch.setattr(server.hub.sequencer.history, "statistics", fail)
        history = (await stats(server))["history"]
        assert history["failing"] is True
        assert history["messages"] is None
        assert history["bytes"] is None


# who may ask


async def test_the_secret_is_needed_where_there_is_one(tmp_path):
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        server.hub.hub_limits = type(server.hub.hub_limits)(failed_auth_delay=0.0)
        right = {"Authorization": "Bearer s3cret"}
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic czNjcmV0"}, 401),
            ({"X-Auth-Token": "s3cret"}, 401),
            (right, 200),
        ]:
            response = await request(server, "GET", "/v1/stats", headers)
            assert response.status == status, headers
        assert (await request(server, "GET", "/v1/stats?secret=s3cret")).status == 401
        found = (await request(server, "GET", "/v1/stats", right)).json()
        assert found["auth_failures"] == {"http": 2}


async def test_a_token_is_not_enough(tmp_path):
    from mist.commands import Register

    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        await server.hub.registry.execute([Register("t0ken", frozenset("a"))])
        response = await request(server, "GET", "/v1/stats", {"X-Auth-Token": "t0ken"})
        assert (response.status, response.json()["code"]) == (403, "secret_needed")


# adding up


class Peer:
    """Stands in for a session: what the aggregates look at."""

    def __init__(self, hub, name):
        self.name, self.transport, self.peer = name, "tcp", "127.0.0.1"
        self.record, self.subscriptions, self.named_subscriptions = None, (), ()
        self.since, self.ended = 1_700_000_000.0, None
        self.outbox = Outbox(PLAIN, OutboxLimits(), hub.broker.ready)


async def test_totals_never_go_back_while_peers_leave(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        hub = server.hub
        peers = [Peer(hub, f"tcp-{n}") for n in range(3_000)]
        for peer in peers:
            hub.sessions.attach(peer)
            peer.outbox.sent_messages = 5
        seen = []

        async def look():
            for _ in range(5):
                seen.append(await SessionAggregator(hub)._take())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            for peer in reversed(peers):
                await trio.lowlevel.checkpoint()
                hub.sessions.detach(peer)
                peer.outbox.release()
    assert [session_aggregates.delivered["tcp"] for session_aggregates in seen] == [15_000] * 5


async def test_aggregating_many_sessions_lets_others_run_meanwhile(tmp_path):
    async with running(tmp_path, listen=LISTEN) as server:
        for n in range(20_000):
            server.hub.sessions.attach(Peer(server.hub, f"tcp-{n}"))
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await SessionAggregator(server.hub).session_aggregates()
            nursery.cancel_scope.cancel()
    assert turns >= 15


@pytest.mark.parametrize("asked", [1, 50])
async def test_many_who_ask_at_once_cost_little_more_than_one(tmp_path, asked):
    async with running(tmp_path, listen=LISTEN) as server:
        for n in range(5_000):
            server.hub.sessions.attach(Peer(server.hub, f"tcp-{n}"))
        taker = SessionAggregator(server.hub)
        taken = 0
        take = taker._take

        async def counted():
            nonlocal taken
            taken += 1
            return await take()

        taker._take = counted
        for _ in range(asked):
            assert (await taker.session_aggregates()).connections == {"tcp": 5_000}
        assert taken == 1
        taker._taken = -math.inf
        await taker.session_aggregates()
        assert taken == 2
