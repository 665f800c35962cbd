"""Matching: a tag list, as a publisher wrote it, to the groups that it matches.

Nearly always that is one lookup in the memo, done by the broker itself. What is not cached is
matched here, and offered to the memo: at once where that is quick, and in steps where it takes
long (`preparation`).

With a history, a message is stored before anyone gets it, and what is stored must keep the rules.
So a batch is validated first (`validate`), in the publisher's own turns, and what takes long to
match is matched then: once its messages are in order, those of others would wait behind it.
"""

from collections.abc import Container, Generator, Sequence
from typing import Final

from mist.broker.directory import Directory
from mist.broker.matches import Match, Resolver
from mist.broker.meters import Meters
from mist.broker.preparation import ANY_TAGS, Preparation, Preparations
from mist.broker.validation import Accepted, Rejected, validate
from mist.errors import CommandError, TooManyMatches
from mist.message import Limits, TagSet, parse_tag_list
from mist.wire import Batch, Run, TagList

__all__ = ["Matcher"]

# Groups that the preparations of one part find, until the next is begun: 8 bytes each.
_PREPARED: Final = 65_536


_ROUTES: Final = 320  # projections in a step whose recipients have to be found: 0.5 to 1 ms


_Found = Match | CommandError


class Matcher:
    """See the module. Of one broker.

    Args:
        directory: where groups are found, and matches cached.
        resolver: whether a cached match's recipients are known.
        preparations: the matches that are made in steps.
        limits: rules for what is published.
        meters: what is measured now and then; None measures nothing.
    """

    def __init__(
        self,
        directory: Directory,
        resolver: Resolver,
        preparations: Preparations,
        limits: Limits,
        meters: Meters | None,
    ) -> None:
        self._directory = directory
        self._matches = directory.matches
        self._resolver = resolver
        self._preparations = preparations
        self._most_tags = limits.message_tags
        self._meters = meters

    def match(self, tag_list: bytes, *, stored: bool = False) -> _Found:
        """Match a tag list that is not cached, and offer the match to the memo.

        Args:
            stored: whether its message is in the history, and so has been accepted: by another
                node perhaps, whose messages may have more tags than those of this one.
        """
        try:
            tags = parse_tag_list(tag_list, ANY_TAGS if stored else self._most_tags)
        except CommandError as error:
            return error.as_value()
        meters = self._meters
        began = 0.0 if meters is None else meters.match.begin()
        match = Match(tag_list, tags, self._directory.match(tags))
        if began and meters is not None:
            meters.match.end(began)
        self._remember(tag_list, tags, match)
        return match

    def _remember(self, tag_list: bytes, tags: TagSet, match: Match) -> None:
        if len(tags) <= self._most_tags:  # what is cached may be published here
            self._directory.remember(tag_list, tags, match)

    def offer(self, tag_list: bytes) -> None:
        """Have the memo keep a tag list that was projected, if this isn't its first sight."""
        if tag_list in self._matches or self._preparations.takes_long(tag_list, None):
            return
        if self._directory.is_remembered(tag_list):
            self.match(tag_list)

    def routes(self, projections: Sequence[str], offered: slice) -> Sequence[Match]:
        """What projections that are not cached match.

        Args:
            projections: distinct ones, at least one.
            offered: those of them that are offered to the cache.

        Returns:
            Those of the first projections, up to one that takes long; at least one, unless that is
            the first. And no more than a step allows.
        """
        meters = self._meters
        began = 0.0 if meters is None else meters.match.begin()
        found = self._directory.routes_of(projections, _ROUTES, self._preparations.widest)
        if began and meters is not None and found:
            meters.match.observe((meters.clock() - began) / len(found))
        remember = self._directory.remember_route
        for projection, route in zip(projections[offered], found[offered], strict=False):
            remember(projection, route)
        return found

    def of(self, tag_list: TagList) -> Match:
        """The match of a tag list that has been checked."""
        canonical = tag_list.canonical
        return self._matches.get(canonical) or Match(
            canonical, tag_list.tags, self._directory.match(tag_list.tags)
        )

    def prepare(
        self, tag_list: bytes, accepted: int, *, stored: bool = False
    ) -> Generator[int, None, _Found | None]:
        """The match of a tag list that takes long, found in steps; None where it doesn't.

        Args:
            accepted: messages so far, which is what each step yields.
            stored: see `match`.
        """
        match = self._matches.get(tag_list)
        if match is not None and match.recipients is not None:
            return None
        if not self._preparations.takes_long(tag_list, match):
            return None
        ready = self._preparations.find(tag_list)
        if ready is not None:
            self._remember(tag_list, ready.tags, ready)
            return ready
        try:
            preparation = self._preparations.begin(tag_list, stored=stored)
        except CommandError as error:
            return error.as_value()
        try:
            for _ in preparation.steps():
                yield accepted
            match = preparation.finish()
        except TooManyMatches as error:
            return error.as_value()
        finally:
            self._preparations.release(preparation)
        self._remember(tag_list, match.tags, match)
        return match

    def validate(self, batch: Batch) -> Generator[Accepted | Rejected | None, None, None]:
        """Check a batch's tag lists before it is stored, in steps; its parts, in order.

        What takes long to match is prepared. Pass what is `prepared` to `Broker.release` once the
        part has been published, or never will be.

        Returns:
            The parts, and None in between, where others may have their turns.
        """
        validated = validate(
            batch, self._most_tags, self._matches, self._directory.project, self._resolver.version
        )
        for part in validated:
            if isinstance(part, Accepted) and (long := self._preparations.among(part.batch)):
                yield from self._prepare_part(part, set(long))
            else:
                yield part

    def _prepare_part(
        self, part: Accepted, long: Container[bytes]
    ) -> Generator[Accepted | Rejected | None, None, None]:
        """Prepare the tag lists that take `long`; as much in a part as may be held at once."""
        prepared: dict[bytes, Preparation] = {}
        runs: list[Run] = []

        def accepted() -> Accepted:
            of_runs = Batch.of_runs(
                runs.copy(), framable=part.batch.framable, envelope=part.batch.envelope
            )
            done = Accepted(of_runs, prepared=tuple(prepared.values()))
            runs.clear()
            prepared.clear()
            return done

        try:
            for run in part.batch.runs:
                tag_list, _, count = run
                if tag_list in long and tag_list not in prepared:
                    if sum(each.groups for each in prepared.values()) > _PREPARED:
                        yield accepted()
                    preparation = self._preparations.begin(tag_list)
                    prepared[tag_list] = preparation
                    try:
                        yield from preparation.steps()
                    except CommandError as error:
                        self._preparations.release(prepared.pop(tag_list))
                        if runs:
                            yield accepted()
                        yield Rejected(error.as_value(), count)
                        continue
                    self._preparations.done(preparation)
                runs.append(run)
            if runs:
                yield accepted()
        finally:
            for each in prepared.values():
                self._preparations.release(each)
