"""`memory://`: a log that ends with its process. For tests, and for replays of what just
happened. Every start begins a new epoch.

Blocks are kept encoded, as on a disk: a message in a block takes a fraction of its size as
objects, and what is read is what was written.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from heapq import nsmallest
from types import MappingProxyType
from typing import Final, TypeVar

import attrs
import trio

from mist.history import Durability, History
from mist.history.block_store import BlockStore, Change, Executor, State, Totals
from mist.history.commits import MAX_WRITERS, Commit, Mark
from mist.history.erasure import PendingErasure
from mist.history.idempotency import KeyRecords
from mist.history.layout import Head, Row
from mist.history.leaps import ClockRecord
from mist.history.log import Log
from mist.history.log_metadata import LogMetadata, random_epoch
from mist.history.numbering import (
    ChannelCounts,
    ChannelPosition,
    advanced,
    channel_key,
    pack_befores,
)
from mist.history.record import KeyRecord, Problem
from mist.history.selection import Selection

__all__ = ["MemoryBlockStore", "open_memory"]

T = TypeVar("T")

_READERS: Final = 1  # threads; their work is all Python, so more would not run in parallel


class MemoryBlockStore(BlockStore):
    """See the module."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tracked: dict[str, int] = {}
        self._firsts: list[int] = []  # of the rows, ascending
        self._rows: dict[int, Row] = {}
        self._channels: dict[str, ChannelPosition] = {}
        self._keys = KeyRecords()
        self._clock: ClockRecord | None = None
        self._commits: dict[tuple[str, str], Commit] = {}  # the longest idle first
        self._mirrored: tuple[str, int] | None = None
        self._erasures: list[PendingErasure] = []
        self._notes: dict[bytes, bytes] = {}
        self._removals: list[tuple[int, int, int]] | None = None  # None where none are noted
        self._removed = 0  # times

    def frozen(self) -> "MemoryBlockStore":
        """A copy of everything, to be read by another thread. O(blocks, keys)."""
        copy = self.copy()
        copy._keys = self._keys.copy()
        copy._commits = self._commits.copy()
        copy._mirrored = self._mirrored
        copy._erasures = self._erasures.copy()
        copy._notes = self._notes.copy()
        return copy

    def copy(self) -> "MemoryBlockStore":
        """A copy of everything but the keys, to be read by another thread. O(blocks)."""
        copy = MemoryBlockStore(self._state)
        copy._tracked = self._tracked.copy()
        copy._firsts = self._firsts.copy()
        copy._rows = self._rows.copy()
        copy._channels = self._channels.copy()
        copy._removals = None if self._removals is None else self._removals.copy()
        return copy

    def load(self) -> tuple[State, dict[str, int]]:
        return self._state, dict(self._tracked)

    def append(self, rows: Sequence[Row], keys: Sequence[KeyRecord] = ()) -> None:
        for row in rows:
            self._add(row)
        for kept in keys:
            self._keys.add(kept)

    def _add(self, row: Row) -> None:
        self._firsts.append(row.head.first)
        if row.tally:
            row = self._numbered(row, row.tally)
        self._rows[row.head.first] = row

    def _numbered(self, row: Row, tally: ChannelCounts) -> Row:
        befores = []
        for name, added in tally.items():
            key = channel_key(name)
            before = self._channels.get(key, ChannelPosition())
            befores.append(before.last)
            self._channels[key] = ChannelPosition(
                *advanced(before.last, before.floor, added, row.head.first, row.head.newest)
            )
        return attrs.evolve(row, tally=None, numbers=pack_befores(befores))

    def mirrored(self) -> tuple[str, int] | None:
        return self._mirrored

    def begin_mirror(self, epoch: str, offset: int, newest: int) -> None:
        state = State(epoch, newest, floor=newest, trimmed=newest, untracked=newest)
        removals, removed = self._removals, self._removed
        MemoryBlockStore.__init__(self, state)
        self._mirrored = epoch, offset
        if removals is not None:
            self._removals, self._removed = removals, removed
            self._note_removed(0, 0)

    def rename_mirror(self, epoch: str, offset: int) -> None:
        self._mirrored = epoch, offset
        self._state = attrs.evolve(self._state, epoch=epoch)

    def mirror(
        self,
        rows: Sequence[Row],
        keys: Sequence[KeyRecord],
        offset: int,
        left_out: int,
        erasures: Sequence[PendingErasure] = (),
        notes: Mapping[bytes, bytes | None] = MappingProxyType({}),
    ) -> None:
        self.append(rows, keys)
        for name, value in notes.items():
            if value is None:
                self._notes.pop(name, None)
            else:
                self._notes[name] = value
        self._erasures += erasures
        self._note_mirrored(offset)
        if left_out:
            self._state = attrs.evolve(self._state, newest=left_out)

    def notes(self) -> dict[bytes, bytes]:
        return self._notes.copy()

    def pending_erasures(self) -> Sequence[PendingErasure]:
        return list(self._erasures)

    def forget_erasure(self, offset: int) -> None:
        self._erasures = [each for each in self._erasures if each.offset != offset]

    def _note_mirrored(self, offset: int) -> None:
        self._mirrored = self._state.epoch, offset

    def commit(
        self, rows: Iterable[Row], mark: Mark, commit: Commit, offset: int | None = None
    ) -> None:
        for row in list(rows):
            self._add(row)
        if offset is not None:
            self._note_mirrored(offset)
        self._commits.pop((mark.owner, mark.writer), None)
        self._commits[mark.owner, mark.writer] = commit
        known = [each for each in self._commits if each[0] == mark.owner]
        for each in known[:-MAX_WRITERS]:
            del self._commits[each]

    def committed(self, owner: str, writer: str) -> Commit | None:
        return self._commits.get((owner, writer))

    def channels(self, keys: Sequence[str]) -> dict[str, ChannelPosition]:
        return {key: self._channels[key] for key in keys if key in self._channels}

    def numbers(self, first: int) -> bytes | None:
        row = self._rows.get(first)
        return None if row is None else row.numbers

    def clock(self) -> ClockRecord | None:
        return self._clock

    def record_clock(self, record: ClockRecord) -> None:
        self._clock = record

    def recall(self, name: bytes) -> KeyRecord | None:
        return self._keys.get(name)

    def outdated(self, before: int, most: int, step: int) -> int:
        return self._keys.outdated(before, most, step)

    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        return self._keys.crowding(most, step)

    def forget(self, upto: int, owner: bytes = b"") -> None:
        self._keys.forget(upto, owner)

    def keys(self, after: int, limit: int) -> Sequence[KeyRecord]:
        return self._keys.above(after, limit)

    def commits(self) -> Sequence[tuple[str, str, Commit]]:
        return [(owner, writer, commit) for (owner, writer), commit in self._commits.items()]

    def all_channels(self, after: str, limit: int) -> Sequence[tuple[str, ChannelPosition]]:
        keys = nsmallest(limit, [key for key in self._channels if key > after])
        return [(key, self._channels[key]) for key in keys]

    def restore(
        self,
        state: State | None,
        tracked: Mapping[str, int],
        rows: Sequence[Row],
        keys: Sequence[KeyRecord],
        commits: Sequence[tuple[str, str, Commit]],
        channels: Sequence[tuple[str, ChannelPosition]],
        notes: Mapping[bytes, bytes],
    ) -> None:
        if state is not None:
            self._state = attrs.evolve(state, epoch=self._state.epoch)
        self._tracked.update(tracked)
        self.append(rows, keys)
        self._commits.update({(owner, writer): commit for owner, writer, commit in commits})
        self._channels.update(channels)
        self._notes.update(notes)

    def note_removals(self, *, on: bool) -> bool:
        before = self._removals
        self._removals = (before or []) if on else None
        return before is not None

    def removals(self, limit: int) -> Sequence[tuple[int, int, int]]:
        return (self._removals or [])[:limit]

    def forget_removals(self, upto: int) -> None:
        if self._removals is not None:
            self._removals = [each for each in self._removals if each[0] > upto]

    def _note_removed(self, first: int, last: int) -> None:
        if self._removals is not None:
            self._removed += 1
            self._removals.append((self._removed, first, last))

    def change(self, change: Change) -> None:
        if self._removals is not None and change.state is not None:
            for first in change.remove:
                self._note_removed(first, self._rows[first].head.last)
        for first in change.remove:
            del self._rows[first]
        for row in change.put:
            self._rows[row.head.first] = row
        if change.remove or change.put:
            self._firsts = sorted(self._rows)
        if change.forget:
            self._tracked.clear()
        self._tracked.update(change.tracked)
        if change.state is not None:
            self._state = change.state

    def snapshot(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing else runs meanwhile

    def ascend(
        self, after: int, upto: int, selection: Selection | None
    ) -> Generator[Row, None, None]:
        start = max(bisect_right(self._firsts, after + 1) - 1, 0)
        for first in self._firsts[start : bisect_right(self._firsts, upto)]:
            row = self._rows[first]
            if row.head.last > after and (selection is None or selection.may_match(row.hashes)):
                yield row

    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        for first in reversed(self._firsts[: bisect_right(self._firsts, upto)]):
            row = self._rows[first]
            if selection is None or selection.may_match(row.hashes):
                yield row

    def heads(self, after: int, limit: int) -> Sequence[Head]:
        start = bisect_right(self._firsts, after)
        return [self._rows[first].head for first in self._firsts[start : start + limit]]

    def rows(self, heads: Sequence[Head]) -> list[Row]:
        return [self._rows[head.first] for head in heads]

    def last(self) -> Head | None:
        return self._rows[self._firsts[-1]].head if self._firsts else None

    def totals(self, after: int = 0) -> Totals:
        heads = self.heads(after, len(self._firsts))
        return Totals(
            len(heads), sum(head.messages for head in heads), sum(head.size for head in heads)
        )

    def settled(self) -> int:
        return 0

    def next_maintenance(self) -> Callable[[BlockStore], None] | None:
        return None

    def sync(self) -> None:
        pass

    def wipe(self) -> bool:
        return False

    def file_size(self) -> int:
        return self.totals().size

    def check(self) -> Iterator[Problem]:
        return iter(())

    def close(self) -> None:
        self._firsts.clear()
        self._rows.clear()


class _Inline(Executor):
    """Runs work at once on the event loop; what takes long in a thread, on a copy."""

    def __init__(self, store: MemoryBlockStore) -> None:
        self._store = store
        self._reading = trio.CapacityLimiter(_READERS)

    async def write(self, work: Callable[[BlockStore], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work(self._store)

    async def read(
        self, work: Callable[[BlockStore], T], *, long: bool = False, scan: bool = False
    ) -> T:
        if long:
            copy = self._store.copy()
            return await trio.to_thread.run_sync(work, copy, limiter=self._reading)
        await trio.lowlevel.checkpoint()
        return work(self._store)

    async def read_frozen(self, work: Callable[[BlockStore], T]) -> T:
        copy = self._store.frozen()
        return await trio.to_thread.run_sync(work, copy, limiter=self._reading)

    def replaying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def beside(self, name: str) -> str:
        return ":memory:"

    async def supply(self, make: Callable[[], Iterable[Row]]) -> Iterable[Row]:
        return await trio.to_thread.run_sync(lambda: list(make()), limiter=self._reading)

    async def close(self) -> None:
        self._store.close()


async def open_memory() -> History:
    """A new, empty log."""
    await trio.lowlevel.checkpoint()
    store = MemoryBlockStore(State(random_epoch()))
    return Log(_Inline(store), LogMetadata.of(store), Durability.NOTHING)
