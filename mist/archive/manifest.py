"""Manifests: the list of segments that a table consists of, in one generation."""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from mist.errors import MistError

__all__ = [
    "VERSION",
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveMissing",
    "Manifest",
    "Retired",
    "Segment",
    "join_ranges",
]

VERSION: Final = 1  # of the format


class ArchiveError(MistError):
    """An archive can't be used. The text is one line that says why."""

    code = "archive"


class ArchiveMissing(ArchiveError):
    """There is no archive."""

    code = "archive_missing"


class ArchiveDamaged(ArchiveError):
    """A file of an archive is damaged."""

    code = "archive_damaged"


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a table, all of one day (UTC).

    Attributes:
        file: relative to the table's directory.
        first, last: the ids it covers, inclusive; in a table by the minute, minutes since 1970.
            Some between may have been erased.
        rows: how many.
        bytes: size of the file.
        oldest, newest: times of its rows, microseconds since 1970.
    """

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    oldest: int
    newest: int


class Retired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that was replaced, at `since` (Unix seconds)."""

    file: str
    since: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One generation of a table.

    Attributes:
        table: its name.
        version: of this format.
        generation: counts the changes.
        epoch: of the log that the ids belong to; empty before the first segment.
        sealed: the highest id that was handled: each one up to it is in a segment, in `lost`, or
            was erased or retained away since. Of `deliveries`, the minute since 1970 that
            accounts were written up to (`mist.archive.side_tables`); 0 where it isn't known.
        segments: in the order of their ids; they overlap only in tables by the minute.
        lost: ranges of ids, inclusive, that were removed before they could be sealed.
        retired: files to be deleted.
        fence: of the lease under which it was sealed last, where nodes share the archive: nobody
            seals under an earlier one. 0 where it is not shared.
        erasure: epoch and offset of the last erasure that a node that shares the archive has
            carried out. What was read of the log before it may not be sealed.
    """

    table: str = "messages"
    version: int = VERSION
    generation: int = 0
    epoch: str = ""
    sealed: int = 0
    segments: tuple[Segment, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    retired: tuple[Retired, ...] = ()
    fence: int = 0
    erasure: tuple[str, int] = ("", 0)

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def first(self) -> int:
        """The lowest id in the archive; `sealed + 1` where there is none."""
        return self.segments[0].first if self.segments else self.sealed + 1

    def following(self, after: int, upto: int) -> Segment | None:
        """The first segment with ids in `(after, upto]`."""
        for segment in self.segments:
            if segment.last > after and segment.first <= upto:
                return segment
        return None

    def gone(self, after: int, upto: int) -> tuple[tuple[int, int], ...]:
        """The ranges of `(after, upto]` never sealed, or removed with the oldest segments.

        Ids missing between two segments were erased, which is no loss.
        """
        return tuple(
            (max(first, after + 1), min(last, upto))
            for first, last in ((0, self.first - 1), *self.lost)
            if first <= upto and last > after
        )

    def plus(self, *segments: Segment) -> "Manifest":
        """The manifest with further segments."""
        merged = sorted((*self.segments, *segments), key=lambda each: (each.first, each.last))
        return msgspec.structs.replace(self, segments=tuple(merged))

    def minus(self, files: set[str], now: float | None = None) -> "Manifest":
        """The manifest without the segments of these files, which are retired.

        Args:
            now: Unix seconds; None is the current time.
        """
        since = time.time() if now is None else now
        gone = tuple(Retired(each.file, since) for each in self.segments if each.file in files)
        kept = tuple(each for each in self.segments if each.file not in files)
        return msgspec.structs.replace(self, segments=kept, retired=(*self.retired, *gone))


def join_ranges(ranges: Iterable[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
    """Join neighbouring ranges of ids; where too many are left, also the oldest ones.

    The latter covers ids between them that are not lost: too much is called lost rather than too
    little.

    Args:
        ranges: first and last id of each, in any order.
        most: ranges in the result.
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    surplus = len(found) - most
    if surplus > 0:
        found[: surplus + 1] = [(found[0][0], found[surplus][1])]
    return tuple(found)
