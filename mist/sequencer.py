"""What is published, put in order: into the history first, to subscribers then.

A message is durable before anyone gets it. So no publisher hears of a message, and no
subscriber holds an id, that a crash could take back.

Publishers don't wait for the disk one by one. Whatever has been submitted while a group was
being stored is the next group: the busier the server, the larger the groups, and the fewer
the disk's waits for each message. When the disk is slower than the publishers, what has been
submitted grows, and each session stops reading at its share of it (`Dialogue`).
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from mist.broker import Accepted, Broker, Rejected
from mist.errors import HistoryUnavailable, MistError
from mist.history import MAX_GROUP, History, Key, Publication
from mist.history.keys import Repeats
from mist.message import Batch
from mist.outbox import Outbox

__all__ = ["Publisher", "Sequencer", "Settled", "Submission"]

log = logging.getLogger("mist.history")

_MAX_GROUP_BYTES: Final = 4 * 1024 * 1024
_SHARE: Final = 262_144  # bytes submitted by one session
_CROWDED: Final = 32 * 1024 * 1024  # bytes submitted by all sessions together


@attrs.define
class Submission:
    """A batch on its way through the history.

    Attributes:
        accepted: what it is.
        settled: called once with the id of its first message, when all is delivered; or with
            the error, when it has not been stored and nobody gets it.
        source: the publisher's own outbox.
        publisher, key, time: as in `mist.history.Publication`.
        count, size: messages, and bytes.
    """

    accepted: Accepted
    settled: "Settled"
    source: Outbox | None = None
    publisher: str = ""
    key: Key | None = None
    time: float = attrs.field(init=False, factory=time.time)
    count: int = attrs.field(init=False)
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.count = sum([entry[2] for entry in self.accepted.entries])
        self.size = sum([len(entry[1]) for entry in self.accepted.entries])


Settled = Callable[[Submission, int | HistoryUnavailable], None]


class Sequencer:
    """The way from publishers through a history to subscribers.

    Attributes:
        broker, history: where everything goes, the history first.
        epoch: of the history.
        newest: the highest id that has been delivered; higher ones may be stored already.
        failing: whether the last group could not be stored.
        failed_at: when that was last so, on trio's clock.
        repeats: carries out what has a key; see there.
    """

    def __init__(self, broker: Broker, history: History, *, epoch: str, newest: int) -> None:
        self.history = history
        self.epoch = epoch
        self.newest = newest
        self.broker = broker
        self.repeats = Repeats(history, self.start_soon)
        self._waiting: deque[Submission] = deque()
        self._size = 0  # bytes of those, and of the group that is being stored
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

    async def run(self) -> None:
        """Store and deliver until cancelled. What is submitted and not stored is then lost.

        No message of it was acknowledged.
        """
        async with trio.open_nursery() as self._nursery:
            while True:
                if not self._waiting:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                await self._settle(self._next_group())

    async def settled(self) -> None:
        """Wait until all that has been submitted is stored and delivered, or refused."""
        while self._size:
            self._idle = trio.Event()
            await self._idle.wait()

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside, which must not raise. It ends with `run`."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def _next_group(self) -> list[Submission]:
        """What is to be stored together: all that waits, within bounds."""
        group = [self._waiting.popleft()]
        count, size = group[0].count, group[0].size
        while self._waiting:
            count += self._waiting[0].count
            size += self._waiting[0].size
            if count > MAX_GROUP or size > _MAX_GROUP_BYTES:
                break
            group.append(self._waiting.popleft())
        return group

    async def _settle(self, group: list[Submission]) -> None:
        publications = [
            Publication(
                each.accepted.entries,
                each.time,
                each.publisher,
                each.accepted.batch.framable,
                key=each.key,
            )
            for each in group
        ]
        meters = self.broker.meters
        began = 0.0 if meters is None else meters.commit.begin()
        try:
            first = await self.history.append(publications)
        except HistoryUnavailable as error:
            if not self.failing:
                log.warning("history can't be written", extra={"reason": str(error)})
            self.failing = True
            self.failed_at = trio.current_time()
            for submission in group:
                self._size -= submission.size
                submission.settled(submission, error)
        else:
            self.failing = False
            if meters is not None:
                meters.commit.end(began)
            for submission in group:
                self._size -= submission.size
                self.broker.publish(submission.accepted.batch, submission.source, first=first)
                self.newest = first + submission.count - 1
                submission.settled(submission, first)
                first += submission.count
        self.broker.flush()
        if meters is not None and not self.failing:
            # A clock that was set meanwhile makes one wrong observation.
            meters.publish_to_write.observe(max(0.0, time.time() - group[0].time))
        if not self._size and self._idle is not None:
            self._idle.set()


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

        for part in self._sequencer.broker.screen(batch):
            if isinstance(part, Rejected):
                await self.settle()
                for _ in range(part.count):
                    on_error(part.error)
            else:
                submission = Submission(part, settled, self._outbox, name)
                self.underway += submission.size
                self._sequencer.submit(submission)

    async def settle(self) -> None:
        """Wait until all that was published is durable and delivered, or refused."""
        while self.underway:
            self._sequencer.broker.flush()
            self._quiet = trio.Event()
            await self._quiet.wait()
