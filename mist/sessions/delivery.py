"""From the history to subscribers: what is stored is published to the broker, in id order.

What was stored with others (a `Submission`) is at hand. A writer's batch may be a thousand times
as much: it is read again from where it waits, in slices, so that it is never all in memory. Where
it can't be read there, the history has it.

All of it is published in turns (`mist.turns`), with nothing else published in between: no message
overtakes another. A message for very many takes several turns itself. Who hands over from a
replay to live messages meanwhile might get it twice, or miss it, and waits for its end
(`Delivery.between`).

Nothing here can take a message back, and nothing raises: a failure of the broker's costs the
batch in which it happened.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.projection import Slice as ProjectedSlice
from mist.change import Change
from mist.errors import HistoryUnavailable
from mist.history import Bulk, Commit, History
from mist.history.columns import INDEXES, unpack_all
from mist.history.layout import Row
from mist.history.tag_lists import TagLists
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.slices import Slice, cut, lists_of, plain_slices, slices_of
from mist.sessions.submission import Submission
from mist.turns import Account
from mist.wire import Batch

__all__ = ["Delivery"]

log = logging.getLogger("mist.history")

_PAGE: Final = 262_144  # bytes read from the history at a time
_FEW: Final = 100  # messages of a block that is read at once, and not in a thread: some 0.2 ms
_LARGE: Final = 1 << 20  # bytes of a block that is taken apart in a thread, whatever is in it
_PASSED: Final = 32  # blocks that nobody asks for, passed over in a row: some 10 µs each

# What all publishers have stored is one task's to deliver, so it has more turns than one of them.
_COST: Final = 1 / 8


class Delivery:
    """See the module.

    Args:
        broker: publishes to subscribers.
        history: has what is delivered.
        newest: the highest id in it.
        scheduler: gives turns.

    Attributes:
        newest: the highest id that has been delivered, or is being; higher ones may be stored
            already.
    """

    def __init__(
        self,
        broker: Broker,
        history: History,
        newest: int,
        scheduler: FlushScheduler,
    ) -> None:
        self.newest = newest
        self._broker = broker
        self._history = history
        self._scheduler = scheduler
        self._account = Account(_COST)
        self._began = scheduler.now  # this turn
        self._midway = False  # whether some have a message below `newest`, and others have not
        self._ended = Change()
        self._waiting = 0  # for that
        self._passed = 0  # blocks that nobody asked for

    @property
    def midway(self) -> bool:
        """Whether some may have what is not above `newest`, and others not yet."""
        return self._midway

    async def between(self) -> None:
        """Wait until all have what is not above `newest`. Mostly they have: then no checkpoint.

        The first thing that the caller does then comes before the next message.
        """
        while self._midway:
            self._waiting += 1
            try:
                await self._ended.wait()
            finally:
                self._waiting -= 1

    def begin(self) -> None:
        """Begin a turn: for who has waited for something else than this.

        However full a pass of the event loop is, some messages can be delivered in it. Else each
        message that was stored with others would wait for a turn, which is some passes.
        """
        self._began = self._scheduler.now

    async def deliver(self, submission: Submission, first: int) -> None:
        """Publish what was stored with `first` as the id of its first message."""
        for part in submission.accepted:
            count = part.batch.count
            await self._publish(part.batch, submission.source, first, count, part.slices)
            first += count

    def flush(self) -> bool:
        """Have what was delivered written; see `FlushScheduler.flush`."""
        return self._scheduler.flush()

    async def _publish(
        self,
        batch: Batch,
        source: Outbox | None,
        first: int,
        count: int,
        slices: Sequence[ProjectedSlice] = (),
        *,
        relayed: bool = False,
    ) -> None:
        """Publish a batch of so many messages, in turns."""
        if self._scheduler.spent(self._began):
            await self._scheduler.rest(self._account)
            self.begin()
        try:
            steps = self._broker.publish_in_steps(
                batch, source, first=first, slices=slices, relayed=relayed
            )
            if not isinstance(steps, tuple):  # which is done, as nearly always
                await self._scheduler.work(self._told(steps, first, count), self._account)
        except Exception as error:
            self._broker.failures.note("delivery", error)
        finally:
            # Also where the server ends in the middle: nobody waits for the rest.
            self.newest = first + count - 1
            if self._midway:
                self._midway = False
                self._ended.notify()
        while self._waiting:
            await trio.lowlevel.checkpoint()

    def _told(self, steps: Iterable[int | None], first: int, count: int) -> Iterator[None]:
        """Steps of publishing, with `newest` kept up to date."""
        for done in steps:
            if done is None:
                # How far it is from here on is told only when all of the batch is through.
                self._midway = True
                self.newest = first + count - 1
            elif not self._midway and done:
                self.newest = first + done - 1
            yield

    async def deliver_bulk(self, bulk: Bulk, commit: Commit) -> None:
        """Publish a batch as it was committed, slice by slice.

        Cancelled, it leaves the rest to those who read the history.
        """
        try:
            pieces = _slices(bulk, commit)
            while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
                await self._publish_slices(piece)
        except Exception as error:
            log.warning(
                "a batch that was stored can't be read again where it waited",
                extra={"error": type(error).__qualname__},
            )
            await self.deliver_stored(commit.last)

    async def deliver_rows(self, rows: Sequence[Row]) -> None:
        """Publish blocks that others have published, as they were stored.

        Those that nobody here asks for are counted, and not taken apart. Cancelled, it leaves the
        rest to those who read the history.

        Args:
            rows: whose checksums were looked at.
        """
        tag_lists = TagLists()
        try:
            for row in rows:
                if self._is_asked_for(row):
                    await self._publish_slices(await _taken_apart(row, tag_lists), relayed=True)
                else:
                    await self._pass_over(row)
        except HistoryUnavailable as error:
            log.warning("a block that was stored can't be read", extra={"reason": str(error)})
            await self.deliver_stored(rows[-1].head.last, relayed=True)

    def _is_asked_for(self, row: Row) -> bool:
        try:
            return self._broker.asks_for(unpack_all(INDEXES, row.hashes))
        except ValueError:  # they are no column: let its reader say so
            return True

    async def _pass_over(self, row: Row) -> None:
        try:
            self._broker.pass_over(row.head.messages, partial(lists_of, row))
        except ValueError as error:
            self._broker.failures.note("delivery", error)
        self.newest = row.head.last
        self._passed += 1
        if not self._passed % _PASSED:
            await trio.lowlevel.checkpoint()

    async def deliver_stored(self, upto: int, *, relayed: bool = False) -> None:
        """Publish everything from `newest` to `upto` as the history has it.

        Args:
            relayed: whether others have published it.
        """
        while self.newest < upto:
            try:
                page = await self._history.read(after=self.newest, upto=upto, max_bytes=_PAGE)
            except HistoryUnavailable as error:
                log.warning(
                    "nor in the history: nobody gets the rest", extra={"reason": str(error)}
                )
                self._broker.note_unreadable(upto - self.newest)
                break
            pieces = [piece for each in page.stored for piece in cut(each)]
            await self._publish_slices(pieces, relayed=relayed)
            self.newest = page.after
        self.newest = upto

    async def _publish_slices(self, slices: list[Slice], *, relayed: bool = False) -> None:
        self.begin()
        for batch, first, last in slices:
            await self._publish(batch, None, first, last - first + 1, relayed=relayed)
        self.flush()
        await trio.lowlevel.checkpoint()


def _slices(bulk: Bulk, commit: Commit) -> Iterator[list[Slice]]:
    """What to publish, a block at a time. Reads files: ask for the next one in a thread."""
    tag_lists = TagLists()
    newest = commit.first - 1
    rows: Iterator[Row] = iter(bulk.blocks())
    for row in rows:
        placed = row.placed(newest, commit.time)
        newest = placed.head.last
        yield slices_of(placed, tag_lists)


async def _taken_apart(row: Row, tag_lists: TagLists) -> list[Slice]:
    """What to publish of a block; without an object for each message, where that is possible."""
    if row.head.size <= _LARGE and (slices := plain_slices(row)) is not None:
        return slices
    read = partial(slices_of, row, tag_lists)
    return await trio.to_thread.run_sync(read) if row.head.messages > _FEW else read()
