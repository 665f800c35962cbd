"""What arrives at a log that mirrors another; see `mirroring`."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from mist.history.commits import Bulk, Mark
from mist.history.erasure import Erasure
from mist.history.layout import Row
from mist.history.record import Key, KeyRecord

__all__ = ["Applied", "Arrival", "BatchArrival", "NotNext", "Piece", "check_next"]


class NotNext(ValueError):
    """What arrived is not what comes next: nothing was stored."""

    def __init__(self) -> None:
        super().__init__("it is not what comes next")


@attrs.frozen
class Piece:
    """Messages that are stored together, or not at all.

    Attributes:
        rows: blocks whose ids begin at 1 and whose times are 0, each behind the one before.
        count: their messages.
        key: their idempotency key.
    """

    rows: Sequence[Row]
    count: int
    key: Key | None = None


@attrs.frozen
class Arrival:
    """Messages that come from the log that is mirrored.

    Attributes:
        offset: place there; one more than that of what came before.
        first: the id of the first message; one more than the last one that was given.
        time: microseconds, not before that of what came before.
        pieces: none where it has no messages.
        erasure: of what was published before it.
        notes: small values that are kept by their names, until they are forgotten, with None.
        void: so many ids, from `first` on, are given to nothing. It has no pieces then.
    """

    offset: int
    first: int
    time: int
    pieces: Sequence[Piece] = ()
    void: int = 0
    erasure: Erasure | None = None
    notes: Mapping[bytes, bytes | None] = MappingProxyType({})


@attrs.frozen
class BatchArrival:
    """A writer's batch that comes from there.

    Attributes:
        offset, first, time: as of an `Arrival`.
        bulk, mark: as for `History.commit`.
    """

    offset: int
    first: int
    time: int
    bulk: Bulk
    mark: Mark


@attrs.frozen
class Applied:
    """What became of an arrival.

    Attributes:
        rows: what was stored of it.
        known: by their places, the pieces that were not, since their keys were known.
    """

    rows: Sequence[Row]
    known: Mapping[int, KeyRecord]


def check_next(arrival: Arrival | BatchArrival, newest: int, offset: int) -> None:
    """Check that an arrival comes next, behind the newest id and the offset of a mirror.

    Raises:
        NotNext: it doesn't.
    """
    if arrival.offset != offset + 1 or arrival.first != newest + 1:
        raise NotNext
