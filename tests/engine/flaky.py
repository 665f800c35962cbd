"""An engine between which and its node things go wrong, in turns that a test sets."""

from collections.abc import Sequence

import attrs
import trio

from mist.engine.contract import (
    Checkpoint,
    Engine,
    EngineUnavailable,
    Forked,
    Known,
    NotEntered,
    Placed,
    Record,
    Standing,
)
from mist.engine.members import Members
from mist.engine.memory import MemoryEngine

__all__ = ["FlakyEngine"]


class FlakyEngine(Engine):
    """As the engine behind it, but for what is set.

    Attributes:
        lose_requests, lose_replies: how many of the next appends don't get there, or of which the
            answer doesn't get back.
        down: whether nothing gets there.
        gone: whether the realm is not there, as the engine is asked where the log stands.
        stalls: seconds after which it is known that an append gets no answer.
        deaf: whether nothing is read.
        busy: whether no read finds nothing, as where others publish all the time.
        strangers: how many of the next appends are refused, as of a node that is not known.
        skew: how many of the next reads tell of other ids than there are.
        held: while it isn't set, reads wait.
        appends: tried so far.
    """

    def __init__(self, engine: Engine) -> None:
        self.lose_requests = self.lose_replies = self.appends = 0
        self.skew = self.strangers = 0
        self.stalls = 0.0
        self.down = self.gone = self.deaf = self.busy = False
        self.held = trio.Event()
        self.held.set()
        self._engine = engine

    @property
    def members(self) -> Members:
        return self._engine.members

    async def _check(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise EngineUnavailable

    async def enter(self, node: str, known: Known | None = None) -> Standing:
        await self._check()
        return await self._engine.enter(node, known)

    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        self.appends += 1
        if self.stalls:
            await trio.sleep(self.stalls)
            raise EngineUnavailable
        await self._check()
        if self.strangers:
            self.strangers -= 1
            raise NotEntered
        if self.lose_requests:
            self.lose_requests -= 1
            raise EngineUnavailable
        placed = await self._engine.append(node, serial, body, count, epoch)
        if self.lose_replies:
            self.lose_replies -= 1
            raise EngineUnavailable
        return placed

    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        await self._check()
        await self.held.wait()
        records = await self._engine.read(after, wait=wait, max_bytes=max_bytes)
        while self.busy and not records:
            records = await self._engine.read(after, wait=wait, max_bytes=max_bytes)
        await self.held.wait()
        await self._check()
        if self.deaf:
            raise EngineUnavailable
        if records and self.skew:
            self.skew -= 1
            return [attrs.evolve(each, first=each.first + 7) for each in records]
        return records

    async def standing(self) -> Standing:
        await self._check()
        if self.gone:
            raise Forked
        return await self._engine.standing()

    async def stage(self, batch: str, part: int, body: bytes) -> None:
        await self._check()
        await self._engine.stage(batch, part, body)

    async def staged(self, batch: str, part: int) -> bytes | None:
        await self._check()
        return await self._engine.staged(batch, part)

    async def discard(self, batch: str) -> None:
        await self._check()
        await self._engine.discard(batch)

    async def put_once(self, name: str, value: bytes, seconds: float) -> None:
        await self._check()
        await self._engine.put_once(name, value, seconds)

    async def take(self, name: str) -> bytes | None:
        await self._check()
        return await self._engine.take(name)

    async def checkpoint(self, checkpoint: Checkpoint, epoch: str) -> bool:
        await self._check()
        return await self._engine.checkpoint(checkpoint, epoch)

    async def trim(self, upto: int) -> None:
        await self._check()
        await self._engine.trim(upto)

    async def close(self) -> None:
        await self._engine.close()

    def lose(self, records: int) -> None:
        """Have the engine lose its last records; it has to be one in memory."""
        assert isinstance(self._engine, MemoryEngine)
        self._engine.lose(records)
