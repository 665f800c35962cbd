"""The canonical record, in which messages cross the server, and the contract of wire forms.

    publish TAGS DATA LF

Inside the server a message is a *record*: its tag list and its data as one line of the line
protocol. Most messages arrive as such lines and many leave as such lines, so a publisher's bytes
are passed on as they came: between the socket that they were read from and those that they are
written to they are not taken apart, copied or built again, and a chunk of lines is one object. Any
other form of its own would cost each of these messages a translation in and another one out.
The other dialects translate into records what they read, and derive what they write (`WireForm`),
once for each form, however many peers get it.

A record is *canonical* where its tag list is (`mist.message.format_tags`). Data is opaque, and may
hold LF where it came over a dialect that can carry that. Then the record is still a record, but no
line: see `Batch.framable`.
"""

import abc
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import chain, repeat
from typing import Any, ClassVar, Final, Self, TypeVar

from mist.message import Envelope, TagSet, format_tags

__all__ = [
    "RECORD_START",
    "Batch",
    "Entry",
    "Run",
    "TagList",
    "WireForm",
    "carried",
    "ids_of",
    "record",
    "record_head",
    "records",
    "rewritten",
    "split_run",
]

RECORD_START: Final = b"publish "
"""What every record begins with."""


def record_head(tag_list: bytes) -> bytes:
    """What records with this tag list, as written, begin with: `publish a,b `; data follows."""
    return b"publish %b " % tag_list


def record(tag_list: bytes, data: bytes) -> bytes:
    """The record of one message."""
    return b"publish %b %b\n" % (tag_list, data)


def records(tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes:
    """The records of some messages, at least one, joined."""
    joined = b"\npublish ".join(map(b" ".join, zip(tag_lists, datas, strict=True)))
    return b"publish %b\n" % joined


Run = tuple[bytes, bytes, int]
"""Consecutive messages with one tag list: `(tag list as written, their records, their number)`."""


def split_run(tag_list: bytes, wire: bytes, count: int) -> list[bytes]:
    """The data of each of a run's messages."""
    head = record_head(tag_list)
    data = wire[len(head) : -1]
    return [data] if count == 1 else data.split(b"\n" + head)


def rewritten(runs: Sequence[Run], tag_lists: Sequence[bytes]) -> list[Run]:
    """Runs with other tag lists in the place of those that were written."""
    start = len(RECORD_START)
    return [
        (new, RECORD_START + new + wire[start + len(old) :], count)
        if count == 1  # nearly always, and quicker so
        else (new, TagList(None, new).rewrite(record_head(old), wire, count), count)
        for (old, wire, count), new in zip(runs, tag_lists, strict=True)
    ]


class Batch:
    """Messages on their way through the server, in the order published.

    What one read brought is one batch, so the layers between the socket and the outboxes are
    crossed once a read instead of once a message. Tag lists in it are not checked yet: the broker
    does that, and only for those it has not seen before.

    Args:
        tag_lists: every tag list in it, some perhaps more than once.
        whole: all of its records joined, and the number of messages, where they came so; None
            where they are in `runs` only.
        framable: False where some data may hold LF, so that its record can't be sent as a line.
            Messages that arrived as lines never do.
        runs: see `Run`. More than one message stands in a run only where no data holds LF.
            None where `whole` is given, and `tag_lists` are one for each line, or one that
            all have.
        envelope: what all of its messages have beside.

    Attributes:
        is_lines: whether there is a `whole`.
    """

    __slots__ = ("_datas", "_runs", "_whole", "envelope", "framable", "is_lines", "tag_lists")

    def __init__(
        self,
        tag_lists: Sequence[bytes],
        whole: tuple[bytes, int] | None,
        framable: bool = True,
        runs: Sequence[Run] | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        self.envelope = envelope
        self.tag_lists = tag_lists
        self.framable = framable
        self.is_lines = whole is not None
        self._whole = whole
        self._runs = runs
        self._datas: Sequence[bytes] | None = None

    @classmethod
    def of(cls, tags: TagSet, data: bytes) -> "Batch":
        """A batch of one message, with data of any content."""
        tag_list = format_tags(tags).encode()
        return cls.of_runs([(tag_list, record(tag_list, data), 1)], framable=b"\n" not in data)

    @classmethod
    def of_runs(
        cls, runs: Sequence[Run], *, framable: bool = True, envelope: Envelope | None = None
    ) -> "Batch":
        """A batch of these runs."""
        return cls([run[0] for run in runs], None, framable, runs, envelope)

    @classmethod
    def of_columns(
        cls, tag_lists: Sequence[bytes], datas: Sequence[bytes], wire: bytes | None = None
    ) -> "Batch":
        """A batch of a message for each of these tag lists and data; no data holds LF.

        Args:
            wire: their records, joined, where they came so. Else these are written if somebody
                asks for them, as most dialects don't.
        """
        batch = cls(tag_lists, None if wire is None else (wire, len(datas)))
        batch.is_lines = True
        batch._datas = datas
        return batch

    @property
    def whole(self) -> tuple[bytes, int] | None:
        """All of its records joined, and the number of messages; None where they are in runs."""
        if self._whole is None and self.is_lines:
            assert self._datas is not None
            self._whole = records(self.tag_lists, self._datas), len(self._datas)
        return self._whole

    def number(self, start: int, stop: int) -> int:
        """The messages in some of its runs."""
        if not self.is_lines:
            return sum([count for _, _, count in self.runs[start:stop]])
        if self._whole is not None and len(self.tag_lists) == 1:
            return self._whole[1] * (stop - start)
        return stop - start

    @property
    def count(self) -> int:
        """Number of messages. O(runs), unless they came joined."""
        return self.number(0, len(self.tag_lists))

    @property
    def size(self) -> int:
        """Bytes of the records. O(runs), unless they came joined."""
        if self._whole is not None:
            return len(self._whole[0])
        if self._runs is None and self._datas is not None:
            lengths = chain(map(len, self.tag_lists), map(len, self._datas))
            return sum(lengths) + len(self._datas) * len(record(b"", b""))
        return sum([len(run[1]) for run in self.runs])

    @property
    def datas(self) -> Sequence[bytes] | None:
        """The data of each message; None where some share a tag list here. O(messages), once."""
        if self._datas is None:
            if self.count != len(self.tag_lists):
                return None
            before = len(record_head(b""))
            self._datas = [wire[before + len(tags) : -1] for tags, wire, _ in self.runs]
        return self._datas

    @property
    def runs(self) -> Sequence[Run]:
        """The messages; lines are taken apart only where somebody asks for this."""
        if self._runs is None:
            assert self.whole is not None
            wire, count = self.whole
            if len(self.tag_lists) == 1:
                self._runs = [(self.tag_lists[0], wire, count)]
            else:
                self._runs = list(zip(self.tag_lists, BytesIO(wire).readlines(), repeat(1)))
        return self._runs


class TagList:
    """A tag list that has been checked, with what is derived from it once.

    Attributes:
        canonical: its canonical wire form.
        head: of its records; see `record_head`.
        derived: what wire forms have made of the tags; each keeps its own, and bounds it. None
            where nobody keeps this object, and so nothing that was made.
    """

    __slots__ = ("_tags", "canonical", "derived", "head")

    def __init__(self, tags: TagSet | None, canonical: bytes | None = None) -> None:
        """Of a set, or of its canonical wire form."""
        if canonical is None:
            assert tags is not None
            canonical = format_tags(tags).encode()
        self._tags = tags
        self.canonical = canonical
        self.head = record_head(canonical)
        self.derived: dict[object, Any] | None = {}

    @classmethod
    def passing(cls, canonical: bytes) -> Self:
        """One that nobody keeps, as there are many that never come again."""
        made = cls.__new__(cls)
        made._tags = made.derived = None
        made.canonical = canonical
        made.head = record_head(canonical)
        return made

    @property
    def tags(self) -> TagSet:
        """The set. Of most tag lists that never come back, nobody asks for it."""
        if self._tags is None:
            self._tags = frozenset(self.canonical.decode().split(","))
        return self._tags

    def derive(self, key: object, make: "Callable[[TagList], bytes]") -> bytes:
        """What `make` makes of this tag list; kept under `key`."""
        derived = self.derived
        if derived is None:
            return make(self)
        found: bytes | None = derived.get(key)
        if found is None:
            found = derived[key] = make(self)
        return found

    def rewrite(self, prefix: bytes, wire: bytes, count: int) -> bytes:
        """A run's records with `head` in the place of `prefix`, with which each begins."""
        rest = wire[len(prefix) :]
        if count > 1:  # then no data holds LF
            rest = rest.replace(b"\n" + prefix, b"\n" + self.head)
        return self.head + rest

    def split(self, wire: bytes, count: int) -> list[bytes]:
        """The data of each of a run's messages, whose records are canonical."""
        return split_run(self.canonical, wire, count)


Entry = tuple[TagList, bytes, int]
"""A `Run` on its way out: its checked tag list, its canonical records, and their number."""


E = TypeVar("E", bound=Entry)


class WireForm(abc.ABC):
    """How deliveries look on the wire, shared by every session that wants them so.

    Instances are compared by identity and used as keys: sessions with the same form get the
    same bytes objects.
    """

    name: ClassVar[str]
    numbered: ClassVar[bool] = False
    """Whether deliveries carry their ids, where there are any."""
    shows_envelope: ClassVar[bool] = False
    """Whether what messages have beside tags and data makes a difference."""
    delivers: ClassVar[bool] = True
    """Whether peers get the messages so; else it only tells a reader of the history of them."""
    passes_lines: ClassVar[bool] = False
    """Whether a record whose data holds no LF is in this form as it is."""

    has_columns: ClassVar[bool] = False
    """Whether there is a `join_columns`."""

    @abc.abstractmethod
    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        """Each message of a fan-out in this form, in order.

        A message that the form can't carry is left out; the broker counts what is missing.

        Args:
            entries: see `Entry`.
            firsts: the id of each entry's first message; those behind it count on from there.
                None where there are no ids. A form that isn't `numbered` makes no use of it.
            envelope: what all of them have beside, for dialects that show it.
        """

    def join(
        self,
        entries: Sequence[Entry],
        *,
        framable: bool,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, int]:
        """All messages of a fan-out in one bytes object, and how many they are.

        Args:
            entries: as for `pieces`.
            framable: whether no data holds LF, see `Batch`.
            firsts, envelope: as for `pieces`.
        """
        pieces = self.pieces(entries, firsts=firsts, envelope=envelope)
        return b"".join(pieces), len(pieces)

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        """As `join`, of messages without ids and envelope, and without an object for each.

        Args:
            tag_lists: the canonical one of each message; at least one.
            datas: the data of each.

        Returns:
            None where these can't be written so; then they have to be passed to `join`.
        """
        raise NotImplementedError

    def count_whole(self, wire: bytes, end: int) -> int:
        """How many messages stand as a whole in the first `end` bytes of what `join` returned.

        Where a connection breaks, these were delivered and the others were not. O(messages).
        Here for forms in which LF ends each message, and stands nowhere else.
        """
        return wire.count(b"\n", 0, end)


def ids_of(entries: Sequence[Entry], firsts: Sequence[int]) -> Sequence[int]:
    """The id of each message of a fan-out, in order; see `WireForm.pieces`."""
    counts = [entry[2] for entry in entries]
    if len(counts) == 1:
        return range(firsts[0], firsts[0] + counts[0])
    if sum(counts) == len(counts) == len(firsts):
        return firsts
    ranges = [range(first, first + count) for first, count in zip(firsts, counts, strict=True)]
    return tuple(chain.from_iterable(ranges))


def carried(
    form: WireForm, entries: Sequence[E], firsts: Sequence[int] | None, count: int
) -> tuple[Sequence[E], Sequence[E]]:
    """Which of `entries` a form can carry, and which not; it can `count` of their messages."""
    if count == sum(entry[2] for entry in entries):
        return entries, ()
    parts: tuple[list[E], list[E]] = [], []
    for n, entry in enumerate(entries):
        # Where a message can't be carried, it is alone in its entry.
        pieces = form.pieces([entry], firsts=None if firsts is None else [firsts[n]])
        parts[not pieces].append(entry)
    return parts
