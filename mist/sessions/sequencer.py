"""What is published, put in order: into the history first, to subscribers then.

A message is durable before anyone gets it. So no publisher hears of a message, and no
subscriber holds an id, that a crash could take back.

Publishers don't wait for the disk one by one. Whatever has been submitted while a group was
being stored is the next group: the busier the server, the larger the groups, and the fewer
the disk's waits for each message. When the disk is slower than the publishers, what has been
submitted grows, and each session stops reading at its share of it (`CommandSession`).

A writer's batch (`commit`) may be a thousand times what a group is. It is stored in one
transaction by itself, and handed out in slices, read again from where it waits: neither takes
it into memory, and nobody else's turn comes later than some milliseconds.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import attrs
import trio

from mist.broker.broker import Accepted, Broker, Rejected
from mist.broker.outbox import Outbox
from mist.errors import HistoryUnavailable, MistError
from mist.history import MAX_GROUP, Bulk, Commit, History, Key, Mark, Publication, Stored
from mist.history.admission import envelope_of
from mist.history.block import Block, TagLists
from mist.history.idempotency import KeysInFlight
from mist.history.layout import Row
from mist.message import Envelope
from mist.wire import Batch

__all__ = ["Publisher", "Sequencer", "Settled", "Submission"]

log = logging.getLogger("mist.history")

_MAX_GROUP_BYTES: Final = 4 * 1024 * 1024
_SHARE: Final = 262_144  # bytes submitted by one session
_CROWDED: Final = 32 * 1024 * 1024  # bytes submitted by all sessions together
_SLICE: Final = 256  # entries of a large batch handed out without looking at the clock
_PLAIN: Final = Envelope()
_TURN: Final = 0.002  # seconds of handing out, after which others have theirs


@attrs.define
class Submission:
    """Batches on their way through the history together: all are stored, or none.

    Attributes:
        accepted: what they are, in order.
        settled: called once with the id of its first message, when all is delivered; or with
            the error, when it has not been stored and nobody gets it.
        source: the publisher's own outbox.
        publisher, key, time: as in `mist.history.Publication`.
        count, size: messages, and bytes.
    """

    accepted: Sequence[Accepted]
    settled: "Settled"
    source: Outbox | None = None
    publisher: str = ""
    key: Key | None = None
    time: float = attrs.field(init=False, factory=time.time)
    count: int = attrs.field(init=False)
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.count = sum([entry[2] for part in self.accepted for entry in part.entries])
        self.size = sum([len(entry[1]) for part in self.accepted for entry in part.entries])


Settled = Callable[[Submission, int | HistoryUnavailable], None]


@attrs.define(eq=False)
class _Batch:
    """A writer's batch on its way; `outcome` is there when `done` is set."""

    bulk: Bulk
    mark: Mark
    time: float = attrs.field(init=False, factory=time.time)
    done: trio.Event = attrs.field(init=False, factory=trio.Event)
    outcome: tuple[Commit, bool] | Exception = attrs.field(init=False, factory=HistoryUnavailable)


class Sequencer:
    """The way from publishers through a history to subscribers.

    Attributes:
        broker, history: where everything goes, the history first.
        epoch: of the history.
        newest: the highest id that has been delivered; higher ones may be stored already.
        failing: whether the last group could not be stored.
        failed_at: when that was last so, on trio's clock.
        keys_in_flight: carries out what has a key; see there.
    """

    def __init__(self, broker: Broker, history: History, *, epoch: str, newest: int) -> None:
        self.history = history
        self.epoch = epoch
        self.newest = newest
        self.broker = broker
        self.keys_in_flight = KeysInFlight(history, self.start_soon)
        self._waiting: deque[Submission | _Batch] = deque()
        self._size = 0  # bytes of those, and of the group that is being stored; no batches
        self._batches = 0  # waiting, or being stored and handed out
        self._arrived = trio.Event()
        self.failing = False
        self.failed_at = 0.0
        self._idle: trio.Event | None = None
        self._nursery: trio.Nursery | None = None

    @classmethod
    async def over(cls, broker: Broker, history: History) -> "Sequencer":
        """A sequencer that goes on where the history stands.

        Raises:
            HistoryUnavailable: it can't be read.
        """
        position = await history.position()
        return cls(broker, history, epoch=position.epoch, newest=position.newest)

    @property
    def crowded(self) -> bool:
        """Whether so much is on its way that nobody should add to it before theirs is through."""
        return self._size > _CROWDED

    def submit(self, submission: Submission) -> None:
        """Have a batch stored and delivered, behind all that was submitted before."""
        self._waiting.append(submission)
        self._size += submission.size
        self._arrived.set()

    async def commit(self, bulk: Bulk, mark: Mark) -> tuple[Commit, bool]:
        """Have a writer's batch stored and delivered, in its turn; see `History.commit`.

        Its tag lists have been checked. Where this is cancelled, it is done all the same.

        Raises:
            HistoryUnavailable: nothing was stored; and whatever `bulk` raises.
        """
        batch = _Batch(bulk, mark)
        self._waiting.append(batch)
        self._batches += 1
        self._arrived.set()
        await batch.done.wait()
        if isinstance(batch.outcome, Exception):
            raise batch.outcome
        return batch.outcome

    async def run(self) -> None:
        """Store and deliver until cancelled. What is submitted and not stored is then lost.

        No message of it was acknowledged.
        """
        async with trio.open_nursery() as self._nursery:
            while True:
                if not self._waiting:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                following = self._waiting[0]
                if isinstance(following, _Batch):
                    self._waiting.popleft()
                    await self._settle_batch(following)
                else:
                    await self._settle(self._next_group())

    async def settled(self) -> None:
        """Wait until all that has been submitted is stored and delivered, or refused."""
        while self._size or self._batches:
            self._idle = trio.Event()
            await self._idle.wait()

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside, which must not raise. It ends with `run`."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def _next_group(self) -> list[Submission]:
        """What is to be stored together: all that waits, within bounds."""
        group: list[Submission] = []
        count = size = 0
        while self._waiting:
            following = self._waiting[0]
            if isinstance(following, _Batch):
                break
            count += following.count
            size += following.size
            if group and (count > MAX_GROUP or size > _MAX_GROUP_BYTES):
                break
            group.append(following)
            self._waiting.popleft()
        return group

    async def _settle(self, group: list[Submission]) -> None:
        publications = [each for submission in group for each in _publications(submission)]
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        try:
            first = await self.history.append(publications)
        except HistoryUnavailable as error:
            self._note_failure(error)
            for submission in group:
                self._size -= submission.size
                submission.settled(submission, error)
        else:
            self.failing = False
            if meters is not None:
                meters.commit.end(began)
            for submission in group:
                self._size -= submission.size
                place = first
                for part in submission.accepted:
                    place += self.broker.publish(part.batch, submission.source, first=place)
                self.newest = place - 1
                submission.settled(submission, first)
                first = place
        self.broker.flush()
        if meters is not None and not self.failing:
            # A clock that was set meanwhile makes one wrong observation.
            meters.publish_to_write.observe(max(0.0, time.time() - group[0].time))
        self._tell_idle()

    def _note_failure(self, error: HistoryUnavailable) -> None:
        if not self.failing:
            log.warning("history can't be written", extra={"reason": str(error)})
        self.failing = True
        self.failed_at = trio.current_time()

    def _tell_idle(self) -> None:
        if not self._size and not self._batches and self._idle is not None:
            self._idle.set()

    # large batches

    async def _settle_batch(self, batch: _Batch) -> None:
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        try:
            commit, fresh = await self.history.commit(batch.bulk, batch.mark, batch.time)
            self.failing = False
            if meters is not None:
                meters.commit.end(began)
            if fresh and commit.count:
                await self._hand_out(batch.bulk, commit)
            batch.outcome = commit, fresh
        except HistoryUnavailable as error:
            self._note_failure(error)
            batch.outcome = error
        except Exception as error:  # where the batch waits, something is wrong
            batch.outcome = error
        finally:
            self._batches -= 1
            batch.done.set()
        self._tell_idle()

    async def _hand_out(self, bulk: Bulk, commit: Commit) -> None:
        """Deliver what was stored, slice by slice. Nothing here can take it back."""
        try:
            slices = _slices(bulk, commit)
            while (some := await trio.to_thread.run_sync(next, slices, None)) is not None:
                await self._publish_slices(some)
        except Exception:
            log.exception("a batch that was stored can't be read again where it waited")
            await self._hand_out_stored(commit)

    async def _hand_out_stored(self, commit: Commit) -> None:
        """Deliver the rest as the history has it."""
        while self.newest < commit.last:
            try:
                page = await self.history.read(
                    after=self.newest, upto=commit.last, max_bytes=_SHARE
                )
            except HistoryUnavailable as error:
                log.warning(
                    "nor in the history: nobody gets the rest", extra={"reason": str(error)}
                )
                self.broker.dropped["unreadable"] += commit.last - self.newest
                break
            await self._publish_slices([part for each in page.stored for part in _cut(each)])
            self.newest = page.after
        self.newest = commit.last

    async def _publish_slices(self, slices: list[tuple[Batch, int, int]]) -> None:
        began = time.perf_counter()
        for batch, first, last in slices:
            self.broker.publish(batch, first=first)
            self.newest = last
            if time.perf_counter() - began > _TURN:
                self.broker.flush()
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()
        self.broker.flush()
        await trio.lowlevel.checkpoint()


def _publications(submission: Submission) -> Iterator[Publication]:
    key = submission.key
    for part in submission.accepted:
        envelope = part.batch.envelope or _PLAIN
        yield Publication(
            part.entries,
            submission.time,
            submission.publisher,
            part.batch.framable,
            None if envelope.audience is None else envelope.audience.text,
            envelope.meta,
            key=key,
        )
        key = None  # which stands for all of it, and for the first message's id


def _slices(bulk: Bulk, commit: Commit) -> Iterator[list[tuple[Batch, int, int]]]:
    """What to hand out, a block at a time; to be asked in a thread."""
    tag_lists = TagLists()
    newest = commit.first - 1
    rows: Iterator[Row] = iter(bulk.blocks())
    for row in rows:
        block = Block(row.placed(newest, commit.time), tag_lists)
        newest = block.head.last
        yield [part for stored in block.select() for part in _cut(stored)]


def _cut(stored: Stored) -> Iterator[tuple[Batch, int, int]]:
    """Batches of some entries each, with the ids of their first and last message."""
    # The ids of a batch follow each other; those of what somebody has taken a part of don't.
    whole = stored.firsts[-1] + stored.entries[-1][2] - stored.firsts[0] == stored.count
    step = _SLICE if whole else 1
    for start in range(0, len(stored.entries), step):
        entries = stored.entries[start : start + step]
        firsts = stored.firsts[start : start + step]
        runs = [(tag_list.canonical, wire, count) for tag_list, wire, count in entries]
        last = firsts[-1] + runs[-1][2] - 1
        envelope = None
        if stored.audience is not None or stored.meta is not None:
            envelope = envelope_of(stored)
        batch = Batch.of_runs(runs, framable=stored.framable, envelope=envelope)
        yield batch, firsts[0], last


class Publisher:
    """One session's publishes on their way through the history.

    Args:
        sequencer: where they go.
        outbox: the session's own.

    Attributes:
        underway: bytes published and not yet settled.
    """

    __slots__ = ("_outbox", "_quiet", "_sequencer", "underway")

    def __init__(self, sequencer: Sequencer, outbox: Outbox) -> None:
        self.underway = 0
        self._sequencer = sequencer
        self._outbox = outbox
        self._quiet: trio.Event | None = None

    @property
    def full(self) -> bool:
        """Whether to publish no more before what was published is settled."""
        underway = self.underway
        return underway > _SHARE or (underway > 0 and self._sequencer.crowded)

    async def publish(
        self,
        batch: Batch,
        name: str,
        on_error: Callable[[MistError], None],
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        """Have a batch stored and delivered. Waits only where part of it is refused.

        Args:
            name: as in `mist.history.Publication`.
            on_error: called for each message that is refused for its tags, after what stands
                before it was delivered; and for each that could not be stored.
            on_stored: called with the first message's id when all are delivered.
        """

        def settled(submission: Submission, outcome: int | HistoryUnavailable) -> None:
            self.underway -= submission.size
            if isinstance(outcome, HistoryUnavailable):
                for _ in range(submission.count):
                    on_error(outcome)
            elif on_stored is not None:
                on_stored(outcome)
            if not self.underway and self._quiet is not None:
                self._quiet.set()

        for part in self._sequencer.broker.validate(batch):
            if isinstance(part, Rejected):
                await self.settle()
                for _ in range(part.count):
                    on_error(part.error)
            else:
                submission = Submission([part], settled, self._outbox, name)
                self.underway += submission.size
                self._sequencer.submit(submission)

    async def settle(self) -> None:
        """Wait until all that was published is durable and delivered, or refused."""
        while self.underway:
            self._sequencer.broker.flush()
            self._quiet = trio.Event()
            await self._quiet.wait()
