"""Telling all nodes which members of queue groups are here; more in `engine.test_queue_groups`."""

import itertools

import trio
import trio.testing

from mist.broker.queue_shares import QueueKey, QueueShares
from mist.engine.entries import QueueLeft, QueueSizes
from mist.errors import HistoryUnavailable
from mist.sessions.queue_members import QueueMembers

GROUP = QueueKey("q", "a", "")


class Log:
    """Takes a moment for all that is said.

    Attributes:
        failures: how often it refuses from now on.
    """

    def __init__(self, shares: QueueShares) -> None:
        self.failures = 0
        self._shares = shares

    async def say(self, entry: QueueSizes | QueueLeft) -> None:
        await trio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise HistoryUnavailable
        assert isinstance(entry, QueueSizes)
        self._shares.apply(entry.node, {QueueKey(*key): size for *key, size in entry.sizes})

    async def living(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [self._shares.node]


async def test_who_comes_is_answered_while_others_come_and_go_all_the_time(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    shares = QueueShares("n")
    log = Log(shares)
    members = QueueMembers(shares, log.say, log.living)

    async def flap() -> None:
        for change in itertools.cycle((1, -1)):
            shares.count(QueueKey("mist occupied", "room:1", ""), change)
            await trio.sleep(0.005)

    nursery.start_soon(members.run)
    nursery.start_soon(flap)
    await trio.sleep(0.1)
    for failures in (0, 1):
        log.failures = failures
        shares.count(GROUP, 1)
        began = trio.current_time()
        await members.settled()
        assert trio.current_time() - began < 0.2
        assert list(shares.holders(GROUP)) == ["n"]
    nursery.cancel_scope.cancel()
