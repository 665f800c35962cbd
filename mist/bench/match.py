"""Matching: the load, and what the index and the memo take for it.

The load is drawn from a vocabulary of equally popular tags (*uniform*), or of tags where the
n-th is used 1/n times as often as the first (*Zipf*), which is how words, rooms and customers
are spread. Uniform is the harder one with few tags, Zipf with many.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from math import comb
from typing import Final, TypeVar

import attrs

from mist.index import Index, Memo

__all__ = [
    "LENGTHS",
    "NARROW",
    "Filled",
    "Load",
    "Matched",
    "Width",
    "fill",
    "measure_match",
    "measure_memo",
    "quantile",
    "timed",
    "timed_match",
]

G = TypeVar("G")

Width = tuple[int, int]
"""Tags of a set: fewest, most; every number from one to the other is equally likely."""

LENGTHS: Final[Width] = (2, 4)  # tags of a subscription
NARROW: Final[Width] = (3, 10)  # tags of an everyday message

_MAX_REPEATS: Final = 100  # in a row: then less than one draw in ten is new
_SAMPLE: Final = 20_000  # adds timed, and subscriptions sampled, at most


class Load:
    """Tag sets of one vocabulary; the same ones each time for the same arguments.

    Args:
        vocabulary: distinct tags.
        zipf: whether the n-th tag is 1/n times as popular as the first; else all equally.
    """

    def __init__(self, vocabulary: int, *, zipf: bool = False) -> None:
        self._words = [b"tag%d" % n for n in range(vocabulary)]
        weights = accumulate(1 / n for n in range(1, vocabulary + 1))
        self._cumulative = list(weights) if zipf else None

    def yields(self, count: int) -> bool:
        """Whether there are `count` distinct subscriptions."""
        fewest, most = LENGTHS
        return sum(comb(len(self._words), size) for size in range(fewest, most + 1)) >= count

    def sets(self, width: Width, seed: int) -> Iterator[frozenset[str]]:
        """Tag sets without end, repeats among them.

        Each has strings of its own, as it would coming from a peer.

        Raises:
            ValueError: no set of this vocabulary is that wide.
        """
        rng, words, cumulative = random.Random(seed), self._words, self._cumulative  # noqa: S311
        fewest, most = width
        if most > len(words):
            raise ValueError(f"{most} distinct tags out of {len(words)}")
        while True:
            size = rng.randint(fewest, most)
            drawn: set[bytes] = set()
            while len(drawn) < size:
                drawn.update(rng.choices(words, cum_weights=cumulative, k=size - len(drawn)))
            yield frozenset([tag.decode() for tag in drawn])

    def subscriptions(self) -> Iterator[frozenset[str]]:
        """What is subscribed to, without end."""
        return self.sets(LENGTHS, seed=1)

    def messages(self, count: int, width: Width = NARROW) -> list[frozenset[str]]:
        """What `count` messages are tagged with."""
        return list(islice(self.sets(width, seed=2), count))

    def tag_lists(self, count: int, width: Width = NARROW) -> list[str]:
        """The same, as it is written. What memory it takes is kept, so none of it is free later."""
        return [",".join(tags) for tags in islice(self.sets(width, seed=2), count)]


@attrs.frozen
class Filled:
    """What filling an index showed.

    Attributes:
        add_ns: nanoseconds of each of the last adds, up to 20,000.
        slowest_ns: nanoseconds of the slowest of all adds, of this thread's CPU: where others
            want the processor too, the slowest one on the clock is whichever they interrupted.
        written: some of the subscriptions, from first to last evenly, their tags joined by
            commas; up to 20,000, and a tenth of all. As sets of strings they would take more
            memory than the entries they are to be compared with.
    """

    add_ns: list[int]
    slowest_ns: int
    written: list[str]

    @property
    def sample(self) -> list[frozenset[str]]:
        """The subscriptions `written`. O(their tags)."""
        return [frozenset(tags.split(",")) for tags in self.written]


def fill(index: Index[G], load: Load, count: int, make: Callable[[frozenset[str]], G]) -> Filled:
    """Add subscriptions to an empty index until it holds `count`.

    Args:
        make: the group for a subscription.

    Raises:
        ValueError: there aren't as many, or the load hardly draws new ones any more.
    """
    if not load.yields(count):
        raise ValueError(f"this vocabulary has no {count:,} subscriptions")
    times = []
    written = []
    slowest = repeats = 0
    missing = count
    step = max(10, count // _SAMPLE)
    for tags in load.subscriptions():
        if index.get(tags) is not None:
            repeats += 1
            if repeats > _MAX_REPEATS:
                raise ValueError(f"this load draws {count - missing:,} subscriptions, then repeats")
            continue
        repeats = 0
        group = make(tags)
        start = time.thread_time_ns()
        took = timed(index.add, tags, group)
        slowest = max(slowest, time.thread_time_ns() - start)
        missing -= 1
        if missing < _SAMPLE:
            times.append(took)
        if missing % step == 0:
            written.append(",".join(tags))
        if not missing:
            break
    return Filled(times, slowest, written)


def timed(call: Callable[..., object], *arguments: object) -> int:
    """Nanoseconds that one call took; 100 to 150 of them are this function's own."""
    start = time.perf_counter_ns()
    call(*arguments)
    return time.perf_counter_ns() - start


def timed_match(index: Index[G], tag_list: str) -> tuple[int, int]:
    """Nanoseconds that one match took, and how many groups it found.

    The message's tags are cut out just before, as from what a peer has sent: made long before,
    each of them would have to be fetched from memory first, which is no part of matching.
    """
    tags = frozenset(tag_list.split(","))
    start = time.perf_counter_ns()
    groups = index.match(tags)
    return time.perf_counter_ns() - start, len(groups)


def quantile(times: list[int], share: float) -> float:
    """Microseconds that `share` of the calls stayed within. O(n log n)."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] / 1e3


@attrs.frozen
class Matched:
    """Matching against subscriptions of 2 to 4 tags, messages drawn from the same vocabulary.

    Attributes:
        subscriptions: distinct tag sets.
        vocabulary: distinct tags they are drawn from.
        width: tags of a message, fewest and most.
        p50_us, p99_us: microseconds a match, nothing remembered.
        memo_ns: nanoseconds where the tag list is remembered.
        matches: subscriptions that a message matched, on average.
        add_us, remove_us: microseconds to add and to remove a subscription when there are
            this many, p50.
    """

    subscriptions: int
    vocabulary: int
    width: Width
    p50_us: float
    p99_us: float
    memo_ns: float
    matches: float
    add_us: float
    remove_us: float


def measure_match(
    subscriptions: int,
    vocabulary: int,
    width: Width = NARROW,
    messages: int = 5_000,
    *,
    zipf: bool = False,
) -> Matched:
    """Fill an index; match, remember, remove.

    Takes some 10 s a million subscriptions, and up to 500 bytes each.

    Raises:
        ValueError: the vocabulary doesn't yield as many, or none as wide.
    """
    load = Load(vocabulary, zipf=zipf)
    tag_lists = load.tag_lists(messages, width)
    index: Index[int] = Index()
    gc.collect()
    gc.disable()  # what is measured isn't the collector
    try:
        filled = fill(index, load, subscriptions, lambda _: len(index))
        found = 0
        times = []
        for tag_list in tag_lists:
            took, hits = timed_match(index, tag_list)
            times.append(took)
            found += hits
        removes = [timed(index.remove, tags) for tags in filled.sample]
        return Matched(
            subscriptions=subscriptions,
            vocabulary=vocabulary,
            width=width,
            p50_us=quantile(times, 0.5),
            p99_us=quantile(times, 0.99),
            memo_ns=measure_memo(load),
            matches=found / messages,
            add_us=statistics.median(filled.add_ns) / 1e3,
            remove_us=statistics.median(removes) / 1e3,
        )
    finally:
        gc.enable()


def measure_memo(load: Load, keys: int = 10_000, rounds: int = 10) -> float:
    """Nanoseconds to find a tag list among `keys` remembered ones.

    Each is looked up as bytes of its own, whose hash nobody knows yet: so they come from a
    peer, and it is more than half of the cost.
    """
    memo: Memo[bytes, int] = Memo()
    lists = []
    for n, tags in enumerate(load.messages(keys)):
        written = ",".join(tags)
        lists.append(written)
        for _ in range(2):
            memo.admit(written.encode(), tags, n)
    find = memo.entries.get
    took = []
    for _ in range(rounds):
        arrived = [written.encode() for written in lists]
        start = time.perf_counter_ns()
        for key in arrived:
            find(key)
        took.append((time.perf_counter_ns() - start) / keys)
    return min(took)
