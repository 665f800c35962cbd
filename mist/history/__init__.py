"""The message log: what was published, in order, for those who come later.

    History             the contract; members are opened by URL:
                        memory://                       lasts as long as the process
                        sqlite:///relative.db           a file
                        sqlite:////absolute.db
    Publication         what goes in: runs of messages of one publisher and moment
    Stored, Page        what comes out: the same with ids, a bounded piece at a time
    Part, ColumnPage    the same as it is stored, for those who want columns
    Selection           which messages a reader wants
    Policy, Rule        how long they are kept

How it is made, from the outside in:

    log             the contract over any block store: ids, times, turns
    log_metadata    what a log knows of its block store without reading it
    block_store     what a member brings: rows of blocks. `memory`, `sqlite`
    cursor          a reader's place, and what is lost on the way to the newest
    replay          pages and "the last n" over a block store; `inspection` verifies one
    retention       the policy; `retention_plan`, `thinning`: a step of it
    tracker         what retention means for resuming
    maintenance     the task that does all of this now and then
    idempotency     what tells a repeated publication from a new one
    commits         large batches of writers that may ask again
    numbering       messages counted in each channel, a tag that begins with /; `channels`
    erasing         erasure on request
    layout          a block as bytes: `encoding` makes it, `block` and `part` read it;
                    `postings`, `columns`
    compaction      small blocks made large, so that a log that came in slowly is read fast

A message is in the log before anyone gets it. So nobody ever holds an id that a crash could
take back, and a subscriber that says where it was gets exactly what came after.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final, Self

import attrs

from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history.commits import Bulk, Commit, Mark
from mist.history.erasing import Erased, Erasure
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

MAX_GROUP: Final = 10_000  # messages in one append; more would keep the next ones waiting


class Durability(Enum):
    """What an acknowledged message survives.

    POWER: anything short of losing the disk. Each append waits for the disk.
    PROCESS: `kill -9` and a crash of the server. A machine that stops uncleanly may take the
    last appends back; the log then begins a new epoch, so that nobody resumes on ids that
    meant something else.
    NOTHING: the end of the process ends the log.
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
        file_size: bytes taken where it is kept, room not yet given back included.
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

    Everything may be called by any number of tasks at once. Appends happen one after the
    other, in the order called; a read sees every append that returned before it began.

    Unless a method says otherwise it raises `HistoryUnavailable` when what it needs can't be
    had now, with nothing changed. A later call may succeed. `HistoryDamaged`, a child of it,
    names a block that can't be read; what lies behind can be (`read` on from there).

    What was begun is finished when it is cancelled: no append is half made.
    """

    @abstractmethod
    async def append(self, publications: Sequence[Publication]) -> int:
        """Store publications: all or nothing, durably on return.

        Messages get consecutive ids, in the order given, and times that never go back (see
        `mist.history.clock`). Costs
        a commit, O(entries), and bytes at the speed of memory; the first two of these weigh
        most, so whoever has many publications waiting appends them together, up to
        `MAX_GROUP` messages. Their keys are stored with them, or not at all; that costs a few
        statements more, where there are any.

        Returns:
            The id of the first message.

        Raises:
            ValueError: no message.
        """

    @abstractmethod
    async def commit(self, bulk: Bulk, mark: Mark, time: float) -> tuple[Commit, bool]:
        """Store a writer's batch: all of it with its mark, in one transaction, or nothing.

        As much as that may be, it takes no more memory than some blocks of it, but for a log
        that is in memory. Appends wait meanwhile.

        Args:
            bulk: may have no message; then only its mark is stored.
            time: when it came, Unix seconds.

        Returns:
            What became of the writer's last batch: this one, or where it isn't above that and
            so nothing was stored, the one known. And whether it was stored now.
        """

    @abstractmethod
    async def committed(self, owner: str, writer: str) -> Commit | None:
        """What became of a writer's last batch, as far as it is known."""

    @abstractmethod
    async def erase(self, erasure: Erasure) -> Erased:
        """Take messages out, for good: on return none of their bytes is left where they were
        kept. What is appended meanwhile stays.

        It goes step by step, with appends and reads in between; where it fails or is cancelled,
        some are gone, and another call does the rest. Those who resume from before what went
        are told that they may have missed something.
        """

    @abstractmethod
    async def before(self, time: float) -> int:
        """The id after which the first message not older than `time` (Unix seconds) comes.

        Of what is kept, that is: 0 where all of it is younger. O(blocks).
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
    ) -> Page:
        """The next piece of a replay.

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
            max_bytes: of wires; the page ends with the entry that reaches it. So a page
                takes up to this and one entry, which is no larger than what was appended.
            numbered: whether to say each message's number in its channels, see
                `Stored.numbers`. Where these are lost, that is damage.

        Raises:
            HistoryDamaged: all that was wanted ahead of the block has been read before.
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
        """What `read` gives, as the blocks' own columns: a third of the work, where many
        messages go on as columns. See `read` for everything else; given the same, the two end
        at the same place.

        A part holds on to its whole block, however little of it was wanted. A page looks at
        a bounded number of bytes of them, so that this is a matter of megabytes, for as long
        as the page is kept.
        """

    @abstractmethod
    async def last(self, selection: Selection | None, n: int, *, upto: int | None = None) -> int:
        """Where the last `n` messages that match begin, in ids up to `upto`.

        Returns:
            What to give to `read` as `after`, to get exactly those; or all that match, where
            they are fewer. An id rather than the messages, since `n` may be a million.
        """

    @abstractmethod
    async def channels(self, names: Collection[str]) -> dict[str, ChannelPosition]:
        """Where channels stand: tags that begin with `/`, for each of which messages that carry
        it are numbered from 1 on, with no gap and never again. O(names).

        A number is given by the append or commit that stores a message, durably with it. It
        stays whatever becomes of other messages, and after all of them are gone.
        """

    @abstractmethod
    async def channel_after(self, name: str, number: int) -> int:
        """What to give to `read` as `after`, to get exactly those messages of a channel whose
        numbers in it are higher. O(log ids) blocks, and mostly one.
        """

    @abstractmethod
    async def position(self) -> Position:
        """Where the log stands."""

    @abstractmethod
    async def recovered(
        self, selection: Selection | None, after: int, epoch: str | None = None
    ) -> bool:
        """Whether a reader that was at `after` gets everything it missed by reading on.

        No where the epoch is another, `after` lies beyond the newest id, or something wanted
        may have been trimmed behind it. Never yes with a loss.

        Args:
            epoch: the one that `after` belongs to; None believes it is this one.
        """

    @abstractmethod
    async def recall(self, name: bytes) -> KeyRecord | None:
        """What became of the last publication whose key had this name, as far as it is kept."""

    @abstractmethod
    async def forget_keys(self, before: float, most: int, most_of_owner: int | None = None) -> bool:
        """Let go of some outdated keys, in one bounded step.

        Args:
            before: Unix seconds; those of earlier publications go.
            most: that may be kept; beyond that the oldest go.
            most_of_owner: that may be kept of one owner, see `keys`; beyond that its oldest go,
                and before any of others do. None is `most`.

        Returns:
            Whether there may be more to do now.
        """

    @abstractmethod
    async def trim(self, policy: Policy, now: float, *, sweep: bool = True) -> Trimmed:
        """Do one bounded step of retention. Appends and reads go on meanwhile.

        Call it until there is no more, now and then (see `mist.history.maintenance`).

        Args:
            now: Unix seconds.
            sweep: whether to also go over what rules have kept before, and may keep no more.
                That reads all of it.
        """

    @abstractmethod
    async def sync(self) -> None:
        """Have all that was appended before survive whatever is survived with `POWER`.

        At once where that is so already, or where nothing can be done for it. Appends go on
        meanwhile.
        """

    @abstractmethod
    async def tidy(self) -> bool:
        """Do one bounded step of housekeeping, if there is one: join small blocks, index what
        has settled, give space back. Nothing that a reader could tell but by its speed.

        Returns:
            Whether there is more to do now.
        """

    @abstractmethod
    async def new_epoch(self, above: int = 0) -> str:
        """Begin a new epoch and return it. Messages stay, ids go on.

        For a log that was put back from a backup: clients may hold ids that it never gave.

        Args:
            above: ids go on above this one, where they aren't there yet.
        """

    @abstractmethod
    async def statistics(self) -> HistoryStatistics:
        """What the log holds. O(blocks)."""

    @abstractmethod
    async def verify(self) -> list[Problem]:
        """Read everything and say what is wrong with it; at most the first hundred problems.

        A log that can't be read somewhere is a problem here and not an error.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Idempotent; waits for what is under way."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
