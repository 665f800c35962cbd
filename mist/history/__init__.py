"""The message history: the durable log of what was published, for later readers.

    History             the contract; `opening` finds the member for a URL:
                        memory://                       lasts as long as the process
                        sqlite:///relative.db           a file
                        sqlite:////absolute.db
    Publication         what is appended: runs of messages of one publisher and moment
    Stored, Page        what is read: the same with ids, a bounded piece at a time
    Part, ColumnPage    the same as it is stored, for readers of columns
    Selection           which messages a reader wants
    Policy, Rule        retention: how long messages are kept

How it is built, from the outside in:

    log             the contract over any block store: appends, commits, reads
    log_maintenance the other writes: retention, compaction, erasure; `log_access`, the locks
    log_metadata    what a log knows of its block store without reading blocks
    block_store     the contract of a member: rows of blocks. `memory`, `sqlite`
    cursor          a reader's position, and which messages it can't get any more
    replay          pages and "the last n" over a block store; `inspection` verifies one;
                    `page_walk` finds those of many readers (`page_readers`, `asked_runs`),
                    `page_cache` keeps them, and `shared_pages` decides when
    retention       the policy; `retention_plan`, `thinning`: a step of it
    tracker         what retention removed of each tag, for recovery
    maintenance     the task that runs retention and compaction
    idempotency     recognizes a repeated publication by its key
    commits         exactly-once batches of writers that may retry
    numbering       message numbers in each channel, a tag that begins with /; `channels`
    erasing         erasure on request
    mirroring       a log that is filled from another, which many servers share; `arrivals`
    clock, leaps    a clock that is set back, or ahead
    visibility      which sessions may get a stored message: targeted delivery
    layout          a block as bytes: `encoding` makes it, `block` and `part` read it, and
                    `block_cache` keeps those read last (`recent`); `postings`, `columns`;
                    `pieces` reads what a search needs of one
    latest          the newest message of each tag with a prefix: an index beside the log
    compaction      joins small blocks, so that a log that came in slowly is read fast

A message is in the log before anyone receives it. So no client ever holds an id that a crash
could take back, and a subscriber that names its last id gets exactly what came after.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

import attrs

from mist.attributes import Attributes
from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history.commits import Bulk, Commit, Mark
from mist.history.erasure import Erased, Erasure
from mist.history.latest.query import LatestQuery
from mist.history.leaps import Leap, Reading
from mist.history.numbering import ChannelPosition
from mist.history.part import ColumnPage, Part
from mist.history.record import (
    MAX_ID,
    Key,
    KeyRecord,
    Page,
    Position,
    Problem,
    Publication,
    Stored,
    StoredMessage,
    Trimmed,
)
from mist.history.retention import Policy, Rule
from mist.history.selection import Selection

if TYPE_CHECKING:
    from mist.history.mirroring import Mirror

__all__ = [
    "MAX_GROUP",
    "MAX_ID",
    "Bulk",
    "ChannelPosition",
    "ColumnPage",
    "Commit",
    "Durability",
    "Erased",
    "Erasure",
    "History",
    "HistoryDamaged",
    "HistoryStatistics",
    "HistoryUnavailable",
    "Key",
    "KeyRecord",
    "LatestQuery",
    "Mark",
    "Page",
    "Part",
    "Policy",
    "Position",
    "Problem",
    "Publication",
    "Rule",
    "Selection",
    "Stored",
    "StoredMessage",
    "Trimmed",
]

MAX_GROUP: Final = 10_000  # messages in one append (group commit); more would delay the next


class Durability(Enum):
    """What an acknowledged message survives.

    POWER: anything short of losing the disk. Each append waits for the disk.
    PROCESS: `kill -9` and a crash of the server. A machine that stops uncleanly may lose the
    last appends; the log then begins a new epoch, so that nobody resumes from ids that meant
    other messages.
    NOTHING: the log ends with its process.
    """

    POWER = "power"
    PROCESS = "process"
    NOTHING = "nothing"


@attrs.frozen
class HistoryStatistics:
    """What a log holds.

    Attributes:
        position: see `Position`.
        durability: what acknowledged means.
        messages, blocks: how many are kept.
        size: bytes of the blocks.
        file_size: bytes of its files, free space not yet returned included.
        oldest, newest: times of the first and last message kept, Unix seconds; None if empty.
    """

    position: Position
    durability: Durability
    messages: int
    blocks: int
    size: int
    file_size: int
    oldest: float | None
    newest: float | None


class History(ABC):
    """A log of messages.

    Every method may be called by any number of tasks at once. Appends happen one after the
    other, in the order called; a read sees every append that returned before it began.

    Unless a method says otherwise it raises `HistoryUnavailable` when storage fails, with
    nothing changed. A later call may succeed. `HistoryDamaged`, a subclass, names a block that
    can't be read; messages behind it can be (`read` on from there).

    Cancellation: work that has begun is completed, so no append is half done.
    """

    @abstractmethod
    async def append(self, publications: Sequence[Publication]) -> int:
        """Store publications: all or nothing, durably on return.

        Messages get consecutive ids, in the order given, and times that never go back (see
        `mist.history.clock`). Costs a disk commit, O(entries), and bytes at the speed of
        memory. The commit dominates, so publications that are waiting should be appended
        together, up to `MAX_GROUP` messages (group commit). Their keys are stored in the same
        transaction, which takes a few more statements.

        Returns:
            The id of the first message.

        Raises:
            ValueError: no message.
        """

    @abstractmethod
    async def commit(self, bulk: Bulk, mark: Mark, time: float) -> tuple[Commit, bool]:
        """Store a writer's batch and its mark in one transaction: all or nothing.

        Memory is bounded by a few blocks, however large the batch, except for a log that is in
        memory. Appends wait meanwhile.

        Args:
            bulk: may have no message; then only the mark is stored.
            time: when it came, Unix seconds.

        Returns:
            The writer's last commit: this batch, or a known one whose number is at least as high,
            in which case nothing was stored. And whether it was stored now.
        """

    @abstractmethod
    async def mirror(self) -> "Mirror":
        """Have this log mirror another. Nothing else is appended to it from then on.

        Raises:
            NotAMirror: it has messages of its own.
        """

    @abstractmethod
    async def committed(self, owner: str, writer: str) -> Commit | None:
        """The last commit of a writer; None where none is known."""

    @abstractmethod
    async def erase(
        self,
        erasure: Erasure,
        *,
        after: int = 0,
        upto: int | None = None,
        seconds: float | None = None,
    ) -> Erased:
        """Erase messages: on return none of their bytes is left in storage. What is appended
        meanwhile stays.

        With a limit of time one call may not do it all; the result then has `after`, for the
        next call. Together the calls do what one call without a limit does. Each call gets
        further, whatever its limit.

        Args:
            after: the `after` of the previous call.
            upto: messages with higher ids stay; None is the newest there are now.
            seconds: after these, return with what has been done; None is no limit.

        Works in steps, with appends and reads in between; where it fails or is cancelled, some
        messages are erased, and another call does the rest. Readers that resume from before the
        erased messages are told that they may have missed something.
        """

    @abstractmethod
    async def before(self, time: float) -> int:
        """The last id whose message is older than `time` (Unix seconds), of those kept.

        0 where all are younger. O(blocks).
        """

    @abstractmethod
    async def read(
        self,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
        numbered: bool = False,
        packed: bool = False,
    ) -> Page:
        """The next page of a replay.

            page = await history.read(selection, after=since, upto=top)
            while True:
                ...                                     # page.stored
                if page.complete:
                    break
                page = await history.read(selection, after=page.after, upto=top)

        Args:
            selection: None wants everything.
            after: messages with higher ids.
            upto: messages with no higher ids; None is the newest there is.
            limit: most messages, at least 1.
            max_bytes: of wires; the page ends with the entry that reaches it, so it may be
                larger by less than one entry.
            numbered: whether to include each message's number in its channels, see
                `Stored.numbers`. Where these are missing, that is damage.
            packed: whether the messages are to stay packed, to be unpacked in steps; see `Page`.
                Without numbers. Each part then references its whole block, as in `columns`.

        Raises:
            HistoryDamaged: only once everything selected ahead of the block has been read.
        """

    @abstractmethod
    def expecting(
        self, selection: Selection | None, after: int, upto: int, order: tuple[int, ...] = ()
    ) -> AbstractContextManager[None]:
        """Say that a packed page will be read by the end of this context, when its turn comes.

        Where many wait for their turns, the log is read for some of them together.

        Args:
            selection, after, upto: see `read`.
            order: by which turns are had, the lowest first; equal ones as they came.
        """

    @abstractmethod
    async def columns(
        self,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
    ) -> ColumnPage:
        """What `read` returns, as the blocks' own columns: a third of the work for a reader of
        columns. See `read` for the arguments; given the same, the two end at the same id.

        A part references its whole block, however little of it was selected. A page reads a
        bounded number of bytes of blocks, so this is a few megabytes while the page is kept.
        """

    @abstractmethod
    async def last(
        self,
        selection: Selection | None,
        n: int,
        *,
        upto: int | None = None,
        attributes: Attributes | None = None,
    ) -> int:
        """The id after which the last `n` matching messages up to `upto` begin.

        Args:
            attributes: of a reader, who may get them; None for one who gets all.

        Returns:
            `after` for a `read` of exactly those; or of all that match, where they are fewer.
            An id rather than the messages, since `n` may be a million.
        """

    @abstractmethod
    async def keep_latest(self, patterns: Sequence[str]) -> None:
        """Keep the latest values of tags from now on, for `latest`; also of what there is.

        Call it once, when the log was opened. Not called, nothing is done for it. The index is
        brought up by `compact`, or when it is asked.

        Args:
            patterns: see `mist.message.is_tag_pattern`; none to keep none any more.

        Raises:
            StartupError: there can't be a file for it beside the log.
            HistoryUnavailable: the log can't be written, or what was kept not be removed.
        """

    @property
    @abstractmethod
    def latest_patterns(self) -> Sequence[str]:
        """The patterns of the tags whose latest values are kept."""

    @abstractmethod
    async def latest(
        self,
        query: LatestQuery,
        selection: Selection | None = None,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
        packed: bool = False,
    ) -> Page:
        """The next page of latest values: of each tag that matches the query's pattern, the newest
        of those messages that are selected and that the reader may get. By ascending ids.

        What is appended meanwhile counts: a message that is no longer the newest is left out,
        also where the newest has an id above `upto`. So read on from there, or follow live.

        Args:
            query: one for all pages of a replay.
            selection, after, upto, limit, max_bytes, packed: see `read`. A page may be empty
                though there is more.

        Raises:
            LatestOff: these are not kept.
            HistoryDamaged: only once everything ahead of the block has been read.
        """

    @abstractmethod
    async def channels(self, names: Collection[str]) -> dict[str, ChannelPosition]:
        """The positions of channels. O(names).

        A channel is a tag that begins with `/`; the messages that carry it are numbered from 1
        on, without gaps or reuse. The append or commit that stores a message assigns its
        number, durably; it doesn't change when other messages are removed.
        """

    @abstractmethod
    async def channel_after(self, name: str, number: int) -> int:
        """`after` for a `read` of exactly those messages of a channel whose numbers in it are
        higher. O(log ids) blocks, and mostly one.
        """

    @abstractmethod
    async def position(self) -> Position:
        """The position of the log."""

    @abstractmethod
    async def recovered(
        self, selection: Selection | None, after: int, epoch: str | None = None
    ) -> bool:
        """Whether a reader that was at `after` gets everything it missed by reading on.

        False where the epoch differs, `after` is above the newest id, or something selected may
        have been removed behind it. Never true with a loss.

        Args:
            epoch: the one that `after` belongs to; None assumes this one.
        """

    @abstractmethod
    async def recall(self, name: bytes) -> KeyRecord | None:
        """The record of the last publication whose key has this name; None where none is kept."""

    @abstractmethod
    async def forget_keys(self, before: float, most: int, most_of_owner: int | None = None) -> bool:
        """Forget some outdated keys, in one bounded step.

        Args:
            before: Unix seconds; keys of earlier publications are forgotten.
            most: keys that may be kept; beyond that the oldest are forgotten.
            most_of_owner: keys that may be kept of one owner, see `idempotency`; beyond that its
                oldest are forgotten, before any of others. None is `most`.

        Returns:
            Whether there may be more to do now.
        """

    @abstractmethod
    async def has_outdated_keys(
        self, before: float, most: int, most_of_owner: int | None = None
    ) -> bool:
        """Whether `forget_keys` with the same arguments would forget any."""

    @abstractmethod
    async def trim(self, policy: Policy, now: float, *, sweep: bool = True) -> Trimmed:
        """Do one bounded step of retention. Appends and reads go on meanwhile.

        Call it until there is no more, at intervals (see `mist.history.maintenance`).

        Args:
            now: Unix seconds.
            sweep: whether to check again what rules have kept so far. That reads all of it.
        """

    @abstractmethod
    async def note_clock(self, reading: Reading) -> Leap | None:
        """Compare the clock with what it showed before, so that `trim` isn't led astray by it.

        Call it at intervals, and before the first `trim`. One that never is called takes the clock
        as it is.

        Returns:
            The leap that was found and recorded; None where there was none.

        Raises:
            HistoryUnavailable: nothing was compared or recorded.
        """

    @abstractmethod
    async def sync(self) -> None:
        """Make all that was appended before as durable as with `POWER`.

        Returns at once where it is so already, or where the member can't. Appends go on
        meanwhile.
        """

    @abstractmethod
    async def compact(self) -> bool:
        """Do one bounded step of compaction, if one is due: join small blocks, index old ones,
        checkpoint the write-ahead log, return free space. Readers see no difference but speed.

        Returns:
            Whether there is more to do now.
        """

    @abstractmethod
    async def new_epoch(self, above: int = 0) -> str:
        """Begin a new epoch and return it. Messages stay, ids go on.

        For a log that was restored from a backup: clients may hold ids that it never gave.

        Args:
            above: ids continue above this one, if they are lower.
        """

    @abstractmethod
    async def statistics(self) -> HistoryStatistics:
        """What the log holds. O(blocks)."""

    @abstractmethod
    async def verify(self) -> list[Problem]:
        """Read everything and return the first problems found, at most a hundred.

        A block that can't be read is a problem here, not an error.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the log. Idempotent; waits for work under way."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
