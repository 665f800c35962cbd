"""Coverage: subscriptions without messages, unmatched messages, and fan-out.

One pass over the messages matches them and takes three counts:

    subscription    messages that match each subscription; an unused one has none
    tag             messages with a tag that is in no subscription, itself or by an address
    fanout          messages by the number of subscriptions that they match

A message with such an unmatched tag may still have recipients, by its other tags.
"""

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mist.pipeline.kernels.matching import Matcher
from mist.pipeline.kernels.rollup import Counter
from mist.pipeline.kernels.tags import Codes

__all__ = ["FANOUT", "SUBSCRIPTION", "TAG", "Coverage"]

SUBSCRIPTION: Final = "subscription"
TAG: Final = "tag"
FANOUT: Final = "fanout"

_PATTERN: Final = r"^[/.]|^\*$"


class Coverage:
    """The three counts. Memory: O(subscriptions + unmatched tags)."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._patterns = _patterns(matcher.subscriptions)
        self._messages = np.zeros(len(matcher), np.int64)
        self._unmatched_tags = Counter()
        self._fanout: Counts[int] = Counts()

    def add(self, tags: pa.Array) -> None:
        """Count the rows of a column of tags."""
        tally = self._matcher.tally(tags, fanout=True)
        self._messages += tally.messages
        sizes, rows = np.unique(tally.fanout, return_counts=True)
        self._fanout.update(dict(zip(sizes.tolist(), rows.tolist(), strict=True)))
        column = Codes.of(tags)
        counts = column.counts()
        counts[self._subscribed(column.names)] = 0
        self._unmatched_tags.add(column.names, counts)

    def _subscribed(self, names: pa.Array) -> Any:
        """Which tags are in a subscription, as a mask."""
        subscribed = self._matcher.vocabulary.numbers(names) >= 0
        if self._patterns is not None:
            alone = pa.ListArray.from_arrays(pa.array(range(len(names) + 1), pa.int32()), names)
            subscribed |= self._patterns.tally(alone, fanout=True).fanout > 0
        return subscribed

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The counts: `kind`, `name`, `messages`; the name of a fan-out is its number.

        Subscriptions without messages are left out: the caller knows all of them.
        """
        got = np.flatnonzero(self._messages)
        yield _batch(
            SUBSCRIPTION, self._matcher.subscriptions.take(pa.array(got)), self._messages[got]
        )
        yield _batch(TAG, *self._unmatched_tags.arrays())
        names = pa.array([str(size) for size in self._fanout], pa.string())
        yield _batch(FANOUT, names, np.array(list(self._fanout.values()), np.int64))


def _patterns(subscriptions: pa.Array) -> Matcher | None:
    """A matcher of the patterns among the subscribed tags, each as a subscription."""
    tags = pc.split_pattern(subscriptions, ",").flatten()
    some = pc.unique(tags.filter(pc.match_substring_regex(tags, _PATTERN)))
    return Matcher(some) if len(some) else None


def _batch(kind: str, names: pa.Array, messages: object) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "kind": pa.array([kind] * len(names), pa.string()),
            "name": names,
            "messages": pa.array(messages, pa.int64()),
        }
    )
