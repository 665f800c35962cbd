"""Members in Redis: the form of what it keeps, and what it does when it is frozen or full."""

import re
from collections.abc import Awaitable, Callable

import pytest
import trio

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.engine import RedisEngine
from tests.engine.redis_server import RedisServer

HEAD, MEMBERS, LEASES, QUESTIONS = (
    f"{{mist:test}}:{each}" for each in ("head", "members", "leases", "questions")
)


def now(redis: RedisServer) -> int:
    """Microseconds of its clock."""
    seconds, microseconds = redis.ask("TIME").split()[2::2]
    return int(seconds) * 1_000_000 + int(microseconds)


async def test_a_beat_is_its_time_and_then_the_state(
    engine: RedisEngine, redis: RedisServer
) -> None:
    before = now(redis)
    await engine.members.beat("n", b"\x00state 1")
    value = redis.ask("HGET", MEMBERS, "n").partition(b"\r\n")[2]
    match = re.fullmatch(rb"(\d+) \x00state 1\r\n", value)
    assert match is not None
    assert before <= int(match[1]) <= now(redis)


async def test_the_silent_are_removed(engine: RedisEngine, redis: RedisServer) -> None:
    await engine.members.beat("here", b"")
    redis.ask("HSET", MEMBERS, "late", f"{now(redis) - 9_000_000} state")
    redis.ask("HSET", MEMBERS, "silent", f"{now(redis) - 10_100_000} state")
    redis.ask("HSET", MEMBERS, "damaged", "state")
    redis.ask("HSET", MEMBERS, "ahead", f"{now(redis) + 60_000_000} state")
    found = {each.node: each.age for each in await engine.members.all()}
    assert set(found) == {"here", "late", "ahead"}
    assert 9.0 <= found["late"] < 10.0
    assert found["ahead"] == 0.0
    assert redis.ask("HLEN", MEMBERS) == b":3\r\n"


async def test_a_fence_is_above_those_that_were_lost(
    engine: RedisEngine, redis: RedisServer
) -> None:
    fence = await engine.members.take("x", "a", 60.0)
    number = await engine.members.ask(b"?")
    redis.ask("DEL", LEASES, QUESTIONS)
    later = await engine.members.take("x", "b", 60.0)
    assert fence is not None
    assert later is not None
    assert later > fence
    assert await engine.members.ask(b"?") > number


async def test_fences_ascend_though_the_clock_goes_back(
    engine: RedisEngine, redis: RedisServer
) -> None:
    ahead = now(redis) + 3_600_000_000
    redis.ask("HSET", LEASES, "x", f"{ahead} 0 other")
    assert await engine.members.take("x", "a", 60.0) == ahead + 1
    assert await engine.members.holds("x", ahead + 1)


async def test_answers_expire_and_questions_are_removed(
    engine: RedisEngine, redis: RedisServer
) -> None:
    number = await engine.members.ask(b"?")
    await engine.members.answer(number, "a", b"!")
    assert 1 <= int(redis.ask("TTL", f"{{mist:test}}:answers:{number}")[1:]) <= 10
    redis.ask("HSET", QUESTIONS, "7", f"{now(redis) - 2_000_001} old")
    assert [each.body for each in (await engine.members.beat("a", b"")).questions] == [b"?"]
    await engine.members.ask(b"another")
    assert redis.ask("HLEN", QUESTIONS) == b":2\r\n"


async def test_beats_and_leases_go_on_where_memory_is_full(
    engine: RedisEngine, redis: RedisServer
) -> None:
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    await engine.members.beat("n", b"state")
    assert [each.node for each in await engine.members.all()] == ["n"]
    fence = await engine.members.take("x", "n", 60.0)
    assert fence is not None
    assert await engine.members.take("x", "n", 60.0) == fence
    await engine.members.give_up("x", "n")
    with pytest.raises(EngineUnavailable, match="memory is full"):
        await engine.members.ask(b"?")


async def test_a_frozen_redis_keeps_nobody_waiting(quick: RedisEngine, redis: RedisServer) -> None:
    members = quick.members
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: members.beat("n", b""),
        members.all,
        lambda: members.leave("n"),
        lambda: members.take("x", "n", 1.0),
        lambda: members.give_up("x", "n"),
        lambda: members.holds("x", 1),
        lambda: members.ask(b"?"),
        lambda: members.answer(1, "n", b"!"),
        lambda: members.answers(1),
    ]
    await members.beat("n", b"")

    async def refused(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(EngineUnavailable):
            await call()

    with redis.frozen(), trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for each in calls:
                nursery.start_soon(refused, each)
    with trio.fail_after(30):
        while True:
            try:
                await members.beat("n", b"")
                break
            except EngineUnavailable:
                await trio.sleep(0.01)


async def test_realms_have_members_of_their_own(
    open_on: Callable[..., Awaitable[RedisEngine]],
) -> None:
    one, other = (await open_on()).members, (await open_on(realm="other")).members
    await one.beat("n", b"")
    assert await one.take("x", "n", 60.0) is not None
    assert list(await other.all()) == []
    assert await other.take("x", "m", 60.0) is not None


async def test_beats_stay_as_they_were_until_it_is_confirmed_which_process_has_the_log(
    engine: RedisEngine, redis: RedisServer
) -> None:
    await engine.enter("n")
    await engine.members.beat("n", b"1")
    redis.ask("HSET", MEMBERS, "other", f"{now(redis) - 60_000_000} state")
    before = redis.ask("HGETALL", MEMBERS)
    run = redis.ask("HGET", HEAD, "run").split()[1].decode()
    redis.ask("HSET", HEAD, "run", "that of another process")
    await engine.members.beat("n", b"2")
    await engine.members.leave("n")
    assert [each.state for each in await engine.members.all()] == [b"1"]
    assert redis.ask("HGETALL", MEMBERS) == before
    redis.ask("HSET", HEAD, "run", run)
    await engine.members.beat("n", b"2")
    assert [each.state for each in await engine.members.all()] == [b"2"]
    await engine.members.leave("n")
    assert redis.ask("HLEN", MEMBERS) == b":0\r\n"
