"""Long polling, by a real client of a real server."""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from mist.broker import matches
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import AddTags, Register, RemoveTags, Unregister
from mist.errors import HistoryUnavailable
from mist.history import Policy
from mist.protocols.line.forms import PLAIN
from mist.server import Server
from tests.http.client import Response, connect, request, stalled_connection
from tests.http.damage import LARGE, damage, keeping
from tests.servers import listeners, running
from tests.transports.lines import talk
from tests.waiting import until

TOKEN = "t0ken-that-no-log-may-hold"
WITH_TOKEN = {"X-Auth-Token": TOKEN}
LISTEN = listeners("tcp", "http")
A, B = frozenset({"a"}), frozenset({"b"})


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {
        "listen": LISTEN,
        "history": "memory://",
        "secret": "s3cret",
        "token_rate": 10_000,
        "grants": {TOKEN: {"a", "b", "room:*"}},
    }


async def poll(server: Server, query: str, headers: dict[str, str] = WITH_TOKEN) -> Any:
    """What an answer holds."""
    response = await ask(server, query, headers)
    assert response.status == 200, response
    return response.json()


async def ask(server: Server, query: str, headers: dict[str, str] = WITH_TOKEN) -> Response:
    return await request(server, "GET", f"/v1/poll?{query}", headers)


async def waiting(server: Server) -> None:
    """Until a poll waits for what comes."""
    await until(lambda: server.hub.broker.tag_sets() > 0)
    await trio.testing.wait_all_tasks_blocked(0.01)


def epoch_of(server: Server) -> str:
    assert server.hub.sequencer is not None
    return server.hub.sequencer.epoch


# what comes


async def test_what_was_comes_at_once_and_says_where_to_go_on(server: Server) -> None:
    await server.hub.store(frozenset({"b", "a"}), b"one")
    await server.hub.store(frozenset({"c"}), b"not wanted")
    await server.hub.store(A, b"\xff")
    await server.hub.store(frozenset({"c"}), b"not wanted")
    answer = await poll(server, "tags=a&since=0")
    assert answer == {
        "epoch": epoch_of(server),
        "id": 4,
        "recovered": True,
        "messages": [
            {"keys": ["a", "b"], "data": "one", "id": 1},
            {"keys": ["a"], "data64": "/w==", "id": 3},
        ],
    }
    place = f"{answer['epoch']}:{answer['id']}"
    again = await poll(server, f"tags=a&since={place}&timeout=0")
    assert (again["messages"], again["id"], again["recovered"]) == ([], 4, True)


@pytest.mark.parametrize("query", ["tags=a", "tags=b&tags=a&since=0", "tags=a&since=-3"])
async def test_what_comes_is_waited_for(server: Server, query: str) -> None:
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, query))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(server)
        await server.hub.store(frozenset({"other"}), b"not wanted")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not answers
        await server.hub.store(A, b"x")
    assert [each["data"] for each in answers[0]["messages"]] == ["x"]
    assert (answers[0]["id"], answers[0]["recovered"]) == (2, True)


async def test_nothing_by_the_end_of_the_timeout_is_an_empty_answer(server: Server) -> None:
    began = trio.current_time()
    answer = await poll(server, "tags=a&timeout=0.3")
    assert 0.3 <= trio.current_time() - began < 10
    assert answer == {"epoch": epoch_of(server), "id": 0, "recovered": True, "messages": []}


async def test_an_empty_answer_has_moved_on_past_what_was_not_wanted(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    read = history.read
    reads = 0

    async def read_before_more_comes(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        page = await read(*args, **options)
        await server.hub.store(frozenset({"c"}), b"x")
        return page

    history.read = read_before_more_comes  # type: ignore[method-assign]
    answer = await poll(server, "tags=a&since=0&timeout=0.01")
    assert reads == 1
    assert (answer["id"], answer["messages"]) == (1, [])


async def test_a_poll_whose_time_is_over_moves_past_nothing_that_is_being_delivered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "WIDE", 8)

    class Slow(Outbox):
        """One of very many who get a message before the poll does."""

        def put(self, wire: bytes, count: int) -> bool:
            time.sleep(0.001)
            return super().put(wire, count)

    others = [Slow(PLAIN, OutboxLimits(), []) for _ in range(400)]
    for each in others:
        server.hub.broker.subscribe(each, A)
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a&timeout=0.5"))
        assert others[0].queued > others[-1].queued  # it was answered on the way

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await until(lambda: server.hub.sessions.connected == 1)
        await trio.sleep(0.25)
        await server.hub.store(A, b"x")
    place = f"{answers[0]['epoch']}:{answers[0]['id']}"
    answers.append(await poll(server, f"tags=a&timeout=0&since={place}"))
    assert [each["data"] for answer in answers for each in answer["messages"]] == ["x"]


async def test_what_comes_while_an_answer_is_read_counts_as_no_loss(server: Server) -> None:
    for _ in range(16):
        await server.hub.store(A, bytes(60_000))
    async with stalled_connection(server) as client:
        await client.send_request("GET", "/v1/poll?tags=a&since=0", WITH_TOKEN)
        await until(lambda: server.hub.broker.tag_sets() > 0)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert server.hub.sessions.connected == 1  # who is being answered
        await server.hub.store(A, b"x")
        assert server.hub.broker.statistics().dropped == {}


async def test_what_is_not_wanted_wakes_no_poll(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    read = history.read
    reads = 0

    async def counted_read(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        # Always something new by the time that all before it has been read.
        await server.hub.store(frozenset({"c"}), b"x")
        return await read(*args, **options)

    history.read = counted_read  # type: ignore[method-assign]
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a&timeout=60"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(server)
        for _ in range(20):
            await server.hub.store(frozenset({"c"}), b"x")
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert reads == 1
        await server.hub.store(A, b"x")
    assert len(answers[0]["messages"]) == 1
    assert reads == 2


@pytest.mark.parametrize(
    ("since", "expected", "recovered"),
    [
        ("0", "12345", True),
        ("3", "45", True),
        ("6", "12345", False),
        ("-2", "45", True),
        ("-99", "12345", True),
        ("EPOCH:4", "5", True),
        ("EPOCH:0", "12345", True),
        ("other:4", "12345", False),
        ("other:0", "12345", False),
    ],
)
async def test_a_poll_begins_where_it_is_told_to(
    server: Server, since: str, expected: str, recovered: bool
) -> None:
    for data in b"12345":
        await server.hub.store(A, bytes([data]))
    query = f"tags=a&timeout=0&since={since.replace('EPOCH', epoch_of(server))}"
    answer = await poll(server, query)
    assert "".join(each["data"] for each in answer["messages"]) == expected
    assert (answer["id"], answer["recovered"]) == (5, recovered)


async def test_a_last_event_id_wins_as_on_a_stream(server: Server) -> None:
    for data in b"12":
        await server.hub.store(A, bytes([data]))
    headers = WITH_TOKEN | {"Last-Event-ID": f"{epoch_of(server)}:1"}
    answer = await poll(server, "tags=a&since=0", headers)
    assert [each["data"] for each in answer["messages"]] == ["2"]


async def test_a_gap_is_told_at_once_though_nothing_else_is_there(server: Server) -> None:
    began = trio.current_time()
    answer = await poll(server, "tags=a&since=other:4&timeout=60")
    assert trio.current_time() - began < 10
    assert (answer["recovered"], answer["messages"], answer["id"]) == (False, [], 0)


async def test_what_was_trimmed_between_two_polls_is_a_gap(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    for n in range(10):
        await server.hub.store(A, b"%d" % n)
    answer = await poll(server, "tags=a&since=-5")
    assert answer["recovered"]
    place = f"{answer['epoch']}:5"
    while (await history.trim(Policy(0.0, 0, None, ()), now=4e9)).more:
        pass
    answer = await poll(server, f"tags=a&since={place}&timeout=0")
    assert (answer["recovered"], answer["messages"], answer["id"]) == (False, [], 10)
    # What everybody knows to be gone is none.
    for since in ("0", "-5", f"{answer['epoch']}:10"):
        assert (await poll(server, f"tags=a&since={since}&timeout=0"))["recovered"]


async def test_what_is_trimmed_before_it_was_read_is_a_gap(server: Server) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    for n in range(10):
        await server.hub.store(A, b"%d" % n)
    read = history.read

    async def late_read(*args: Any, **options: Any) -> Any:
        while (await history.trim(Policy(0.0, 0, None, ()), now=4e9)).more:
            pass
        return await read(*args, **options)

    history.read = late_read  # type: ignore[method-assign]
    answer = await poll(server, f"tags=a&since={epoch_of(server)}:5&timeout=0")
    assert (answer["recovered"], answer["messages"]) == (False, [])


# how much


async def test_what_is_damaged_is_a_gap_at_its_place_and_what_lies_behind_comes(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as server:
        for _ in range(8):
            await server.hub.store(A, LARGE)
        damage(tmp_path, 3, 4, 6, 8)
        found = []
        place = "0"
        for _ in range(4):
            answer = await poll(server, f"tags=a&since={place}&timeout=5", {})
            ids = [each["id"] for each in answer["messages"]]
            found.append((answer["recovered"], ids, answer["id"]))
            place = f"{answer['epoch']}:{answer['id']}"
        assert found == [
            (True, [1, 2], 2),
            (False, [5], 5),
            (False, [7], 7),
            (False, [], 8),
        ]
        answer = await poll(server, f"tags=a&since={place}&timeout=0", {})
        assert (answer["recovered"], answer["id"]) == (True, 8)


async def test_of_the_last_so_many_those_behind_the_damage_come(tmp_path: Path) -> None:
    async with keeping(tmp_path) as server:
        for _ in range(4):
            await server.hub.store(A, LARGE)
        damage(tmp_path, 2)
        answer = await poll(server, "tags=a&since=-2", {})
        assert (answer["recovered"], [each["id"] for each in answer["messages"]]) == (True, [3, 4])
        answer = await poll(server, "tags=a&since=-3", {})
        assert (answer["recovered"], [each["id"] for each in answer["messages"]]) == (False, [3, 4])


async def test_damage_to_what_is_not_wanted_is_no_gap(tmp_path: Path) -> None:
    async with keeping(tmp_path) as server:
        await server.hub.store(A, LARGE)
        await server.hub.store(B, LARGE)
        await server.hub.store(A, LARGE)
        damage(tmp_path, 2)
        answer = await poll(server, "tags=a&since=0", {})
        assert (answer["recovered"], [each["id"] for each in answer["messages"]]) == (True, [1, 3])


async def test_a_large_answer_is_a_part_and_says_where_to_go_on(server: Server) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2_500):
            nursery.start_soon(server.hub.store, A, b"x")
    seen: list[int] = []
    counts = []
    place = "0"
    while len(counts) < 4:
        answer = await poll(server, f"tags=a&since={place}&timeout=0")
        counts.append(len(answer["messages"]))
        seen += [each["id"] for each in answer["messages"]]
        place = f"{answer['epoch']}:{answer['id']}"
    assert counts == [1_000, 1_000, 500, 0]
    assert seen == list(range(1, 2_501))


@pytest.mark.parametrize("data", [b"x" * 300_000, b"\xff" * 300_000, b"\n" * 300_000])
async def test_an_answer_holds_about_a_mebibyte(server: Server, data: bytes) -> None:
    for _ in range(10):
        await server.hub.store(A, data)
    seen: list[int] = []
    place = "0"
    while len(seen) < 10:
        response = await ask(server, f"tags=a&since={place}")
        assert len(response.body) < (1 << 20) + 10_000
        answer = response.json()
        assert answer["messages"]
        seen += [each["id"] for each in answer["messages"]]
        place = f"{answer['epoch']}:{answer['id']}"
    assert seen == list(range(1, 11))


async def test_a_message_that_is_larger_than_an_answer_comes_alone(server: Server) -> None:
    await server.hub.store(A, b"small")
    await server.hub.store(A, b"\x00" * (1 << 20))
    await server.hub.store(A, b"small")
    ids = []
    place = "0"
    for _ in range(3):
        answer = await poll(server, f"tags=a&since={place}")
        ids.append([each["id"] for each in answer["messages"]])
        place = f"{answer['epoch']}:{answer['id']}"
    assert ids == [[1], [2], [3]]


async def test_runs_of_a_batch_are_cut_where_an_answer_is_full(server: Server) -> None:
    async with talk(server) as service:
        await service.ask(b"auth s3cret\n")
        lines = b"".join(b"publish a %d\n" % n for n in range(3_000))
        await service.ask(lines)
    seen = []
    place = "0"
    while len(seen) < 3_000:
        answer = await poll(server, f"tags=a&since={place}")
        assert len(answer["messages"]) <= 1_000
        seen += [each["data"] for each in answer["messages"]]
        place = f"{answer['epoch']}:{answer['id']}"
    assert seen == [str(n) for n in range(3_000)]


async def test_a_long_stretch_without_a_match_is_searched_to_its_end(tmp_path: Path) -> None:
    settings = {"history": f"sqlite:///{tmp_path}/history.db", "durability": "process"}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        with trio.fail_after(60):
            await server.hub.store(A, b"first")
            async with talk(server) as service:
                for n in range(100):
                    await service.ask(b"publish c %d\n" % n + b"publish b x\n" * 100)
            await server.hub.store(A, b"last")
            answer = await poll(server, "tags=a&since=1&timeout=0", {})
            assert [each["data"] for each in answer["messages"]] == ["last"]
            answer = await poll(server, "tags=a&tags=c&since=-1&timeout=0", {})
            assert [each["data"] for each in answer["messages"]] == ["last"]


async def test_polls_beside_publishers_lose_nothing_and_repeat_nothing(server: Server) -> None:
    random = Random(1)
    stored: list[int] = []
    published = trio.Event()

    async def publish(name: int) -> None:
        for n in range(200):
            tags = A if random.random() < 0.7 else frozenset({"c"})
            id_ = await server.hub.store(tags, b"%d.%d" % (name, n))
            if tags is A:
                stored.append(id_)
            if random.random() < 0.2:
                await trio.sleep(random.random() / 50)

    async def follow() -> None:
        seen: list[int] = []
        place = "0"
        async with connect(server) as client:
            while not (published.is_set() and len(seen) == len(stored)):
                timeout = random.choice(["0", "0.01", "0.2"])
                query = f"/v1/poll?tags=a&timeout={timeout}&since={place}"
                answer = (await client.request("GET", query, WITH_TOKEN)).json()
                assert answer["recovered"]
                seen += [each["id"] for each in answer["messages"]]
                place = f"{answer['epoch']}:{answer['id']}"
        assert seen == sorted(stored)

    async with trio.open_nursery() as followers:
        for _ in range(5):
            followers.start_soon(follow)
        async with trio.open_nursery() as publishers:
            for name in range(4):
                publishers.start_soon(publish, name)
        published.set()


async def test_a_poll_that_outgrows_its_outbox_wakes_all_the_same(tmp_path: Path) -> None:
    settings = {"history": "memory://", "outbox_messages": 1}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        with trio.fail_after(30):
            answers: list[Any] = []

            async def wait() -> None:
                answers.append(await poll(server, "tags=a", {}))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await waiting(server)
                async with talk(server) as service:
                    await service.ask(b"publish a x\n" * 50)
            assert answers[0]["messages"]
            assert server.hub.broker.statistics().dropped == {}


async def test_messages_of_a_poll_count_once_as_delivered(server: Server) -> None:
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(server)
        await server.hub.store(A, b"1")
    assert len(answers[0]["messages"]) == 1
    await until(lambda: not server.hub.sessions.connected)
    assert server.hub.sessions.gone_messages["poll"] == 1


# who gets in


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("tags=a", {}, (401, "unauthorized")),
        ("tags=a", {"X-Auth-Token": "nobody's"}, (401, "unauthorized")),
        ("tags=a&ticket=x", WITH_TOKEN, (400, "two_credentials")),
        ("tags=a&ticket=x", {}, (401, "unauthorized")),
        ("tags=c", WITH_TOKEN, (403, "not_granted")),
        ("tags=a&tags=c&since=0", WITH_TOKEN, (403, "not_granted")),
        ("", WITH_TOKEN, (400, "empty_tag")),
        ("tags=a*", WITH_TOKEN, (400, "invalid_tag")),
        ("tags=a&since=x", WITH_TOKEN, (400, "invalid_position")),
        ("tags=a&timeout=61", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=60.01", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=-1", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=nan", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=1e1", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=٣", WITH_TOKEN, (400, "invalid_timeout")),
        ("tags=a&timeout=1&timeout=2", WITH_TOKEN, (400, "invalid_query")),
        ("tags=%ff", WITH_TOKEN, (400, "invalid_query")),
        ("tags=a&" * 1_001, WITH_TOKEN, (429, "too_many_subscriptions")),
    ],
)
async def test_what_can_not_be_is_refused_with_a_code(
    server: Server, query: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    query = query.replace("٣", "%D9%A3")
    response = await ask(server, query, headers)
    assert (response.status, response.json()["code"]) == expected
    assert server.hub.sessions.connected == 0
    assert server.hub.broker.tag_sets() == 0


async def test_there_is_no_polling_without_a_history(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN) as server:
        response = await ask(server, "tags=a", {})
        assert (response.status, response.json()["code"]) == (409, "history_off")


async def test_a_poll_can_only_be_got(server: Server) -> None:
    assert (await request(server, "HEAD", "/v1/poll?tags=a", WITH_TOKEN)).status == 405
    assert (await request(server, "POST", "/v1/poll", WITH_TOKEN, json={})).status == 405


async def test_a_token_has_so_many_waiting_polls_and_no_more(tmp_path: Path) -> None:
    settings = {"history": "memory://", "max_connections_per_address": 2}
    async with running(tmp_path, listen=LISTEN, **settings) as server:
        await server.hub.registry.execute([Register(TOKEN, A)])
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(poll, server, "tags=a")
                await until(lambda: server.hub.sessions.connected == 2)
                response = await ask(server, "tags=a")
                assert (response.status, response.json()["code"]) == (429, "too_many_streams")
                assert "retry-after" in response.headers
                await server.hub.store(A, b"x")
            # A poll is over a moment after its answer.
            await until(lambda: server.hub.sessions.connected == 0)
            assert (await poll(server, "tags=a&since=0"))["messages"]


# revocation, and other ends


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([Unregister(TOKEN)], (401, "unauthorized")),
        ([RemoveTags(TOKEN, frozenset({"a", "b", "room:*"}))], (401, "unauthorized")),
        ([RemoveTags(TOKEN, frozenset({"a", "b"}))], (403, "not_granted")),
    ],
)
async def test_a_revocation_ends_a_waiting_poll_at_once(
    server: Server, changes: list[Any], expected: tuple[int, str]
) -> None:
    responses: list[Response] = []

    async def wait(query: str) -> None:
        responses.append(await ask(server, query))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "tags=a&tags=b&timeout=60")
        nursery.start_soon(wait, "tags=a&since=0&timeout=60")
        await until(lambda: server.hub.sessions.connected == 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await server.hub.registry.execute(changes)
        assert all(session.ended is not None for session in server.hub.sessions)
        began = trio.current_time()
    assert trio.current_time() - began < 10
    for response in responses:
        assert (response.status, response.json()["code"]) == expected
    await until(lambda: server.hub.sessions.connected == 0)


async def test_a_poll_that_loses_one_of_its_subscriptions_says_so_at_once(
    server: Server,
) -> None:
    await server.hub.store(A, b"before")
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a&tags=room:1,b&tags=room:1&timeout=60"))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await waiting(server)
            # What it doesn't want, or keeps, is no reason to come back.
            await server.hub.registry.execute([AddTags(TOKEN, frozenset("c"))])
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not answers
            await server.hub.registry.execute([RemoveTags(TOKEN, frozenset({"room:*", "b"}))])
    answers[0]["revoked"].sort()
    assert answers[0] == {
        "epoch": epoch_of(server),
        "id": 1,
        "recovered": True,
        "messages": [],
        "revoked": [["b", "room:1"], ["room:1"]],
    }
    place = f"{answers[0]['epoch']}:{answers[0]['id']}"
    response = await ask(server, f"tags=a&tags=room:1&timeout=60&since={place}")
    assert (response.status, response.json()["code"]) == (403, "not_granted")
    assert "revoked" not in await poll(server, f"tags=a&timeout=0&since={place}")


async def test_what_came_for_the_subscriptions_that_are_left_is_told_with_a_revocation(
    server: Server,
) -> None:
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a&tags=b&timeout=60"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(server)
        # The token loses b while the poll reads what has woken it.
        assert server.hub.sequencer is not None
        history = server.hub.sequencer.history
        read = history.read

        async def slow_read(*args: Any, **options: Any) -> Any:
            page = await read(*args, **options)
            if changes:
                await server.hub.registry.execute(changes.pop())
            return page

        changes: list[Any] = [[RemoveTags(TOKEN, B)]]
        history.read = slow_read  # type: ignore[method-assign]
        await server.hub.store_all([(B, b"not any more"), (A, b"x")], "")
    assert [each["data"] for each in answers[0]["messages"]] == ["x"]
    assert answers[0]["revoked"] == [["b"]]


async def test_a_revocation_while_the_history_is_read_brings_nothing_of_it(
    server: Server,
) -> None:
    assert server.hub.sequencer is not None
    history = server.hub.sequencer.history
    await server.hub.store(A, b"1")
    await server.hub.store(B, b"2")
    read = history.read
    changes = [[RemoveTags(TOKEN, B)], [Unregister(TOKEN)]]

    async def slow_read(*args: Any, **options: Any) -> Any:
        page = await read(*args, **options)
        if change:
            await server.hub.registry.execute(change.pop())
        return page

    history.read = slow_read  # type: ignore[method-assign]
    change: list[Any] = [changes[0]]
    answer = await poll(server, "tags=a&tags=b&since=0&timeout=0")
    assert [each["data"] for each in answer["messages"]] == ["1"]
    change = [changes[1]]
    assert (await ask(server, "tags=a&since=0&timeout=0")).status == 401


async def test_a_client_that_hangs_up_is_noticed(server: Server) -> None:
    async with connect(server) as client:
        await client.send_request("GET", "/v1/poll?tags=a&timeout=60", WITH_TOKEN)
        await waiting(server)
    with trio.fail_after(5):
        await until(lambda: server.hub.sessions.connected == 0)
    assert server.hub.broker.tag_sets() == 0


async def test_a_draining_server_sends_a_waiting_poll_away_with_its_place(
    server: Server,
) -> None:
    await server.hub.store(A, b"x")
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(await poll(server, "tags=a&timeout=60"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(server)
        began = trio.current_time()
        server.drain()
    assert trio.current_time() - began < 10
    assert answers == [{"epoch": epoch_of(server), "id": 1, "recovered": True, "messages": []}]


async def test_a_history_that_can_not_be_read_is_a_refusal_without_its_reasons(
    server: Server,
) -> None:
    assert server.hub.sequencer is not None

    async def broken(*_: object, **__: object) -> object:
        raise HistoryUnavailable("/secret/path is full")

    server.hub.sequencer.history.read = broken  # type: ignore[method-assign,assignment]
    response = await ask(server, "tags=a&since=0")
    assert (response.status, response.json()["code"]) == (503, "history_unavailable")
    assert b"secret" not in response.body


async def test_a_connection_polls_again_and_again_and_is_counted_as_one_poll_at_a_time(
    server: Server,
) -> None:
    async with connect(server) as client:
        for n in range(5):
            await server.hub.store(A, b"%d" % n)
            path = f"/v1/poll?tags=a&since={n}&timeout=0"
            response = await client.request("GET", path, WITH_TOKEN)
            assert [each["data"] for each in response.json()["messages"]] == [str(n)]
            assert response.headers["cache-control"] == "no-store"
    await until(lambda: server.hub.sessions.connected == 0)
    statistics = server.hub.statistics()
    assert (statistics.lifetime, statistics.delivered) == (5, 5)
    assert server.hub.sessions.close_codes == {1000: 5}  # not one that was lost
