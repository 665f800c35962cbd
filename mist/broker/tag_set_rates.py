"""Tag set rates: which subscriptions most deliveries are for, while somebody looks.

Tag lists are counted for the top tags in any case (`tag_rates`). While they are watched, what was
counted is looked up once more before it is forgotten: a tag list's messages are due to each tag set
that it matches, times those who are subscribed to that. So it costs nothing while nobody looks, and
else a few percent of publishing at full speed, less below that.

An estimate: of many tag lists some stand for all, and so do, of very many tag sets that one
matches, a few. What audiences, queue groups and publishers that take no echo make less of it is
left out.

No clock is read here but the one that is given.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from mist.broker.directory import Directory
from mist.broker.groups import Group
from mist.broker.recent_counts import RecentCounts
from mist.broker.tag_rates import TagRates
from mist.errors import CommandError
from mist.message import parse_tag_list

__all__ = ["TagSetRates"]

_T = TypeVar("_T")

_WATCHED: Final = 30.0  # seconds for which it goes on after somebody looked

# Of what was counted in a tenth of a second or less.
_LISTS: Final = 50  # tag lists that are looked up
_OTHERS: Final = 10  # that aren't cached: 15 µs each
_GROUPS: Final = 32  # tag sets of a tag list
_LOOKED: Final = 1024  # tag sets that are looked for, where those of a tag list aren't cached


class TagSetRates:
    """See the module.

    Args:
        clock: seconds.
        directory: what a tag list matches.
        tag_rates: counts tag lists.
        limit: distinct tags that a message may have.
        chance: the source of randomness.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        directory: Directory,
        tag_rates: TagRates,
        limit: int,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._tag_rates = tag_rates
        self._limit = limit
        self._chance = chance or random.Random()  # noqa: S311  # no secret depends on it
        self._until = 0.0
        self._deliveries: RecentCounts[bytes] | None = None

    @property
    def watched(self) -> bool:
        """Whether anything is counted."""
        return self._deliveries is not None

    def top(self, most: int) -> tuple[float, list[tuple[Group, float]]]:
        """The tag sets with most deliveries due, and how many a second, highest first.

        Over the last 30 to 35 seconds, or since somebody has begun to look: the first answer is
        empty.

        Returns:
            The seconds over which was counted, and the tag sets still subscribed to.
        """
        now = self._clock()
        self._until = now + _WATCHED
        self._tag_rates.fold()
        if self._deliveries is None:
            self._deliveries = RecentCounts(self._clock)
            self._tag_rates.watcher = self._count
        self._deliveries.turn(now)
        found: list[tuple[Group, float]] = []
        for tag_list, rate in self._deliveries.top(2 * most):
            group = self._directory.find(frozenset(tag_list.decode().split(",")))
            if group:
                found.append((group, rate))
        return self._deliveries.seconds, found[:most]

    def _count(self, messages: Mapping[bytes, int]) -> None:
        """Count the deliveries of messages, by their tag lists as written."""
        now = self._clock()
        if now >= self._until or self._deliveries is None:
            self._deliveries = self._tag_rates.watcher = None
            return
        self._deliveries.turn(now)
        others: list[tuple[bytes, int]] = []
        find = self._directory.matches.get
        for (tag_list, count), stride in self._some(list(messages.items()), _LISTS):
            match = find(tag_list)
            if match is None:
                others.append((tag_list, count * stride))
            else:
                self._add(match.groups, count * stride)
        some = list(self._some(others, _OTHERS))
        found = self._match_each([tag_list for (tag_list, _), _ in some])
        for ((_, count), stride), groups in zip(some, found, strict=True):
            self._add(groups, count * stride)

    def _some(self, every: Sequence[_T], most: int) -> Iterable[tuple[_T, int]]:
        """Some of many, and for how many each stands."""
        stride = -(-len(every) // most) or 1
        return ((each, stride) for each in every[self._chance.randrange(stride) :: stride])

    def _match_each(self, tag_lists: Sequence[bytes]) -> Iterable[Sequence[Group]]:
        """What tag lists match that aren't cached; what they project to may be."""
        projected = self._directory.project(tag_lists, self._limit) if tag_lists else None
        for n, tag_list in enumerate(tag_lists):
            route = projected and self._directory.routes.get(projected.projections[n])
            yield route.groups if route else self._match(tag_list)

    def _match(self, tag_list: bytes) -> Sequence[Group]:
        if tag_list.count(b",") >= self._limit:
            return ()
        try:
            tags = parse_tag_list(tag_list, self._limit)
        except CommandError:
            return ()
        groups: list[Group] = []
        for some in self._directory.match_in_steps(tags):
            groups += some
            if len(groups) > _LOOKED:  # to find the rest may take long
                break
        return groups

    def _add(self, groups: Sequence[Group], messages: int) -> None:
        assert self._deliveries is not None
        if len(groups) > _GROUPS:
            # Rounded by chance, so that nothing is lost however few messages they are.
            messages = (messages * len(groups) + self._chance.randrange(_GROUPS)) // _GROUPS
            groups = self._chance.sample(groups, _GROUPS)
        for group in groups:
            self._deliveries.add((group.tag_list,), messages * group.subscribers)
