"""Preparation: a match that takes long is found in steps, ahead of the message's delivery.

A match costs as much as it hits, and a message of 64 tags may hit 100,000 of a service's million
subscriptions: 40 ms in the index, and as much again for whose they are. It is found in steps, so
that others have their turns in between; and where messages have an order, before this one has its
place in it, so that none behind it waits.

    begin     from here on subscriptions that come and go are noted (`joined`, `left`)
    steps     what the index has, some thousand groups at a time
    finish    who is to get it now: as exact as a match made at that moment

A preparation is kept for as long as its message is on its way, and no longer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mist.broker.directory import Directory
from mist.broker.found_groups import FoundGroups, FreedLists
from mist.broker.groups import Group, collect
from mist.broker.matches import Match, Resolver, Subscriber
from mist.errors import TooManyMatches
from mist.message import TagSet, parse_tag_list
from mist.wire import Batch

__all__ = ["ANY_TAGS", "Preparation", "Preparations"]

ANY_TAGS: Final = 1 << 30
"""Tags: more than any message has."""

# A message of fewer tags has few subsets, and the index finds its hits by looking these up. Where
# there are few tag sets in all, no match takes long.
_NARROW: Final = 12  # tags
_FEW: Final = 4_096  # tag sets, and groups of a match
_HELD: Final = 16_000_000  # groups that all preparations together may have found: 128 MB

_STEP: Final = 512  # groups whose subscribers are collected in a step: 0.05 to 0.2 ms


class Preparation:
    """One tag list that is being matched, or has been and waits for its message.

    Args:
        written: the tag list as a publisher wrote it.
        tags: what it says.
        directory, resolver, freed: as for `Preparations`.
        most: groups that may be found; asked each time that some are.
    """

    def __init__(
        self,
        written: bytes,
        tags: TagSet,
        directory: Directory,
        resolver: Resolver,
        freed: FreedLists,
        most: Callable[[], int],
    ) -> None:
        self.written = written
        self._tags = tags
        self._directory = directory
        self._resolver = resolver
        self._most = most
        self._freed = freed
        self._groups = FoundGroups(freed)
        self._found: dict[Subscriber, None] = {}
        self._changed = False  # whether a group may have been found twice, or is empty
        self._fewer = False  # whether a subscriber may have been found that has left

    @property
    def groups(self) -> int:
        """How many have been found."""
        return len(self._groups)

    def steps(self) -> Iterator[None]:
        """Find the groups and their subscribers.

        Raises:
            TooManyMatches: there are more groups than allowed.
        """
        for groups in self._directory.match_in_steps(self._tags):
            self._groups += groups
            if len(self._groups) > (most := self._most()):
                raise TooManyMatches(most)
            yield
            for start in range(0, len(groups), _STEP):
                self._found.update(collect(groups[start : start + _STEP]))
                yield

    def joined(self, subscriber: Subscriber, group: Group) -> None:
        """A subscriber is about to be in a group."""
        # What moves in the index for it may be found twice.
        self._changed = True
        if self._directory.satisfies(self._tags, group):
            if not group:
                self._groups.append(group)
            self._found[subscriber] = None

    def left(self, group: Group) -> None:
        """A subscriber has left a group."""
        if self._directory.satisfies(self._tags, group):
            self._changed = self._fewer = True

    def finish(self) -> Match:
        """The match as it is now, with its recipients; may be called again later.

        O(subscribers); where some have come or left meanwhile O(groups).
        """
        if self._changed:
            left = (group for group in dict.fromkeys(self._groups) if group)
            self._groups = FoundGroups(self._freed, left)
        if self._fewer:
            self._found = dict(collect(self._groups))
        self._changed = self._fewer = False
        match = Match(self.written, self._tags, self._groups)
        self._resolver.keep(match, self._found)
        return match


class Preparations:
    """The matches that are being prepared, and those that wait for their messages.

    Args:
        directory: where groups are found.
        resolver: tells recipients from subscribers.
        most_tags: distinct tags that a message may have.
        most: groups that a message may match.

    Attributes:
        freed: what was found and is no longer used, where it was very much.
    """

    def __init__(self, directory: Directory, resolver: Resolver, most_tags: int, most: int) -> None:
        self.freed = FreedLists()
        self._directory = directory
        self._resolver = resolver
        self._most_tags = most_tags
        self._most = most
        self._begun: dict[Preparation, None] = {}
        self._ready: dict[bytes, Preparation] = {}

    def __len__(self) -> int:
        """Those that were begun and not released."""
        return len(self._begun)

    def takes_long(self, tag_list: bytes, match: Match | None) -> bool:
        """Whether a tag list should be prepared.

        Args:
            match: the cached one, where there is one.
        """
        if match is not None:
            return len(match.groups) > _FEW and not self._resolver.is_current(match)
        return tag_list.count(b",") >= self.widest

    @property
    def widest(self) -> int:
        """How many tags a message may have, that never matches very much."""
        return _NARROW if len(self._directory) > _FEW else ANY_TAGS

    def among(self, batch: Batch) -> Sequence[bytes]:
        """The tag lists of a batch that should be prepared, each once."""
        if len(self._directory) <= _FEW:
            return ()
        cached = self._directory.matches
        return [
            each
            for each in dict.fromkeys(batch.tag_lists)
            if self.takes_long(each, cached.get(each))
        ]

    def begin(self, tag_list: bytes, *, stored: bool = False) -> Preparation:
        """Begin to prepare a tag list. Do all of its `steps`, and `release` it in any case.

        Args:
            stored: see `Matcher.match`.

        Raises:
            EmptyTag, InvalidTag, TooManyTags: it breaks the rules.
        """
        tags = parse_tag_list(tag_list, ANY_TAGS if stored else self._most_tags)
        preparation = Preparation(
            tag_list, tags, self._directory, self._resolver, self.freed, lambda: self._allowed
        )
        self._begun[preparation] = None
        return preparation

    @property
    def _allowed(self) -> int:
        """Groups that one may find: fewer where others hold many."""
        held = sum(each.groups for each in self._begun)
        return self._most if held < _HELD else 0

    def done(self, preparation: Preparation) -> None:
        """All its steps are done: the messages of its tag list may use it."""
        self._ready[preparation.written] = preparation

    def release(self, preparation: Preparation) -> None:
        """Let a preparation go; its message has been delivered, or never will be."""
        self._begun.pop(preparation, None)
        if self._ready.get(preparation.written) is preparation:
            del self._ready[preparation.written]

    def find(self, tag_list: bytes) -> Match | None:
        """The match of a tag list that is prepared, as it is now."""
        preparation = self._ready.get(tag_list)
        return None if preparation is None else preparation.finish()

    def joined(self, subscriber: Subscriber, group: Group) -> None:
        """A subscriber is about to be in a group, and all that is prepared has to know."""
        for each in self._begun:
            each.joined(subscriber, group)

    def left(self, group: Group) -> None:
        """A subscriber has left a group, and all that is prepared has to know."""
        for each in self._begun:
            each.left(group)
