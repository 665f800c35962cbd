"""The walks of a publish: from a batch to the send queues of its recipients.

There are four, by what a batch has in common; each tries less than the next:

    whole      matches cached, one destination: looks at distinct tag lists, never at messages
    projected  plain tags, a few hundred lists at once: their projections' matches are cached
    singly     anything else: each list is looked up, or parsed and matched
    targeted   has an audience: recipients are resolved for each run, and kept by nobody

Each walk is done in steps, between which others may have their turns: a step is some hundred
messages, some thousand recipients, or part of a match that takes long (`matching`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from mist.audience import Audience
from mist.broker.fanout import FanOut
from mist.broker.joining import Joined, Joiner
from mist.broker.matches import Match, Matched, Recipients, Resolver
from mist.broker.matching import Matcher
from mist.broker.outbox import Outbox
from mist.broker.portion import Columns, Portion
from mist.broker.preparation import Preparations
from mist.broker.projection import Slice
from mist.broker.tag_rates import TagRates
from mist.errors import CommandError
from mist.wire import Batch, records

__all__ = ["OnError", "Walks", "ignore"]

OnError = Callable[[CommandError], None]

_OFFERS: Final = 256  # to outboxes in a step: some 0.5 ms


def ignore(error: CommandError) -> None:
    """Nobody is told of a tag list that breaks the rules."""


class Tally:
    """Counts of messages.

    Attributes:
        published: accepted.
        unmatched: those of them that nobody was subscribed to.
    """

    __slots__ = ("published", "unmatched")

    def __init__(self) -> None:
        self.published = 0
        self.unmatched = 0


class Walks:
    """See the module. Of one broker.

    Args:
        matches: those that are cached, by the tag list as written. Looked at, never changed.
        resolver, preparations, matcher, joiner, fan_out: the broker's.
        tag_rates: counts tags, where given.

    Attributes:
        own: of what was published at this server.
        relayed: of what other servers have published.
        published_inside: messages of this server's that came over no session.
        rejected: messages refused for their tags.
    """

    def __init__(
        self,
        matches: Mapping[bytes, Match],
        resolver: Resolver,
        preparations: Preparations,
        matcher: Matcher,
        joiner: Joiner,
        fan_out: FanOut,
        tag_rates: TagRates | None,
    ) -> None:
        self.own = Tally()
        self.relayed = Tally()
        self.published_inside = 0
        self.rejected = 0
        self._matches = matches
        self._resolver = resolver
        self._preparations = preparations
        self._matcher = matcher
        self._joiner = joiner
        self._fan_out = fan_out
        self._tag_rates = tag_rates
        self._nobody = resolver.nobody

    def walk(
        self,
        batch: Batch,
        source: Outbox | None,
        on_error: OnError,
        first: int | None,
        slices: Sequence[Slice],
        *,
        relayed: bool = False,
    ) -> Iterable[int | None]:
        """Queue a batch's messages for everyone they match; see `Broker.publish_in_steps`."""
        tally = self.relayed if relayed else self.own
        skip = None if source is None or source.echo else source
        envelope = batch.envelope
        if envelope is not None and envelope.audience is not None:
            steps = self._publish_targeted(envelope.audience, batch, skip, on_error, first, tally)
            return self._counted(steps, batch, source, tally)
        # Many batches are cached and go to one destination whole: then nothing is done for each
        # message.
        accepted, left = self._publish_whole(batch, skip, first, tally)
        if left is not None:
            return self._counted(_ending_with(accepted, left), batch, source, tally)
        if accepted:
            self._count(batch, accepted, source, tally)
            return (accepted,)
        return self._counted(
            self._publish_runs(batch, skip, on_error, first, slices, tally), batch, source, tally
        )

    def pass_over(self, count: int, tag_lists: Callable[[], Mapping[bytes, int]]) -> None:
        """Count messages that nobody asks for; see `Broker.pass_over`."""
        self.relayed.published += count
        self.relayed.unmatched += count
        if self._tag_rates is not None:
            self._tag_rates.count_some(tag_lists)

    def _counted(
        self, steps: Iterable[int | None], batch: Batch, source: Outbox | None, tally: Tally
    ) -> Iterator[int | None]:
        accepted = 0
        try:
            for done in steps:
                accepted = accepted if done is None else done
                yield done
        finally:  # also where nobody asks for the rest
            self._count(batch, accepted, source, tally)

    def _count(self, batch: Batch, accepted: int, source: Outbox | None, tally: Tally) -> None:
        tally.published += accepted
        if source is None and tally is self.own:
            self.published_inside += accepted
        if accepted and self._tag_rates is not None:
            self._tag_rates.count(batch)

    def _publish_whole(
        self, batch: Batch, skip: Outbox | None, first: int | None, tally: Tally
    ) -> tuple[int, Iterator[None] | None]:
        """Deliver a batch whose matches are cached and have one destination.

        Whatever the number of messages, what is looked up is distinct tag lists, and where
        these are canonical, what is queued is the bytes that the publisher sent.

        Returns:
            messages accepted; 0 where the batch isn't such a one, and nothing was done. And what
            is left of the fan-out.
        """
        find = self._matches.get
        if not batch.is_lines or find(batch.tag_lists[-1]) is None:
            return 0, None
        matches: dict[bytes, Match] = {}
        common: Recipients | None = None
        canonical = True
        for tag_list in set(batch.tag_lists):
            match = find(tag_list)
            if match is None:
                return 0, None
            recipients = match.recipients
            if recipients is None:
                if self._preparations.takes_long(tag_list, match):
                    return 0, None
                recipients = self._resolver.resolve(match)
            canonical = canonical and match.written is None
            if recipients is not common:
                if common is not None:
                    return 0, None
                common = recipients
            matches[tag_list] = match
        count = batch.count
        left = None
        if common is self._nobody:
            tally.unmatched += count
        elif common is not None:
            portion = _Whole(batch, count, matches, canonical)
            left = self._fan_out.deliver(common, portion, skip, first)
        return count, left

    def _publish_runs(
        self,
        batch: Batch,
        skip: Outbox | None,
        on_error: OnError,
        first: int | None,
        slices: Sequence[Slice],
        tally: Tally,
    ) -> Iterator[int | None]:
        """Deliver a batch run by run, those that follow each other to one destination joined."""
        fan_out, resolver, joiner = self._fan_out, self._resolver, self._joiner
        deliver = fan_out.deliver
        before = {each.start: each for each in slices}
        stored = first is not None
        slice_ = Slice(0, 0, resolver.version, None)
        accepted = place = 0
        while place < len(batch.tag_lists):
            if place:
                yield accepted
            if place >= slice_.stop or slice_.version != resolver.version:
                slice_ = joiner.cut(batch, place, before.get(place))
            joined: list[Joined] = []
            following = joiner.join_projected(batch, slice_, place, joined)
            if following == place:
                stop = slice_.stop if slice_.projected is None else place + 1
                prepared = yield from self._matcher.prepare(
                    batch.tag_lists[place], accepted, stored=stored
                )
                following = joiner.join_singly(batch, place, stop, prepared, joined, stored=stored)
            version = resolver.version
            for recipients, portion, count, begins in joined:
                if resolver.version != version:  # in a step of the one before
                    following = begins
                    break
                if isinstance(recipients, CommandError):
                    self._reject(recipients, count, on_error)
                    accepted += count if stored else 0  # it has its ids, and others follow them
                    continue
                if portion is None:
                    tally.unmatched += count
                else:
                    start = None if first is None else first + accepted
                    left = deliver(recipients, portion, skip, start)
                    if left is not None:
                        yield from left
                accepted += count
                if fan_out.offers >= _OFFERS:
                    fan_out.offers = 0
                    yield accepted
            place = following
        yield accepted

    def _publish_targeted(
        self,
        audience: Audience,
        batch: Batch,
        skip: Outbox | None,
        on_error: OnError,
        first: int | None,
        tally: Tally,
    ) -> Iterator[int | None]:
        """Deliver a batch run by run to those of its recipients whom an audience admits.

        Recipients are found for each run and not kept, so there is nothing to join by.
        """
        resolve, nobody = self._resolver.resolve_targeted, self._nobody
        accepted, stored = 0, first is not None
        matcher, find = self._matcher, self._matches.get
        for tag_list, wire, count in batch.runs:
            match = yield from matcher.prepare(tag_list, accepted, stored=stored)
            match = match or find(tag_list) or matcher.match(tag_list, stored=stored)
            if isinstance(match, CommandError):
                self._reject(match, count, on_error)
                accepted += count if stored else 0
                continue
            recipients = resolve(match, audience)
            if recipients is nobody:
                tally.unmatched += count
            else:
                if match.written is not None:
                    wire = match.rewrite(match.written, wire, count)
                portion = Portion(batch, count, [(match, wire, count)])
                start = None if first is None else first + accepted
                left = self._fan_out.deliver(recipients, portion, skip, start)
                if left is not None:
                    yield from left
            accepted += count
            yield accepted

    def _reject(self, error: CommandError, count: int, on_error: OnError) -> None:
        self.rejected += count
        for _ in range(count):
            on_error(error)


class _Whole(Portion):
    """A batch of lines, whose matches are cached and have one destination.

    Args:
        matches: of each distinct tag list as written.
        canonical: whether all tag lists are.
    """

    __slots__ = ("_matches", "is_whole")

    def __init__(
        self, batch: Batch, count: int, matches: Mapping[bytes, Match], canonical: bool
    ) -> None:
        super().__init__(batch, count)
        self._matches = matches
        self.is_whole = canonical

    def _find_entries(self) -> Sequence[Matched]:
        found: list[Matched] = []
        for tag_list, wire, count in self.batch.runs:
            match = self._matches[tag_list]
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            found.append((match, wire, count))
        return found

    @property
    def wire(self) -> bytes | None:
        if self.is_whole:
            assert self.batch.whole is not None
            return self.batch.whole[0]
        columns = self.columns
        return None if columns is None else records(*columns)

    @property
    def columns(self) -> Columns | None:
        datas = self.batch.datas
        if datas is None:
            return None
        return [self._matches[tag_list].canonical for tag_list in self.batch.tag_lists], datas


def _ending_with(accepted: int, steps: Iterator[None]) -> Iterator[int | None]:
    """Steps of one message's fan-out, and what they come to."""
    yield from steps
    yield accepted
