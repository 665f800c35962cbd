from collections.abc import Sequence
from typing import TypeVar

from mist.index.intern import Tags
from mist.index.narrow import GoThrough
from mist.index.nodes import Key, Tag
from mist.index.pair_filter import PairFilter
from mist.index.shards import Table

G = TypeVar("G")

def enter(words: memoryview, one: str, other: str) -> None: ...
def enter_all(
    words: memoryview, tags: Table[str, Tag[G]], entries: Table[Key, G], keys: list[Key]
) -> None: ...
def match_each(
    tags: Tags[G],
    groups: Table[Key, G],
    pair_filter: PairFilter,
    go_through: GoThrough[G],
    projections: Sequence[str],
    most: int,
    widest: int,
) -> list[tuple[G, ...]]: ...
