"""Tag rates: how many messages a second carry each tag, for the dashboard's top tags.

Every message is counted, up to five thousand tag lists a second. Above that one of seven is, then
one of 31, and never less than one of 127; each then stands for as many. So what is shown is
exact or off by a few percent, however the messages come, and costs least where there are many.
(Refused: looking at one message of a batch. In a burst one message then stands for all of it.)

Three steps, since tag lists repeat, and tags even more:

    count    a batch's tag lists as written: a dict update for each that is counted
    fold     the tags of each distinct tag list, at most a tenth of a second later
    top      sums of tags over the last half minute (`recent_counts`)

No clock is read here but the one that is given.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from mist.broker.projection import plain_tags
from mist.broker.recent_counts import RecentCounts
from mist.errors import CommandError
from mist.message import parse_tag_list
from mist.wire import Batch, Run, TagList

__all__ = ["TagRates"]

_PERIOD: Final = 0.1  # seconds after which every message is counted again
_STEP: Final = 250  # tag lists counted before the next stride
_STRIDES: Final = (1, 1, 7, 31, 127)  # one of so many is counted, in each step of a period

# Bounds of what waits to be folded, and so of what one fold costs.
_MAX_BATCH: Final = 500  # tag lists counted of one batch
_MAX_TAG_LIST: Final = 16_384  # bytes: 64 tags of 255 bytes; a longer one breaks the rules
_MAX_LISTS: Final = 262_144  # bytes of a batch's tag lists
_MAX_PARSED: Final = 16_384  # bytes of tag lists that aren't cached: up to 10 ms


class TagRates:
    """See the module.

    Args:
        clock: seconds.
        matches: cached tag lists, as written. For looking up only.
        limit: distinct tags that a message may have.
        chance: the source of randomness.

    Attributes:
        watcher: where set, given how many messages there were of each tag list, as written, before
            that is forgotten; see `tag_set_rates`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        matches: Mapping[bytes, TagList],
        limit: int,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._matches = matches
        self._limit = limit
        self._random = (chance or random.Random()).random  # noqa: S311  # no secret depends on it
        self.watcher: Callable[[Mapping[bytes, int]], None] | None = None
        self._counts: dict[bytes, int] = {}  # messages by tag list as written, not folded
        self._due = clock() + _PERIOD  # end of the period
        self._steps = iter(_STRIDES)
        self._stride = next(self._steps)
        self._left = _STEP  # tag lists in this step
        self._tags: RecentCounts[str] = RecentCounts(clock)  # messages by tag

    def count(self, batch: Batch) -> None:
        """Count a batch's messages. What it costs is bounded, whatever the size of the batch."""
        now = self._clock()
        if now >= self._due:
            self._begin_period(now)
        tag_lists, stride = batch.tag_lists, self._stride
        counts = self._counts
        size = len(tag_lists)
        if size == 1:
            number = batch.count
            if number < stride:
                if self._random() * stride >= number:
                    return
                number = stride
            tag_list = tag_lists[0]
            if len(tag_list) <= _MAX_TAG_LIST:
                counts[tag_list] = counts.get(tag_list, 0) + number
            self._left -= 1
        elif not batch.is_lines:
            self._count_runs(batch.runs)
        else:
            if size > _MAX_BATCH * stride:
                stride = size // _MAX_BATCH + 1
            if stride > 1:
                tag_lists = tag_lists[int(self._random() * stride) :: stride]
            for tag_list in tag_lists:
                counts[tag_list] = counts.get(tag_list, 0) + stride
            self._left -= len(tag_lists)
            if sum(map(len, tag_lists)) > _MAX_LISTS:
                self.fold()
        if self._left <= 0:
            self._begin_step()

    def count_some(self, tag_lists: Callable[[], Mapping[bytes, int]]) -> None:
        """Count messages that are not at hand as a batch; or not, and others for them.

        Above five thousand tag lists a second, those of many calls are left out as a whole, so that
        they need not be made.

        Args:
            tag_lists: makes the canonical tag lists, and how many messages have each.
        """
        now = self._clock()
        if now >= self._due:
            self._begin_period(now)
        stride = self._stride
        if stride > 1 and self._random() * stride >= 1:
            return
        found = list(tag_lists().items())
        few = len(found) // _MAX_BATCH + 1
        if few > 1:
            found = found[int(self._random() * few) :: few]
        counts = self._counts
        for tag_list, number in found:
            counts[tag_list] = counts.get(tag_list, 0) + number * stride * few
        self._left -= len(found)
        if sum([len(tag_list) for tag_list, _ in found]) > _MAX_LISTS:
            self.fold()
        if self._left <= 0:
            self._begin_step()

    def top(self, most: int) -> list[tuple[str, float]]:
        """The most frequent tags and their rates, messages a second, highest first.

        Over the last 30 to 35 seconds, or since the start.
        """
        now = self._clock()
        if now >= self._due:
            self._begin_period(now)
        self.fold()
        return self._tags.top(most)

    # counting

    def _count_runs(self, runs: Sequence[Run]) -> None:
        counts, stride = self._counts, max(self._stride, len(runs) // _MAX_BATCH + 1)
        if stride > 1:
            # Long runs stand for themselves; of the others, one of `stride` stands for all.
            some = runs[int(self._random() * stride) :: stride]
            short = [(each, b"", number * stride) for each, _, number in some if number < stride]
            runs = [*(run for run in runs if run[2] >= stride), *short]
        for tag_list, _, number in runs:
            if len(tag_list) <= _MAX_TAG_LIST:
                counts[tag_list] = counts.get(tag_list, 0) + number
        self._left -= len(runs)

    def _begin_step(self) -> None:
        self._stride, self._left = next(self._steps, self._stride), _STEP
        if len(self._counts) > _STEP:
            self.fold()

    def _begin_period(self, now: float) -> None:
        self.fold()
        self._due = now + _PERIOD
        self._steps = iter(_STRIDES)
        self._stride, self._left = next(self._steps), _STEP
        self._tags.turn(now)

    # folding

    def fold(self) -> None:
        """Count the tags of what was counted: at the time of its period, however late it is."""
        if self.watcher is not None and self._counts:
            self.watcher(self._counts)
        unknown: list[bytes] = []
        find = self._matches.get
        for tag_list, count in self._counts.items():
            known = find(tag_list)
            if known is not None:
                self._tags.add(known.tags, count)
            elif len(tag_list) <= _MAX_TAG_LIST:
                unknown.append(tag_list)
        stride = sum(map(len, unknown)) // _MAX_PARSED + 1
        if stride > 1:
            unknown = unknown[int(self._random() * stride) :: stride]
        # Of lists that never come again, most stand for as many messages as the others.
        alike: dict[int, list[bytes]] = {}
        for tag_list in unknown:
            alike.setdefault(self._counts[tag_list] * stride, []).append(tag_list)
        for count, tag_lists in alike.items():
            self._add_all(tag_lists, count)
        self._counts.clear()

    def _add_all(self, tag_lists: Sequence[bytes], count: int) -> None:
        """Count lists that aren't cached, all at once where they are plain."""
        tags = plain_tags(tag_lists, self._limit)
        if tags is not None:
            self._tags.add(tags, count)
            return
        for tag_list in tag_lists:
            self._tags.add(self._parse(tag_list), count)

    def _parse(self, tag_list: bytes) -> Iterable[str]:
        """The tags of a list that isn't cached; none where it breaks the rules."""
        if tag_list.count(b",") >= self._limit:
            return ()
        try:
            return parse_tag_list(tag_list, self._limit)
        except CommandError:
            return ()
