"""Messages published from inside the process, or in one request, as batches for the broker.

Peers' messages are checked by their protocols. What a program passes that embeds mist, or a request
that publishes many messages at once, is checked here, all of it before any is published: further
on, a mistake would meet the messages of others.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final, Self

import attrs

from mist.audience import Audience
from mist.broker.broker import Broker
from mist.broker.preparation import Preparation
from mist.broker.projection import Slice
from mist.broker.validation import Accepted, Rejected
from mist.message import Envelope, TagSet, format_tags, parse_tags
from mist.turns import emptying
from mist.wire import Batch, Run, record

__all__ = ["Checked"]

_STEP: Final = 20  # messages checked in a step, some 1 ms where they have many tags
_RECORDS: Final = 200  # written in a step


@attrs.define
class Checked:
    """Messages that may be published, all or none, as far as their tags and data go.

    Use it in a `with` that lasts until they are published, or never will be: what was prepared for
    them is let go of then.

    Args:
        broker: whose rules for tags hold.

    Attributes:
        tag_lists, datas: of each, the tag lists in canonical form.
        framable: of each, whether its data holds no LF.
        slices: what was found on the way of all of them; see `Accepted`.
        prepared: matches that take long to find, and have been found.
    """

    broker: Broker
    tag_lists: list[bytes] = attrs.field(factory=list)
    datas: list[bytes] = attrs.field(factory=list)
    framable: list[bool] = attrs.field(factory=list)
    slices: Sequence[Slice] = ()
    prepared: list[Preparation] = attrs.field(factory=list)
    _addressed: tuple[Sequence[Envelope | None], list[Accepted]] | None = attrs.field(
        default=None, init=False
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.broker.release(self.prepared)

    def check(self, messages: Sequence[tuple[TagSet, bytes]]) -> Iterator[None]:
        """Check messages in steps, and take them in. Once.

        Args:
            messages: tags and data of each, in order; at least one.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, TooManyMatches: a message's tags break the rules.
            ValueError: there is no message.
            TypeError: something is not what it should be.
        """
        lists: list[tuple[bytes, bytes]] = []
        for place, (tags, data) in enumerate(messages, 1):
            if not isinstance(data, bytes):
                raise TypeError(f"data must be bytes, not {type(data).__name__}")
            lists.append((_tag_list(tags, self.broker.limits.message_tags), data))
            if not place % _STEP:
                yield
        yield from self.check_lists(lists)

    def check_lists(self, messages: Sequence[tuple[bytes, bytes]]) -> Iterator[None]:
        """As `check`, of messages whose tags are written as in a record, valid or not."""
        if not messages:
            raise ValueError("there is no message to publish")
        self.datas = [data for _, data in messages]
        self.framable = [b"\n" not in data for data in self.datas]
        if all(self.framable):
            batch = Batch.of_columns([tag_list for tag_list, _ in messages], self.datas)
        else:
            runs: list[Run] = []
            for place, (tag_list, data) in enumerate(messages, 1):
                runs.append((tag_list, record(tag_list, data), 1))
                if not place % _RECORDS:
                    yield
            batch = Batch.of_runs(runs, framable=False)
        for part in self.broker.validate(batch):
            if isinstance(part, Rejected):
                raise part.error
            if part is not None:
                # Places in it are those of all where there is but one.
                self.slices = () if self.tag_lists else part.slices
                self.prepared += part.prepared
                self.tag_lists += part.batch.tag_lists
            yield

    def let_go(self) -> Iterator[None]:
        """Forget all of it, in steps: at once, 3,000 messages of 64 tags take 9 ms."""
        return emptying(self.tag_lists, self.datas)

    def address(self, envelopes: Sequence[Envelope | None]) -> Iterator[None]:
        """Make the batches for `batches` with the same list ahead, in steps."""
        self._addressed = None
        made: list[Accepted] = []
        for each in self._batches(envelopes):
            made.append(each)
            yield
        self._addressed = envelopes, made

    def batches(self, envelopes: Sequence[Envelope | None] = ()) -> list[Accepted]:
        """Batches to publish, neighbours with one envelope together.

        Args:
            envelopes: what each of them has beside tags and data; empty where none has.

        Raises:
            ValueError: there is not one envelope for each.
            TypeError: one is not what it should be.
        """
        if self._addressed is not None and self._addressed[0] is envelopes:
            return self._addressed[1]
        return list(self._batches(envelopes))

    def _batches(self, envelopes: Sequence[Envelope | None]) -> Iterator[Accepted]:
        number = len(self.tag_lists)
        if envelopes and len(envelopes) != number:
            raise ValueError(f"{len(envelopes)} envelopes for {number} messages")
        if envelopes.count(None) == len(envelopes):  # as nearly always
            batch = _batch(self.tag_lists[:], self.datas[:], self.framable)
            yield Accepted(batch, self.slices)
            return
        pairs = zip(range(number), envelopes or repeat(None, number), strict=True)
        for envelope, neighbours in itertools.groupby(pairs, key=itemgetter(1)):
            _check_envelope(envelope)
            places = [place for place, _ in neighbours]
            some = slice(places[0], places[-1] + 1)
            batch = _batch(self.tag_lists[some], self.datas[some], self.framable[some])
            batch.envelope = envelope
            yield Accepted(batch)


def _batch(tag_lists: Sequence[bytes], datas: Sequence[bytes], framable: Sequence[bool]) -> Batch:
    if all(framable):
        return Batch.of_columns(tag_lists, datas)
    pairs = zip(tag_lists, datas, strict=True)
    runs = [(tag_list, record(tag_list, data), 1) for tag_list, data in pairs]
    return Batch.of_runs(runs, framable=False)


def _tag_list(tags: TagSet, most: int) -> bytes:
    if isinstance(tags, str | bytes):  # whose letters would be tags
        raise TypeError(f"tags must be a set of str, not {type(tags).__name__}")
    names = list(tags)
    if not all(isinstance(tag, str) for tag in names):
        raise TypeError("each tag must be str")
    return format_tags(parse_tags(names, most)).encode()


def _check_envelope(envelope: Envelope | None) -> None:
    if envelope is None:
        return
    if not isinstance(envelope, Envelope):
        raise TypeError(f"an envelope must be Envelope or None, not {type(envelope).__name__}")
    if not isinstance(envelope.audience, Audience | None):
        raise TypeError("an envelope's audience must be Audience or None")
    meta = envelope.meta
    if meta is not None and not (
        isinstance(meta, Mapping)
        and all(isinstance(name, str) and isinstance(each, bytes) for name, each in meta.items())
    ):
        raise TypeError("an envelope's meta must map str to bytes")
