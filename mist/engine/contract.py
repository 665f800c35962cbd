"""The contract of an engine: one log for all nodes of a realm, in one order.

standing = await engine.enter(node)
placed = await engine.append(node, 1, body, count, standing.epoch)
records = await engine.read(standing.offset, wait=1.0)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Self

import attrs

from mist.engine.errors import EngineUnavailable
from mist.engine.members import Members
from mist.errors import MistError

__all__ = [
    "MAX_BODY",
    "Ancestor",
    "Checkpoint",
    "Engine",
    "EngineUnavailable",
    "Forked",
    "Known",
    "NotEntered",
    "Placed",
    "Record",
    "Standing",
    "Trimmed",
    "check_record",
    "check_size",
]

MAX_BODY: Final = 32 * 1024 * 1024
"""Bytes of a record's body at most. What is larger is staged."""


def check_size(body: bytes) -> None:
    """Check that a record may have this body.

    Raises:
        ValueError: it is too large.
    """
    if len(body) > MAX_BODY:
        raise ValueError("a body of more bytes than a record may have")


def check_record(body: bytes, count: int) -> None:
    """Check that a record may have this body, and so many messages.

    Raises:
        ValueError: it may not.
    """
    check_size(body)
    if count < 0:
        raise ValueError("a record has no less than no messages")


class Forked(MistError):
    """The log is in another epoch by now: it has lost acknowledged records, or may have.

    Enter again. What was read up to the fork still holds, see `Standing`.
    """

    code = "forked"
    message = "The engine has begun another epoch"


class NotEntered(MistError):
    """The engine does not know the node, or has had a later record of it. Enter under another name.

    Nothing was appended.
    """

    code = "not_entered"
    message = "The engine does not know this node"


class Trimmed(MistError):
    """Records that were asked for are not kept any more.

    Attributes:
        oldest: the offset of the first that is.
    """

    code = "trimmed"
    message = "The engine has trimmed these records"

    def __init__(self, oldest: int) -> None:
        super().__init__()
        self.oldest = oldest


@attrs.frozen
class Known:
    """What a node has of a log, in its mirror.

    Attributes:
        epoch: of the log.
        offset: of the last record.
        newest: the highest id up to it.
    """

    epoch: str
    offset: int
    newest: int


@attrs.frozen
class Ancestor:
    """An epoch that a log was in before, and how far it is still the same.

    Attributes:
        epoch: its name.
        offset: of the last record that both have.
        newest: the highest id up to it.
    """

    epoch: str
    offset: int
    newest: int


@attrs.frozen
class Checkpoint:
    """All that a mirror had, in parts that are staged: what a new mirror begins with.

    Attributes:
        name: of the batch under which they are staged.
        parts: how many, numbered from 0 on.
        offset, newest: of the last record that it has, and the highest id up to it.
        size: bytes of the parts.
        time, appended: see `Standing`, shortly before it was made.
    """

    name: str
    parts: int
    offset: int
    newest: int
    size: int
    time: int
    appended: int

    def __str__(self) -> str:
        return " ".join(map(str, attrs.astuple(self)))

    @classmethod
    def parse(cls, text: str) -> "Checkpoint | None":
        """What `str` gave; None of an empty text."""
        if not text:
            return None
        name, *numbers = text.split(" ")
        return cls(name, *map(int, numbers))


@attrs.frozen
class Standing:
    """Where an engine's log stands.

    Attributes:
        epoch: which log it is; as `mist.history.Position.epoch`, and the same at all nodes.
        newest: the highest id given to a message.
        offset: of the last record; 0 where there is none yet.
        oldest: offset of the first record that is kept; `offset` + 1 where none is.
        ancestors: the last twenty, oldest first.
        time: of the last record, as it has it; 0 where there was none yet.
        appended: bytes of all bodies that were ever appended.
        checkpoint: the last one.
    """

    epoch: str
    newest: int
    offset: int
    oldest: int
    ancestors: Sequence[Ancestor] = ()
    time: int = 0
    appended: int = 0
    checkpoint: Checkpoint | None = None

    def shares(self, known: Known) -> bool:
        """Whether all that a node has is in this log, too."""
        if known.epoch == self.epoch:
            return known.offset <= self.offset
        return any(
            each.epoch == known.epoch and known.offset <= each.offset for each in self.ancestors
        )


@attrs.frozen
class Placed:
    """The place that an appended record was given.

    Attributes:
        offset: see `Record`.
        first: the id of its first message.
    """

    offset: int
    first: int


@attrs.frozen
class Record:
    """A record of the log: what a node appended, and the place it was given.

    Attributes:
        offset: its place among the records, from 1 on, without gaps.
        first: the id of its first message; where it has none, the one that the next will get.
        count: its messages.
        time: when it was appended, by the engine's clock; microseconds, never going back.
        node, serial: who appended it, and which of its records it is.
        body: what it says, see `mist.engine.entries`. Empty where the engine appended it: its
            messages are lost, or there were none of these ids. The first record of an epoch is.
        tokens: the version of the realm's token registry when it was appended, read in the same
            step; 0 where the engine holds no tokens. A node that has taken in that version knows of
            each revocation that had returned by then.
    """

    offset: int
    first: int
    count: int
    time: int
    node: str
    serial: int
    body: bytes = attrs.field(repr=False)
    tokens: int = 0


class Engine(ABC):
    """See the module. Every method may be called by any number of tasks at once.

    Every method raises `EngineUnavailable` once the engine has not answered for so long as it was
    opened with; none waits for longer. Cancelled, what was asked may have been done or not.
    """

    @property
    @abstractmethod
    def members(self) -> Members:
        """The nodes of the realm, their leases, and questions to them."""

    @abstractmethod
    async def enter(self, node: str, known: Known | None = None) -> Standing:
        """Make a node known, and tell where the log stands.

        An engine that has lost records begins another epoch, as soon as a node tells that it has
        more. After a failover, or a restart, all members are asked for that before anything is
        appended. Where one of them does not answer in two seconds, it may have had more. The ids
        go on above all that are known to have been given.

        Args:
            node: a name that no node has had before, such as one with random digits.
            known: what it has of the log; None is nothing.
        """

    @abstractmethod
    async def append(self, node: str, serial: int, body: bytes, count: int, epoch: str) -> Placed:
        """Append a record, durably on return. The engine gives its messages ids, one after another.

        Repeated with the same node and serial, it is not appended again; the place is the one it
        was given. So after `EngineUnavailable`, or a reply that was lost, the same call finds out
        what became of it.

        Args:
            node: has entered.
            serial: ascends for each node, from 1 on. Those of calls under way are distinct, and
                where an earlier one is refused, so are later ones.
            body: at most `MAX_BODY` bytes.
            count: messages in it; 0 for a record that has none.
            epoch: in which the node takes the log to be.

        Raises:
            Forked, NotEntered: nothing was appended.
            ValueError: nor then; the body is too large, or the count negative.
        """

    @abstractmethod
    async def read(
        self, after: int, *, wait: float = 0.0, max_bytes: int = 4 << 20
    ) -> Sequence[Record]:
        """The records behind an offset: each once, in order, none left out.

        Args:
            wait: for so many seconds, where there is none yet.
            max_bytes: of bodies; the last record may be over it.

        Returns:
            The next ones; none where none came in time.

        Raises:
            Trimmed: the next one is not kept any more.
        """

    @abstractmethod
    async def standing(self) -> Standing:
        """Where the log stands now.

        Raises:
            Forked: the realm is not there any more. Nodes that enter again make another one.
        """

    @abstractmethod
    async def stage(self, batch: str, part: int, body: bytes) -> None:
        """Keep a part of a batch beside the log, so that a small record may refer to all of it.

        A part that is there already is replaced. Kept until `discard`, and for a day at least.

        Args:
            batch: a name that is used once, such as one with random digits.
            body: at most `MAX_BODY` bytes.
        """

    @abstractmethod
    async def staged(self, batch: str, part: int) -> bytes | None:
        """A part that was staged; None where there is none."""

    @abstractmethod
    async def discard(self, batch: str) -> None:
        """Forget all parts of a batch, if there are any."""

    @abstractmethod
    async def put_once(self, name: str, value: bytes, seconds: float) -> None:
        """Keep a value for one node to take, whichever; not necessarily through a restart.

        Args:
            name: one that is used once, such as one with random digits.
            seconds: after which it is gone.
        """

    @abstractmethod
    async def take(self, name: str) -> bytes | None:
        """The value that was put; None where it was taken before, or is gone.

        Where no answer comes (`EngineUnavailable`), it may be taken.
        """

    @abstractmethod
    async def checkpoint(self, checkpoint: Checkpoint, epoch: str) -> bool:
        """Let new mirrors begin with this checkpoint, if no other has as many records.

        Its parts last from now on. Those of the one before are kept for some minutes.

        Args:
            checkpoint: its parts are staged.
            epoch: in which it was made.

        Returns:
            Whether they will.

        Raises:
            Forked: the log is in another one.
        """

    @abstractmethod
    async def trim(self, upto: int) -> None:
        """Let records go, up to an offset. Ids and offsets go on."""

    @abstractmethod
    async def close(self) -> None:
        """Leave the engine. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
