"""The directory of groups: found by tag set, or by the tags of a message through the index.

Subscriptions are asked for in tags as people write them; the index holds what these compile to
(`mist.addresses`), and everything shown is as it was asked for. What a message's tag list matched
is cached by its bytes as written, in the memo (`mist.index.Memo`).

A subscription to everything names no tag by which it could be found: its group stands beside the
index, and when it comes or goes, the whole memo is cleared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from mist.addresses import (
    EVERYTHING,
    asked_places,
    compile_asked,
    expand,
    is_derived,
    is_pattern,
    is_topic,
)
from mist.broker.groups import Group
from mist.broker.interest import Interest
from mist.broker.matches import Match
from mist.broker.projection import Projected, project, tags_of
from mist.index import Index, Memo
from mist.message import TagSet, format_tags

__all__ = ["Directory"]

# Projections that match the same few groups share a route, and so its recipients: with many
# subscriptions, projections are many more than these.
_SHARED: Final = 8  # groups
_MOST_SHARED: Final = 4_096  # routes; then they are made anew

_STEP: Final = 4_096  # patterns, in a slice of all tags


class Directory:
    """See the module.

    Attributes:
        matches: those cached, by the tag list as written. For looking up only.
        routes: the same, by the projection; see `mist.broker.projection`.
    """

    def __init__(self) -> None:
        self._index: Index[Group] = Index()
        self._memo: Memo[bytes, Match] = Memo()
        self._routes: Memo[str, Match] = Memo()
        self._shared: dict[frozenset[Group], Match] = {}
        self._sharing: dict[Group, set[frozenset[Group]]] = {}  # the keys in which each is
        self._everything: Group | None = None
        self._interest: Interest | None = None  # see `note_interest`
        self._patterns: Counter[str] = Counter()  # asked for, of how many groups
        self._places: Counter[int] = Counter()  # of tokens that patterns name, of how many
        self.matches: Mapping[bytes, Match] = self._memo.entries
        self.routes: Mapping[str, Match] = self._routes.entries

    def __len__(self) -> int:
        """Groups."""
        return len(self._index) + (self._everything is not None)

    # groups

    def find(self, tags: TagSet) -> Group | None:
        """The group of exactly this tag set, as asked for, if there is one. O(tags)."""
        if tags == EVERYTHING:
            return self._everything
        return self._index.get(compile_asked(tags))

    def open(self, tags: TagSet) -> Group:
        """The group of exactly this tag set, as asked for; made where there is none. O(tags)."""
        if tags == EVERYTHING:
            return self._everything or self._open_everything()
        compiled = compile_asked(tags)
        group = self._index.get(compiled)
        if group is not None:
            return group
        group = Group(format_tags(tags).encode())
        self._index.add(compiled, group)
        self._forget(compiled)
        if self._interest is not None:
            self._interest.opened(compiled)
        if compiled is not tags:
            for each in filter(is_pattern, tags):
                self._patterns[each] += 1
                self._places.update(asked_places(each))
        return group

    def _open_everything(self) -> Group:
        self._forget_all()
        self._everything = Group(format_tags(EVERYTHING).encode())
        return self._everything

    def _forget(self, compiled: TagSet) -> None:
        self._memo.invalidate(compiled)
        self._routes.invalidate(compiled)

    def _forget_all(self) -> None:
        self._memo.clear()
        self._routes.clear()
        self._shared.clear()
        self._sharing.clear()

    def close(self, group: Group) -> None:
        """Remove a group. O(tags)."""
        tags = group.tags
        self._unshare(group)
        if tags == EVERYTHING:
            self._everything = None
            self._forget_all()
            return
        compiled = compile_asked(tags)
        self._index.remove(compiled)
        self._forget(compiled)
        if self._interest is not None:
            self._interest.closed(compiled)
        if compiled is not tags:
            for each in filter(is_pattern, tags):
                self._patterns[each] -= 1
                if not self._patterns[each]:
                    del self._patterns[each]
                self._places.subtract(asked_places(each))

    # messages

    def match(self, tags: TagSet) -> list[Group]:
        """The groups that a message with these tags, as published, satisfies; in no order."""
        groups = self._index.match(expand(tags))
        if self._everything is not None:
            groups.append(self._everything)
        return groups

    def match_in_steps(self, tags: TagSet) -> Iterator[list[Group]]:
        """What `match` returns, some at a time; see `Index.match_in_steps`."""
        yield from self._index.match_in_steps(expand(tags))
        if self._everything is not None:
            yield [self._everything]

    def satisfies(self, tags: TagSet, group: Group) -> bool:
        """Whether a message with these tags, as published, is for a group. O(tags)."""
        asked = group.tags
        return asked == EVERYTHING or compile_asked(asked) <= expand(tags)

    def note_interest(self) -> None:
        """Have `asks_for` tell more than nothing, from now on. O(tags)."""
        if self._interest is None:
            self._interest = Interest(self._index)

    def asks_for(self, hashes: Iterable[int]) -> bool:
        """Whether any group may be satisfied by one of many messages; see `Interest`.

        Args:
            hashes: of all of their tags, and of all that is derived of them.
        """
        if self._everything is not None or self._interest is None:
            return True
        return self._interest.asks_for(hashes)

    def remember(self, tag_list: bytes, tags: TagSet, match: Match) -> None:
        """Offer the memo what a tag list as written just matched; see `Memo.admit`."""
        self._memo.admit(tag_list, expand(tags), match)

    def cached(self) -> Iterator[Match]:
        """All matches that are cached."""
        return chain(self.matches.values(), self.routes.values(), self._shared.values())

    def is_remembered(self, tag_list: bytes) -> bool:
        """Whether `remember` would keep what this tag list matched. Its sight is noted. O(1)."""
        return self._memo.sighted(tag_list)

    def project(self, tag_lists: Sequence[bytes], most: int) -> Projected | None:
        """What of each tag list, as written, anybody asks for; see `mist.broker.projection`."""
        places = [place for place, patterns in self._places.items() if patterns]
        return project(tag_lists, self._index, most, places)

    def routes_of(self, projections: Sequence[str], most: int, widest: int) -> list[Match]:
        """What some projections match: one object for all that match the same few groups.

        Args:
            projections, most, widest: see `mist.index.Index.match_each`.

        Returns:
            Those of the first projections; as there.
        """
        found = self._index.match_each(projections, most, widest)
        routes = {groups: self._route_to(groups) for groups in set(found)}
        return [routes[groups] for groups in found]

    def _route_to(self, found: Sequence[Group]) -> Match:
        groups = found if self._everything is None else (*found, self._everything)
        if len(groups) > _SHARED:
            return Match(b"", frozenset(), groups)
        key = frozenset(groups)
        route = self._shared.get(key)
        if route is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
                self._sharing.clear()
            route = self._shared[key] = Match(b"", frozenset(), groups)
            for group in groups:
                self._sharing.setdefault(group, set()).add(key)
        return route

    def _unshare(self, closed: Group) -> None:
        """Forget the routes to a group. O(routes to it)."""
        for key in self._sharing.pop(closed, ()):
            del self._shared[key]
            for group in key:
                if group is not closed:
                    keys = self._sharing[group]
                    keys.discard(key)
                    if not keys:
                        del self._sharing[group]

    def remember_route(self, projection: str, match: Match) -> None:
        """Offer the cache of routes what a projection just matched; see `Memo.admit`."""
        if self._routes.sighted(projection):
            self._routes.admit(projection, tags_of(projection), match)

    # what there is

    def groups(self) -> Iterator[list[Group]]:
        """All groups, some at a time; see `Index.slices`."""
        yield from self._index.slices()
        if self._everything is not None:
            yield [self._everything]

    def tags(self) -> TagSet:
        """Every distinct tag that is asked for. O(tags)."""
        return frozenset(chain.from_iterable(self.tags_in_steps()))

    def tags_in_steps(self) -> Iterator[list[str]]:
        """What `tags` has, some at a time; one may come twice where it comes and goes meanwhile."""
        for some in self._index.tag_slices():
            yield [_shown(each.name) for each in some if not is_derived(each.name)]
        patterns = iter([*self._patterns, *(() if self._everything is None else EVERYTHING)])
        while slice_ := list(islice(patterns, _STEP)):
            yield slice_

    def tag_uses(self) -> Iterator[list[tuple[str, int]]]:
        """Distinct tags asked for, and how many groups have them, some at a time."""
        for some in self._index.tag_slices():
            yield [(_shown(each.name), each.uses) for each in some if not is_derived(each.name)]
        yield list(self._patterns.items())

    @property
    def distinct_tags(self) -> int:
        """Distinct tags by which groups are found: of patterns, those they compile to. O(1)."""
        return self._index.statistics().tags


def _shown(tag: str) -> str:
    """A tag of the index as it was asked for: a topic in it is a channel asked for by itself."""
    return f"={tag}" if is_topic(tag) else tag
