"""Selections: the messages of a job or a reader, by tags, ids and time.

    Alternatives    `a,b; c`: (a and b) or c. The same rule as a subscription's, S ⊆ T, and the
                    same addresses: `/foo`, `=/foo`, `.a.*`, `*`
    Range           from an id or a time up to another
    Selection       both; applied to a batch of rows, or to the bounds of a segment

Ranges are half open, like Kafka's offsets and timestamps: the start is included, the end is not.
`startingOffsets=5, endingOffsets=8` selects the messages 5, 6 and 7. Internally, ids are kept as
everywhere in mist: `after` (excluded) and `upto` (included).

The times of a log are monotonic, so a range of time is a range of ids, and a reader that needs ids
(to plan partitions, say) resolves times once: `Range.resolve`.

This module uses numpy and pyarrow but not Spark, so tests need no JVM.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import attrs
import pyarrow as pa

from mist.archive.matching import matching
from mist.errors import InvalidTag, MistError
from mist.message import (
    ASK,
    MAX_SUBSCRIPTION_TAGS,
    TagSet,
    explain_invalid_tag,
    format_tags,
)
from mist.protocols.positions import MAX_ID
from mist.protocols.selections import parse_alternative, parse_moment, split_alternatives

__all__ = [
    "MAX_ID",
    "Alternatives",
    "Bounds",
    "InvalidSelection",
    "Range",
    "Selection",
    "format_alternatives",
    "parse_alternatives",
    "parse_id",
    "parse_time",
]

MAX_SHOWN = 80  # characters of what is wrong, in an error

Alternatives = tuple[TagSet, ...]
"""A message is selected if one of these is a subset of its tags; empty selects all messages."""


class InvalidSelection(MistError):
    """A selection that can't be read. One line, fit to print as it is."""

    code = "invalid_selection"


class Bounds(Protocol):
    """The bounds of a segment, known without opening it (`mist.archive.manifest.Segment`).

    `first` and `last` are ids, `oldest` and `newest` microseconds since 1970; all inclusive.
    """

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def oldest(self) -> int: ...
    @property
    def newest(self) -> int: ...


AnyBounds = TypeVar("AnyBounds", bound=Bounds)


def parse_alternatives(text: str | None) -> Alternatives:
    """`"a,b; c"` → `({a, b}, {c})`; None and blank text select all messages.

    Parsed as by `mist.protocols.selections`. Order is kept, repeats are dropped.

        "a,b; c"    matches {a, b, x} and {c}
                    does not match {a}
        "a;"        {a}
        "/a"        matches {/a} and {/a/b}; "=/a" the first alone
        "a;;b"      is refused: an empty alternative would match all messages

    Raises:
        InvalidSelection: a tag is invalid (`mist.message`), an alternative is empty or has more
            tags than a subscription may have, or there are too many alternatives.
    """
    if text is None or not text.strip():
        return ()
    part = text
    try:
        parts = split_alternatives(text)
        found = [parse_alternative(part := each, MAX_SUBSCRIPTION_TAGS) for each in parts]
    except InvalidTag:
        why = explain_invalid_tag([tag.strip() for tag in part.split(",")], ASK)
        raise InvalidSelection(f"subscribe: {why}") from None
    except MistError as error:
        shown = part.strip() if len(part) <= MAX_SHOWN else f"{part[:MAX_SHOWN]}…"
        raise InvalidSelection(f"subscribe: {error} in {shown!r}") from None
    return tuple(dict.fromkeys(found))


def format_alternatives(alternatives: Iterable[TagSet]) -> str:
    """The canonical text, `a,b;c`: what `GET /v1/log?subscribe=` takes."""
    return ";".join(format_tags(tags) for tags in alternatives)


def parse_id(text: str | int) -> int:
    """A message's id, from 1.

    Raises:
        InvalidSelection: not a number of decimal digits, 0, or beyond 2^53 - 1.
    """
    digits = str(text).strip()
    plain = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_ID))
    if not plain or not 1 <= int(digits) <= MAX_ID:
        raise InvalidSelection(f"not an id: {text!r}; ids are 1, 2, 3 …")
    return int(digits)


def parse_time(text: str | float) -> int:
    """A moment as microseconds since 1970: ISO 8601, or milliseconds since 1970.

    Parsed as by `mist.protocols.selections.parse_moment`: UTC without a time zone.

    Raises:
        InvalidSelection: neither of these, or outside the years 1970 to 9999.
    """
    try:
        return parse_moment(str(text))
    except ValueError as error:
        raise InvalidSelection(str(error)) from None


@attrs.frozen
class Range:
    """A range of the log. Each end is an id or a time; if both are given, both apply.

    Attributes:
        after: ids above this one.
        upto: ids up to this one, itself included; None is no end.
        since: not older than this, microseconds since 1970.
        until: older than this.
    """

    after: int = 0
    upto: int | None = None
    since: int | None = None
    until: int | None = None

    @classmethod
    def parse(cls, start: str | None = None, end: str | None = None) -> "Range":
        """From `--from` and `--until`: decimal digits are an id, anything else is a time.

        The start is in it, the end is not.

        Raises:
            InvalidSelection: neither, or nothing can lie between them.
        """
        after, since = _end(start)
        before, until = _end(end)
        found = cls(
            after=0 if after is None else after - 1,
            upto=None if before is None else before - 1,
            since=since,
            until=until,
        )
        if found.empty:
            begin = "the beginning" if start is None else start
            raise InvalidSelection(f"nothing lies from {begin} until {end}")
        return found

    @property
    def empty(self) -> bool:
        """Whether no message can be in it."""
        if self.upto is not None and self.upto <= self.after:
            return True
        return self.since is not None and self.until is not None and self.until <= self.since

    @property
    def everything(self) -> bool:
        """Whether no message can be outside it."""
        return self == Range()

    @property
    def timed(self) -> bool:
        """Whether a moment is one of its ends."""
        return self.since is not None or self.until is not None

    def touches(self, segment: Bounds) -> bool:
        """Whether a message of the segment can be in it; rows need `mask` to tell."""
        return (
            segment.last > self.after
            and (self.upto is None or segment.first <= self.upto)
            and (self.since is None or segment.newest >= self.since)
            and (self.until is None or segment.oldest < self.until)
        )

    def holds(self, segment: Bounds) -> bool:
        """Whether every message of the segment is in it, so that no row need be looked at."""
        return (
            segment.first > self.after
            and (self.upto is None or segment.last <= self.upto)
            and (self.since is None or segment.oldest >= self.since)
            and (self.until is None or segment.newest < self.until)
        )

    def resolve(
        self, segments: Sequence[AnyBounds], edge: Callable[[AnyBounds, int], int]
    ) -> "Range":
        """The same by ids alone.

        Args:
            segments: in the order of their ids.
            edge: opens a segment: the highest id in it that is older than a moment, or one
                less than its first where none is. Asked at most twice, about a segment in
                which the moment lies.
        """
        after, upto = self.after, self.upto
        if self.since is not None:
            after = max(after, _older_than(self.since, segments, edge))
        if self.until is not None:
            last = _older_than(self.until, segments, edge)
            upto = last if upto is None else min(upto, last)
        return Range(after, upto)

    def mask(self, batch: pa.RecordBatch) -> Any:
        """Which rows of a batch (columns `id`, and `time` where timed) are in it.

        Returns:
            A numpy array of bool; None where all are.
        """
        masks = []
        if self.after > 0 or self.upto is not None:
            ids = batch.column("id").to_numpy(zero_copy_only=False)
            masks.append(ids > self.after)
            if self.upto is not None:
                masks.append(ids <= self.upto)
        if self.timed:
            times = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
            if self.since is not None:
                masks.append(times >= self.since)
            if self.until is not None:
                masks.append(times < self.until)
        return _both(masks)


def _end(text: str | None) -> tuple[int | None, int | None]:
    # (id, None), (None, microseconds) or neither. Milliseconds are not taken here: a number
    # is an id, and one that looks like both must not mean now this and now that.
    if text is None:
        return None, None
    words = text.strip()
    if words.isdecimal():
        return parse_id(words), None
    return None, parse_time(words)


def _older_than(
    moment: int, segments: Sequence[AnyBounds], edge: Callable[[AnyBounds, int], int]
) -> int:
    # The highest id older than the moment; what lies before the first segment is older than it.
    found = segments[0].first - 1 if segments else 0
    for segment in segments:
        if segment.newest < moment:
            found = segment.last
        elif segment.oldest < moment:
            return edge(segment, moment)
        else:
            break
    return found


def _both(masks: list[Any]) -> Any:
    if not masks:
        return None
    found = masks[0]
    for mask in masks[1:]:
        found = operator.and_(found, mask)
    return None if found.all() else found


@attrs.frozen
class Selection:
    """Tags and range together."""

    range: Range = Range()
    alternatives: Alternatives = ()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.range.everything and not self.alternatives

    def segments(self, segments: Iterable[AnyBounds]) -> list[AnyBounds]:
        """Those in which something wanted may be, in their order."""
        return [segment for segment in segments if self.range.touches(segment)]

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are wanted; the batch itself where all are.

        Looks at `id` and `time` only where the range has such ends, and at `tags` only where
        alternatives are given; those columns have to be there then.
        """
        mask = self.range.mask(batch)
        if mask is not None:
            batch = batch.filter(pa.array(mask))
        wanted = matching(batch.column("tags"), self.alternatives) if self.alternatives else None
        if wanted is None or wanted.all():
            return batch
        return batch.filter(pa.array(wanted))
