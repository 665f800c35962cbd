"""Checkpoints of an engine's log: it can be trimmed, and a new node need not read all of it.

Now and then, one node hands over all that its mirror has, and the log is trimmed up to the
checkpoint before that one. So what the engine keeps is bounded: twice what a mirror has, and the
records since; and a node that is a little behind is not overtaken. Parts of writers' batches expire
(`Engine.stage`): the records that refer to them are trimmed before, since a log that is written to
has a checkpoint twice a day.

Which node does it is settled by a lease. That two of them do is harmless, and told by the engine.
It is taken only where a checkpoint is due, and not held all the time (`leases.run_under_lease`): so
an idle node asks the engine for nothing more.
"""

import logging
import secrets
from typing import Final

import trio

from mist.engine.contract import Checkpoint, Standing
from mist.engine.node import Node
from mist.errors import MistError
from mist.outage import Outage

__all__ = ["LEAST", "Checkpointer"]

log = logging.getLogger("mist.engine")

LEAST: Final = 64 * 1024 * 1024
"""Bytes that an engine has more before there is another checkpoint, at least."""

_RECORD: Final = 100  # bytes of one in an engine beside its body; Redis took 110 for 30
_LEASE: Final = "checkpoint"
_LEASE_SECONDS: Final = 10.0
_LOOK: Final = 5.0  # seconds
_MOST_SECONDS: Final = 12 * 3_600  # of the log that are behind a checkpoint


class Checkpointer:
    """See the module.

    Args:
        node: whose mirror is handed over.
        least: see `LEAST`.
    """

    def __init__(self, node: Node, *, least: int = LEAST) -> None:
        self._node = node
        self._least = least
        self._began: tuple[int, int] | None = None  # an offset, and the time of the next record
        self._outage = Outage(log, "no checkpoint can be made", "checkpoints can be made again")

    async def run(self, *, interval: float = _LOOK) -> None:
        """Look whether a checkpoint is due, every `interval` (seconds), until cancelled."""
        while True:
            await trio.sleep(interval)
            try:
                await self.step()
            except (MistError, ValueError) as error:
                self._outage.note(str(error) or type(error).__name__)

    async def step(self, *, erased: int = 0) -> bool:
        """Make a checkpoint, if one is due and no other node is at it.

        Args:
            erased: offset of an erasure that all nodes have carried out. One is due then, and of
                what was before nothing is kept.

        Returns:
            Whether it was made.

        Raises:
            MistError: the engine or the mirror is not there, or damaged.
        """
        node = self._node
        if not node.mirror.epoch or node.mirror.erasures:
            return False
        if not erased and not await self._is_due(await node.engine.standing()):
            self._outage.end()
            return False
        members, name = node.engine.members, node.name
        if await members.take(_LEASE, name, _LEASE_SECONDS) is None:
            return False
        try:
            made = await self._make(erased)
        finally:
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await members.give_up(_LEASE, name)
        self._outage.end()  # not where another node is at it, which may fail as this one did
        return made

    async def _is_due(self, standing: Standing) -> bool:
        last = standing.checkpoint
        if last is not None and last.offset >= standing.offset:
            return False
        more, size = standing.appended + _RECORD * standing.offset, 0
        if last is not None:
            more, size = more - last.appended - _RECORD * last.offset, last.size
        if more >= max(self._least, size):
            return True
        began = await self._begin(standing) if last is None else last.time
        return standing.time - began >= _MOST_SECONDS * 1_000_000

    async def _begin(self, standing: Standing) -> int:
        """The time of the first record that is kept."""
        place = standing.oldest - 1
        if self._began is None or self._began[0] != place:
            records = await self._node.engine.read(place, max_bytes=1)
            self._began = place, records[0].time if records else standing.time
        return self._began[1]

    async def _make(self, erased: int) -> bool:
        node = self._node
        engine, name = node.engine, f"checkpoint-{secrets.token_hex(8)}"
        standing = await engine.standing()
        parts = size = 0

        async def stage(part: bytes) -> None:
            await engine.stage(name, parts, part)
            await engine.members.take(_LEASE, node.name, _LEASE_SECONDS)

        def take(part: bytes) -> None:
            nonlocal parts, size
            trio.from_thread.run(stage, part, trio_token=token)
            parts, size = parts + 1, size + len(part)

        token = trio.lowlevel.current_trio_token()
        made = False
        try:
            epoch, offset, newest = await node.mirror.dump(take)
            made = await engine.checkpoint(
                Checkpoint(name, parts, offset, newest, size, standing.time, standing.appended),
                epoch,
            )
        finally:
            if not made:
                with trio.move_on_after(5) as scope:
                    scope.shield = True
                    await engine.discard(name)
        if made:
            log.info("a checkpoint was made", extra={"offset": offset, "bytes": size})
            before = standing.checkpoint
            if before is not None and erased:
                await engine.discard(before.name)
            await self._trim(max(erased, 0 if before is None else before.offset))
        return made

    async def _trim(self, upto: int) -> None:
        if upto:
            await self._node.engine.trim(upto)
        batches = self._node.batches
        while batches and batches[0][0] <= upto:
            await self._node.engine.discard(batches[0][1])
            batches.popleft()
