"""What engines that may lose records have in common: how a node enters, and waits for news."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Final, Generic, TypeVar

import trio

from mist.change import Change
from mist.engine.contract import Ancestor, Engine, Forked, Known, Record, Standing
from mist.engine.fence import Fence, Seen

__all__ = ["NODES", "RECORDS", "REPLACED", "STAGED", "FencedEngine", "parse_ancestors"]

NODES: Final = 1_000
"""Nodes known at a time; the longest silent is forgotten first."""

RECORDS: Final = 500
"""Records that are read in one step, at most."""

STAGED: Final = 2 * 86_400
"""Seconds for which a batch's part is kept."""

REPLACED: Final = 600
"""Seconds for which the parts of a checkpoint are kept that is replaced."""

F = TypeVar("F", bound=Fence)


class FencedEngine(Engine, Generic[F]):
    """See the module.

    Args:
        fence: before the log.
    """

    slice: ClassVar[float]
    """Seconds that the server is asked to wait for a record, again and again."""

    def __init__(self, fence: F) -> None:
        self._fence = fence
        self._tail = Seen()  # the last record that was read
        self._at_end = False  # whether there was none behind that
        self._waiting = False  # whether a task waits for the next one
        self._news = Change()  # of that

    async def enter(self, node: str, known: Known | None = None) -> Standing:
        if not node:
            raise ValueError("a node has a name")
        fence = self._fence
        if known is not None:
            fence.claim(known)
        await self._make_known(node)
        fence.node, fence.lost = node, ""
        with suppress(Forked):  # this enters the other one
            await fence.confirm(fence.run)
        standing = await self.standing()
        if standing.epoch != fence.epoch:
            fence.enter(standing.epoch)
            self._tail, self._at_end = Seen(), False
        return standing

    @abstractmethod
    async def _make_known(self, node: str) -> None:
        """Make a node known, and the realm where it isn't there."""

    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        give_up = trio.current_time() + wait
        while True:
            if wait <= 0 or not (self._at_end and after == self._tail.offset):
                records = await self._read_now(after, max_bytes)
                if records:
                    return records
            left = give_up - trio.current_time()
            if left <= 0:
                return []
            records = await self._wait(after, max_bytes, min(left, self.slice))
            if records:
                return records

    async def _wait(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait for news, for a time; what there is may be among what is returned, or not.

        One task at a time asks the server: any number may wait, and each would need a connection.
        """
        if self._waiting:
            with trio.move_on_after(seconds):
                await self._news.wait()
            return []
        self._waiting = True
        try:
            return await self._read_next(after, max_bytes, seconds)
        finally:
            self._waiting = False
            self._news.notify()

    @abstractmethod
    async def _read_now(self, after: int, max_bytes: int) -> list[Record]:
        """What is there behind an offset."""

    @abstractmethod
    async def _read_next(self, after: int, max_bytes: int, seconds: float) -> list[Record]:
        """Wait for the record behind the last one, for a time."""

    def _move(self, epoch: str, tail: Seen, *, at_end: bool) -> None:
        if epoch == self._fence.epoch:
            self._tail, self._at_end = tail, at_end
            self._fence.note(epoch, tail)


def parse_ancestors(text: str) -> tuple[Ancestor, ...]:
    """Ancestors, from `EPOCH OFFSET NEWEST;…`: what a later one has lost, all before have."""
    found: list[Ancestor] = []
    for each in reversed(text.split(";") if text else ()):
        epoch, offset, newest = each.split(" ")
        own = Ancestor(epoch, int(offset), int(newest))
        if found:
            last = found[-1]
            own = Ancestor(epoch, min(own.offset, last.offset), min(own.newest, last.newest))
        found.append(own)
    return tuple(reversed(found))
