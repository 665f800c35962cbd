"""The fence: what is asked of a log is asked of the one that is known, and of no other.

An engine that comes back may have lost what it acknowledged: it was emptied, its data is that of an
older backup, or a replica that was behind has taken its place. So a node remembers the last record
that it has read or appended. Before anything else is asked of another process than the last one,
`Fence.confirm` has it confirmed: each member says what it has of the log, and appends are refused
until all have. The engine counts these votes and decides, in one step: the log is still the same,
or it has lost records and another epoch begins. No member leads.

From the moment that a node has voted, what another process still answers does not count.

Once it is known that there is another epoch, nothing is done any more until the node has entered
again.
"""

from abc import ABC, abstractmethod
from typing import Final, Literal

import attrs
import trio

from mist.engine.contract import Forked, Known

__all__ = ["ALIVE", "VOTES", "Fence", "Seen", "Verdict"]

ALIVE: Final = 3_000_000
"""Microseconds from a member's last beat for which it is taken as alive."""

VOTES: Final = 2_000_000
"""Microseconds for which votes are waited for."""

_ASK_AGAIN: Final = 0.05  # seconds


@attrs.frozen
class Seen:
    """A record that is known to be in the log.

    Attributes:
        time: names it, beside its offset; 0 where it isn't known.
        newest: the highest id up to it; 0 where it isn't known.
    """

    offset: int = 0
    time: int = 0
    newest: int = 0


@attrs.frozen
class Verdict:
    """What has come of a vote.

    Attributes:
        outcome: votes are missing; the log is still the same; it is another one.
        run: the process that has it.
    """

    outcome: Literal["waiting", "same", "forked"]
    run: str


class Fence(ABC):
    """See the module.

    Attributes:
        node: by which this one is known.
        epoch: of the log.
        seen: the last record that this node has read or appended.
        lost: the epoch, once the log is known to be in another one, or to have lost records.
        run: the process that is known to have the log; empty where none is.
    """

    def __init__(self) -> None:
        self.node = ""
        self.epoch = ""
        self.seen = Seen()
        self.lost = ""
        self.run = ""
        self._confirming = trio.Lock()

    def claim(self, known: Known) -> None:
        """Say what the node has of the log, where that is not known better."""
        if known.epoch != self.epoch:
            self.enter(known.epoch)
        if known.offset > self.seen.offset:
            self.seen = Seen(known.offset, 0, known.newest)

    def enter(self, epoch: str) -> None:
        """Go on with the log of this epoch."""
        if epoch != self.epoch:
            self.epoch, self.lost, self.seen = epoch, "", Seen()

    def note(self, epoch: str, seen: Seen) -> None:
        """Remember a record, if it is the last one, and the epoch the same."""
        if epoch == self.epoch and seen.offset >= self.seen.offset:
            self.seen = seen

    def forked(self, epoch: str) -> Forked:
        """What to raise where the log of an epoch is not what it was."""
        if epoch == self.epoch:
            self.lost = epoch
        return Forked()

    async def confirm(self, run: str) -> None:
        """Have it confirmed which process has the log, and that it is still the same log.

        Args:
            run: the process that was taken to have it; nothing is done where that is outdated.

        Raises:
            EngineUnavailable: there is no answer.
            Forked: it is another one.
        """
        async with self._confirming:
            if self.lost:
                raise Forked
            if run != self.run:
                return
            self.run = ""
            verdict = await self._vote()
            while verdict.outcome == "waiting":
                await trio.sleep(_ASK_AGAIN)
                verdict = await self._vote()
            if verdict.outcome == "forked":
                raise self.forked(self.epoch)
            self.run = verdict.run

    @abstractmethod
    async def _vote(self) -> Verdict:
        """Say what the node has of the log, in the process that has it now.

        Raises:
            EngineUnavailable: there is no answer.
        """
