"""The maintenance task of a log."""

import logging

import pytest
import trio

from mist.history import HistoryUnavailable, Key, Policy, Position, Rule, Trimmed
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history
from tests.history.messages import one


@pytest.fixture
async def history():
    async with await open_history("memory://") as history:
        yield history


async def test_it_trims_and_joins(history, autojump_clock, nursery):
    for number in range(100):
        await history.append([one("a", time=number)])
    nursery.start_soon(lambda: run_maintenance(history, Policy(max_age=50), clock=lambda: 100.0))
    await trio.sleep(20)
    statistics = await history.statistics()
    assert statistics.messages == 50
    assert statistics.blocks < 50


async def test_another_policy_holds_from_the_next_pass_on(history, autojump_clock, nursery):
    for number in range(100):
        await history.append([one("a", time=number)])
    policies = [Policy(max_age=50)]
    nursery.start_soon(lambda: run_maintenance(history, lambda: policies[-1], clock=lambda: 100.0))
    await trio.sleep(20)
    assert (await history.statistics()).messages == 50
    policies.append(Policy(max_age=1))
    await trio.sleep(20)
    assert (await history.statistics()).messages < 50  # blocks go whole, and some are joined


async def test_it_forgets_keys_after_a_day(history, autojump_clock, nursery):
    day = 24 * 3600
    for number in range(3):
        key = Key(bytes([number]) * 32, bytes(32))
        await history.append([one("a", time=number * day, key=key)])
    nursery.start_soon(lambda: run_maintenance(history, Policy(), clock=lambda: 2.5 * day))
    await trio.sleep(20)
    kept = [await history.recall(bytes([number]) * 32) for number in range(3)]
    assert [each is not None for each in kept] == [False, False, True]


class Failing:
    """A log whose disk is full, until it isn't."""

    def __init__(self, failures):
        self.failures = failures
        self.calls = []
        self.tidied = 0

    async def trim(self, policy, now, *, sweep):
        await trio.lowlevel.checkpoint()
        self.calls.append(sweep)
        if self.failures:
            self.failures -= 1
            raise HistoryUnavailable("the disk is full")
        return Trimmed(0, False)

    async def note_clock(self, reading):
        await trio.lowlevel.checkpoint()

    async def forget_keys(self, before, most, most_of_owner):
        await trio.lowlevel.checkpoint()
        return False

    async def position(self):
        await trio.lowlevel.checkpoint()
        return Position("epoch", 1, 0, 0)

    async def compact(self):
        await trio.lowlevel.checkpoint()
        self.tidied += 1
        return False


async def test_failure_is_logged_once_and_tried_again(autojump_clock, nursery, caplog):
    history = Failing(3)
    with caplog.at_level(logging.WARNING, "mist.history"):
        nursery.start_soon(run_maintenance, history, Policy())
        await trio.sleep(65)
    assert len(history.calls) >= 6
    assert [record.reason for record in caplog.records] == ["the disk is full"]


async def test_what_rules_keep_is_gone_over_rarely(autojump_clock, nursery):
    history = Failing(0)
    nursery.start_soon(run_maintenance, history, Policy(rules=(Rule("a", count=1),)))
    await trio.sleep(1205)
    assert len(history.calls) > 100
    assert sum(history.calls) == 3


async def test_log_that_does_not_grow_is_left_in_peace(autojump_clock, nursery):
    history = Failing(0)
    nursery.start_soon(run_maintenance, history, Policy())
    await trio.sleep(60)
    assert history.tidied == 1
