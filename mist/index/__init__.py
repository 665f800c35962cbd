"""The index: which subscriptions does a message's tag set satisfy?

Given a message's tags T, find every subscription S with S ⊆ T, among a million or ten: an inverted
index, with bitmaps where they pay, and a memo before it. The index knows tag sets and the group
behind each, and not who is in a group. So ten thousand subscribers of one tag set are one entry.

    Index   tag set -> group, and the match. `tree` narrows a message down to the few entries
            that share its rare tags; where many entries share popular tags only, `chunk`
            tests them all at once, with bitmaps, and where a message is narrow, `subsets`
            looks up what it may contain
    Memo    tag list as written -> what it resolved to, forgotten exactly when that changes

    filing  where in the tree an entry goes, by how many share its tags (`thresholds`)
    narrow  some messages of few tags at once, in Python and compiled; `pair_filter` tells most
            of those that match nothing
    intern  one object for each tag: its string, how rare it is, what is filed under it
    nodes   the shapes of what is filed under a tag
    shards  many small dicts in the place of a large one
"""

from mist.index.index import Index, IndexStatistics
from mist.index.intern import BOUNDARY
from mist.index.memo import Memo
from mist.index.narrow import COMPILED
from mist.index.thresholds import Thresholds

__all__ = ["BOUNDARY", "COMPILED", "Index", "IndexStatistics", "Memo", "Thresholds"]
