"""Matching messages of few tags, some hundred one after another.

They are given by their projections: the tags of each that any entry has, with a comma before and
behind each: `,a,b,`, or `,` where there is none. Nearly all that a message comes to in the tree has
nothing for it. So that is told by one question for each tag, and nothing is made for a message
before there is something.

This is there twice. The Python function is the reference; `_narrow.pyx` returns the same in a third
of the time, where it has been built and MIST_PURE isn't set.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from mist.index.chunk import Chunk
from mist.index.costs import HITS, LONG, PLACES, VISIT
from mist.index.intern import Tags
from mist.index.nodes import Branch, Key, Node, Tag
from mist.index.pair_filter import PairFilter
from mist.index.shards import MASK, Table

__all__ = ["COMPILED", "GoThrough", "groups_of", "match_each", "match_each_in_python"]

G = TypeVar("G")

GoThrough = Callable[[Sequence[Chunk[G]], list[Key], frozenset[str]], tuple[G, ...]]
"""What a message matches: chunks that are to be gone through, what was found without, its tags."""


def match_each_in_python(
    tags: Tags[G],
    groups: Table[Key, G],
    pair_filter: PairFilter,
    go_through: GoThrough[G],
    projections: Sequence[str],
    most: int,
    widest: int,
) -> list[tuple[G, ...]]:
    """The groups of every entry whose tags are all in a projection, for each of some.

    Args:
        tags: of all entries.
        groups: entry -> its group.
        pair_filter: of all entries. Here it would take as long as to walk; it is for the compiled
            code, which does more in as many steps by it.
        go_through: called for messages that come to a chunk.
        projections: of messages; each tag once.
        most: what may be done, in messages that come to no entry, some 2 µs each.
        widest: tags of a message.

    Returns:
        Those of the first messages, up to one that has more tags than `widest`; of as many as
        `most` allows, and of one at least, unless it is the one.
    """
    find: Callable[[Any], Tag[G] | None] = tags.find
    found: list[tuple[G, ...]] = []
    alone: dict[Key, tuple[G, ...]] = {}  # what is found where an entry alone is
    keys: list[Key] = []
    near: list[Node[G] | Key | list[Key]] = []
    for projection in projections:
        if most <= 0:
            break
        names: list[str | None] = [*projection.split(",")]
        names[-1] = None  # where nothing stands, as before the first comma
        if len(names) - 2 > widest:
            break
        most -= 1 + (len(names) - 1) // LONG
        for tag in map(find, names):
            if type(tag) is Branch:
                if not tag.keys().isdisjoint(names) or tag.chunk is not None:
                    near.append(tag)
            elif tag is not None and (listed := tag.listed) is not None:
                if type(listed) is list:
                    near.append(listed)
                elif len(listed) == 1:
                    keys.append(listed)  # type: ignore[arg-type]
                elif listed[0] in names and listed[1] in names:
                    near.append(listed)
        chunks: Sequence[Chunk[G]] = ()
        if near:
            chunks = _look_at(near, names, keys)
            most -= len(near) // PLACES
            near.clear()
        if chunks:
            most -= sum([1 + chunk.capacity // VISIT for chunk in chunks])
            hits = go_through(chunks, keys, frozenset(names[1:-1]))  # type: ignore[arg-type]
        elif len(keys) != 1:
            hits = groups_of(keys, groups)
        elif (one := alone.get(keys[0])) is not None:
            hits = one
        else:
            hits = alone[keys[0]] = groups_of(keys, groups)
        most -= len(hits) // HITS
        keys.clear()
        found.append(hits)
    return found


def groups_of(keys: Sequence[Key], groups: Table[Key, G]) -> tuple[G, ...]:
    """The groups of some entries."""
    return tuple([groups[hash(key) & MASK][key] for key in keys])


def _look_at(
    near: list[Node[G] | Key | list[Key]],
    names: Sequence[str | None],
    keys: list[Key],
) -> list[Chunk[G]]:
    """What is found from some places of the tree on.

    Args:
        near: the places; those below them are added.
        names: the tags of a message, and None.
        keys: what is found one by one; added to.

    Returns:
        The chunks that are to be gone through.
    """
    holds: Callable[[Key], bool] = set(names).issuperset
    chunks: list[Chunk[G]] = []
    for place in near:  # which grows as it is walked
        if type(place) is tuple:
            if holds(place):
                keys.append(place)
        elif type(place) is list:
            keys += filter(holds, place)
        else:
            assert isinstance(place, Node)
            if place.chunk is not None:
                chunks.append(place.chunk)
            near += [child for child in map(place.get, names) if child is not None]
    return chunks


try:
    from mist.index._narrow import match_each
except ImportError:  # it isn't built, or MIST_PURE is set
    match_each = match_each_in_python

COMPILED: Final = match_each is not match_each_in_python
"""Whether the compiled code runs."""
