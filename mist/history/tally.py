"""Message counts by subscription, each message counted once."""

from collections.abc import Sequence

from mist.addresses import EVERYTHING, compile_asked, expand
from mist.history.record import Stored
from mist.message import TagSet

__all__ = ["Tally"]


class Tally:
    """Counts messages by subscription. One that several match counts for the first.

    Args:
        tag_sets: of the subscriptions, as requested.
    """

    def __init__(self, tag_sets: Sequence[TagSet]) -> None:
        self._tag_sets = tag_sets
        self._found = [0] * len(tag_sets)
        self._by_tag: dict[str, int] = {}  # of one tag, looked up
        self._others: list[tuple[TagSet, int]] = []  # compared one by one
        for place, tags in enumerate(tag_sets):
            compiled = frozenset[str]() if tags == EVERYTHING else compile_asked(tags)
            if len(compiled) == 1:
                self._by_tag[next(iter(compiled))] = place
            else:
                self._others.append((compiled, place))

    def note(self, stored: Stored) -> None:
        """Count the messages of a publication.

        O(its tags + subscriptions of several tags) for each entry.
        """
        for tag_list, _, count in stored.entries:
            tags = expand(tag_list.tags)
            places = [self._by_tag[tag] for tag in tags if tag in self._by_tag]
            places += [place for compiled, place in self._others if compiled <= tags]
            if places:
                self._found[min(places)] += count

    @property
    def counts(self) -> Sequence[tuple[TagSet, int]]:
        """The counts in the order of the subscriptions, without zeros."""
        found = zip(self._tag_sets, self._found, strict=True)
        return [(tags, count) for tags, count in found if count]
