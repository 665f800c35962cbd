"""Servers that lie, change their mind or lose their history; programs that change theirs."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from mist.client import (
    AccessDenied,
    Client,
    ConnectError,
    ConnectionLost,
    Gap,
    Revoked,
    State,
    fanout,
    line,
    postponed,
    subscribe_request,
    websocket,
)
from mist.history import Policy
from tests.client.fakes import Fake
from tests.client.loops import begun, connect, next_of, trio_only
from tests.client.test_client import Gate, States
from tests.client.test_history import DIALECTS, Place, place_at, take, take_numbers, until
from tests.servers import port_of, running


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def fake(dialect: str, nursery: trio.Nursery) -> Fake:
    return await nursery.start(Fake(dialect).run)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    with trio.fail_after(120):
        async with place_at(tmp_path) as place:
            yield place


def connected(fake: Fake, **options: object) -> contextlib.AbstractAsyncContextManager[Client]:
    token = "T" if fake.dialect == "ws" else None
    return connect(fake.url, token=token, backoff_base=0.001, **options)  # type: ignore[arg-type]


# what a server says

NO_PLACES = [
    "",
    " x",
    " 5",
    " E",
    " E -1",
    " E 05",
    " E 9007199254740992",
    " a b 5",
    f" {'E' * 256} 5",
]


@pytest.mark.parametrize("rest", NO_PLACES)
async def test_nonsense_for_a_place_ends_that_connection_only(
    rest: str, nursery: trio.Nursery
) -> None:
    fake: Fake = await nursery.start(Fake("tcp").run)
    fake.answers["last"] = lambda connection: ["last" + rest if connection < 3 else "last E 5"]
    with trio.fail_after(5):
        with pytest.raises(
            ConnectError,
            match=r"^the server sent an invalid position; is .+ a tcp listener of mist",
        ):
            async with connected(fake):
                pass
        async with connected(fake, wait=True) as client:
            assert (await client.last()).id == 5
    assert fake.connections == 3


NO_BEGINNINGS: list[dict[str, object]] = [
    {"epoch": "E", "id": "5", "recovered": True},
    {"epoch": "E", "id": 5.5, "recovered": True},
    {"epoch": "E", "id": True, "recovered": True},
    {"epoch": "E", "id": -1, "recovered": True},
    {"epoch": "E", "id": 1 << 53, "recovered": True},
    {"epoch": "a b", "id": 5, "recovered": True},
    {"epoch": None, "id": 5, "recovered": True},
    {"epoch": "E", "recovered": True},
    {"epoch": "E", "id": 5},
]


@pytest.mark.parametrize("nonsense", NO_BEGINNINGS)
async def test_nonsense_for_a_beginning_ends_that_connection_only(
    nonsense: dict[str, object], nursery: trio.Nursery
) -> None:
    fake: Fake = await nursery.start(Fake("ws").run)
    good = {"epoch": "E", "id": 5, "recovered": True}
    fake.answers['{"command": "subscribe"'] = lambda connection: [
        json.dumps(
            {"success": True, "command": "subscribe"} | (nonsense if connection < 3 else good)
        )
    ]
    with trio.fail_after(5):
        async with connected(fake) as client, client.subscribe(["a"]) as subscription:
            await fake.push(fake.deliver(6))
            assert (await anext(subscription)).id == 6
    assert fake.connections == 3


async def test_ids_that_go_backwards_bring_nothing_twice(fake: Fake) -> None:
    with trio.fail_after(5):
        async with connected(fake) as client, client.subscribe(["a"]) as subscription:
            await fake.push(*(fake.deliver(id_) for id_ in (7, 9, 8, 9, 3, 10)))
            assert [(await anext(subscription)).id for _ in range(3)] == [7, 9, 10]
            await client.ping()
            assert subscription.take() == []


@pytest.mark.parametrize(
    "id_", ["9007199254740992", "99" * 5_000, "0", "-7", '"x"', "1.5"], ids=len
)
async def test_an_id_that_is_none_ends_that_connection_only(fake: Fake, id_: str) -> None:
    states = States()
    fake.answers["resume E"] = lambda connection: []
    nonsense = fake.deliver(7_777).replace("7777", id_)
    with trio.fail_after(5):
        async with (
            connected(fake, on_state=states) as client,
            client.subscribe(["a"]) as subscription,
        ):
            fake.newest = 7
            await fake.push(fake.deliver(7), nonsense)
            await states.wait(State.CONNECTED, 2)
            await client.ping()
            await fake.push(fake.deliver(7), fake.deliver(8))
            assert [(await anext(subscription)).id for _ in range(2)] == [7, 8]
    # It goes on behind the last good one.
    since = "resume E:7 a" if fake.dialect == "tcp" else '"since": {"epoch": "E", "id": 7}'
    assert any(since in each for each in fake.asked)


NONSENSE = {
    "tcp": [
        "message",
        "message 7",
        "message 7 a",
        "publish a",
        "what",
        "pong",
        "gap",
        "gap E x",
        "",
    ],
    "ws": [
        "",
        "[]",
        "x",
        "[" * 100_000,
        '{"keys":"ab","data":"x"}',
        '{"keys":[1],"data":"x"}',
        '{"keys":[["a"]],"data":"x"}',
        '{"keys":{"b":1},"data":"x"}',
        '{"keys":["a"],"data":["x"]}',
        '{"keys":["a"],"data64":"?"}',
        '{"keys":["a"]}',
        '{"command":"revoked"}',
        '{"command":"revoked","tags":"a"}',
    ],
}


@pytest.mark.parametrize(
    ("dialect", "nonsense"),
    [
        pytest.param(each, text, id=f"{each} {text:.40}")
        for each in NONSENSE
        for text in NONSENSE[each]
    ],
)
async def test_nonsense_in_the_middle_ends_that_connection_only(fake: Fake, nonsense: str) -> None:
    states = States()
    with trio.fail_after(5):
        async with (
            connected(fake, on_state=states) as client,
            client.subscribe(["a"]) as subscription,
        ):
            fake.newest = 7
            await fake.push(fake.deliver(7), nonsense)
            await states.wait(State.CONNECTED, 2)
            await client.ping()
            await fake.push(fake.deliver(8))
            assert [(await anext(subscription)).id for _ in range(2)] == [7, 8]


async def test_what_came_with_nonsense_behind_it_is_delivered(nursery: trio.Nursery) -> None:
    fake: Fake = await nursery.start(Fake("tcp").run)
    states = States()
    with trio.fail_after(5):
        async with (
            connected(fake, on_state=states) as client,
            client.subscribe(["a"]) as subscription,
        ):
            await fake.push(f"{fake.deliver(7)}\nwhat")  # in one chunk
            await states.wait(State.CONNECTED, 2)
            assert (await anext(subscription)).id == 7
    assert any("resume E:7 a" in each for each in fake.asked)


@pytest.mark.parametrize("since", [None, ("E", 6)], ids=["live", "since"])
async def test_a_gap_that_a_lost_connection_kept_back_is_told_by_the_next(
    nursery: trio.Nursery, since: tuple[str, int] | None
) -> None:
    fake: Fake = await nursery.start(Fake("tcp").run)
    # Asked for in each greeting, and before each resume. At the second one the server is gone.
    before = ["last E 6", "last E 6"] if since is None else []
    newest = iter([*before, "last F 9", "last F 9\nwhat"])
    fake.answers["last"] = lambda connection: [next(newest, "last F 9")]
    fake.answers["resume E:6 a"] = lambda connection: ["gap F 1", fake.deliver(1)]
    fake.answers["ping"] = lambda connection: [] if fake.asked[-2] == "resume E:6 a" else ["pong"]
    gaps: list[Gap] = []
    with trio.fail_after(5):
        async with (
            connected(fake) as client,
            client.subscribe(["a"], since=since, on_gap=gaps.append) as subscription,
        ):
            if since is None:
                await fake.push("what")  # the server is replaced by one with another log
            assert (await anext(subscription)).id == 1
    assert [gap.forgotten for gap in gaps] == [True]
    assert not any(each.startswith("resume F") for each in fake.asked)


async def test_a_resume_that_is_refused_for_who_has_left_is_made_again(
    nursery: trio.Nursery,
) -> None:
    fake: Fake = await nursery.start(Fake("tcp").run)
    states = States()
    fake.answers["resume E:7 a b"] = lambda connection: []
    fake.answers["ping"] = lambda c: [] if "resume E:7 a b" in fake.asked else ["pong"]
    with trio.fail_after(5):
        async with (
            connected(fake, on_state=states) as client,
            client.subscribe(["a"]) as subscription,
        ):
            async with client.subscribe(["b"]):
                await fake.push(fake.deliver(7), "what")
                await states.wait(State.CONNECTED, 2)
                await until(lambda: "resume E:7 a b" in fake.asked)
            fake.newest = 7
            fake.answers["resume E:7 a"] = lambda connection: [fake.deliver(8)]
            await until(lambda: fake.asked[-2:] == ["unsubscribe b", "ping"])
            del fake.answers["ping"]
            await fake.push("error that is not for you", "pong", "pong")
            assert [(await anext(subscription)).id for _ in range(2)] == [7, 8]


REFUSED = [json.dumps({"success": False, "error": "Too many requests"})]


async def test_who_may_not_leave_yet_does_so_later(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postponed, "_RETRY", 0.01)
    fake: Fake = await nursery.start(Fake("ws").run)
    present = {"success": True, "command": "presence", "tags": ["p"], "count": 0}
    fake.answers['{"command": "presence"'] = lambda connection: [
        json.dumps(present | {"listed": True, "present": []})
    ]
    left = {"unsubscribe": 0, "unpresence": 0}

    def leave(command: str) -> list[str]:
        left[command] += 1
        return REFUSED if left[command] < 3 else [json.dumps({"success": True, "command": command})]

    for command in left:
        beginning = f'{{"command": "{command}"'
        fake.answers[beginning] = lambda connection, command=command: leave(command)
    with trio.fail_after(5):
        async with connected(fake) as client:
            async with client.subscribe(["a"]), client.presence(["p"]):
                pass
            await until(lambda: set(left.values()) == {3})
            await client.ping()
    assert set(left.values()) == {3}


@pytest.mark.parametrize(("newest", "gaps"), [(5, []), (9, [Gap(reconnected=True)])])
async def test_the_last_few_asked_for_again_are_others_where_more_came(
    nursery: trio.Nursery, newest: int, gaps: list[Gap]
) -> None:
    fake: Fake = await nursery.start(Fake("ws").run)
    pings = 0

    def ping(connection: int) -> list[str]:
        nonlocal pings
        pings += 1
        # Not the end of the first replay: nothing of it comes.
        return [] if pings == 2 else ['{"success": true, "command": "ping"}']

    fake.answers['{"command": "ping"'] = ping
    told: list[Gap] = []
    with trio.fail_after(5):
        async with connected(fake) as client:
            async with client.subscribe(["a"], since=-1, on_gap=told.append) as subscription:
                fake.newest = newest
                await fake.push("{")  # which ends the connection
                await until(lambda: subscription.reconnects == 1)
                await fake.push(fake.deliver(newest, "last"))
                assert await take(subscription, 1) == ["last"]
    assert told == gaps


async def test_each_part_of_a_resume_keeps_its_log_until_it_is_answered(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe_request, "_MAX_TAG_SETS", 1)
    is_line = fake.dialect == "tcp"
    states = States()

    def resumed(tag: str, epoch: str = "E", id_: int = 6) -> str:
        if is_line:
            return f"resume {epoch}:{id_} {tag}"
        since = {"epoch": epoch, "id": id_}
        return json.dumps({"command": "subscribe", "tags": [tag], "since": since})

    def first(connection: int) -> list[str]:
        if is_line:
            return ["gap F 1", fake.deliver(1, tags="a")]
        reply = {"success": True, "command": "subscribe", "epoch": "F", "id": 9, "recovered": False}
        return [json.dumps(reply), fake.deliver(1, tags="a")]

    fake.answers[resumed("a")] = first
    fake.answers[resumed("b")] = lambda connection: ["what" if is_line else "{}"]
    with trio.fail_after(5):
        async with (
            connected(fake, on_state=states) as client,
            client.subscribe(["a"]) as one,
            client.subscribe(["b"]),
        ):
            await fake.push(fake.deliver(6, tags="a,b"))
            assert (await anext(one)).id == 6
            await client.ping()
            if is_line:
                fake.answers["last"] = lambda connection: ["last F 9"]
            await fake.push("what" if is_line else "")
            assert (await anext(one)).id == 1
            await states.wait(State.CONNECTED, 4)
    assert resumed("a", "F", 9) in fake.asked
    assert resumed("b") in fake.asked[fake.asked.index(resumed("a", "F", 9)) :]


async def test_a_gap_told_in_the_middle_stands_at_its_place(fake: Fake) -> None:
    gaps: list[Gap] = []
    with trio.fail_after(5):
        async with (
            connected(fake) as client,
            client.subscribe(["a"], on_gap=gaps.append) as subscription,
        ):
            await fake.push(fake.deliver(6), fake.gap(9), fake.deliver(9))
            await client.ping()
            assert (await anext(subscription)).id == 6
            assert gaps == []
            assert (await anext(subscription)).id == 9
            assert gaps == [Gap(forgotten=True)]
    assert fake.connections == 1


async def test_what_is_beyond_the_limit_is_not_gathered(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "MAX_LINE", 1_000)
    monkeypatch.setattr(websocket, "_MAX_MESSAGE", 1_000)
    with trio.fail_after(5):
        async with (
            connected(fake, reconnect=False) as client,
            client.subscribe(["a"]) as subscription,
        ):
            await fake.push(fake.deliver(6, "x" * 900))
            assert len((await anext(subscription)).data) == 900
            with contextlib.suppress(Exception):  # it may hang up before all is written
                await fake.push(fake.deliver(7, "x" * 1_000_000))
            with pytest.raises(ConnectionLost, match=r"more than 1,000|line that is too long"):
                await anext(subscription)


async def test_a_live_subscription_begins_at_its_fence_and_misses_none_from_there(
    nursery: trio.Nursery,
) -> None:
    fake: Fake = await nursery.start(Fake("tcp").run)
    # 6 is another's, 7 is published before the server has subscribed to b, 8 is the last.
    fake.answers["resume -1 b"] = lambda connection: [
        fake.deliver(6, tags="a,b"),
        fake.deliver(8, tags="b"),
    ]
    with trio.fail_after(5):
        async with (
            connected(fake) as client,
            client.subscribe(["a"]) as other,
            client.subscribe(["b"]) as subscription,
        ):
            await fake.push(fake.deliver(6, tags="a,b"), fake.deliver(9, tags="b"))
            assert (await anext(subscription)).id == 9
            assert (await anext(other)).id == 6


async def test_what_comes_before_a_replay_is_not_gathered_without_end(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "_MAX_PENDING", 10)
    fake: Fake = await nursery.start(Fake("tcp").run)

    def answer(connection: int) -> list[str]:
        last = 16 if connection == 1 else 15
        return [fake.deliver(id_) for id_ in range(6, last + 1)]

    fake.answers["resume"] = answer
    with trio.fail_after(5):
        async with (
            connected(fake) as client,
            client.subscribe(["a"], since=3) as subscription,
        ):
            assert fake.connections == 2
            assert [(await anext(subscription)).id for _ in range(10)] == [*range(6, 16)]


# a server that changes


async def test_a_history_that_is_taken_away_and_comes_back_is_told_as_gaps(
    tmp_path: Path, dialect: str
) -> None:
    gaps: list[Gap] = []
    states = States()
    with trio.fail_after(20):
        async with (
            place_at(tmp_path / "1") as place,
            running(tmp_path / "2") as bare,
            connect(bare.urls[0]) as other,
        ):
            await other.register(["*"], "T")
            proxy = place.proxies[dialect]
            kept = proxy._target
            port = port_of(bare.urls[DIALECTS.index(dialect)])
            async with (
                place.connect(dialect, on_state=states) as client,
                client.subscribe(["a"], on_gap=gaps.append) as one,
                client.subscribe(["a"], since=0) as old,
                client.subscribe(["b"]) as idle,
            ):
                await place.publish("1", "2")
                assert await take(one, 2) + await take(old, 2) == ["1", "2"] * 2
                proxy._target = ("127.0.0.1", port)
                await proxy.cut()
                await place.publish("lost")
                await until(lambda: one.reconnects == 1 and old.reconnects == 1)
                await client.ping()
                await other.publish(["a"], "live")
                assert await take(one, 1) + await take(old, 1) == ["live"] * 2
                assert gaps == [Gap(reconnected=True)]
                proxy._target = kept
                await proxy.cut()
                await until(lambda: one.reconnects == 2 and idle.reconnects == 2)
                await client.ping()
                await place.publish("3")
                assert await take(one, 1) + await take(old, 1) == ["3"] * 2
                assert gaps == [Gap(reconnected=True)] * 2
                await place.publish("b", tags="b")
                assert await take(idle, 1) == ["b"]
                await proxy.cut()
                await until(lambda: one.reconnects == 3 and old.reconnects == 3)
                await client.ping()
                await place.publish("4")
                assert await take(one, 1) + await take(old, 1) == ["4"] * 2
                await proxy.cut()
                await place.publish("5")
                assert await take(one, 1) + await take(old, 1) == ["5"] * 2
                # Over a WebSocket nothing tells of a history before its first message does.
                assert len(gaps) <= (2 if dialect == "tcp" else 3)


async def test_what_is_trimmed_while_it_is_replayed_is_told_where_it_was(
    place: Place, dialect: str
) -> None:
    gaps: list[int] = []
    got: list[int] = []
    assert place.server.hub.sequencer is not None
    history = place.server.hub.sequencer.history
    await place.fill(1_500, size=20_000)
    async with (
        place.connect(dialect) as client,
        client.subscribe(["b"], raise_on_gap=True) as other,
        client.subscribe(
            ["a"], since=0, queue=200, on_gap=lambda gap: gaps.append(len(got))
        ) as old,
    ):
        for _ in range(10):
            got.append((await anext(old)).id or 0)
        while (await history.trim(Policy(max_bytes=1_000_000), now=0)).more:
            pass
        while got[-1] != 1_500:
            got.append((await anext(old)).id or 0)
        await place.publish("on", tags="a,b")
        assert await take(other, 1) + await take(old, 1) == ["on", "on"]
    jumps = [at for at in range(1, len(got)) if got[at] != got[at - 1] + 1]
    assert jumps, "nothing was trimmed before it was read"
    assert gaps == jumps
    assert old.lost == 0


# a program that changes its mind


async def test_a_token_swapped_during_a_replay_ends_what_it_does_not_allow(place: Place) -> None:
    await place.fill(tags="a,b")
    await place.publisher.register(["b"], "B")
    async with (
        place.connect("ws") as client,
        client.subscribe(["a"], since=0) as gone,
        client.subscribe(["b"], since=0, queue=100_000) as kept,
    ):
        await anext(gone)
        await client.authenticate("B")
        with pytest.raises(Revoked):
            await take(gone, 100_000)
        await place.publish("on", tags="b")
        assert await take_numbers(kept, 3_000) == list(range(3_000))
        assert await take(kept, 1) == ["on"]
        await place.proxies["ws"].cut()
        await place.publish("after", tags="b")
        assert await take(kept, 1) == ["after"]
        assert await client.list() == (frozenset("b"),)


async def test_a_token_swapped_while_disconnected_is_presented_next(place: Place) -> None:
    await place.publisher.register(["a"], "NEW")
    proxy = place.proxies["ws"]
    states = States()
    async with (
        place.connect("ws", on_state=states) as client,
        client.subscribe(["a"]) as subscription,
    ):
        proxy.refusing = True
        await proxy.cut()
        await states.wait(State.RECONNECTING)
        await place.publisher.unregister("T")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.authenticate, "NEW")
            await begun(client)
            proxy.refusing = False
        await place.publish("1")
        assert await take(subscription, 1) == ["1"]
        await place.publisher.unregister("NEW")
        with pytest.raises(AccessDenied):
            await anext(subscription)


async def test_a_token_swapped_while_an_attempt_presents_the_old_one(place: Place) -> None:
    await place.publisher.register(["a"], "NEW")
    proxy = place.proxies["ws"]
    async with (
        place.connect("ws") as client,
        client.subscribe(["a"]) as subscription,
    ):
        gate = proxy.gate = Gate()
        await proxy.cut()
        await gate.reached.wait()  # with T
        await place.publisher.unregister("T")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.authenticate, "NEW")
            await begun(client)
            gate.opened.set()
        await place.publish("1")
        assert await take(subscription, 1) == ["1"]
        gate = proxy.gate = Gate()
        await proxy.cut()
        await gate.reached.wait()
        await place.publisher.unregister("NEW")
        gate.opened.set()
        with pytest.raises(AccessDenied):
            await anext(subscription)


@pytest.mark.parametrize("seed", range(4))
@trio_only
async def test_subscriptions_come_and_go_during_a_resume_in_flight(
    place: Place, dialect: str, seed: int
) -> None:
    random = Random(seed)
    await place.fill(2_000)
    proxy = place.proxies[dialect]
    gaps: list[Gap] = []
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a"], since=0, queue=100_000, on_gap=gaps.append) as steady,
        trio.open_nursery() as nursery,
    ):

        async def come_and_go() -> None:
            while True:
                tags = random.choice(["a", "a,b", "b"]).split(",")
                since = random.choice([None, 0, -50])
                with trio.move_on_after(random.random() * 0.02):
                    async with client.subscribe(tags, since=since, on_gap=gaps.append) as found:
                        before = 0
                        async for message in found:
                            assert (message.id or 0) > before
                            before = message.id or 0

        for _ in range(4):
            nursery.start_soon(come_and_go)
        for n in range(12):
            await trio.sleep(random.random() * 0.05)
            await proxy.cut()
            await place.publish(f"cut {n}")
        got = [message.id for message in await next_of(steady, 2_012)]
        assert got == list(range(1, 2_013))
        nursery.cancel_scope.cancel()
    assert gaps == []


async def test_when_all_who_came_and_went_are_gone_the_server_knows(
    place: Place, dialect: str
) -> None:
    random = Random(5)
    await place.fill(500)
    async with place.connect(dialect) as client, client.subscribe(["z"]):

        async def visit() -> None:
            for _ in range(20):
                with trio.move_on_after(random.random() * 0.005):
                    async with client.subscribe(["a"], since=random.choice([None, 0, -3])):
                        await trio.sleep(random.random() * 0.005)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(visit)
        assert await client.list() == (frozenset("z"),)


async def test_cancelled_stores_leave_the_ids_of_the_others_right(place: Place) -> None:
    random = Random(1)
    told: dict[int, str] = {}

    async def store(text: str) -> None:
        with trio.move_on_after(random.choice([0, 0.001, 0.003, 10])):
            told[await client.store(["s"], text)] = text

    async with place.connect("tcp") as client:
        for round_ in range(20):
            async with trio.open_nursery() as nursery:
                for n in range(20):
                    nursery.start_soon(store, f"{round_} {n}")
        top = await client.store(["s"], "end")
        async with client.subscribe(["s"], since=0) as subscription:
            kept = {}
            while top not in kept:
                message = await anext(subscription)
                kept[message.id] = message.text
    assert 50 < len(told) < 400
    assert told == {id_: kept[id_] for id_ in told}


async def test_a_client_is_closed_with_a_resume_in_flight(place: Place, dialect: str) -> None:
    await place.fill()
    proxy = place.proxies[dialect]
    for resumed in (False, True):
        states = States()
        with trio.fail_after(10):
            async with (
                place.connect(dialect, on_state=states, drain_seconds=60) as client,
                client.subscribe(["a"], since=0, queue=50) as subscription,
            ):
                await anext(subscription)
                if resumed:
                    await proxy.cut()
                    await states.wait(State.CONNECTED, 2)
            assert states[-1] is State.CLOSED
    states = States()
    with trio.fail_after(10):  # and one whose greeting nobody answers
        async with (
            place.connect(dialect, on_state=states, connect_seconds=60) as client,
            client.subscribe(["a"]),
        ):
            connections = proxy.connections
            proxy.deaf = True
            await proxy.cut()
            await until(lambda: proxy.connections > connections)
        assert states == [State.CONNECTED, State.RECONNECTING, State.CLOSED]
