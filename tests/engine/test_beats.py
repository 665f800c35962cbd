"""Heartbeats, questions to all nodes, and by how much a node is behind."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.engine.beats import Answers, Beats
from mist.engine.contract import EngineUnavailable, Record
from mist.engine.lag import Lag
from mist.engine.members import (
    BEAT,
    FORGOTTEN,
    MAX_QUESTION,
    MAX_QUESTIONS,
    BeatReply,
    Member,
    Members,
    TooManyQuestions,
)
from mist.engine.memory import MemoryEngine, open_memory


class Clock:
    """Unix seconds, as fast as trio's."""

    def __call__(self) -> float:
        return 1_900_000_000.0 + trio.current_time()


class CountingMembers(Members):
    """As those behind it, and counts; while it is down, nothing gets there."""

    def __init__(self, members: Members) -> None:
        self.calls: dict[str, int] = {}
        self.down = False
        self.hanging = False
        self._members = members

    async def _count(self, name: str) -> Members:
        self.calls[name] = self.calls.get(name, 0) + 1
        await trio.lowlevel.checkpoint()
        if self.hanging:
            await trio.sleep(5)
            raise EngineUnavailable
        if self.down:
            raise EngineUnavailable
        return self._members

    async def beat(self, node: str, state: bytes) -> BeatReply:
        return await (await self._count("beat")).beat(node, state)

    async def all(self) -> Sequence[Member]:
        return await (await self._count("all")).all()

    async def leave(self, node: str) -> None:
        await (await self._count("leave")).leave(node)

    async def take(self, name: str, node: str, seconds: float) -> int | None:
        return await (await self._count("take")).take(name, node, seconds)

    async def give_up(self, name: str, node: str) -> None:
        await (await self._count("give_up")).give_up(name, node)

    async def holds(self, name: str, fence: int) -> bool:
        return await (await self._count("holds")).holds(name, fence)

    async def ask(self, body: bytes, most: int = MAX_QUESTIONS) -> int:
        return await (await self._count("ask")).ask(body, most)

    async def close(self, number: int) -> None:
        await (await self._count("close")).close(number)

    async def answer(self, number: int, node: str, body: bytes) -> None:
        await (await self._count("answer")).answer(number, node, body)

    async def answers(self, number: int, known: Any = ()) -> Mapping[str, bytes]:
        return await (await self._count("answers")).answers(number, known)


class Peer:
    """A node of a realm: what it says, what it hears, what it answers."""

    def __init__(self, name: str, engine: MemoryEngine) -> None:
        self.name = name
        self.members = CountingMembers(engine.members)
        self.state = b"state of " + name.encode()
        self.heard: list[BeatReply] = []
        self.asked: list[bytes] = []
        self.answer: Callable[[bytes], Awaitable[bytes | None]] = self._answer
        self.beats = Beats(
            self.members,
            lambda: self.name,
            lambda: self.state,
            lambda body: self.answer(body),
            self.heard.append,
        )
        self.scope = trio.CancelScope()

    async def _answer(self, body: bytes) -> bytes | None:
        self.asked.append(body)
        await trio.lowlevel.checkpoint()
        return self.beats.node.encode() + b" answers " + body

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.beats.run(task_status=task_status)


Start = Callable[[str], Awaitable[Peer]]


@pytest.fixture
async def start(nursery: trio.Nursery) -> AsyncIterator[Start]:
    """Starts another node of the realm, each time it is called."""
    first = MemoryEngine(clock=Clock())

    async def start(name: str) -> Peer:
        peer = Peer(name, first)
        await nursery.start(peer.run)
        return peer

    yield start
    nursery.cancel_scope.cancel()


async def test_nodes_beat_four_times_a_second_and_see_each_other(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")
    await trio.sleep(10.1)
    assert one.members.calls["beat"] == len(one.heard)
    assert 40 <= len(one.heard) <= 41
    found = await one.beats.members()
    assert [(each.node, each.state) for each in found] == [
        ("one", b"state of one"),
        ("two", b"state of two"),
    ]
    assert all(each.age <= BEAT for each in found)
    assert one.beats.size == two.beats.size == 2


async def test_an_idle_node_asks_for_little_else(start: Start, autojump_clock: MockClock) -> None:
    one = await start("one")
    await trio.sleep(60)
    assert 240 <= one.members.calls.pop("beat") <= 241
    assert one.members.calls.keys() == {"all"}
    assert 15 <= one.members.calls["all"] <= 16


async def test_a_node_that_stops_leaves(start: Start, autojump_clock: MockClock) -> None:
    one, two = await start("one"), await start("two")
    two.scope.cancel()
    await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    await trio.sleep(2)
    assert [each.node for each in await one.beats.members()] == ["one"]


async def test_a_node_that_has_entered_anew_is_listed_under_its_new_name_alone(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")
    two.name = "two again"
    await trio.sleep(1.3)
    assert [each.node for each in await one.beats.members()] == ["one", "two again"]
    assert (await one.beats.ask(b"?")).missing == []


async def test_a_node_that_is_cut_off_is_forgotten_and_comes_back(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")
    two.members.down = True
    await trio.sleep(FORGOTTEN - 1)
    silent = {each.node: each.age for each in await one.beats.members()}
    assert silent["two"] == pytest.approx(FORGOTTEN - 1, abs=1.1)
    await trio.sleep(2)
    assert [each.node for each in await one.beats.members()] == ["one"]
    assert one.beats.size == 1
    two.members.down = False
    await trio.sleep(1.1)
    assert [each.node for each in await one.beats.members()] == ["one", "two"]


async def test_a_list_is_shared_for_a_second_and_so_is_its_failure(
    start: Start, autojump_clock: MockClock
) -> None:
    one = await start("one")
    await trio.sleep(0.1)
    before = one.members.calls["all"]
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one.beats.members)
    assert one.members.calls["all"] == before
    one.members.hanging = True
    await trio.sleep(1.1)
    before = one.members.calls["all"]
    refused = 0

    async def refuse() -> None:
        nonlocal refused
        with pytest.raises(EngineUnavailable):
            await one.beats.members()
        refused += 1

    with trio.fail_after(5.5):  # and not fifty times as long
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(refuse)
    assert refused == 50
    assert one.members.calls["all"] <= before + 2


# Questions


async def test_all_nodes_answer_and_each_once(start: Start, autojump_clock: MockClock) -> None:
    peers = [await start(name) for name in ("one", "two", "three")]
    began = trio.current_time()
    found = await peers[0].beats.ask(b"?")
    assert trio.current_time() - began < 0.5
    assert found == Answers(
        {"one": b"one answers ?", "two": b"two answers ?", "three": b"three answers ?"}, []
    )
    await trio.sleep(5)
    assert [each.asked for each in peers] == [[b"?"]] * 3


async def test_one_that_does_not_answer_is_missing_after_a_second(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")

    async def fail(body: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        raise RuntimeError

    two.answer = fail
    began = trio.current_time()
    found = await one.beats.ask(b"?")
    assert trio.current_time() - began == pytest.approx(1.0)
    assert found.answers == {"one": b"one answers ?"}
    assert [each.node for each in found.missing] == ["two"]
    await trio.sleep(1)
    assert two.heard[-1].time > one.heard[0].time + 1  # its own mistake has not ended it


async def test_a_node_that_is_slow_is_not_missing_in_its_own_list(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")

    async def slow(body: bytes) -> bytes:
        await trio.sleep(3)
        return b"late"

    one.answer = slow
    found = await one.beats.ask(b"?")
    assert found.answers["one"] == b"late"
    assert [each.node for each in (await two.beats.ask(b"??")).missing] == ["one"]


async def test_one_that_does_not_understand_is_missing(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")

    async def ignore(body: bytes) -> None:
        await trio.lowlevel.checkpoint()

    two.answer = ignore
    assert [each.node for each in (await one.beats.ask(b"?")).missing] == ["two"]


async def test_one_that_is_silent_is_missing_and_not_waited_for(
    start: Start, autojump_clock: MockClock
) -> None:
    one, two = await start("one"), await start("two")
    two.members.down = True
    await trio.sleep(4)
    began = trio.current_time()
    found = await one.beats.ask(b"?")
    assert trio.current_time() - began < 0.5
    assert list(found.answers) == ["one"]
    assert [each.node for each in found.missing] == ["two"]


async def test_a_flood_of_questions_costs_one_answer_a_second(
    start: Start, autojump_clock: MockClock
) -> None:
    peers = [await start(name) for name in ("one", "two", "three")]
    until = trio.current_time() + 10

    async def flood(peer: Peer) -> None:
        while trio.current_time() < until:
            assert len((await peer.beats.ask(b"?")).answers) == 3
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for peer in peers:
            for _ in range(20):
                nursery.start_soon(flood, peer)
    for peer in peers:
        assert 5 <= len(peer.asked) <= 11
        assert peer.members.calls["ask"] <= 11
        assert peer.members.calls["answers"] <= 11 * 20


async def test_a_caller_that_gives_up_leaves_the_others_their_answer(
    start: Start, autojump_clock: MockClock
) -> None:
    one = await start("one")
    found: list[Answers] = []

    async def ask() -> None:
        found.append(await one.beats.ask(b"?"))

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            nursery.start_soon(ask)
            await one.beats.ask(b"?")
    assert [list(each.answers) for each in found] == [["one"]]


async def test_an_engine_that_does_not_answer_keeps_nobody_waiting(
    start: Start, autojump_clock: MockClock
) -> None:
    one = await start("one")
    await trio.sleep(0.1)
    one.members.hanging = True
    with trio.fail_after(1.5), pytest.raises(EngineUnavailable):
        await one.beats.ask(b"?")
    await trio.sleep(2)
    with trio.fail_after(1.5), pytest.raises(EngineUnavailable):
        await one.beats.members()
    one.members.hanging = False
    one.members.down = True
    await trio.sleep(2)
    with trio.fail_after(0.1), pytest.raises(EngineUnavailable):
        await one.beats.ask(b"?")


async def test_why_nodes_can_not_be_asked_is_told_once(
    start: Start, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mist.engine")
    one = await start("one")
    one.members.down = True
    for question in (b"1", b"2", b"3"):
        with pytest.raises(EngineUnavailable):
            await one.beats.ask(question)
    one.members.down = False
    await one.beats.ask(b"4")
    told = [each.message for each in caplog.records if "be asked" in each.message]
    assert told == ["the nodes can't be asked", "the nodes can be asked again"]


async def test_too_many_questions_are_refused(start: Start, autojump_clock: MockClock) -> None:
    one = await start("one")
    refused = 0

    async def ask(number: int) -> None:
        nonlocal refused
        try:
            await one.beats.ask(b"%d" % number)
        except TooManyQuestions:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, number)
    assert refused == 36


async def test_what_is_asked_often_makes_room_once_it_is_answered(
    start: Start, autojump_clock: MockClock
) -> None:
    one, _ = await start("one"), await start("two")
    # 24 at a time, each answered after a quarter of a second: some hundred within two seconds.
    for start_of in range(0, 240, 24):
        async with trio.open_nursery() as nursery:
            for number in range(start_of, start_of + 24):
                nursery.start_soon(partial(one.beats.ask, b"%d" % number, often=True))


async def test_what_is_asked_often_leaves_room_for_others(
    start: Start, autojump_clock: MockClock
) -> None:
    one, _ = await start("one"), await start("two")
    refused = 0

    async def ask(number: int) -> None:
        nonlocal refused
        try:
            await one.beats.ask(b"%d" % number, often=True)
        except TooManyQuestions:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
        assert len((await one.beats.ask(b"?")).answers) == 2
    assert refused == 68


async def test_a_question_that_can_not_be_asked_costs_its_caller_alone(
    start: Start, autojump_clock: MockClock
) -> None:
    one = await start("one")
    with pytest.raises(ValueError, match="more bytes"):
        await one.beats.ask(bytes(MAX_QUESTION + 1))
    assert (await one.beats.ask(b"?")).missing == []


async def test_a_mistake_in_asking_costs_its_caller_alone(
    start: Start, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start("one")

    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(one.members, "ask", fail)
        with pytest.raises(EngineUnavailable):
            await one.beats.ask(b"?")
    assert (await one.beats.ask(b"another")).missing == []


async def test_who_waits_as_it_stops_is_refused(start: Start, autojump_clock: MockClock) -> None:
    one, two = await start("one"), await start("two")
    two.members.down = True  # so that it is waited for
    refused = trio.Event()

    async def ask() -> None:
        with pytest.raises(EngineUnavailable, match="stopping"):
            await one.beats.ask(b"?")
        refused.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.01)
        one.scope.cancel()
        with trio.fail_after(1):
            await refused.wait()
    with pytest.raises(EngineUnavailable, match="stopping"):
        await one.beats.ask(b"?")


async def test_a_closed_engine_does_not_end_it(autojump_clock: MockClock) -> None:
    engine = await open_memory("")
    peer = Peer("one", engine)
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        await engine.close()
        await trio.sleep(10)
        assert 40 <= peer.members.calls["beat"] <= 42
        assert len(peer.heard) == 1
        peer.scope.cancel()


# Lag


def beat(time: float, offset: int) -> BeatReply:
    return BeatReply(time, offset, ())


def record(offset: int, time: float) -> Record:
    return Record(offset, offset, 1, round(time * 1_000_000), "n", offset, b"")


def test_who_has_all_records_is_not_behind() -> None:
    lag = Lag(0)
    lag.note_beat(beat(1_000.0, 0))
    assert lag.seconds == 0.0
    lag.note_applied(record(1, 1_000.1))
    lag.note_beat(beat(1_000.25, 1))
    assert lag.seconds == 0.0


def test_lag_counts_from_the_last_record_applied() -> None:
    lag = Lag(0)
    lag.note_applied(record(1, 1_000.0))
    lag.note_beat(beat(1_012.0, 9))
    assert lag.seconds == pytest.approx(12.0)
    lag.note_applied(record(5, 1_011.5))
    lag.note_beat(beat(1_012.25, 9))
    assert lag.seconds == pytest.approx(0.75)
    lag.note_applied(record(9, 1_012.0))
    lag.note_beat(beat(1_012.5, 9))
    assert lag.seconds == 0.0


def test_a_record_after_hours_of_none_is_no_lag() -> None:
    lag = Lag(0)
    lag.note_applied(record(1, 1_000.0))
    lag.note_beat(beat(9_000.0, 1))
    lag.note_beat(beat(9_000.25, 2))
    assert lag.seconds == pytest.approx(0.25)


def test_a_mirror_that_stands_still_falls_behind_with_each_beat() -> None:
    lag = Lag(3)
    for beats in range(50):
        lag.note_beat(beat(1_000.0 + beats * 0.25, 4))
        assert lag.seconds == pytest.approx(beats * 0.25)


def test_an_old_mirror_is_as_far_behind_as_its_records_are_old() -> None:
    lag = Lag(3)
    lag.note_beat(beat(9_000.0, 900))
    lag.note_applied(record(4, 1_000.0))
    lag.note_beat(beat(9_000.25, 900))
    assert lag.seconds == pytest.approx(8_000.25)


def test_a_clock_that_goes_back_makes_no_lag_negative() -> None:
    lag = Lag(0)
    lag.note_applied(record(1, 1_000.0))
    lag.note_beat(beat(900.0, 2))
    assert lag.seconds == 0.0
