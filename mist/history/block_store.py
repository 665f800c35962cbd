"""A block store: where a log keeps its blocks. What a member of the family has to bring.

Everything that is about messages (selecting, counting, thinning, checking) is written once,
over these few methods about rows; see `log`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import TypeVar

import attrs

from mist.history.commits import Commit, Mark
from mist.history.layout import Head, Row
from mist.history.numbering import ChannelPosition
from mist.history.record import KeyRecord, Problem
from mist.history.selection import Selection

__all__ = ["BlockStore", "Change", "Executor", "State", "Totals"]

T = TypeVar("T")


@attrs.frozen
class State:
    """What a log has to remember beside its blocks.

    Attributes:
        epoch: see `Position`.
        newest: the highest id given when this was written. Blocks may go beyond.
        latest: likewise the time of the newest message, microseconds.
        floor: blocks up to this id are out of the global limits; what is left of them is
            there by a rule.
        trimmed: see `Position`.
        untracked: up to here, what was trimmed of a tag isn't known tag by tag.
        patterns: the rules under which `tracked` was kept, sorted.
        erased: the highest id that an erasure has taken.
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
        """The highest id that isn't kept any more, whatever took it."""
        return max(self.trimmed, self.erased)


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
        """With one block more."""
        return Totals(self.blocks + 1, self.messages + head.messages, self.size + head.size)

    def minus(self, head: Head) -> "Totals":
        """With one block less."""
        return Totals(self.blocks - 1, self.messages - head.messages, self.size - head.size)


@attrs.frozen
class Change:
    """What becomes of some blocks: all of it or nothing.

    Attributes:
        remove: keys of the blocks that go.
        put: blocks that come, after those have gone.
        state: the new state; None leaves it.
        tracked: tag to the highest id trimmed from it; adds to what is known.
        forget: whether what was tracked before is forgotten first.
        wipe: whether what goes is overwritten where it is kept.
    """

    remove: Sequence[int] = ()
    put: Sequence[Row] = ()
    state: State | None = None
    tracked: Mapping[str, int] = attrs.field(factory=dict)
    forget: bool = False
    wipe: bool = False


class BlockStore(ABC):
    """Rows of blocks, by ascending `first`. Used by one thread at a time.

    Every method may raise `HistoryUnavailable`; those that read, `HistoryDamaged`.
    """

    @abstractmethod
    def load(self) -> tuple[State, dict[str, int]]:
        """The state, and what is tracked."""

    @abstractmethod
    def append(self, row: Row, keys: Sequence[KeyRecord] = ()) -> None:
        """Add a block behind all others, what it adds to its channels, and the keys of
        publications in it, each in the place of an older one of its name. Durable on return, or
        not there."""

    @abstractmethod
    def commit(self, rows: Iterable[Row], mark: Mark, commit: Commit) -> None:
        """Add blocks behind all others, and what became of a writer's batch with them, in the
        place of what was known of it. Durable on return, or nothing of it is there; also where
        `rows` raises."""

    @abstractmethod
    def committed(self, owner: str, writer: str) -> Commit | None:
        """What became of a writer's last batch."""

    @abstractmethod
    def change(self, change: Change) -> None:
        """Carry out a change. Durable on return, or not made."""

    @abstractmethod
    def channels(self, keys: Sequence[str]) -> dict[str, ChannelPosition]:
        """Where channels stand, by their keys; see `numbering`. Those without a message are
        left out."""

    @abstractmethod
    def numbers(self, first: int) -> bytes | None:
        """The numbers of the block with this key in its channels; see `Row.numbers`."""

    @abstractmethod
    def recall(self, name: bytes) -> KeyRecord | None:
        """The key with this name."""

    @abstractmethod
    def outdated(self, before: int, most: int, step: int) -> int:
        """Which keys are to be forgotten, oldest first.

        Args:
            before: microseconds; those of earlier publications.
            most: that may be kept; the oldest beyond that.
            step: how many at most.

        Returns:
            Up to which `KeyRecord.first`; 0 where none is.
        """

    @abstractmethod
    def crowding(self, most: int, step: int) -> tuple[bytes, int] | None:
        """Which keys are to be forgotten since their owner has too many, oldest first.

        Args:
            most: that may be kept of one owner; the oldest beyond that.
            step: how many at most.

        Returns:
            An owner, as names of keys begin, and up to which `KeyRecord.first`; None where nobody
            has too many.
        """

    @abstractmethod
    def forget(self, upto: int, owner: bytes = b"") -> None:
        """Let go of keys up to this `KeyRecord.first`. Durable on return, or not done.

        Args:
            owner: with which names begin, to let go of no others.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """While it is open, what is read doesn't change."""

    @abstractmethod
    def ascend(
        self, after: int, upto: int, selection: Selection | None
    ) -> Generator[Row, None, None]:
        """Blocks that may hold what is wanted with ids in `(after, upto]`, ascending.

        Reads no block before it is asked for. Blocks that can't hold a match may be left out,
        and mostly are.
        """

    @abstractmethod
    def descend(self, upto: int, selection: Selection | None) -> Generator[Row, None, None]:
        """Likewise, of those with ids up to `upto`, descending."""

    def row(self, first: int) -> Row | None:
        """The block with this key, if there is one."""
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
        """Blocks up to this id are not to be joined any more."""

    @abstractmethod
    def chore(self) -> "Callable[[BlockStore], None] | None":
        """A bounded piece of maintenance that is due; None where nothing is.

        Found out on a block store that is read, to be carried out on the one that is written.
        """

    @abstractmethod
    def sync(self) -> None:
        """Have all that has been appended survive a power cut. Called on one that is read."""

    @abstractmethod
    def wipe(self) -> bool:
        """A bounded step of seeing to it that nothing which was removed can be read from where
        it was kept.

        Returns:
            Whether there is more to do.
        """

    @abstractmethod
    def file_size(self) -> int:
        """Bytes taken where it is kept, of whatever kind."""

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """What is wrong beside the blocks themselves."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Idempotent."""


class Executor(ABC):
    """Where the work on a log's block stores is done."""

    @abstractmethod
    async def write(self, work: Callable[[BlockStore], T]) -> T:
        """Run `work` on the one block store that may be changed. The caller sees to turns."""

    @abstractmethod
    async def read(self, work: Callable[[BlockStore], T], *, long: bool = False) -> T:
        """Run `work` on a block store that is only read, when one is free.

        Args:
            long: whether it may take longer than an event loop should wait.
        """

    @abstractmethod
    async def supply(self, make: Callable[[], Iterable[Row]]) -> Iterable[Row]:
        """Rows for `BlockStore.commit`, many of them.

        The task that runs `commit` waits for no disk, and not long for `make`, unless it is a
        thread of its own.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every block store, when all work is done. Idempotent."""
