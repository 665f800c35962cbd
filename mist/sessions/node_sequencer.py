"""What is published at one of many nodes, put in order by their engine; see `mist.engine`.

    submit      a publisher queues it, without waiting
    append      a group of what is queued becomes a record of the engine's log
    apply       records come back, in order, and with them those of other nodes: to the mirror first
    deliver     then to the broker
    settle      and its publisher hears the id, where it was published here

While little is published, more is gathered while a group is on its way and back, for a moment; else
groups are appended while those before are on their way back. What can't be appended in time is
refused, and its publishers hear that it may not have been stored; see `mist.sessions.appender`.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from mist.auth.registry import Registry
from mist.broker.broker import Broker
from mist.broker.queue_shares import QueueKey, QueueShares
from mist.commands import Since
from mist.engine.clock import EngineClock
from mist.engine.contract import EngineUnavailable, Forked, check_size
from mist.engine.entries import (
    Erase,
    ForgottenKeys,
    Messages,
    QueueLeft,
    QueueSizes,
    StagedBatch,
    encode,
)
from mist.engine.follower import Arrived, Follower
from mist.engine.members import BeatReply
from mist.engine.node import Node
from mist.engine.queue_notes import sizes_of
from mist.engine.shared_standing import SharedStanding
from mist.errors import HistoryUnavailable
from mist.history import Commit
from mist.history.arrivals import Applied
from mist.history.erasure import Erasure
from mist.history.idempotency import KeyUsed
from mist.sessions.appender import REFUSED, STOPPED, Appender, Sent
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.pieces import pieces_of, stage
from mist.sessions.sequencer import Sequencer
from mist.sessions.submission import BulkSubmission, Submission

__all__ = ["NodeSequencer"]

log = logging.getLogger("mist.engine")

# While so little is in flight, a group waits so long for the one before it, at most.
_LITTLE: Final = 65_536  # bytes
_GATHERING: Final = 0.002  # seconds
_TIMEOUT: Final = 10.0  # seconds for which the engine is asked before publishers are refused
_BEHIND: Final = 10.0  # seconds behind the log, above which a node is not ready
_DELIVERED: Final = 3.0  # seconds until what is in the mirror is delivered, at most


class NodeSequencer(Sequencer):
    """See the module. Made by `following`.

    Args:
        broker, scheduler, newest: as for a `Sequencer`.
        node: which this server is.
        registry: has to know of the revocations that a record comes behind; None is without.
        timeout: seconds; see the module.
        on_epoch: called when the log is in another epoch, or the mirror has begun anew, before
            anything more is delivered.

    Attributes:
        shares: of queue groups, as of what was delivered last.
    """

    def __init__(
        self,
        broker: Broker,
        node: Node,
        scheduler: FlushScheduler | None = None,
        *,
        newest: int,
        registry: Registry | None = None,
        timeout: float = _TIMEOUT,
        on_epoch: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        epoch = node.standing.epoch
        self._clock = EngineClock(node.standing.time)
        super().__init__(broker, node.history, scheduler, epoch=epoch, newest=newest)
        broker.note_interest()
        self._engine = node.engine
        self._standing = SharedStanding(node.engine)
        self._on_epoch = on_epoch
        self._node = node
        self.shares = broker.shares = QueueShares(node.name)
        self.shares.load(sizes_of(node.mirror.notes))
        reach = None if registry is None else registry.reach
        self._follower = follower = Follower(
            node, self._arrived, self._entered, reach, self._scheduler.storing
        )
        self._appender = Appender(
            node,
            timeout,
            refuse=self._refuse_sent,
            failed=self._note_failure,
            worked=self._outage.end,
            forked=follower.note_epoch,
            meters=broker.meters,
        )

    @classmethod
    async def following(
        cls,
        broker: Broker,
        node: Node,
        scheduler: FlushScheduler | None = None,
        *,
        registry: Registry | None = None,
        timeout: float = _TIMEOUT,
        on_epoch: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> "NodeSequencer":
        """A sequencer that goes on where the mirror stands.

        Raises:
            HistoryUnavailable: the mirror can't be read.
        """
        newest = (await node.history.position()).newest
        return cls(
            broker,
            node,
            scheduler,
            newest=newest,
            registry=registry,
            timeout=timeout,
            on_epoch=on_epoch,
        )

    @property
    def reachable(self) -> bool:
        return not self._follower.failing

    @property
    def ready(self) -> bool:
        return self._follower.caught_up and self.reachable and self.lag <= _BEHIND

    @property
    def lag(self) -> float:
        return self._follower.lag.seconds

    def now(self) -> float:
        return self._clock.now()

    def note_beat(self, reply: BeatReply) -> None:
        """The engine has answered a heartbeat of this node."""
        self._clock.note_beat(reply)
        self._follower.note_beat(reply)

    async def _work(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            nursery.start_soon(self._refuse_overdue)
            await super()._work()

    async def _refuse_overdue(self) -> None:
        """Refuse what is stored and can't be applied here, such as without the tokens, in time."""
        while True:
            await self._follower.failed.wait()
            self._appender.refuse_overdue(self._follower.failing)

    def _stop(self) -> None:
        super()._stop()
        self._appender.refuse_all(STOPPED)

    # to the engine

    async def _gather(self) -> None:
        # A record costs each node half a millisecond, however little is in it. Where many follow
        # each other, they keep the processors so busy that each comes late.
        if self._appender and self._size < _LITTLE:
            with trio.move_on_after(_GATHERING):
                while self._appender:
                    await self._settled.wait()

    async def _store(self, group: list[Submission]) -> None:
        try:
            pieces, shares = await pieces_of(group)
            body = encode(Messages.of(pieces))
            check_size(body)
        except Exception as error:
            await self._not_sent(group, error)
            return
        except BaseException:  # cancelled
            self._refuse(group, HistoryUnavailable(STOPPED))
            raise
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        count = sum([piece.count for piece in pieces])
        with self._committing(group, count) as span:
            in_time = await self._appender.append(Sent(shares), body, count)
            if span is not None and self.failing:
                span.failed(HistoryUnavailable.__name__)
        if not in_time:
            self._refuse(self._take_waiting(), HistoryUnavailable(REFUSED))
        if meters is not None and not self.failing:
            meters.commit.end(began)

    def _take_waiting(self) -> list[Submission]:
        """What waits behind a group, up to a writer's batch."""
        waiting: list[Submission] = []
        while self._waiting and not isinstance(following := self._waiting[0], BulkSubmission):
            waiting.append(following)
            self._waiting.popleft()
        return waiting

    async def _not_sent(self, group: list[Submission], error: Exception) -> None:
        """Settle a group that can't be made a record, behind what was sent before it."""
        with trio.move_on_after(self._appender.timeout):
            while self._appender:
                await self._settled.wait()
        self._appender.refuse_all()
        self._not_stored(group, error)

    def _refuse_sent(self, sent: Sent, error: HistoryUnavailable) -> None:
        for submissions in sent.pieces:
            self._refuse(submissions, error)
        if sent.arrived is not None:
            sent.arrived.set()
        if sent.bulk is not None:
            sent.bulk.outcome = error
            self._settle_bulk(sent.bulk)
        self._settled.notify()

    async def _store_bulk(self, submission: BulkSubmission) -> None:
        # Beside what others publish: to stage a large batch takes long.
        self.start_soon(lambda: self._stage(submission))

    async def _stage(self, submission: BulkSubmission) -> None:
        """Stage a writer's batch, and have a record appended that refers to it."""
        name, bulk, mark = secrets.token_hex(16), submission.bulk, submission.mark
        try:
            known = await self.history.committed(mark.owner, mark.writer)
            if known is not None and mark.batch <= known.batch:
                submission.outcome = known, False
                self._settle_bulk(submission)
                return
            parts = await stage(self._engine, name, bulk)
        except Exception as error:
            if isinstance(error, EngineUnavailable):
                error = HistoryUnavailable(REFUSED)
            if isinstance(error, HistoryUnavailable):
                self._note_failure(error)
            submission.outcome = error
            self._settle_bulk(submission)
            return
        except BaseException:  # cancelled
            self._settle_bulk(submission)
            raise
        entry = StagedBatch(mark.owner, mark.writer, mark.batch, name, parts)
        with self._committing([submission], bulk.count) as span:
            await self._appender.append(Sent(bulk=submission), encode(entry), bulk.count)
            if span is not None and self.failing:
                span.failed(HistoryUnavailable.__name__)

    async def forget_keys(self, before: float, most: int, most_of_owner: int) -> bool:
        """See `Sequencer.forget_keys`; at all nodes."""
        if not await self.history.has_outdated_keys(before, most, most_of_owner):
            return False
        await self._appender.append(Sent(), encode(ForgottenKeys(before, most, most_of_owner)), 0)
        return False

    async def erase(self, erasure: Erasure) -> int:
        """Have something erased at all nodes.

        Returns:
            The offset of the record that says so. It is in this node's mirror, and not carried out.

        Raises:
            HistoryUnavailable: it may not have been said.
        """
        return await self.say(Erase.of(erasure))

    async def say(self, entry: Erase | QueueSizes | QueueLeft) -> int:
        """Have all nodes told something, in the order of what is published.

        Returns:
            The offset of the record that says so, which has been taken in here.

        Raises:
            HistoryUnavailable: it may not have been said.
        """
        return await self._tell(encode(entry), 0)

    async def give_ids(self, count: int) -> None:
        """Have the engine give so many ids to nothing.

        Raises:
            HistoryUnavailable: it may not have done so.
        """
        await self._tell(b"", count)

    async def _tell(self, body: bytes, count: int) -> int:
        arrived = trio.Event()
        sent = Sent(arrived=arrived)
        await self._appender.append(sent, body, count)
        await arrived.wait()
        if not sent.offset:
            raise HistoryUnavailable(REFUSED)
        return sent.offset

    async def reach(self, since: Since) -> None:
        after = since.after or 0
        await self._follower.reach(after)
        # Until it is delivered, what is in the mirror would be taken for ids of no message.
        await self._delivered(min(after, self._node.mirror.newest))

    async def latest(self) -> int:
        try:
            newest = (await self._standing.ask()).newest
        except (EngineUnavailable, Forked) as error:
            raise HistoryUnavailable(REFUSED) from error
        await self._follower.reach(newest)
        await self._delivered(newest)
        return self.newest

    async def _delivered(self, id_: int) -> None:
        with trio.move_on_after(_DELIVERED):
            while self.newest < id_:
                await self._settled.wait()
            return
        raise HistoryUnavailable(REFUSED)

    # and back

    async def _entered(self) -> None:
        """Go on where the log does, perhaps in another epoch. What was on its way is refused: some
        of it may have been stored, and comes back as what others have published.
        """
        self._appender.enter(self._node)
        self.epoch = self._appender.epoch
        self.delivery.newest = self._node.mirror.newest
        self.shares.load(sizes_of(self._node.mirror.notes))
        await self._on_epoch()

    async def _arrived(self, arrived: Arrived) -> None:
        record = arrived.record
        sent = self._appender.take(record)
        if arrived.applied is not None:
            if sent is None:
                await self.delivery.deliver_rows(arrived.applied.rows)
            else:
                await self._deliver_sent(sent, record.first, arrived.applied)
        elif arrived.commit is not None:
            await self._deliver_batch(sent, *arrived.commit)
        if arrived.queues is not None:
            self.shares.place = record.offset
        if isinstance(arrived.queues, QueueSizes):
            sizes = {QueueKey(*key): size for *key, size in arrived.queues.sizes}
            self.shares.apply(arrived.queues.node, sizes)
        elif arrived.queues is not None:
            self.shares.apply_left(arrived.queues.node)
        if sent is not None and sent.arrived is not None:
            sent.offset = record.offset
            sent.arrived.set()
        # Some of its ids may be of nothing.
        self.delivery.newest = record.first + record.count - 1
        written = self.delivery.flush()
        if sent is not None and sent.pieces:
            self._observe_written(sent.pieces[0][0], written=written)
        self._settled.notify()

    async def _deliver_sent(self, sent: Sent, first: int, applied: Applied) -> None:
        """Deliver and settle what was published here."""
        group = [each for submissions in sent.pieces for each in submissions]
        settled = 0
        self.delivery.begin()
        try:
            for place, submissions in enumerate(sent.pieces):
                known = applied.known.get(place)
                for submission in submissions:
                    if known is None:
                        await self.delivery.deliver(submission, first)
                        self._settle(submission, first)
                    elif submission.key is not None and known.digest == submission.key.digest:
                        self._settle(submission, known.first)
                    else:
                        self._settle(submission, KeyUsed(known))
                    settled += 1
                    first += submission.count
        except BaseException:  # cancelled
            self._refuse(group[settled:], HistoryUnavailable(STOPPED))
            raise

    async def _deliver_batch(self, sent: Sent | None, commit: Commit, fresh: bool) -> None:
        submission = None if sent is None else sent.bulk
        try:
            if fresh and commit.count:
                if submission is None:
                    await self.delivery.deliver_stored(commit.last, relayed=True)
                else:
                    await self.delivery.deliver_bulk(submission.bulk, commit)
            if submission is not None:
                submission.outcome = commit, fresh
        finally:
            if submission is not None:
                self._settle_bulk(submission)
