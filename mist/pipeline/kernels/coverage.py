"""Who hears nothing, what nobody listens to, and how far messages fan out.

One pass over the messages matches them and takes three counts:

    subscription    messages that each subscription would have got: none is a dead one
    tag             messages with a tag that is in no subscription at all
    fanout          messages by the number of subscriptions they would have gone to

A tag that nobody listens to may well be on messages that many get, by its other tags.
"""

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.kernels.rollup import Counter
from mist.pipeline.kernels.tags import Codes

__all__ = ["FANOUT", "SUBSCRIPTION", "TAG", "Coverage"]

SUBSCRIPTION: Final = "subscription"
TAG: Final = "tag"
FANOUT: Final = "fanout"


class Coverage:
    """Counts of what the module says. Memory: O(subscriptions + tags nobody listens to)."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._messages = np.zeros(len(matcher), np.int64)
        self._unheard = Counter()
        self._fanout: Counts[int] = Counts()

    def add(self, tags: pa.Array) -> None:
        """Count the rows of a column of tags."""
        tally = self._matcher.tally(tags, fanout=True)
        self._messages += tally.messages
        sizes, rows = np.unique(tally.fanout, return_counts=True)
        self._fanout.update(dict(zip(sizes.tolist(), rows.tolist(), strict=True)))
        column = Codes.of(tags)
        counts = column.counts()
        counts[self._matcher.vocabulary.numbers(column.names) >= 0] = 0
        self._unheard.add(column.names, counts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What was counted: `kind`, `name`, `messages`; of a fan-out, the name is its number.

        Subscriptions that got nothing are left out: whoever adds up knows all of them.
        """
        got = np.flatnonzero(self._messages)
        yield _batch(
            SUBSCRIPTION, self._matcher.subscriptions.take(pa.array(got)), self._messages[got]
        )
        yield _batch(TAG, *self._unheard.arrays())
        names = pa.array([str(size) for size in self._fanout], pa.string())
        yield _batch(FANOUT, names, np.array(list(self._fanout.values()), np.int64))


def _batch(kind: str, names: pa.Array, messages: object) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "kind": pa.array([kind] * len(names), pa.string()),
            "name": names,
            "messages": pa.array(messages, pa.int64()),
        }
    )
