from collections.abc import Sequence
from typing import TypeVar

from mist.index.intern import Tags
from mist.index.narrow import GoThrough
from mist.index.nodes import Key
from mist.index.pair_filter import PairFilter
from mist.index.shards import Table

G = TypeVar("G")

def match_each(
    tags: Tags[G],
    groups: Table[Key, G],
    pair_filter: PairFilter,
    go_through: GoThrough[G],
    projections: Sequence[str],
    most: int,
) -> list[tuple[G, ...]]: ...
