"""What the members of every engine keep to: beats, leases, questions."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from mist.engine.contract import Engine, EngineUnavailable
from mist.engine.members import (
    FORGOTTEN,
    MAX_ANSWER,
    MAX_QUESTION,
    MAX_QUESTIONS,
    MAX_STATE,
    Member,
    Members,
    Question,
    TooManyQuestions,
)
from mist.engine.memory import MemoryEngine
from tests.engine.test_contract import fill

Connect = Callable[[], Awaitable[Engine]]

LONG, SHORT = 60.0, 0.02  # seconds of a lease: beyond a test, and over soon
STATE = b"\x00\xff 12 3\r\n\x00"


@pytest.fixture
def members(engine: Engine) -> Members:
    return engine.members


async def taken(members: Members, name: str, node: str, seconds: float = LONG) -> int:
    """The fence of a lease, once it can be taken."""
    with trio.fail_after(30):
        while True:
            fence = await members.take(name, node, seconds)
            if fence is not None:
                return fence
            await trio.sleep(SHORT)


async def asked(members: Members, node: str = "a") -> list[Question]:
    """The questions that a node hears of with a beat."""
    return list((await members.beat(node, b"")).questions)


# Heartbeats


async def test_nobody_is_there_at_first(members: Members) -> None:
    assert list(await members.all()) == []


async def test_those_that_beat_are_members_at_all_nodes(connect: Connect) -> None:
    one, two = (await connect()).members, (await connect()).members
    await two.beat("ä b", STATE)
    await one.beat("a", b"")
    for each in (one, two):
        assert [(member.node, member.state) for member in await each.all()] == [
            ("a", b""),
            ("ä b", STATE),
        ]


async def test_the_last_state_counts(members: Members) -> None:
    await members.beat("a", b"first")
    await members.beat("a", bytes(MAX_STATE))
    assert [each.state for each in await members.all()] == [bytes(MAX_STATE)]


async def test_ages_are_those_of_the_last_beats(members: Members) -> None:
    def ages(found: list[Member]) -> tuple[float, float]:
        by_node = {each.node: each.age for each in found}
        return by_node["a"], by_node["b"]

    await members.beat("a", b"")
    await members.beat("b", b"")
    older, younger = ages(list(await members.all()))
    assert FORGOTTEN > older >= younger >= 0
    await members.beat("a", b"")
    younger, older = ages(list(await members.all()))
    assert FORGOTTEN > older >= younger >= 0


async def test_a_beat_tells_the_time_and_how_far_the_log_is(engine: Engine) -> None:
    first = await engine.members.beat("a", b"")
    assert first.offset == 0
    await fill(engine, 3)
    second = await engine.members.beat("a", b"")
    assert second.offset == 3
    assert 1_600_000_000 < first.time <= second.time
    (*_, last) = await engine.read(0)
    assert first.time <= last.time / 1_000_000 <= second.time


async def test_one_that_leaves_is_gone_at_once(members: Members) -> None:
    await members.beat("a", b"")
    await members.beat("b", b"")
    await members.leave("a")
    await members.leave("a")
    await members.leave("unknown")
    assert [each.node for each in await members.all()] == ["b"]


async def test_the_silent_are_forgotten() -> None:
    now = 1_000.0
    members = MemoryEngine(clock=lambda: now).members
    await members.beat("a", b"")
    now += FORGOTTEN
    assert [each.age for each in await members.all()] == [FORGOTTEN]
    await members.beat("b", b"")
    now += 0.001
    assert [each.node for each in await members.all()] == ["b"]


async def test_a_clock_that_goes_back_makes_no_age_negative() -> None:
    now = 1_000.0
    members = MemoryEngine(clock=lambda: now).members
    await members.beat("a", b"")
    now -= 60
    assert [each.age for each in await members.all()] == [0.0]


async def test_a_state_that_is_too_large_is_refused(members: Members) -> None:
    with pytest.raises(ValueError, match="more bytes"):
        await members.beat("a", bytes(MAX_STATE + 1))
    assert list(await members.all()) == []


# Leases


async def test_one_node_holds_a_lease(connect: Connect) -> None:
    one, two = (await connect()).members, (await connect()).members
    fence = await one.take("x", "a", LONG)
    assert fence is not None
    assert await two.take("x", "b", LONG) is None
    assert await two.take("other", "b", LONG) is not None
    assert await two.holds("x", fence)


async def test_a_lease_is_prolonged_under_its_fence(members: Members) -> None:
    fence = await members.take("x", "a", LONG)
    assert await members.take("x", "a", LONG) == fence
    # As short as it is asked for, too; nobody else has had it meanwhile.
    assert await members.take("x", "a", SHORT) == fence
    other = await taken(members, "x", "b")
    assert fence is not None
    assert other > fence


async def test_a_lease_moves_when_its_holder_is_silent(members: Members) -> None:
    fence = await taken(members, "x", "a", SHORT)
    later = await taken(members, "x", "b")
    assert later > fence
    assert not await members.holds("x", fence)
    assert await members.holds("x", later)
    assert await members.take("x", "a", LONG) is None


async def test_a_lease_that_has_ended_is_not_held(members: Members) -> None:
    fence = await members.take("x", "a", 0.0)
    assert fence is not None
    assert not await members.holds("x", fence)
    assert not await members.holds("never taken", fence)


async def test_a_lease_that_is_given_up_is_free(members: Members) -> None:
    fence = await taken(members, "x", "a")
    await members.give_up("x", "b")
    assert await members.holds("x", fence)
    await members.give_up("x", "a")
    await members.give_up("x", "a")
    await members.give_up("never taken", "a")
    assert not await members.holds("x", fence)
    later = await members.take("x", "b", LONG)
    assert later is not None
    assert later > fence


async def test_a_fence_ascends_though_the_same_node_takes_the_lease_again(members: Members) -> None:
    fence = await taken(members, "x", "a")
    await members.give_up("x", "a")
    assert await taken(members, "x", "a") > fence


async def test_of_many_that_want_a_lease_one_has_it(connect: Connect) -> None:
    all_members = [(await connect()).members for _ in range(3)]
    fences: list[int | None] = []

    async def take(number: int) -> None:
        fences.append(await all_members[number % 3].take("x", f"n{number}", LONG))

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(take, number)
    assert len([each for each in fences if each is not None]) == 1


# Questions


async def test_all_nodes_hear_a_question_and_all_hear_the_answers(connect: Connect) -> None:
    one, two = (await connect()).members, (await connect()).members
    assert await asked(one) == []
    number = await one.ask(STATE)
    for members, node in ((one, "a"), (two, "b")):
        assert await asked(members, node) == [Question(number, STATE)]
    assert await one.answers(number) == {}
    await two.answer(number, "b", b"")
    await one.answer(number, "a", bytes(MAX_ANSWER))
    for members in (one, two):
        assert await members.answers(number) == {"a": bytes(MAX_ANSWER), "b": b""}
        assert await members.answers(number, {"a", "unknown"}) == {"b": b""}


async def test_the_last_answer_of_a_node_counts(members: Members) -> None:
    number = await members.ask(b"?")
    await members.answer(number, "a", b"first")
    await members.answer(number, "a", b"last")
    assert await members.answers(number) == {"a": b"last"}


async def test_the_same_question_is_asked_once(connect: Connect) -> None:
    one, two = (await connect()).members, (await connect()).members
    number = await one.ask(b"?")
    assert await two.ask(b"?") == number
    other = await two.ask(b"another")
    assert other > number
    assert [each.number for each in await asked(one)] == [number, other]


async def test_questions_are_bounded(members: Members) -> None:
    with trio.fail_after(30), pytest.raises(TooManyQuestions):
        number = 0
        while True:
            assert len(await asked(members)) <= MAX_QUESTIONS
            await members.ask(b"%d" % number)
            number += 1
    assert number >= MAX_QUESTIONS
    with pytest.raises(ValueError, match="more bytes"):
        await members.ask(bytes(MAX_QUESTION + 1))
    with pytest.raises(ValueError, match="more bytes"):
        await members.answer(1, "a", bytes(MAX_ANSWER + 1))


async def test_a_closed_question_is_heard_no_more_and_makes_room(members: Members) -> None:
    for number in range(3 * MAX_QUESTIONS):
        closed = await members.ask(b"%d" % number, 1)
        await members.answer(closed, "a", b"!")
        await members.close(closed)
    assert await asked(members) == []
    assert await members.answers(closed) == {"a": b"!"}
    await members.close(closed)
    again = await members.ask(b"%d" % number, 1)
    assert again > closed
    with pytest.raises(TooManyQuestions):
        await members.ask(b"another", 1)
    assert [each.number for each in await asked(members)] == [again]


async def test_a_question_is_heard_and_shared_for_a_while() -> None:
    now = 1_000.0
    members = MemoryEngine(clock=lambda: now).members
    number = await members.ask(b"?")
    await members.answer(number, "a", b"!")
    now += 1.0
    other = await members.ask(b"?")
    assert other > number
    now += 1.0
    assert [each.number for each in await asked(members)] == [other]
    assert await members.answers(number) == {"a": b"!"}
    now += 10.0
    assert await asked(members) == []
    await members.ask(b"another")
    assert await members.answers(number) == {}


async def test_an_unknown_question_has_no_answers(members: Members) -> None:
    assert await members.answers(7) == {}


# The engine


async def test_members_of_a_closed_engine_are_unavailable(engine: Engine) -> None:
    members = engine.members
    await engine.close()
    for call in (
        lambda: members.beat("a", b""),
        members.all,
        lambda: members.take("x", "a", 1.0),
        lambda: members.ask(b"?"),
    ):
        with pytest.raises(EngineUnavailable):
            await call()
