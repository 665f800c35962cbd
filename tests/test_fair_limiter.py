"""A limit whose places are shared fairly: never more than there are, and none is lost."""

import random
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mist.fair_limiter import FairLimiter


async def test_a_place_that_is_free_is_had_at_once(autojump_clock: MockClock) -> None:
    limiter = FairLimiter(2)
    with trio.fail_after(0):
        async with limiter.place("a"), limiter.place("a"):
            pass
        async with limiter.place("a"), limiter.place("b"):
            pass


async def test_who_has_asked_for_little_comes_first(autojump_clock: MockClock) -> None:
    limiter = FairLimiter(1)
    order: list[str] = []

    async def ask(name: str) -> None:
        async with limiter.place(name):
            order.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for name in ("much", "much", "much", "much", "some", "some", "little"):
            nursery.start_soon(ask, name)
            await wait_all_tasks_blocked()
    assert order == ["much", "some", "little", "much", "some", "much", "much"]


async def test_alone_one_has_all_places(autojump_clock: MockClock) -> None:
    limiter = FairLimiter(4)

    async def ask() -> None:
        async with limiter.place("a"):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert trio.current_time() == pytest.approx(2)


@pytest.mark.parametrize("seed", range(20))
async def test_places_are_kept_through_cancellations(seed: int, autojump_clock: MockClock) -> None:
    """By a model: never more have one than there are, nor fewer while any wait."""
    rng = random.Random(seed)
    most = rng.randint(1, 5)
    limiter = FairLimiter(most)
    having: Counter[str] = Counter()
    waiting: Counter[str] = Counter()

    async def ask(name: str, after: float, patience: float, holding: float) -> None:
        await trio.sleep(after)
        waiting[name] += 1
        is_waiting = True
        try:
            with trio.move_on_after(patience):
                async with limiter.place(name):
                    waiting[name] -= 1
                    is_waiting = False
                    having[name] += 1
                    assert having.total() <= most
                    try:
                        await trio.sleep(holding)
                    finally:
                        having[name] -= 1
        finally:
            waiting[name] -= is_waiting

    async def watch() -> None:
        while True:
            await trio.sleep(0.05)
            await wait_all_tasks_blocked()
            assert having.total() == most or not waiting.total()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with trio.open_nursery() as asking:
            for _ in range(200):
                times = (rng.uniform(0, 3), rng.choice((0.0, 0.1, 1.0, 9.0)), rng.uniform(0, 0.5))
                asking.start_soon(partial(ask, rng.choice("abc"), *times))
        nursery.cancel_scope.cancel()
    async with AsyncExitStack() as stack:
        with trio.fail_after(0):
            for _ in range(most):
                await stack.enter_async_context(limiter.place("a"))
