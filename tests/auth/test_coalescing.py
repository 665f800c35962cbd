"""One call for many: each gets the outcome of one that began after it asked."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from mist.auth.coalescing import Coalesced
from mist.errors import RegistryUnavailable


class Store:
    """Answers a question when it is let go on; counts them."""

    def __init__(self) -> None:
        self.asked = 0
        self.outcomes: list[Exception | None] = []
        self._waiting: list[trio.Event] = []

    async def ask(self) -> None:
        self.asked += 1
        event = trio.Event()
        self._waiting.append(event)
        await event.wait()
        if self.outcomes and (error := self.outcomes.pop(0)) is not None:
            raise error

    async def answer(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._waiting.pop().set()
        await trio.testing.wait_all_tasks_blocked()


async def noting(ask: Callable[[], object], done: list[str], name: str) -> None:
    try:
        await ask()  # type: ignore[misc]
    except RegistryUnavailable as error:
        name += f" {error.__cause__}"
    done.append(name)


async def test_a_call_under_way_does_not_count_for_later_callers() -> None:
    store, done = Store(), list[str]()
    ask = Coalesced(store.ask)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(noting, ask, done, "first")
        await trio.testing.wait_all_tasks_blocked()
        for name in ("second", "third", "fourth"):
            nursery.start_soon(noting, ask, done, name)
        await store.answer()
        assert done == ["first"]
        assert store.asked == 2
        await store.answer()
    assert sorted(done) == ["first", "fourth", "second", "third"]
    assert store.asked == 2


async def test_a_thousand_calls_at_once_are_two() -> None:
    store, done = Store(), list[str]()
    ask = Coalesced(store.ask)
    async with trio.open_nursery() as nursery:
        for _ in range(1_000):
            nursery.start_soon(noting, ask, done, "")
        await store.answer()
        await store.answer()
    assert store.asked == 2
    assert len(done) == 1_000


async def test_all_callers_that_waited_get_the_failure() -> None:
    store, done = Store(), list[str]()
    ask = Coalesced(store.ask)
    error = RegistryUnavailable()
    error.__cause__ = OSError("gone")
    store.outcomes = [None, error]
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(noting, ask, done, name)
        await store.answer()
        await store.answer()
    assert sorted(len(each) for each in done) == [1, 6, 6]
    assert store.asked == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(noting, ask, done, "later")
        await store.answer()
    assert done[-1] == "later"


async def test_where_the_one_that_asks_is_cancelled_another_asks() -> None:
    store, done = Store(), list[str]()
    ask = Coalesced(store.ask)
    scope = trio.CancelScope()

    async def impatient() -> None:
        with scope:
            await ask()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(noting, ask, done, "other")
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await store.answer()
    assert done == ["other"]
    assert store.asked == 2


async def test_other_errors_are_passed_on() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    ask = Coalesced(fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await ask()
