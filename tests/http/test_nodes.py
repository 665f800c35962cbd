"""Nodes of one engine, as operators and clients see them."""

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.members import BeatReply
from mist.engine.opening import open_engine
from mist.server import Server
from mist.sessions import questions
from mist.sessions.node_sequencer import NodeSequencer
from mist.version import __version__
from tests.http.client import request
from tests.http.test_stats import dial
from tests.servers import listeners, port_of, running
from tests.waiting import until

LISTEN = listeners("tcp", "http")

Nodes = Callable[..., AbstractAsyncContextManager[list[Server]]]


@pytest.fixture
def realm() -> str:
    return f"memory://{secrets.token_hex(4)}"


@pytest.fixture
def realm_of(tmp_path: Path, realm: str) -> Nodes:
    """Runs so many nodes of the realm, for the length of a block."""

    @asynccontextmanager
    async def realm_of(count: int, **settings: Any) -> AsyncIterator[list[Server]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    running(
                        tmp_path / f"n{number}",
                        listen=LISTEN,
                        history="memory://",
                        engine=realm,
                        node=f"n{number}",
                        **settings,
                    )
                )
                for number in range(1, count + 1)
            ]

    return realm_of


async def nodes(server: Server) -> list[dict[str, Any]]:
    response = await request(server, "GET", "/v1/nodes")
    assert response.status == 200
    found = response.json()
    assert found["engine"] is True
    return list(found["nodes"])


Found = list[dict[str, Any]]


async def nodes_when(server: Server, condition: Callable[[Found], bool]) -> Found:
    """What a node lists, once that fulfils a condition."""
    with trio.fail_after(15):
        while True:
            found = await nodes(server)
            if condition(found):
                return found
            await trio.sleep(0.02)


async def ask(server: Server, line: bytes) -> bytes:
    """The line that answers a command of a service."""
    with trio.fail_after(10):
        port = port_of(server.urls[0])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(line)
            answer = b""
            while not answer.endswith(b"\n"):
                answer += await stream.receive_some()
    return answer


async def break_members(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that is asked of the members of a node's engine fail, its heartbeats among it."""
    assert server.hub.nodes is not None

    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise EngineUnavailable("at 10.0.0.7")

    for name in ("all", "beat", "ask"):
        monkeypatch.setattr(server.hub.nodes._beats._members, name, fail)
    with trio.fail_after(15):
        while True:
            if (await request(server, "GET", "/v1/nodes")).status != 200:
                break
            await trio.sleep(0.02)


# /v1/nodes


async def test_a_server_without_an_engine_is_its_only_node(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        response = await request(server, "GET", "/v1/nodes")
        [node] = response.json()["nodes"]
        assert response.json()["engine"] is False
        assert node["here"] is True
        assert node["status"] == "ready"
        assert node["name"].endswith(f":{port_of(server.urls[0])}")
        assert (await request(server, "GET", "/readyz")).status == 200


async def test_each_node_lists_all(realm_of: Nodes) -> None:
    async with realm_of(2, advertise="https://one.example") as [one, two]:
        peer = await dial(two, b"subscribe a\nsubscribe a,b\n")
        await one.hub.store(frozenset("a"), b"1")
        await until(lambda: two.hub.sequencer.newest == 1)
        for server in (one, two):
            found = await nodes_when(
                server,
                lambda found: [each["newest"] + each["tag_sets"] for each in found] == [1, 3],
            )
            assert [each["name"] for each in found] == ["n1", "n2"]
            assert [each["here"] for each in found] == [server is one, server is two]
            assert {each["status"] for each in found} == {"ready"}
            assert {each["version"] for each in found} == {__version__}
            assert [each["advertise"] for each in found] == ["https://one.example"] * 2
            assert [each["newest"] for each in found] == [1, 1]
            assert [each["offset"] for each in found] == [1, 1]
            assert [each["sessions"] for each in found] == [0, 1]
            assert [each["tag_sets"] for each in found] == [0, 2]
            assert [each["connections"] for each in found] == [{}, {"tcp": 1}]
            assert all(0 <= each["age"] < 1 and each["lag"] == 0 for each in found)
            assert len({each["id"] for each in found}) == 2
        await peer.aclose()


async def test_one_that_is_silent_is_listed_as_such(realm_of: Nodes, realm: str) -> None:
    async with realm_of(1) as [one]:
        async with await open_engine(realm) as engine:
            await engine.members.beat("other", json.dumps({"name": "x\n", "newest": 7}).encode())
            await engine.members.beat("later version", b'{"name": 3, "more": []}')
            found = await nodes_when(one, lambda found: found[-1]["status"] == "silent")
        assert [each["name"] for each in found] == ["later version", "n1", "x\n"]
        assert found[2]["newest"] == 7
        assert 2 < found[2]["age"] < 10
        assert found[1]["status"] == "ready"
        assert await ask(one, b"who\n") == b"who 1 1\n"


async def test_an_engine_that_does_not_answer_is_told(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with realm_of(1) as [one]:
        await break_members(one, monkeypatch)
        response = await request(one, "GET", "/v1/nodes")
        assert (response.status, response.json()["code"]) == (503, "engine_unavailable")
        assert response.json()["detail"] == EngineUnavailable.message
        # One that serves goes on to serve.
        peer = await dial(one, b"subscribe b\n")
        assert await ask(one, b"who\n") == b"who 2 2\n"
        assert await ask(one, b"listall\n") == b"listall b\n"
        await peer.aclose()


async def test_only_services_may_ask(realm_of: Nodes) -> None:
    async with realm_of(1, secret="geheim", failed_auth_delay=0.0) as [one]:
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer geheim"}, 200),
        ]:
            assert (await request(one, "GET", "/v1/nodes", headers)).status == status


# Readiness


async def test_one_that_is_far_behind_is_not_ready_until_it_has_caught_up(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with realm_of(1) as [one]:
        sequencer = one.hub.sequencer
        assert isinstance(sequencer, NodeSequencer)
        with monkeypatch.context() as broken:
            await break_members(one, broken)
            sequencer.note_beat(BeatReply(4_000_000_000.0, 0, ()))
            sequencer.note_beat(BeatReply(4_000_000_010.0, 1, ()))
            assert (await request(one, "GET", "/readyz")).status == 200
            sequencer.note_beat(BeatReply(4_000_000_012.0, 1, ()))
            response = await request(one, "GET", "/readyz")
            assert (response.status, response.json()["code"]) == (503, "catching_up")
            assert response.json()["detail"] == "it is 12 s behind other nodes"
            assert (one.describe().not_ready, one.describe().lag) == ("catching_up", 12.0)
        await until(lambda: sequencer.lag == 0)  # the next heartbeat says that nothing is lacking
        assert (await request(one, "GET", "/readyz")).status == 200


async def test_a_log_that_can_not_be_reached_is_told_though_nothing_is_published(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise EngineUnavailable("at 10.0.0.7")

    async def until_failing(wanted: bool) -> None:
        with trio.fail_after(15):
            while True:
                found = (await request(one, "GET", "/v1/stats")).json()
                if found["history"]["failing"] is wanted:
                    break
                await trio.sleep(0.02)

    async with realm_of(1) as [one]:
        sequencer = one.hub.sequencer
        assert isinstance(sequencer, NodeSequencer)
        await until_failing(False)
        with monkeypatch.context() as broken:
            broken.setattr(sequencer._follower._engine, "read", fail)
            await ask(one, b"publish a ends the read that waits\nping\n")
            await until_failing(True)
            response = await request(one, "GET", "/readyz")
            assert (response.status, response.json()["code"]) == (503, "history_unavailable")
        await until_failing(False)


# Commands that are answered for all nodes


async def test_who_counts_the_sessions_of_all_nodes(realm_of: Nodes) -> None:
    async with realm_of(3) as servers:
        peers = [await dial(server) for server in servers for _ in range(2)]
        await peers.pop().aclose()
        for server in servers:
            with trio.fail_after(15):
                # Who asks is one of them; others who have asked are gone but counted.
                while True:
                    if (await ask(server, b"who\n")).startswith(b"who 6 "):
                        break
                    await trio.sleep(0.02)
        for peer in peers:
            await peer.aclose()


async def test_listall_has_the_tags_of_all_nodes(realm_of: Nodes) -> None:
    async with realm_of(2) as [one, two]:
        peers = [
            await dial(one, b"subscribe b\nsubscribe a,c\n"),
            await dial(two, "subscribe ä\nsubscribe c\n".encode()),
        ]
        for server in (one, two):
            assert await ask(server, b"listall\n") == "listall a b c ä\n".encode()
        for peer in peers:
            await peer.aclose()


async def test_listall_is_whole_though_it_takes_many_answers(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_ANSWER", 400)
    async with realm_of(2) as [one, two]:
        tags = [f"tag-{number:03}" for number in range(60)]
        peers = [
            await dial(server, b"".join([b"subscribe %s\n" % tag.encode() for tag in some]))
            for server, some in ((one, tags[::2]), (two, tags[:10] + tags[1::3]))
        ]
        wanted = sorted({*tags[::2], *tags[:10], *tags[1::3]})
        assert await ask(one, b"listall\n") == f"listall {' '.join(wanted)}\n".encode()
        for peer in peers:
            await peer.aclose()


async def test_listall_has_at_once_what_its_own_node_has_and_asks_others_once_a_second(
    realm_of: Nodes,
) -> None:
    async with realm_of(2) as [one, two]:
        there = await dial(two, b"subscribe there\n")
        here = await dial(one)
        with trio.fail_after(10):
            for number in range(50):
                await here.send_all(b"subscribe t%02d\nlistall\n" % number)
                answer = b""
                while not answer.endswith(b"\n"):
                    answer += await here.receive_some()
                tags = answer.split()[1:]
                assert tags == sorted([*[b"t%02d" % each for each in range(number + 1)], b"there"])
        assert one.hub.nodes is not None
        assert len(one.hub.nodes._beats._asked) <= 2
        for peer in (here, there):
            await peer.aclose()


async def test_listall_goes_on_without_a_node_that_does_not_answer(
    realm_of: Nodes, realm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with realm_of(1) as [one]:
        peer = await dial(one, b"subscribe a\n")
        async with await open_engine(realm) as engine:
            await engine.members.beat("deaf", b"{}")
            assert await ask(one, b"listall\n") == b"listall a\n"
        [record] = [each for each in caplog.records if "have not answered" in each.message]
        assert record.__dict__["nodes"] == ["deaf"]
        await peer.aclose()


# Lists of all nodes


async def every(server: Server, name: str, limit: int) -> tuple[Found, int]:
    """All pages of a list, joined; and how many entries there are said to be."""
    found: Found = []
    after, count = "", 0
    while after is not None:
        query = f"limit={limit}" + (f"&after={quote(after)}" if after else "")
        response = await request(server, "GET", f"/v1/{name}?{query}")
        assert response.status == 200
        page = response.json()
        assert page["missing"] == []
        assert 1 <= len(page[name]) <= limit
        found += page[name]
        after, count = page["next"], page["count"]
    return found, count


async def test_connections_of_all_nodes_are_listed_page_by_page(realm_of: Nodes) -> None:
    async with realm_of(3) as servers:
        peers = [await dial(server) for server in servers for _ in range(3)]
        wanted = {
            (session.name, f"n{number}")
            for number, server in enumerate(servers, 1)
            for session in server.hub.sessions
        }
        for limit in (2, 100):
            found, count = await every(servers[0], "connections", limit)
            assert count == len(found) == 9
            assert {(each["name"], each["node"]) for each in found} == wanted
            numbers = [int(each["name"].partition("-")[2]) for each in found]
            assert numbers == sorted(numbers)
        here = (await request(servers[1], "GET", "/v1/connections?nodes=here")).json()
        assert [each["node"] for each in here["connections"]] == ["n2"] * 3
        assert (here["count"], here["next"]) == (3, None)
        for peer in peers:
            await peer.aclose()


async def test_subscriptions_and_tags_of_all_nodes_are_listed_page_by_page(
    realm_of: Nodes,
) -> None:
    async with realm_of(2) as [one, two]:
        lines = b"".join([b"subscribe a,t%02d\n" % number for number in range(12)])
        peers = [await dial(one, lines), await dial(two, lines), await dial(two, b"subscribe a\n")]
        for limit in (5, 100):
            found, count = await every(one, "subscriptions", limit)
            assert count == len(found) == 25
            keys = [(-each["subscribers"], ",".join(each["tags"])) for each in found]
            assert keys == sorted(keys)
            assert len({(*each["tags"], each["node"]) for each in found}) == 25
            found, count = await every(two, "tags", limit)
            assert count == len(found) == 26
            assert found[0] == {"tag": "a", "subscriptions": 13, "node": "n2"}
            assert found[1] == {"tag": "a", "subscriptions": 12, "node": "n1"}
        for peer in peers:
            await peer.aclose()


async def test_a_list_is_whole_though_answers_have_to_be_short(
    realm_of: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_ANSWER", 200)
    async with realm_of(2) as [one, two]:
        lines = b"".join([b"subscribe long-tag-%02d\n" % number for number in range(20)])
        peers = [await dial(one, lines), await dial(two, lines)]
        found, count = await every(one, "subscriptions", 40)
        assert count == 40
        assert sorted([(each["tags"][0], each["node"]) for each in found]) == sorted(
            [(f"long-tag-{number:02}", node) for number in range(20) for node in ("n1", "n2")]
        )
        for peer in peers:
            await peer.aclose()


async def test_a_page_may_begin_behind_the_longest_tag_set(realm_of: Nodes) -> None:
    async with realm_of(1) as [one]:
        peer = await dial(one, b"subscribe z\n")
        for place in ("2:" + "a" * 5_000, "2:" + "ä" * 2_500):
            response = await request(one, "GET", f"/v1/subscriptions?after={quote(place)}")
            assert response.status == 200
            assert [each["tags"] for each in response.json()["subscriptions"]] == [["z"]]
        await peer.aclose()


async def test_a_list_names_the_nodes_that_do_not_answer(realm_of: Nodes, realm: str) -> None:
    async with realm_of(1) as [one], await open_engine(realm) as engine:
        peer = await dial(one, b"subscribe a\n")
        await engine.members.beat("f" * 16, b'{"name": "deaf"}')
        page = (await request(one, "GET", "/v1/subscriptions")).json()
        assert page["subscriptions"] == [{"tags": ["a"], "subscribers": 1, "node": "n1"}]
        assert page["missing"] == ["deaf"]
        await peer.aclose()


# Metrics


async def test_metrics_of_the_engine(realm_of: Nodes) -> None:
    async with realm_of(2, open_metrics=True) as [one, _]:
        await one.hub.store(frozenset("a"), b"1")
        with trio.fail_after(15):
            while True:
                text = (await request(one, "GET", "/metrics")).body
                if b"mist_engine_members 2.0" in text:
                    break
                await trio.sleep(0.02)
        assert b"mist_engine_lag_seconds 0.0" in text
        assert b"mist_engine_append_seconds_count 1.0" in text
