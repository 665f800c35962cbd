"""Following: what comes from an engine's log is applied to a node's mirror, and told of, in order.

Where the engine doesn't answer, or the mirror can't be written, it is tried again until it works:
records are read from where the mirror is, so nothing is missed and nothing comes twice. Where the
engine's log is in another epoch, or has trimmed what the mirror lacks, the node enters anew. Where
the mirror turns out not to be what the log says it should be, it begins anew: it is a cache.

Refused: to read the next records while these are applied. What is applied together becomes less,
and the processors have more to do: across two nodes on two of them the median at 2,000 messages a
second went from 2.8 to 4.4 ms.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs
import trio

from mist.change import Change
from mist.engine.contract import EngineUnavailable, Forked, Record, Trimmed
from mist.engine.entries import (
    Entry,
    Erase,
    ForgottenKeys,
    Messages,
    QueueLeft,
    QueueSizes,
    StagedBatch,
    Void,
    decode,
)
from mist.engine.lag import Lag
from mist.engine.members import BeatReply
from mist.engine.node import Node
from mist.engine.queue_notes import noted
from mist.errors import HistoryUnavailable, MistError
from mist.history import Bulk, Commit
from mist.history.arrivals import Applied, Arrival, BatchArrival, NotNext
from mist.history.commits import unpack_blocks
from mist.history.layout import Row
from mist.outage import Outage

__all__ = ["Arrived", "Follower"]

log = logging.getLogger("mist.engine")

_WAIT: Final = 0.5  # seconds, for the next record
_DELAY: Final = 0.1  # seconds until it is tried again; then twice as long each time, up to:
_LAST_DELAY: Final = 0.5
_REACH: Final = 3.0  # seconds
_AT_ONCE: Final = 64  # records applied in one transaction


class _NotStaged(ValueError):
    """A part of a batch is not there; perhaps not any more, since the log has let the batch go."""

    def __init__(self) -> None:
        super().__init__("a part of a batch is not there")


_NO_NOTES: Final[Mapping[bytes, bytes | None]] = MappingProxyType({})

_Step: TypeAlias = Sequence[tuple[Record, Entry]]
"""Records of one kind that are applied together."""


@attrs.frozen
class Arrived:
    """A record that was applied.

    Attributes:
        record: as it was read.
        applied: what became of its messages; None where it isn't `Messages`.
        commit: of a batch, and whether it was stored now; None where it is no batch.
        queues: what it says of queue groups; None where it says nothing.
    """

    record: Record
    applied: Applied | None = None
    commit: tuple[Commit, bool] | None = None
    queues: QueueSizes | QueueLeft | None = None


class Follower:
    """See the module.

    Args:
        node: whose engine is read, and whose mirror is written.
        tell: called with each record that was applied, in order. What it raises ends `run`.
        entered: called once the node has entered anew, before anything is applied again.
        reach: called with the version of the tokens that a record is stamped with, before it is
            applied; returns once this server knows of each revocation up to it. So a revoked
            session is neither delivered nor replayed what was published after the revocation
            had returned. None is without.
        storing: makes a context for each time that the mirror is written.

    Attributes:
        failed: told of each time that nothing could be applied.
        caught_up: whether it has been where the log ended when the node entered. How far it is
            behind what came since is the lag's business: a log may have no end while others
            publish.
        lag: by how much it is behind; heartbeats are noted by others.
    """

    def __init__(
        self,
        node: Node,
        tell: Callable[[Arrived], Awaitable[None]],
        entered: Callable[[], Awaitable[None]],
        reach: Callable[[int], Awaitable[None]] | None = None,
        storing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._outage = Outage(log, "the engine can't be followed", "the engine is followed again")
        self.failed = Change()
        self.lag = Lag(node.mirror.offset)
        self._node = node
        self._entered = entered
        self._moved = Change()
        self._elsewhere = False
        self._unfit: int | None = None  # offset of the mirror when it did not fit
        self._reads = 0  # begun
        self._at_end = 0  # the last of them that found nothing
        self._beats = 0  # answered
        self._log_offset = 0  # as the last of them told
        self._engine = node.engine
        self._history = node.history
        self._mirror = node.mirror
        self.caught_up = self._has_all_of_before()
        self._tell = tell
        self._reach = reach
        self._storing = storing
        self._delay = _DELAY

    @property
    def failing(self) -> str:
        """Why nothing can be applied now; empty while it can."""
        return self._outage.reason

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self._reads += 1
            try:
                records = await self._engine.read(self._mirror.offset, wait=_WAIT)
                steps = list(_steps(records))
            except (Forked, Trimmed) as error:
                await self._enter(error)
                continue
            except (MistError, ValueError) as error:
                await self._note(error)
                continue
            if self._elsewhere:
                await self._enter(Forked())
                continue
            self._works()
            if not records:
                self._at_end = self._reads
            try:
                for step in steps:
                    arrived = await self._apply(step)
                    for each in arrived:
                        await self._tell(each)
                        self.lag.note_applied(each.record)
            except NotNext as error:
                await self._enter_unfit(error)
                continue
            except (Forked, Trimmed) as error:
                await self._enter(error)
                continue
            self.caught_up = self.caught_up or self._has_all_of_before()
            self._moved.notify()

    def _has_all_of_before(self) -> bool:
        """Whether the mirror has what the log had when the node entered."""
        return self._mirror.offset >= self._node.standing.offset

    async def _enter_unfit(self, error: NotNext) -> None:
        """Enter anew, since the log does not go on where the mirror ends.

        The first time it may have been a mistake in reading, such as from a server that has been
        replaced. The second time it is the mirror.
        """
        anew, self._unfit = self._unfit == self._mirror.offset, self._mirror.offset
        if anew:
            log.error("the mirror does not fit the engine's log, and begins anew")
        await self._enter(error, anew=anew)

    async def _enter(self, error: Exception, *, anew: bool = False) -> None:
        """Enter anew. Nothing that is read of the mirror is known to be right before."""
        self.caught_up = self._elsewhere = False
        log.warning("the node enters anew", extra={"reason": str(error)})
        await self._insist(partial(self._node.enter, anew=anew))
        if self._reach is not None:
            # What a checkpoint has brought bears no stamps: the newest version there is will do.
            await self._insist(partial(self._reach, sys.maxsize))
        self.lag = Lag(self._mirror.offset)
        self._works()
        await self._entered()

    async def _insist(self, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await call()
            except (MistError, ValueError) as problem:
                await self._note(problem)
            else:
                return

    def note_epoch(self) -> None:
        """The engine was entered in another epoch: what is read from now on is not the mirror's."""
        self._elsewhere = True

    async def reach(self, id_: int) -> None:
        """Wait until it is known whether the log has an id.

        Raises:
            HistoryUnavailable: that takes too long.
        """
        reads, beats, goal = self._reads, self._beats, sys.maxsize
        with trio.move_on_after(_REACH):
            while not self.caught_up or (
                id_ > self._mirror.newest
                and self._at_end <= reads
                # At a log that is written to all the time, no read finds nothing.
                and self._mirror.offset < goal
            ):
                await self._moved.wait()
                if self._beats > beats + 1:  # the first may have been on its way before
                    goal = min(goal, self._log_offset)
            return
        raise HistoryUnavailable("this node is behind others")

    def note_beat(self, reply: BeatReply) -> None:
        """The engine has answered a heartbeat of this node."""
        self.lag.note_beat(reply)
        self._beats += 1
        self._log_offset = reply.offset
        self._moved.notify()

    async def _apply(self, step: _Step) -> list[Arrived]:
        while True:
            try:
                arrived = await self._apply_once(step)
            except NotNext:
                raise
            except _NotStaged as error:
                await self._note(error)
                with suppress(EngineUnavailable):  # or else the log has let the batch go, too
                    await self._engine.read(self._mirror.offset, max_bytes=1)
            except (MistError, ValueError) as error:
                await self._note(error)
            else:
                self._works()
                return arrived

    def _works(self) -> None:
        if self._outage:
            self._outage.end()
            self._delay = _DELAY

    async def _note(self, error: Exception) -> None:
        self._outage.note(str(error) or type(error).__name__)
        self.failed.notify()
        await trio.sleep(self._delay)
        self._delay = min(2 * self._delay, _LAST_DELAY)

    async def _apply_once(self, step: _Step) -> list[Arrived]:
        ((record, entry), *_) = step
        if self._reach is not None:
            await self._reach(max([record.tokens for record, _ in step]))
        if isinstance(entry, StagedBatch):
            arrival = BatchArrival(
                record.offset, record.first, record.time, self._bulk(record, entry), entry.mark
            )
            with self._storing():
                commit = await self._mirror.apply_batch(arrival)
            self._node.batches.append((record.offset, entry.staged))
            return [Arrived(record, commit=commit)]
        if isinstance(entry, ForgottenKeys):
            while await self._history.forget_keys(entry.before, entry.most, entry.most_of_owner):
                pass
        arrivals = [
            Arrival(
                record.offset,
                record.first,
                record.time,
                entry.pieces() if isinstance(entry, Messages) else (),
                record.count if isinstance(entry, Void) else 0,
                entry.erasure if isinstance(entry, Erase) else None,
                noted(entry, self._mirror.notes)
                if isinstance(entry, QueueSizes | QueueLeft)
                else _NO_NOTES,
            )
            for record, entry in step
        ]
        with self._storing():
            applied = await self._mirror.apply(arrivals)
        queues = entry if isinstance(entry, QueueSizes | QueueLeft) else None  # one by itself
        return [
            Arrived(record, each, queues=queues)
            for (record, _), each in zip(step, applied, strict=True)
        ]

    def _bulk(self, record: Record, entry: StagedBatch) -> Bulk:
        token = trio.lowlevel.current_trio_token()

        def blocks() -> Iterator[Row]:
            for part in range(entry.parts):
                body = trio.from_thread.run(
                    self._engine.staged, entry.staged, part, trio_token=token
                )
                if body is None:
                    raise _NotStaged
                yield from unpack_blocks(body)

        return Bulk(blocks, record.count)


def _steps(records: Iterable[Record]) -> Iterator[_Step]:
    """What is applied together: messages, as many as are there; anything else by itself.

    Raises:
        ValueError: a record can't be read.
    """
    decoded = [(record, decode(record.body)) for record in records]
    for kind, some in groupby(decoded, key=lambda each: type(each[1])):
        group = list(some)
        size = _AT_ONCE if kind is Messages else 1
        for start in range(0, len(group), size):
            yield group[start : start + size]
