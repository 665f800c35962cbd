"""Where messages are read from: an archive's folder, or a live server.

`Origin` is the contract; members are plain values that travel to tasks, and open files and
connections where they are used.

    archive     segments through the manifest; `newest` is what has been sealed
    server      the log over HTTP as Arrow; sealed and unsealed alike

Ids mean something only with their epoch. A member that finds itself with another epoch than it
is asked for, or without a stretch that it is asked for, tells the caller's `Losses`, who
decides whether that is an error.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa

from mist.pipeline.selection import Alternatives, Bounds
from mist.pipeline.source.errors import DataLoss
from mist.pipeline.source.options import ReadOptions
from mist.pipeline.source.splitting import Stretch

__all__ = ["Losses", "Origin", "Standing", "open_origin"]

log = logging.getLogger("mist.pipeline.source")


@attrs.frozen
class Standing:
    """Where a log stands.

    Attributes:
        epoch: which log it is.
        first: the lowest id that can be had; `newest + 1` where none can.
        newest: the highest id that can be had; 0 before the first.
        after: highest id older than the moment that was asked about; None where none was.
        gone: up to here some have left for good, by retention under rules that keep others.
    """

    epoch: str
    first: int
    newest: int
    after: int | None = None
    gone: int = 0


@attrs.frozen
class Losses:
    """What to do about messages that are gone: `failOnDataLoss`."""

    fatal: bool

    def found(self, what: str) -> None:
        """Say that something is gone.

        Raises:
            DataLoss: it was not to be gone without a word.
        """
        if self.fatal:
            raise DataLoss(f"{what}; set failOnDataLoss to false to go on without it")
        log.warning("%s; going on without it", what)

    def gone(self, first: int, last: int, why: str = "") -> None:
        """The same of the messages from one id to another, both of them with it.

        Args:
            why: what happened, where that is known.
        """
        self.found(f"{why and f'{why}: '}messages {first} to {last} can't be had any more")


class Origin(ABC):
    """A place to read from. Picklable, and safe to use from any process."""

    @abstractmethod
    def stands(self, *, moment: int | None = None, patient: bool = True) -> Standing:
        """Where it stands now.

        Args:
            moment: microseconds since 1970, to be resolved to an id.
            patient: whether to wait for a server that may be restarting.
        """

    @abstractmethod
    def segments(self, stretch: Stretch) -> Sequence[Bounds]:
        """Where to cut the stretch best; none where that makes no difference."""

    @abstractmethod
    def read(
        self,
        stretch: Stretch,
        alternatives: Alternatives,
        columns: Sequence[str],
        batch_size: int,
        losses: Losses,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a stretch, ascending.

        Args:
            columns: those that the batches need to have; they may have more.
            batch_size: rows of a batch, at most.
        """


def open_origin(options: ReadOptions) -> Origin:
    """The one that the options name."""
    if options.address is not None:
        from mist.pipeline.source.origins.server import ServerOrigin

        return ServerOrigin(options.address)
    from mist.pipeline.source.origins.archive import ArchiveOrigin

    assert options.path is not None
    return ArchiveOrigin(options.path)
