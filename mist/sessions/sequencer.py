"""What is published, put in order: into the history first, to subscribers then.

A message is durable before anyone gets it. So no publisher hears of a message, and no
subscriber holds an id, that a crash could take back.

The way of a message has four steps, and one task (`Sequencer.run`) that does the last three:

    submit      a publisher queues it, without waiting (`submission`, `publisher`)
    append      a group of what is queued becomes durable together (group commit)
    deliver     it is published to the broker, in the order of ids (`delivery`)
    settle      its publisher hears the id, or that nobody gets it

Publishers don't wait for the disk one by one. Whatever has been submitted while a group was
being stored and delivered is the next group: the busier the server, the larger the groups, and
the fewer the disk's waits for each message. When the disk is slower than the publishers, what has
been submitted grows, and each session stops reading at its share of it (`Publisher`).

Every submission is settled once, whatever happens. When `run` ends, all that still waits is
refused, and so is what comes later: nobody waits for a sequencer that has stopped.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.change import Change
from mist.commands import Since
from mist.errors import HistoryUnavailable, MistError
from mist.history import MAX_GROUP, Bulk, Commit, History, Mark
from mist.history.idempotency import KeysInFlight
from mist.outage import Outage
from mist.sessions.delivery import Delivery
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.page_turns import PageTurns
from mist.sessions.submission import BulkSubmission, Submission, publications_of
from mist.telemetry import Span, Tracing
from mist.turns import Turns, let_others_run

__all__ = ["Sequencer"]

log = logging.getLogger("mist.history")

_MAX_GROUP_BYTES: Final = 4 * 1024 * 1024
_MAX_GROUP_BATCHES: Final = 1_000  # which take up to 10 ms, however small they are
_CONGESTED: Final = 32 * 1024 * 1024  # bytes submitted by all sessions together
_STOPPED: Final = "the server is stopping"
_UNTRACED: Final = nullcontext()


class Sequencer:
    """The way from publishers through a history to subscribers.

    Attributes:
        broker, history: where everything goes, the history first.
        epoch: of the history.
        failed_at: when that was last so, on trio's clock.
        tracing: begins a span for each commit; None for none. Set before `run`.
        delivery: publishes what is stored, and knows how far it is.
        keys_in_flight: publishes once what has an idempotency key; see there.
        pages: of sessions that replay, which of them has a page.
    """

    def __init__(
        self,
        broker: Broker,
        history: History,
        scheduler: FlushScheduler | None = None,
        *,
        epoch: str,
        newest: int,
    ) -> None:
        self.history = history
        self.epoch = epoch
        self.broker = broker
        self.failed_at = 0.0
        self._outage = Outage(log, "history can't be written", "history can be written again")
        self.tracing: Tracing | None = None
        self.keys_in_flight = KeysInFlight(history, self.start_soon, self.now)
        self._scheduler = scheduler or FlushScheduler(broker, Turns())
        self.delivery = Delivery(broker, history, newest, self._scheduler)
        self.pages = PageTurns()
        self._waiting: deque[Submission | BulkSubmission] = deque()
        self._size = 0  # bytes submitted and not settled; of bulks none
        self._bulks = 0  # submitted and not settled
        self._singly = 0  # submissions at the head of the queue, to be stored one by one
        self._submitted = Change()
        self._settled = Change()
        self._stopped = False
        self._nursery: trio.Nursery | None = None

    @classmethod
    async def over(
        cls, broker: Broker, history: History, scheduler: FlushScheduler | None = None
    ) -> "Sequencer":
        """A sequencer that goes on where the history stands.

        Args:
            scheduler: gives turns to what is delivered; None delivers everything at once.

        Raises:
            HistoryUnavailable: it can't be read.
        """
        position = await history.position()
        return cls(broker, history, scheduler, epoch=position.epoch, newest=position.newest)

    @property
    def newest(self) -> int:
        """The highest id that has been delivered; higher ones may be stored already."""
        return self.delivery.newest

    @property
    def failing(self) -> bool:
        """Whether the last group could not be stored."""
        return bool(self._outage)

    @property
    def reachable(self) -> bool:
        """Whether its log can be reached, as far as is known while nothing is published."""
        return True

    @property
    def ready(self) -> bool:
        """Whether it has all that was published before, and can get more."""
        return True

    @property
    def lag(self) -> float:
        """Seconds that it is behind what was published at other servers."""
        return 0.0

    def now(self) -> float:
        """The time by which messages are too old, Unix seconds."""
        return time.time()

    @property
    def congested(self) -> bool:
        """Whether so much is in flight that a publisher should wait until its own is settled."""
        return self._size > _CONGESTED

    def submit(self, submission: Submission) -> None:
        """Have a batch stored and delivered, behind all that was submitted before.

        Raises:
            HistoryUnavailable: the sequencer has stopped. `settled` is not called.
            TypeError: it is no submission.
        """
        if self._stopped:
            raise HistoryUnavailable(_STOPPED)
        if not isinstance(submission, Submission):
            raise TypeError("only a Submission can be submitted")
        if self.tracing is not None:
            submission.origin = self.tracing.origin()
        self._waiting.append(submission)
        self._size += submission.size
        self._submitted.notify()

    async def commit(self, bulk: Bulk, mark: Mark) -> tuple[Commit, bool]:
        """Have a writer's batch stored and delivered, in its turn; see `History.commit`.

        Its tag lists have been checked. Where this is cancelled, it is done all the same.

        Raises:
            HistoryUnavailable: nothing was stored; but where the sequencer stops meanwhile, it
                may have been.
            TypeError, ValueError: it is no batch, or what it has differs from what it says.
                Nothing was stored; and whatever else `bulk` raises.
        """
        if self._stopped:
            raise HistoryUnavailable(_STOPPED)
        submission = BulkSubmission(bulk, mark)
        if self.tracing is not None:
            submission.origin = self.tracing.origin()
        self._waiting.append(submission)
        self._bulks += 1
        self._submitted.notify()
        await submission.done.wait()
        if isinstance(submission.outcome, Exception):
            raise submission.outcome
        return submission.outcome

    async def forget_keys(self, before: float, most: int, most_of_owner: int) -> bool:
        """See `History.forget_keys`."""
        return await self.history.forget_keys(before, most, most_of_owner)

    async def reach(self, since: Since) -> None:
        """Wait until it is known whether the history has what a place says; see `mist.engine`.

        Raises:
            HistoryUnavailable: that takes too long.
        """

    async def latest(self) -> int:
        """The highest id that has been delivered; no lower one than anybody was told of before.

        Raises:
            HistoryUnavailable: what others were told of is not known.
        """
        return self.newest

    async def settled(self) -> None:
        """Wait until all that has been submitted is stored and delivered, or refused.

        Cancellation leaves it all on its way.
        """
        while self._size or self._bulks:
            await self._settled.wait()

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside `run`, which ends with it. What it raises is contained.

        Raises:
            HistoryUnavailable: `run` has not begun, or has ended.
        """
        if self._nursery is None:
            raise HistoryUnavailable(_STOPPED)
        self._nursery.start_soon(self._contained, task)

    async def _contained(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:
            self.broker.failures.note("task", error)

    async def run(self) -> None:
        """Store and deliver until cancelled. Once only.

        What has been submitted and is not settled by then is refused. No message of it was
        acknowledged; of the group that was being stored, all or none may be in the history.
        """
        if self._stopped or self._nursery is not None:
            raise RuntimeError("a sequencer runs once")
        async with trio.open_nursery() as self._nursery:
            try:
                await self._work()
            finally:
                # Here, before the nursery closes: nobody shall start a task in a closed one.
                self._stop()

    async def _work(self) -> None:
        """Store what is submitted, in order. Never returns."""
        while True:
            while not self._waiting:
                await self._submitted.wait()
            following = self._waiting[0]
            if isinstance(following, BulkSubmission):
                self._waiting.popleft()
                await self._store_bulk(following)
            else:
                await self._gather()
                await self._store(self._next_group())
                # Sessions read what has come while it was delivered, and the next one is larger.
                # While many replay, each pass takes long, and it is large enough without.
                if self._waiting and not self.pages.crowded:
                    await let_others_run()

    async def _gather(self) -> None:
        """Let more come to what waits, before it is stored. Here nothing is on its way by then."""

    def _stop(self) -> None:
        # First, so that nobody who hears of it submits anew.
        self._stopped, self._nursery = True, None
        for each in self._waiting:
            if isinstance(each, BulkSubmission):
                self._settle_bulk(each)
            else:
                self._settle(each, HistoryUnavailable(_STOPPED))
        self._waiting.clear()
        self._settled.notify()
        self.broker.flush()

    def _next_group(self) -> list[Submission]:
        """What is to be stored together: all that waits, within bounds."""
        group: list[Submission] = []
        batches = count = size = 0
        while self._waiting:
            following = self._waiting[0]
            if isinstance(following, BulkSubmission):
                break
            batches += len(following.accepted)
            count += following.count
            size += following.size
            if group and (
                batches > _MAX_GROUP_BATCHES
                or count > MAX_GROUP
                or size > _MAX_GROUP_BYTES
                or self._singly
            ):
                break
            group.append(following)
            self._waiting.popleft()
        self._singly = max(self._singly - 1, 0)
        return group

    def _committing(
        self, group: Sequence[Submission | BulkSubmission], count: int
    ) -> AbstractContextManager[Span | None]:
        """A span for what is stored in its block.

        Args:
            count: messages.
        """
        if self.tracing is None:
            return _UNTRACED
        origins = [each.origin for each in group if each.origin is not None]
        return self.tracing.task("commit", {"messages": count}, origins)

    async def _store(self, group: list[Submission]) -> None:
        """Append a group, deliver and settle it."""
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        try:
            with (
                self._committing(group, sum([each.count for each in group])),
                self._scheduler.storing(),
            ):
                first = await self.history.append(await publications_of(group))
        except Exception as error:
            self._not_stored(group, error)
        except BaseException:  # cancelled
            self._refuse(group, HistoryUnavailable(_STOPPED))
            raise
        else:
            self._outage.end()
            if meters is not None:
                meters.commit.end(began)
            await self._deliver(group, first)
        self._settled.notify()

    async def _deliver(self, group: list[Submission], first: int) -> None:
        """Deliver and settle a group that was stored."""
        settled = 0
        self.delivery.begin()
        try:
            for submission in group:
                await self.delivery.deliver(submission, first)
                self._settle(submission, first)
                settled += 1
                first += submission.count
        except BaseException:  # cancelled
            self._refuse(group[settled:], HistoryUnavailable(_STOPPED))
            raise
        self._observe_written(group[0], written=self.delivery.flush())

    def _observe_written(self, submission: Submission, *, written: bool) -> None:
        meters = self.broker.meters
        if written and meters is not None:
            # A clock that was set meanwhile makes one wrong observation.
            meters.publish_to_write.observe(max(0.0, time.time() - submission.time))

    def _not_stored(self, group: list[Submission], error: Exception) -> None:
        if isinstance(error, HistoryUnavailable):
            self._note_failure(error)
            self._refuse(group, error)
        elif len(group) > 1:
            # Something in it can't be stored, and nothing was. The others shall not pay for
            # that, so each is tried by itself.
            self._waiting.extendleft(reversed(group))
            self._singly = len(group)
        else:
            self.broker.failures.note("append", error)
            self._refuse(group, HistoryUnavailable("it can't be stored"))

    def _refuse(self, group: Sequence[Submission], error: HistoryUnavailable) -> None:
        for submission in group:
            self._settle(submission, error)
        self.delivery.flush()

    def _settle(self, submission: Submission, outcome: int | MistError) -> None:
        self._size -= submission.size
        try:
            submission.settled(submission, outcome)
        except Exception as error:
            self.broker.failures.note("callback", error)

    def _note_failure(self, error: HistoryUnavailable) -> None:
        self._outage.note(str(error))
        self.failed_at = trio.current_time()

    async def _store_bulk(self, submission: BulkSubmission) -> None:
        """Commit a writer's batch, deliver and settle it."""
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        bulk = submission.bulk
        try:
            with self._committing([submission], bulk.count), self._scheduler.storing():
                commit, fresh = await self.history.commit(bulk, submission.mark, submission.time)
            self._outage.end()
            if meters is not None:
                meters.commit.end(began)
            if fresh and commit.count:
                await self.delivery.deliver_bulk(bulk, commit)
            submission.outcome = commit, fresh
        except HistoryUnavailable as error:
            self._note_failure(error)
            submission.outcome = error
        except Exception as error:  # where the batch waits, something is wrong
            submission.outcome = error
        finally:
            self._settle_bulk(submission)

    def _settle_bulk(self, submission: BulkSubmission) -> None:
        """Have its writer hear the outcome; without one, it hears `HistoryUnavailable`."""
        self._bulks -= 1
        submission.done.set()
        self._settled.notify()
