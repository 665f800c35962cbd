"""Block stores: where a log keeps its blocks. The contract that a member implements.

Everything about messages (selecting, counting, thinning, verifying) is written once, over these
methods about rows; see `log`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from types import MappingProxyType
from typing import TypeVar

import attrs

from mist.history.commits import Commit, Mark
from mist.history.erasure import PendingErasure
from mist.history.layout import Head, Row
from mist.history.leaps import ClockRecord
from mist.history.numbering import ChannelPosition
from mist.history.pieces import AnyRow
from mist.history.record import KeyRecord, Problem
from mist.history.selection import Selection

__all__ = ["BlockStore", "Change", "Executor", "State", "Totals"]

T = TypeVar("T")


@attrs.frozen
class State:
    """The state of a log beside its blocks.

    Attributes:
        epoch: see `Position`.
        newest: the highest id given when this was written. Blocks may be newer.
        latest: likewise the time of the newest message, microseconds.
        floor: blocks up to this id are beyond the global limits; what is left of them, a rule
            keeps.
        trimmed: see `Position`.
        untracked: up to this id, what was trimmed is not known for each tag.
        patterns: patterns of the rules under which `tracked` was kept, sorted.
        erased: the highest id that an erasure has removed.
    """

    epoch: str
    newest: int = 0
    latest: int = 0
    floor: int = 0
    trimmed: int = 0
    untracked: int = 0
    patterns: tuple[str, ...] = ()
    erased: int = 0

    @property
    def gone(self) -> int:
        """The highest id that was removed, by retention or erasure."""
        return max(self.trimmed, self.erased)

    @property
    def removed(self) -> int:
        """Up to this id, retention or erasure may have removed messages; see `continuity`."""
        return max(self.floor, self.gone)


@attrs.frozen
class Totals:
    """Sums over some blocks.

    Attributes:
        blocks, messages: how many.
        size: bytes of the blocks.
    """

    blocks: int = 0
    messages: int = 0
    size: int = 0

    def plus(self, head: Head) -> "Totals":
        """The sums with one more block."""
        return Totals(self.blocks + 1, self.messages + head.messages, self.size + head.size)

    def minus(self, head: Head) -> "Totals":
        """The sums with one block less."""
        return Totals(self.blocks - 1, self.messages - head.messages, self.size - head.size)


@attrs.frozen
class Change:
    """An atomic change of some blocks.

    Attributes:
        remove: keys of the blocks to remove.
        put: blocks to add, after the removal.
        state: the new state; None leaves it.
        tracked: tag to the highest id trimmed from it; added to what is known.
        forget: whether to clear what was tracked before.
        wipe: whether to overwrite what is removed in storage.
        skipped: up to this id, none are given any more; 0 where none are left out.
    """

    remove: Sequence[int] = ()
    put: Sequence[Row] = ()
    state: State | None = None
    tracked: Mapping[str, int] = attrs.field(factory=dict)
    forget: bool = False
    wipe: bool = False
    skipped: int = 0


class BlockStore(ABC):
    """Rows of blocks by ascending `first`. Used by one thread at a time.

    Every method may raise `HistoryUnavailable`; those that read, `HistoryDamaged`.
    """

    @abstractmethod
    def load(self) -> tuple[State, dict[str, int]]:
        """The state, and the tracked tags: tag to the highest id trimmed from it."""

    @abstractmethod
    def append(self, rows: Sequence[Row], keys: Sequence[KeyRecord] = ()) -> None:
        """Append blocks, what they add to their channels, and the keys of their publications.

        A key replaces an older one of its name. Durable on return, or not stored at all.
        """

    @abstractmethod
    def commit(
        self, rows: Iterable[Row], mark: Mark, commit: Commit, offset: int | None = None
    ) -> None:
        """Append blocks, and the commit of a writer in place of its last one.

        Durable on return, or not stored at all; also where `rows` raises.

        Args:
            offset: as for `mirror`, of a log that is a mirror.
        """

    @abstractmethod
    def committed(self, owner: str, writer: str) -> Commit | None:
        """The last commit of a writer."""

    @abstractmethod
    def mirrored(self) -> tuple[str, int] | None:
        """The epoch of the log that this one mirrors, and how far it is; None where it is none."""

    @abstractmethod
    def begin_mirror(self, epoch: str, offset: int, newest: int) -> None:
        """Have this log mirror another from a place on, in its epoch, and of what was before have
        nothing.

        Args:
            offset: see `mist.history.mirroring`.
            newest: the highest id up to there. What had these ids counts as trimmed.
        """

    @abstractmethod
    def rename_mirror(self, epoch: str, offset: int) -> None:
        """Go on as a mirror of the same log, which is in this epoch by now."""

    @abstractmethod
    def mirror(
        self,
        rows: Sequence[Row],
        keys: Sequence[KeyRecord],
        offset: int,
        left_out: int,
        erasures: Sequence[PendingErasure] = (),
        notes: Mapping[bytes, bytes | None] = MappingProxyType({}),
    ) -> None:
        """Append blocks as `append` does, perhaps none, and note how far the mirror is.

        Args:
            offset: see `mist.history.mirroring`.
            left_out: the highest id that was given and is not stored; 0 where none is.
            erasures: that it has to do, besides those that are pending.
            notes: to be kept in the place of those of these names; None forgets one.
        """

    @abstractmethod
    def notes(self) -> dict[bytes, bytes]:
        """What a mirror keeps besides messages, by name; see `mist.history.mirroring`."""

    @abstractmethod
    def pending_erasures(self) -> Sequence[PendingErasure]:
        """Erasures that a mirror has yet to do, by ascending offsets."""

    @abstractmethod
    def forget_erasure(self, offset: int) -> None:
        """Note that a mirror has carried out that erasure."""

    @abstractmethod
    def keys(self, after: int, limit: int) -> Sequence[KeyRecord]:
        """The first `limit` keys whose `KeyRecord.first` is above `after`, ascending."""

    @abstractmethod
    def commits(self) -> Sequence[tuple[str, str, Commit]]:
        """The last commits of all writers, with their owners and names."""

    @abstractmethod
    def all_channels(self, after: str, limit: int) -> Sequence[tuple[str, ChannelPosition]]:
        """The positions of the first `limit` channels whose key is above `after`, ascending."""

    @abstractmethod
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
        """Add a part of what another log has; see `mist.history.checkpoints`.

        Args:
            state: without an epoch; None leaves what there is.
            rows: with their numbers.
        """

    @abstractmethod
    def change(self, change: Change) -> None:
        """Carry out a change. Durable on return, or not made."""

    @abstractmethod
    def channels(self, keys: Sequence[str]) -> dict[str, ChannelPosition]:
        """Positions of channels by their keys, see `numbering`; without channels that have no
        message."""

    @abstractmethod
    def numbers(self, first: int) -> bytes | None:
        """The numbers of the block with this key in its channels; see `Row.numbers`."""

    @abstractmethod
    def recall(self, name: bytes) -> KeyRecord | None:
        """The key with this name."""

    @abstractmethod
    def outdated(self, before: int, most: int, step: int) -> int:
        """The keys to forget by age and total number, oldest first.

        Args:
            before: microseconds; keys of earlier publications are outdated.
            most: keys that may be kept; the oldest beyond that are outdated.
            step: how many to return at most.

        Returns:
            The `KeyRecord.first` up to which to forget; 0 where none is outdated.
        """

    @abstractmethod
    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        """The keys to forget because their owner has too many, oldest first.

        Args:
            most: keys that may be kept of one owner.
            step: how many to return at most.

        Returns:
            An owner (the prefix of its keys' names) and the `KeyRecord.first` up to which to
            forget; None where no owner has too many.
        """

    @abstractmethod
    def forget(self, upto: int, owner: bytes = b"") -> None:
        """Forget keys up to this `KeyRecord.first`. Durable on return, or not done.

        Args:
            owner: only keys of this owner; empty for all owners.
        """

    @abstractmethod
    def clock(self) -> ClockRecord | None:
        """What was recorded of the clock; None where nothing was."""

    @abstractmethod
    def record_clock(self, record: ClockRecord) -> None:
        """Record that, in the place of what was. Durable on return, or not done."""

    @abstractmethod
    def note_removals(self, *, on: bool) -> bool:
        """Have removals noted from now on, or no longer. Returns whether they were before."""

    @abstractmethod
    def removals(self, limit: int) -> Sequence[tuple[int, int, int]]:
        """The first `limit` removals that are noted: number, first and last id of a range.

        In a range, some messages may have been removed by a `change` of the state, which is one
        of retention or erasure. From 0 on: all that was is gone. Nothing where none are noted.
        """

    @abstractmethod
    def forget_removals(self, upto: int) -> None:
        """Forget removals up to this number."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """A context in which all reads see the same version of the store."""

    @abstractmethod
    def ascend(
        self, after: int, upto: int, selection: Selection | None
    ) -> Generator[Row, None, None]:
        """Blocks that may hold selected messages with ids in `(after, upto]`, ascending.

        Reads lazily. Blocks that can't hold a match are mostly left out.
        """

    @abstractmethod
    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        """Blocks that may hold selected messages with ids up to `upto`, descending."""

    def search(
        self, after: int, upto: int, selection: Selection | None, *, descending: bool = False
    ) -> Generator[AnyRow, None, None]:
        """The same blocks as of `ascend` or `descend`; large ones perhaps to be read in parts.

        Args:
            after: 0 where it is descending.
        """
        if descending:
            yield from self.descend(upto, selection)
        else:
            yield from self.ascend(after, upto, selection)

    def row(self, first: int) -> Row | None:
        """The block with this key; None where there is none."""
        with closing(self.ascend(first - 1, first, None)) as rows:
            return next((row for row in rows if row.head.first == first), None)

    @abstractmethod
    def heads(self, after: int, limit: int) -> Sequence[Head]:
        """The heads of the first `limit` blocks whose key is above `after`."""

    @abstractmethod
    def rows(self, heads: Sequence[Head]) -> list[Row]:
        """The blocks with these heads, which are neighbours."""

    @abstractmethod
    def last(self) -> Head | None:
        """The head of the newest block."""

    @abstractmethod
    def totals(self, after: int = 0) -> Totals:
        """Sums over the blocks whose key is above `after`."""

    @abstractmethod
    def settled(self) -> int:
        """The id up to which blocks are indexed, and so must not be joined any more."""

    @abstractmethod
    def next_maintenance(self) -> "Callable[[BlockStore], None] | None":
        """The next bounded step of the store's own maintenance; None where none is due.

        Determined on a block store that is read, run on the one that is written.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make all that was appended survive a power cut. Called on a store that is read."""

    @abstractmethod
    def wipe(self) -> bool:
        """Do one bounded step of overwriting removed data in storage.

        Returns:
            Whether there is more to do.
        """

    @abstractmethod
    def file_size(self) -> int:
        """Bytes of all its files."""

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """Problems of the storage other than damaged blocks."""

    @abstractmethod
    def close(self) -> None:
        """Close the store. Idempotent."""


class Executor(ABC):
    """Runs work on a log's block stores: in threads, or on the event loop."""

    @abstractmethod
    async def write(self, work: Callable[[BlockStore], T]) -> T:
        """Run `work` on the one block store that may be changed, one call at a time."""

    @abstractmethod
    async def read(
        self, work: Callable[[BlockStore], T], *, long: bool = False, scan: bool = False
    ) -> T:
        """Run `work` on a block store that is only read, when one is free.

        Args:
            long: whether it may take too long for the event loop.
            scan: whether it reads whole blocks. Those take turns.
        """

    @abstractmethod
    async def read_frozen(self, work: Callable[[BlockStore], T]) -> T:
        """Run `work` in a thread, on a block store that stays as it is now, however long it takes.

        Its keys, commits and channels may be read, too.
        """

    @abstractmethod
    def replaying(self) -> AbstractContextManager[None]:
        """Have what is written wait little while pages are replayed on the event loop."""

    @abstractmethod
    def beside(self, name: str) -> str:
        """The path of a file beside the log's own, `:memory:` where it has none."""

    @abstractmethod
    async def supply(self, make: Callable[[], Iterable[Row]]) -> Iterable[Row]:
        """The rows for `BlockStore.commit`, lazily where `write` runs in a thread.

        Where it runs on the event loop, they are made in a thread before, so that the loop
        doesn't wait for them.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every block store, when all work is done. Idempotent."""
