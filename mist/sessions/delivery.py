"""From the history to subscribers: what is stored is published to the broker, in id order.

What was stored with others (a `Submission`) is at hand, and is published at once. A writer's
batch may be a thousand times as much. It is read again from where it waits, and published in
slices: that neither takes it into memory, nor keeps others waiting for more than some
milliseconds. Where it can't be read there, the history has it.

Nothing here can take a message back, and nothing raises: a failure of the broker's costs the
batch in which it happened.
"""

import logging
import time
from collections.abc import Iterator
from typing import Final

import trio

from mist.broker.broker import Broker
from mist.errors import HistoryUnavailable
from mist.history import Bulk, Commit, History, Stored
from mist.history.block import Block, TagLists
from mist.history.layout import Row
from mist.history.visibility import envelope_of
from mist.sessions.submission import Submission
from mist.wire import Batch

__all__ = ["Delivery"]

log = logging.getLogger("mist.history")

_PAGE: Final = 262_144  # bytes read from the history at a time
_SLICE: Final = 256  # entries of a large batch published without looking at the clock
_TURN: Final = 0.002  # seconds of publishing, after which others have their turn

_Slice = tuple[Batch, int, int]  # with the ids of its first and last message


class Delivery:
    """See the module.

    Args:
        broker: publishes to subscribers.
        history: has what is delivered.

    Attributes:
        newest: the highest id that has been delivered; higher ones may be stored already.
    """

    def __init__(self, broker: Broker, history: History, newest: int) -> None:
        self.newest = newest
        self._broker = broker
        self._history = history

    def deliver(self, submission: Submission, first: int) -> None:
        """Publish what was stored with `first` as the id of its first message."""
        publish, source = self._broker.publish, submission.source
        place = first
        for part in submission.accepted:
            try:
                place += publish(part.batch, source, first=place)
            except Exception as error:
                self._broker.failures.note("delivery", error)
                place += sum(entry[2] for entry in part.entries)
        self.newest = place - 1

    async def deliver_bulk(self, bulk: Bulk, commit: Commit) -> None:
        """Publish a batch as it was committed, slice by slice.

        Cancelled, it leaves the rest to those who read the history.
        """
        try:
            pieces = _slices(bulk, commit)
            while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
                await self._publish(piece)
        except Exception as error:
            log.warning(
                "a batch that was stored can't be read again where it waited",
                extra={"error": type(error).__qualname__},
            )
            await self._deliver_stored(commit.last)

    async def _deliver_stored(self, upto: int) -> None:
        """Publish everything from `newest` to `upto` as the history has it."""
        while self.newest < upto:
            try:
                page = await self._history.read(after=self.newest, upto=upto, max_bytes=_PAGE)
            except HistoryUnavailable as error:
                log.warning(
                    "nor in the history: nobody gets the rest", extra={"reason": str(error)}
                )
                self._broker.note_unreadable(upto - self.newest)
                break
            await self._publish([piece for each in page.stored for piece in _cut(each)])
            self.newest = page.after
        self.newest = upto

    async def _publish(self, slices: list[_Slice]) -> None:
        broker = self._broker
        began = time.perf_counter()
        for batch, first, last in slices:
            try:
                broker.publish(batch, first=first)
            except Exception as error:
                broker.failures.note("delivery", error)
            self.newest = last
            if time.perf_counter() - began > _TURN:
                broker.flush()
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()
        broker.flush()
        await trio.lowlevel.checkpoint()


def _slices(bulk: Bulk, commit: Commit) -> Iterator[list[_Slice]]:
    """What to publish, a block at a time. Reads files: ask for the next one in a thread."""
    tag_lists = TagLists()
    newest = commit.first - 1
    rows: Iterator[Row] = iter(bulk.blocks())
    for row in rows:
        block = Block(row.placed(newest, commit.time), tag_lists)
        newest = block.head.last
        yield [piece for stored in block.select() for piece in _cut(stored)]


def _cut(stored: Stored) -> Iterator[_Slice]:
    """Batches of some entries each."""
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
        yield Batch.of_runs(runs, framable=stored.framable, envelope=envelope), firsts[0], last
