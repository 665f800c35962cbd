"""Origins of a read: an archive's directory, or a live server.

`Origin` is the contract. Members are plain values that travel to tasks, and open files and
connections where they are used; `opening` makes the one that the options name:

    archive     segments through the manifest; `newest` is what has been sealed
    server      the log over HTTP as Arrow; sealed and unsealed alike

Ids mean something only with their epoch. A member that finds another epoch than it is asked
for, or that some ids are missing, reports it to the caller's `Losses`, which decides whether
that is an error.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa

from mist.pipeline.selection import Alternatives, Bounds
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.splitting import OffsetRange

__all__ = ["LogPosition", "Losses", "Origin"]

log = logging.getLogger("mist.pipeline.source")


@attrs.frozen
class LogPosition:
    """The position of a log: what can be read of it.

    Attributes:
        epoch: which log this is.
        first: the lowest id that can be read; `newest + 1` in an empty log.
        newest: the highest id that can be read; 0 before the first.
        after: highest id older than the given moment; None where none was given.
        gone: up to this id, retention rules have removed messages between others that they keep.
    """

    epoch: str
    first: int
    newest: int
    after: int | None = None
    gone: int = 0


@attrs.frozen
class Losses:
    """Whether lost messages are an error: `failOnDataLoss`."""

    fatal: bool

    def found(self, what: str) -> None:
        """Report a loss: raise, or log a warning and go on.

        Raises:
            DataLoss: losses are errors.
        """
        if self.fatal:
            raise DataLoss(f"{what}; set failOnDataLoss to false to go on without it")
        log.warning("%s; going on without it", what)

    def gone(self, first: int, last: int, why: str = "") -> None:
        """Report the loss of the messages from one id to another, inclusive.

        Args:
            why: what happened, where that is known.
        """
        self.found(f"{why and f'{why}: '}messages {first} to {last} are no longer available")


class Origin(ABC):
    """An origin of messages. Picklable, and safe to use from any process."""

    @abstractmethod
    def position(self, *, moment: int | None = None, retry: bool = True) -> LogPosition:
        """The position now.

        Args:
            moment: microseconds since 1970, to be resolved to an id.
            retry: whether to retry for as long as a server may be restarting.
        """

    @abstractmethod
    def segments(self, offsets: OffsetRange) -> Sequence[Bounds]:
        """The segments that store the range: where to split it. Empty if they don't matter."""

    @abstractmethod
    def read(
        self,
        offsets: OffsetRange,
        alternatives: Alternatives,
        columns: Sequence[str],
        batch_size: int,
        losses: Losses,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range, by ascending id.

        Args:
            columns: required in each batch; batches may have more.
            batch_size: rows of a batch, at most.
        """
