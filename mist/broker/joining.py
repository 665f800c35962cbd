"""Joining: the recipients of a batch's runs, found some hundred at a time, and who shares them.

Runs that follow each other to the same recipients are joined, to be queued as one portion. There
are two ways to find who they are:

    projected  all lists of a slice are plain: their projections' routes are cached (`projection`)
    singly     any list: looked up as it is written, or parsed and matched
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from mist.broker.directory import Directory
from mist.broker.matches import Match, Matched, Recipients, Resolver
from mist.broker.matching import Matcher
from mist.broker.portion import Columns, Portion
from mist.broker.preparation import Preparations
from mist.broker.projection import Slice, slice_of
from mist.errors import CommandError
from mist.wire import Batch, Run, records, rewritten

__all__ = ["Joined", "Joiner"]

Joined = tuple[Recipients | CommandError, Portion | None, int, int]
"""Messages with the same recipients, and how many; or so many that are refused, and why. And the
place of the first run among them."""

_RUNS: Final = 100  # in a step, one by one; of short lists that were never seen before, 2 ms
_NEW: Final = 8_192  # bytes of lists in a step that were never seen: 0.7 ms of 64 tags each

_RESOLVED: Final = 50  # projections in a step whose subscribers have to be gathered: some 0.5 ms

_OFFERED: Final = 8  # of so many lists of a slice one is offered to the cache of lists: 0.4 µs


@attrs.frozen
class _Runs:
    """Runs of a batch that follow each other, and what they match.

    Attributes:
        batch: of which they are.
        place: of the first of them.
        canonical: the canonical form of the tag list of each; None where that is how they are
            written.
        projections: of each.
        routes: what each projection matches; None for others only.
        find: what a tag list as written matches, where that is cached.
    """

    batch: Batch
    place: int
    canonical: Sequence[bytes] | None
    projections: Sequence[str]
    routes: Mapping[str, Match | None]
    find: Callable[[bytes], Match | None]

    def rewritten(self, begins: int, ends: int) -> Sequence[Run]:
        """Some of them, with canonical tag lists in the place of those that were written."""
        runs = self.batch.runs[self.place + begins : self.place + ends]
        return runs if self.canonical is None else rewritten(runs, self.canonical[begins:ends])


class _Part(Portion):
    """Some of such runs, which have the same recipients.

    Args:
        count: messages.
        runs: among them.
        begins, ends: their places in `runs`.
    """

    __slots__ = ("_begins", "_ends", "_runs")

    def __init__(self, count: int, runs: _Runs, begins: int, ends: int) -> None:
        # Not by super(), since there may be as many parts as messages.
        self.batch = runs.batch
        self.count = count
        self._entries = None
        self._runs = runs
        self._begins = begins
        self._ends = ends

    def _find_entries(self) -> Sequence[Matched]:
        runs, begins, ends = self._runs, self._begins, self._ends
        made: dict[bytes, Match] = {}
        entries: list[Matched] = []
        pairs = zip(runs.rewritten(begins, ends), runs.projections[begins:ends], strict=True)
        for (tag_list, wire, count), projection in pairs:
            match = made.get(tag_list)
            if match is None:
                match = runs.find(tag_list)
                if match is None:
                    route = runs.routes[projection]
                    assert route is not None
                    match = Match.along(route, tag_list)
                made[tag_list] = match
            entries.append((match, wire, count))
        return entries

    @property
    def wire(self) -> bytes | None:
        batch, runs = self.batch, self._runs
        begins, ends = self._begins, self._ends
        if not batch.framable:
            return None
        if runs.canonical is not None:
            if (columns := self.columns) is not None:
                return records(*columns)
        elif ends - begins == 1:
            return batch.runs[runs.place + begins][1]
        elif batch.is_lines and ends - begins == len(batch.tag_lists):
            assert batch.whole is not None
            return batch.whole[0]
        return b"".join([wire for _, wire, _ in runs.rewritten(begins, ends)])

    @property
    def columns(self) -> Columns | None:
        runs, datas = self._runs, self.batch.datas
        if datas is None:
            return None
        some = slice(runs.place + self._begins, runs.place + self._ends)
        if runs.canonical is None:
            return self.batch.tag_lists[some], datas[some]
        return runs.canonical[self._begins : self._ends], datas[some]


class Joiner:
    """See the module. Of one broker.

    Args:
        directory: where groups are found, and matches cached.
        resolver, preparations, matcher: the broker's.
        most_tags: distinct tags that a message may have.
    """

    def __init__(
        self,
        directory: Directory,
        resolver: Resolver,
        preparations: Preparations,
        matcher: Matcher,
        most_tags: int,
    ) -> None:
        self._directory = directory
        self._matches = directory.matches
        self._resolver = resolver
        self._preparations = preparations
        self._matcher = matcher
        self._most_tags = most_tags
        self._nobody = resolver.nobody
        self._cuts = 0

    def cut(self, batch: Batch, start: int, before: Slice | None = None) -> Slice:
        """The next runs of a batch, projected; unless all their lists are known as written.

        Args:
            before: the same, as it was validated; since then subscriptions may have changed.
        """
        if before is not None and before.version == self._resolver.version:
            tag_lists, projected = batch.tag_lists[start : before.stop], before.projected
        else:
            tag_lists, projected = slice_of(batch.tag_lists, start), None
            if not all(map(self._matches.__contains__, tag_lists)):
                projected = self._directory.project(tag_lists, self._most_tags)
        if projected is not None:
            # Some that do come again are found sooner by themselves. Other places each time, since
            # publishers write their lists in turns.
            self._cuts += 1
            for tag_list in tag_lists[self._cuts % min(_OFFERED, len(tag_lists)) :: _OFFERED]:
                self._matcher.offer(tag_list)
        stop = start + len(tag_lists)
        return Slice(start, stop, self._resolver.version, projected)

    def join_projected(
        self,
        batch: Batch,
        slice_: Slice,
        place: int,
        joined: list[Joined],
    ) -> int:
        """Find the recipients of a slice's runs, and join those that follow each other to the same.

        Args:
            place: of the first of them.
            joined: to which they are added.

        Returns:
            The place of the first that isn't among them: the end of the slice, or one after which
            there are too many to be found in a step, or one that takes long. Where the slice is
            not projected, that is the first.
        """
        start, projected, nobody = slice_.start, slice_.projected, self._nobody
        if projected is None:
            return place
        takes_long = self._preparations.takes_long
        projections = projected.projections[place - start :]
        routes = self._routes(projections)
        destinations: dict[str, Recipients] = {}
        resolved = 0
        for projection, route in routes.items():
            recipients = None if route is None else route.recipients
            if recipients is None:
                if route is None or resolved == _RESOLVED or takes_long(b"", route):
                    projections = projections[: projections.index(projection)]
                    break
                resolved += 1
                recipients = self._resolver.resolve(route)
            destinations[projection] = recipients
        stop = place + len(projections)
        canonical = projected.canonical
        if canonical is not None:
            canonical = canonical[place - start : stop - start]
        runs = _Runs(batch, place, canonical, projections, routes, self._matches.get)
        singly = batch.is_lines and len(batch.tag_lists) > 1
        distinct = set(destinations.values())
        same: Iterable[tuple[Recipients, int]]
        if len(distinct) == 1:
            same = [(distinct.pop(), len(projections))]
        else:
            each = groupby(map(destinations.__getitem__, projections))
            same = ((recipients, len(list(some))) for recipients, some in each)
        begins = 0
        for recipients, number in same:
            ends = begins + number
            count = number if singly else batch.number(place + begins, place + ends)
            portion = None if recipients is nobody else _Part(count, runs, begins, ends)
            joined.append((recipients, portion, count, place + begins))
            begins = ends
        return stop

    def _routes(self, projections: Sequence[str]) -> Mapping[str, Match | None]:
        """What each of some projections matches; None for those that are left to another step."""
        routes: dict[str, Match | None] = dict.fromkeys(projections)
        cached = self._directory.routes
        if not cached.keys().isdisjoint(routes):
            routes = dict(zip(routes, map(cached.get, routes), strict=True))
        if None in routes.values():
            new = [projection for projection, route in routes.items() if route is None]
            # Where some come again all are offered to the cache, else few: it takes 0.5 µs.
            known = len(routes) - len(new)
            rarely = 1 if 4 * known > len(routes) else min(_OFFERED, len(new))
            found = self._matcher.routes(new, slice(self._cuts % rarely, None, rarely))
            routes.update(zip(new, found, strict=False))
        return routes

    def join_singly(
        self,
        batch: Batch,
        place: int,
        stop: int,
        prepared: Match | CommandError | None,
        joined: list[Joined],
        *,
        stored: bool = False,
    ) -> int:
        """As `join_projected`, one by one, for any tag lists.

        Args:
            place: of the first of them.
            stop: of the last of them, at most.
            prepared: what the first one matches, where that is known already.
            joined: to which they are added.
            stored: see `Matcher.match`.
        """
        find, resolve = self._matches.get, self._resolver.resolve
        takes_long = self._preparations.takes_long
        nobody = self._nobody
        current: Recipients | None = None
        entries: list[Matched] = []
        total = begins = new = 0

        def join() -> None:
            if current is not None:
                portion = None if current is nobody else Portion(batch, total, entries)
                joined.append((current, portion, total, begins))

        for tag_list, wire, count in batch.runs[place : min(stop, place + _RUNS)]:
            match = find(tag_list)
            if match is None or (recipients := match.recipients) is None:
                if new > _NEW:
                    break
                new += len(tag_list)
                if prepared is not None:
                    found, prepared = prepared, None
                elif takes_long(tag_list, match):
                    break  # it comes first the next time, and is prepared
                else:
                    found = match or self._matcher.match(tag_list, stored=stored)
                if isinstance(found, CommandError):
                    join()
                    joined.append((found, None, count, place))
                    current = None
                    place += 1
                    continue
                match = found
                recipients = match.recipients or resolve(match)
            if recipients is not current:
                join()
                current, entries, total, begins = recipients, [], 0, place
            place += 1
            total += count
            if recipients is nobody:
                continue
            if match.written is not None:
                wire = match.rewrite(match.written, wire, count)
            entries.append((match, wire, count))
        join()
        return place
