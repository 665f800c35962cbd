"""Records of a history: publications as appended, messages as read, positions in an epoch.

A run of messages with one tag list is one thing on its way in, on the disk, and on its way out
again. What is appended is a batch as it was published (`mist.wire.Batch`): most tag lists never
come again, and nobody asks a log for an object of each. What is read is entries
(`mist.wire.Entry`), which can be given to a wire form just like those that were published a moment
ago.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, Self

import attrs

from mist.history.numbering import Numbers, raised
from mist.message import TagSet
from mist.wire import Batch, Entry, Run

__all__ = [
    "KEY_SECONDS",
    "MAX_ID",
    "Beside",
    "Key",
    "KeyRecord",
    "Loose",
    "Packed",
    "Page",
    "Position",
    "Problem",
    "Publication",
    "Stored",
    "StoredMessage",
    "Trimmed",
    "cut",
    "joined",
]

_wire_of = itemgetter(1)  # of an entry; these two are asked of every message replayed
_count_of = itemgetter(2)
_framable_of = attrgetter("framable")

KEY_SECONDS: Final = 24 * 3600.0
"""For which an idempotency key is kept."""

MAX_ID = 2**53 - 1  # the largest integer that JSON's readers agree on


@attrs.frozen
class Key:
    """The idempotency key of a publication.

    Attributes:
        name: 32 bytes derived from the owner and its key; see `mist.history.idempotency`.
        digest: 32 bytes derived from what is published.
    """

    name: bytes = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)


@attrs.frozen
class KeyRecord:
    """The record of a publication that had a key.

    Attributes:
        first: the id of its first message.
        time: when it was published, microseconds.
        name, digest: the key's.
    """

    first: int
    time: int
    name: bytes = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)


@attrs.frozen
class Publication:
    """What one publisher published at one moment: a batch, its tag lists checked.

    Attributes:
        batch: with canonical tag lists. Its envelope is not looked at.
        time: when it arrived, Unix seconds. Stored to the microsecond.
        publisher: registry id of the token, or the listener's configured name.
        audience: who may receive it, as `mist.audience` formats it; None is everyone.
        meta: name to bytes: headers, the publisher's message id, a reply address.
        key: idempotency key; stored beside the publication and not returned by reads.
    """

    batch: Batch
    time: float
    publisher: str = ""
    audience: str | None = None
    meta: Mapping[str, bytes] | None = None
    key: Key | None = None

    @classmethod
    def of_runs(
        cls,
        runs: Sequence[Run],
        time: float,
        publisher: str = "",
        framable: bool = True,
        audience: str | None = None,
        meta: Mapping[str, bytes] | None = None,
        key: Key | None = None,
    ) -> Self:
        """A publication of runs with canonical tag lists; `framable` as in `Batch`."""
        return cls(Batch.of_runs(runs, framable=framable), time, publisher, audience, meta, key)

    @property
    def count(self) -> int:
        """Number of messages. O(runs)."""
        return self.batch.count


@attrs.frozen
class StoredMessage:
    """One message of a log, for readers of single messages such as the CLI."""

    id: int
    time: float
    tags: TagSet
    data: bytes
    publisher: str
    audience: str | None
    meta: Mapping[str, bytes] | None


class Beside(NamedTuple):
    """What messages have beside tags, data, id and time; see `Publication` and `Stored`."""

    publisher: str
    framable: bool
    audience: str | None
    meta: Mapping[str, bytes] | None


Loose = tuple[Entry, int, float, Beside]
"""A run by itself: its entry, its first id, when it was published, and what it has beside."""


@attrs.frozen
class Stored:
    """A publication as it is read, or the part of one that a selection or retention left.

    Attributes:
        entries: its runs, see `mist.wire.Entry`; at least one.
        framable: as in `mist.wire.Batch`; False means one message in each entry.
        time, publisher, audience, meta: see `Publication`.
        firsts: the id of each entry's first message, ascending. Within an entry the ids are
            consecutive.
        numbers: of each entry's first message in its channels, where requested; within an
            entry they are consecutive, too.
        times: of each entry, where these are publications that follow each other and have all
            but that in common; `time` is the first one's.
    """

    entries: Sequence[Entry]
    time: float
    publisher: str = ""
    framable: bool = True
    audience: str | None = None
    meta: Mapping[str, bytes] | None = None
    firsts: Sequence[int] = attrs.field(kw_only=True)
    numbers: Sequence[Numbers] | None = attrs.field(default=None, kw_only=True)
    times: Sequence[float] | None = attrs.field(default=None, kw_only=True)

    @property
    def beside(self) -> Beside:
        """What its messages have beside."""
        return Beside(self.publisher, self.framable, self.audience, self.meta)

    @property
    def count(self) -> int:
        """Number of messages. O(entries)."""
        return sum(map(_count_of, self.entries))

    @property
    def size(self) -> int:
        """Bytes of the wires. O(entries)."""
        return sum(map(len, map(_wire_of, self.entries)))

    def messages(self) -> Iterator[StoredMessage]:
        """The single messages, by ascending ids."""
        times = self.times or repeat(self.time, len(self.entries))
        for time, first, entry in zip(times, self.firsts, self.entries, strict=True):
            tag_list, wire, count = entry
            for offset, data in enumerate(tag_list.split(wire, count)):
                yield StoredMessage(
                    first + offset,
                    time,
                    tag_list.tags,
                    data,
                    self.publisher,
                    self.audience,
                    self.meta,
                )

    def keep(self, taken: Sequence[tuple[int, int]]) -> "Stored | None":
        """The publication without some messages; None where none is left.

        Args:
            taken: which entries stay, and how many messages to drop at the start of each.
        """
        if not taken:
            return None
        entries, firsts = self.entries, self.firsts
        kept = [
            cut(entries[place], gone, entries[place][2] - gone) if gone else entries[place]
            for place, gone in taken
        ]
        numbers, times = self.numbers, self.times and [self.times[place] for place, _ in taken]
        return attrs.evolve(
            self,
            entries=kept,
            time=times[0] if times else self.time,
            firsts=[firsts[place] + gone for place, gone in taken],
            numbers=numbers and [raised(numbers[place], gone) for place, gone in taken],
            times=times,
        )

    def by_time(self) -> "Sequence[Stored]":
        """The publications that these were, or those of one moment together."""
        if self.times is None:
            return [self]
        found = []
        start = 0
        for time, group in groupby(self.times):
            stop = start + len(list(group))
            entries, firsts = self.entries[start:stop], self.firsts[start:stop]
            found.append(attrs.evolve(self, entries=entries, time=time, firsts=firsts, times=None))
            start = stop
        return found


class Packed(ABC):
    """Messages of one block, as the block has them."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many."""

    @abstractmethod
    def unpack(self) -> Iterator[Sequence[Stored]]:
        """The messages by ascending ids, some hundred at a time."""


@attrs.frozen
class Page:
    """A page of a replay.

    Attributes:
        stored: what matched, by ascending ids. May be empty within a long stretch without a
            match.
        after: where to continue: `after` of the next `read`.
        complete: whether nothing up to the requested bound is left.
        packed: what matched, where it was asked for so; `stored` is empty then.
    """

    stored: Sequence[Stored]
    after: int
    complete: bool
    packed: Sequence[Packed] = ()

    @property
    def count(self) -> int:
        """Number of messages. O(entries)."""
        return sum([each.count for each in self.stored]) + sum([each.count for each in self.packed])

    def unpack(self) -> Iterator[Sequence[Stored]]:
        """The messages in steps: what is packed is unpacked as it is asked for."""
        if self.stored:
            yield self.stored
        for each in self.packed:
            yield from each.unpack()

    def messages(self) -> Iterator[StoredMessage]:
        """The single messages, by ascending ids."""
        for step in self.unpack():
            for stored in step:
                yield from stored.messages()


@attrs.frozen
class Position:
    """The position of a log.

    Attributes:
        epoch: which log this is; ids are only comparable within one epoch.
        first: the lowest id that is kept; `newest + 1` where nothing is.
        newest: the highest id ever given; 0 before the first.
        trimmed: the highest id that retention or an erasure has removed; 0 before the first.
        expired: the highest id that retention has removed.
        ancestors: of a log that mirrors another, the epochs that it was in before: the highest id
            up to which each was as this one is.
    """

    epoch: str
    first: int
    newest: int
    trimmed: int
    expired: int = 0
    ancestors: Mapping[str, int] = attrs.field(factory=dict)

    def has(self, id_: int, epoch: str | None) -> bool:
        """Whether an id of an epoch is one of this log; of None, which is any."""
        highest = self.newest if epoch in (None, self.epoch) else self.ancestors.get(epoch or "")
        return highest is not None and id_ <= min(highest, self.newest)


@attrs.frozen
class Trimmed:
    """The result of one step of retention.

    Attributes:
        messages: how many were removed.
        more: whether there is more to do now.
    """

    messages: int
    more: bool


@attrs.frozen
class Problem:
    """A problem that `verify` found.

    Attributes:
        first, last: the ids concerned, as far as known; 0 where no message is concerned.
        text: what is wrong, one line.
    """

    first: int
    last: int
    text: str


def joined(every: Iterable[Stored]) -> Iterator[Stored]:
    """Publications, those that follow each other as one: for who asks for messages and ids only.

    What they have beside is that of the first. None of them has channel numbers.
    """
    for _, alike in groupby(every, _framable_of):
        yield _as_one(list(alike))


def _as_one(every: Sequence[Stored]) -> Stored:
    first = every[0]
    if len(every) == 1:
        return first
    return Stored(
        [entry for each in every for entry in each.entries],
        first.time,
        *first.beside,
        firsts=[id_ for each in every for id_ in each.firsts],
    )


def cut(entry: Entry, skip: int, take: int) -> Entry:
    """`take` messages of an entry, after its first `skip`."""
    tag_list, wire, count = entry
    pieces = tag_list.split(wire, count)[skip : skip + take]
    return tag_list, b"".join([b"%b%b\n" % (tag_list.head, data) for data in pieces]), take
