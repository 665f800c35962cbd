"""Idempotency: done once, however often it is asked for."""

import pytest
import trio
import trio.testing

from mist.errors import HistoryUnavailable
from mist.history import Key
from mist.history.idempotency import OWNER_BYTES, KeyRecords, KeysInFlight, KeysInMemory, key_name
from mist.history.opening import open_history
from mist.history.record import KeyRecord
from tests.history.messages import one, replay, texts

DAY = 24 * 3600


def key(name="k", digest="d"):
    return Key(name.encode().ljust(32), digest.encode().ljust(32))


@pytest.fixture
async def history():
    async with await open_history("memory://") as history:
        yield history


class Shop:
    """Stores under keys, at a time of one's choice."""

    def __init__(self, history, nursery):
        self.now = 1000.0
        self.history = history
        self.keys_in_flight = KeysInFlight(history, nursery.start_soon, lambda: self.now)
        self.failing = False
        self.let_go = trio.Event()
        self.let_go.set()

    async def store(self, text, mark):
        async def store():
            await self.let_go.wait()
            if self.failing:
                raise HistoryUnavailable
            return await self.history.append([one("a", text, time=self.now, key=mark)])

        return await self.keys_in_flight.once(mark, store)


@pytest.fixture
def shop(history, nursery):
    return Shop(history, nursery)


async def test_a_repeat_gets_the_first_answer_and_stores_nothing(shop):
    assert [await shop.store("1", key()) for _ in range(3)] == [1, 1, 1]
    assert texts(await replay(shop.history)) == ["1"]


async def test_other_keys_are_other_publications(shop):
    assert [await shop.store(name, key(name)) for name in "abc"] == [1, 2, 3]


async def test_a_key_used_for_something_else_is_told(shop):
    await shop.store("1", key())
    assert await shop.store("2", key(digest="other")) is None
    assert texts(await replay(shop.history)) == ["1"]


async def test_after_a_day_a_key_is_new_though_nobody_has_cleaned_up(shop):
    await shop.store("1", key())
    shop.now += DAY - 1
    assert await shop.store("1", key()) == 1
    shop.now += 2
    assert await shop.store("2", key(digest="other")) == 2
    assert await shop.store("2", key(digest="other")) == 2


async def test_repeats_at_once_wait_for_the_first(shop, autojump_clock):
    shop.let_go = trio.Event()
    answers = []

    async def ask(digest):
        answers.append(await shop.store("1", key(digest=digest)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, "d")
        await trio.sleep(1)
        assert answers == []
        await ask("other")  # which needn't wait to be told
        assert answers == [None]
        shop.let_go.set()
    assert answers == [None] + [1] * 10
    assert texts(await replay(shop.history)) == ["1"]


class SlowLog:
    """Holds back what the log says of keys."""

    def __init__(self, history, monkeypatch):
        self.let_go = trio.Event()
        recall = history.recall

        async def slow(name):
            await self.let_go.wait()
            return await recall(name)

        monkeypatch.setattr(history, "recall", slow)


@pytest.mark.parametrize("asked", [["other", "other"], ["other", "d"], ["d", "other"], ["d", "d"]])
async def test_two_at_once_are_compared_with_what_is_stored_not_with_each_other(
    shop, history, monkeypatch, asked
):
    assert await shop.store("1", key()) == 1
    log = SlowLog(history, monkeypatch)
    answers = {}

    async def ask(place, digest):
        answers[place] = await shop.store("2", key(digest=digest))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for place, digest in enumerate(asked):
                nursery.start_soon(ask, place, digest)
                await trio.testing.wait_all_tasks_blocked()
            log.let_go.set()
    assert answers == {n: 1 if digest == "d" else None for n, digest in enumerate(asked)}
    assert texts(await replay(history)) == ["1"]


async def test_another_publication_in_flight_is_a_conflict_once_the_log_knows_of_none(
    shop, history, monkeypatch
):
    log = SlowLog(history, monkeypatch)
    answers = {}

    async def ask(name):
        answers[name] = await shop.store(name, key(digest=name))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for name in ("first", "second"):
                nursery.start_soon(ask, name)
                await trio.testing.wait_all_tasks_blocked()
            assert answers == {}
            log.let_go.set()
    assert answers == {"first": 1, "second": None}
    assert texts(await replay(history)) == ["first"]


async def test_where_no_task_can_be_started_nothing_is_in_flight(history, nursery):
    def refuse(task):
        raise HistoryUnavailable

    keys_in_flight = KeysInFlight(history, refuse)
    for _ in range(2):
        with trio.fail_after(5), pytest.raises(HistoryUnavailable):
            await keys_in_flight.once(key(), trio.sleep_forever)


async def test_where_the_first_fails_a_repeat_tries_again(shop, autojump_clock):
    shop.let_go, shop.failing = trio.Event(), True
    outcomes = []

    async def ask():
        try:
            outcomes.append(await shop.store("1", key()))
        except HistoryUnavailable:
            outcomes.append("failed")
            shop.failing = False

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.sleep(1)
        shop.let_go.set()
    assert outcomes == ["failed", 1, 1]
    assert texts(await replay(shop.history)) == ["1"]


async def test_a_publisher_that_goes_does_not_take_its_publication_along(shop, autojump_clock):
    shop.let_go = trio.Event()
    with trio.move_on_after(1):
        await shop.store("1", key())
    async with trio.open_nursery() as nursery:
        answers = []

        async def ask():
            answers.append(await shop.store("1", key()))

        nursery.start_soon(ask)
        await trio.sleep(1)
        shop.let_go.set()
    assert answers == [1]
    assert texts(await replay(shop.history)) == ["1"]


async def test_where_the_keys_can_not_be_read_nothing_is_stored(shop, monkeypatch):
    async def fail(name):
        raise HistoryUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(shop.history, "recall", fail)
        with pytest.raises(HistoryUnavailable):
            await shop.store("1", key())
    assert await shop.store("1", key()) == 1


def test_without_a_history_a_key_is_good_for_a_day():
    now = 0.0
    keys_in_memory = KeysInMemory(lambda: now)
    done = []
    assert keys_in_memory.once(key(), lambda: done.append(1))
    now = DAY - 1.0
    assert keys_in_memory.once(key(), lambda: done.append(2))
    assert not keys_in_memory.once(key(digest="other"), lambda: done.append(3))
    now = DAY + 1.0
    assert keys_in_memory.once(key(digest="other"), lambda: done.append(4))
    assert done == [1, 4]


def test_without_a_history_what_fails_is_tried_again():
    keys_in_memory = KeysInMemory()
    done = []
    with pytest.raises(ZeroDivisionError):
        keys_in_memory.once(key(), lambda: 1 / 0)
    assert keys_in_memory.once(key(), lambda: done.append(1))
    assert done == [1]


def test_without_a_history_only_so_many_keys_are_kept():
    keys_in_memory = KeysInMemory(most=3)
    done = []
    for name in "abcda":
        keys_in_memory.once(key(name), lambda name=name: done.append(name))
        assert len(keys_in_memory._keys) <= 3
    assert done == list("abcda")
    keys_in_memory.once(key("d"), lambda: done.append("again"))
    assert "again" not in done


def test_a_key_kept_anew_is_the_newest():
    keys = KeyRecords()
    for number, name in enumerate("aba", 1):
        keys.add(KeyRecord(number, number, key(name).name, bytes(32)))
    assert len(keys) == 2
    keys.forget(keys.outdated(before=0, most=1, step=10))
    assert keys.get(key("b").name) is None
    assert keys.get(key("a").name).first == 3


def test_without_a_history_a_busy_owner_costs_no_other_a_key():
    keys_in_memory = KeysInMemory(most=10, most_of_owner=3)
    done = []

    def once(owner, name):
        marked = Key(key_name(owner, name), bytes(32))
        keys_in_memory.once(marked, lambda: done.append((owner, name)))

    once("quiet", "a")
    for number in range(50):
        once("busy", str(number))
        assert len(keys_in_memory._keys) <= 4
    done.clear()
    for name in ("47", "48", "49"):
        once("busy", name)
    once("quiet", "a")
    assert done == []
    once("busy", "46")
    assert done == [("busy", "46")]


def test_without_a_history_a_repeat_of_the_oldest_of_all_that_fit_is_known():
    keys_in_memory = KeysInMemory(most=3)
    done = []
    for name in "abca":
        keys_in_memory.once(key(name), lambda name=name: done.append(name))
    assert done == list("abc")


def test_names_tell_owners_and_keys_apart():
    names = {(owner, each): key_name(owner, each) for owner in "ab" for each in ("1", "2")}
    assert {len(name) for name in names.values()} == {32}
    assert len({name[OWNER_BYTES:] for name in names.values()}) == 4
    beginnings = {owner: {names[owner, each][:OWNER_BYTES] for each in "12"} for owner in "ab"}
    assert [len(each) for each in beginnings.values()] == [1, 1]
    assert beginnings["a"] != beginnings["b"]
