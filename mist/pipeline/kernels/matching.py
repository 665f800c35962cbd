"""Matching: the subscriptions that each message matches, for whole columns of messages.

The rule is that of `mist.index`, S ⊆ T, with the same results. The algorithm is vectorized: the
index takes one message through a tree, this takes a hundred thousand through each step.

*Addresses.* Subscriptions are compiled to tags, and a message also has the tags that are derived
from its own (`mist.addresses`). From there on addresses are tags like any others.

*One tag.* A lookup of the subscription of each tag, or for counts only a histogram of the tags.

*Two and more.* A subscription is filed under its two rarest tags, by a hash of that pair:

    subscription       filed under        bucket
    {a, b}             a, b               h(a) ^ h(b)
    {a, b, c}          a, b: c is common  h(a) ^ h(b)     also c must be in the message
    {b, d}             b, d               h(b) ^ h(d)

Each pair of a message's tags is tested with an exclusive or and one byte, which tells whether the
bucket has any entry. That is nearly all of the work, 5 ns a pair; with one byte in sixteen set, 2 %
of the pairs of random tags pass. For these the entries of the bucket are looked up, the pair itself
is compared, and then the remaining tags of longer subscriptions. Messages are grouped by their
number of tags, so a pair of positions (first and third tag, say) is one operation on thousands of
rows.

Rarity is measured in a sample of the messages if there is one, else in the subscriptions: the cost
is how often a message has both tags of a filed pair. Tags without entries are removed before pairs
are formed, and rows with equal tags are matched once (`deduplication`).

Cost: O(pairs of tags of each message + hits), and with patterns of addresses 3 µs for each distinct
address in a batch. Memory: some 30 bytes a subscription, 5 bytes for each bucket (8 to 16 buckets a
subscription, at most 4 million), a few MB for a batch.

Refused: a bitmap for each tag, as in the index: 100,000 bits to scan for each message.
Refused: triples for longer subscriptions: a message has more triples than pairs, and a pair of
rare tags is selective enough.
"""

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mist.pipeline.kernels.deduplication import deduplicate
from mist.pipeline.kernels.subscriptions import compiled
from mist.pipeline.kernels.tags import (
    Codes,
    Int32Array,
    Int64Array,
    Rows,
    Vocabulary,
    expand_runs,
    rows_by_length,
    run_offsets,
    without,
)

__all__ = ["Matcher", "Tally"]

Hits = tuple[Int64Array, Int64Array]
"""Rows, and beside each the number of a subscription that it satisfies."""

_TILE: Final = 32_768  # places that one operation goes over: they stay in the processor's cache
_EXPANDED: Final = 1 << 20  # candidates that are looked at at once, which bounds the memory
_SPARSE: Final = 8  # buckets for each pair of tags, at least
_MAX_BITS: Final = 22  # of buckets: beyond that each look is a miss of the cache


@attrs.frozen(eq=False)
class Tally:
    """What matching a batch came to.

    Attributes:
        messages: for each subscription, the rows that satisfy it.
        fanout: for each row, the subscriptions that it satisfies; empty unless asked for.
    """

    messages: Int64Array
    fanout: Int64Array


class Matcher:
    """Subscriptions, made ready to be matched. Never changes; takes 1 µs for each.

    Args:
        subscriptions: array<string>, canonical, as asked for, none twice. Results number them.
        seen: how often each tag stands in some messages like those to come, as arrays
            `(names, counts)`; speeds up, and changes no answer.
    """

    def __init__(
        self, subscriptions: pa.Array, seen: tuple[pa.Array, Int64Array] | None = None
    ) -> None:
        self.subscriptions = subscriptions
        column = compiled(Codes.of(pc.split_pattern(subscriptions, ",")))
        self.vocabulary = Vocabulary.of(column.names)
        rows = self.vocabulary.code(column)
        size = len(self.vocabulary)
        self._everything = np.flatnonzero(rows.lengths == 0)  # one at most: `*`
        alone = rows.lengths == 1
        self._single = np.full(size, -1, np.int64)
        self._single[rows.codes[rows.starts[:-1][alone]]] = np.flatnonzero(alone)
        self._has_single = self._single >= 0
        random = np.random.default_rng(0)  # the same on every executor, though nothing needs it
        self._tag_hashes = random.integers(0, 1 << 64, size, np.uint64)
        self._pairs = _Pairs(
            rows, np.flatnonzero(rows.lengths > 1), _ranks(rows, self.vocabulary, seen), random
        )

    def __len__(self) -> int:
        return len(self.subscriptions)

    def tally(self, tags: pa.Array, *, fanout: bool = False) -> Tally:
        """How many rows satisfy each subscription, and if asked, how many each row satisfies.

        Args:
            tags: list<string> or list<dictionary>; see `Codes.of`. As published.
        """
        rows = self.vocabulary.code_published(Codes.of(tags))
        groups = deduplicate(rows, self._tag_hashes)
        if groups is None:
            return self._tally(rows, np.ones(len(rows), np.int64), fanout)
        tally = self._tally(rows.take(groups.distinct), groups.weights(), fanout)
        return Tally(tally.messages, tally.fanout[groups.groups] if fanout else tally.fanout)

    def _tally(self, rows: Rows, weights: Int64Array, fanout: bool) -> Tally:
        messages = np.zeros(len(self), np.int64)
        used = self._used(rows, weights)
        messages[self._single[self._has_single]] = used[self._has_single]
        messages[self._everything] = weights.sum()
        satisfied = self._singles(rows) if fanout else np.zeros(0, np.int64)
        satisfied += len(self._everything)
        for hit, numbers in self._pairs.match(rows):
            np.add.at(messages, numbers, weights[hit])
            if fanout:
                np.add.at(satisfied, hit, 1)
        return Tally(messages, satisfied)

    def _used(self, rows: Rows, weights: Int64Array) -> Int64Array:
        """For each tag, the rows that have it."""
        size = len(self.vocabulary)
        if (weights == 1).all():
            return np.bincount(rows.codes, minlength=size)
        found = np.bincount(rows.codes, np.repeat(weights, rows.lengths), size)
        return found.astype(np.int64)  # sums of whole numbers are exact up to 2^53

    def _singles(self, rows: Rows) -> Int64Array:
        """For each row, the subscriptions of one tag that it satisfies."""
        return np.diff(run_offsets(self._has_single[rows.codes])[rows.starts])

    def pairs(self, tags: pa.Array) -> Iterator[Hits]:
        """All pairs of a row and a subscription that it satisfies, in pieces, in no order."""
        rows = self.vocabulary.code_published(Codes.of(tags))
        groups = deduplicate(rows, self._tag_hashes)
        if groups is None:
            yield from self._hits(rows)
            return
        for hit, numbers in self._hits(rows.take(groups.distinct)):
            expanded, places = groups.expand(hit)
            yield expanded, numbers[places]

    def _hits(self, rows: Rows) -> Iterator[Hits]:
        for start in range(0, len(rows), _TILE):
            lengths = rows.lengths[start : start + _TILE]
            codes = rows.codes[rows.starts[start] : rows.starts[start + len(lengths)]]
            numbers = self._single[codes]
            hit = np.flatnonzero(numbers >= 0)
            if len(hit):
                row = np.repeat(np.arange(start, start + len(lengths)), lengths)
                yield row[hit], numbers[hit]
            for number in self._everything:
                yield np.arange(start, start + len(lengths)), np.full(len(lengths), number)
        yield from self._pairs.match(rows)


def _ranks(
    rows: Rows, vocabulary: Vocabulary, seen: tuple[pa.Array, Int64Array] | None
) -> Int64Array:
    """For each tag its place among all, the rarest first."""
    size = len(vocabulary)
    subscribed = np.bincount(rows.codes, minlength=size)
    used = np.zeros(size, np.int64)
    if seen is not None:
        names, counts = seen
        numbers = vocabulary.numbers(names)
        derived = vocabulary.stand_for(names, numbers)
        if derived is None:
            used[numbers[numbers >= 0]] = counts[numbers >= 0]
        else:
            numbers, lengths = derived.spread(np.arange(len(names)))
            np.add.at(used, numbers, np.repeat(counts, lengths))
    ranks = np.empty(size, np.int64)
    ranks[np.lexsort((subscribed, used))] = np.arange(size)
    return ranks


class _Pairs:
    """The subscriptions of two tags and more, filed by their rarest pair.

    `hashes` has 64 random bits for each tag; a pair's are the exclusive or of both, in whatever
    order. The lowest of them are its bucket. So a pair that isn't filed is told by one byte,
    or by its bits, before anybody asks which tags it has.

    Args:
        rows: the tags of all subscriptions.
        numbers: those that have two and more.
        ranks: by rarity.
    """

    def __init__(
        self, rows: Rows, numbers: Int64Array, ranks: Int64Array, random: np.random.Generator
    ) -> None:
        size = len(ranks)
        long = rows.take(numbers)
        codes = long.codes[np.argsort(long.numbers() * size + ranks[long.codes])]
        first, second = codes[long.starts[:-1]], codes[long.starts[:-1] + 1]
        self._indexed = np.zeros(size, bool)
        self._indexed[first] = self._indexed[second] = True
        self._hashes = random.integers(-(1 << 63), 1 << 63, size, np.int64)

        low, high = np.minimum(first, second), np.maximum(first, second)
        pairs, filed = np.unique(low * np.int64(size) + high, return_inverse=True)
        low, high = np.divmod(pairs, size)
        bits = self._hashes[low] ^ self._hashes[high]
        buckets = 1 << min(_MAX_BITS, (_SPARSE * len(pairs) + 64).bit_length())
        self._mask = np.int64(buckets - 1)
        order = np.argsort(bits & self._mask, kind="stable")
        self._low, self._high, self._bits = low[order], high[order], bits[order]
        filled = np.bincount(bits & self._mask, minlength=buckets)
        self._buckets = run_offsets(filled).astype(np.int32)
        self._filled = filled > 0

        place = np.empty(len(pairs), np.int64)  # of each pair, in that order
        place[order] = np.arange(len(pairs))
        by_pair = np.argsort(place[filed], kind="stable")
        self._entries = run_offsets(np.bincount(place[filed], minlength=len(pairs)))
        self._numbers = numbers[by_pair]
        named = np.zeros(len(codes), bool)
        named[long.starts[:-1]] = named[long.starts[:-1] + 1] = True
        self._others = without(Rows(codes, long.starts), named).take(by_pair)
        self._more = self._others.lengths

    def match(self, rows: Rows) -> Iterator[Hits]:
        """Rows and the numbers of subscriptions they satisfy, in pieces."""
        if not len(self._numbers):
            return
        narrow = without(rows, ~self._indexed[rows.codes])
        lengths = narrow.lengths
        hashes = self._hashes[narrow.codes]
        for length, alike in rows_by_length(lengths):
            step = max(1, _TILE // length)
            for start in range(0, len(alike), step):
                some = alike[start : start + step]
                begins = narrow.starts[some]
                columns = hashes[begins + np.arange(length)[:, None]]
                row, low, high, pair = self._find(columns)
                same = (narrow.codes[begins[row] + low] == self._low[pair]) & (
                    narrow.codes[begins[row] + high] == self._high[pair]
                )
                for found, entries in self._candidates(some[row[same]], pair[same]):
                    hits = self._complete(rows, found, entries)
                    if len(hits[0]):
                        yield hits

    def _find(self, columns: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Pairs with the bits of one that is filed: row, place, other place, pair.

        Args:
            columns: the hashes of rows of one length, a row to a column.
        """
        length, width = columns.shape
        found = []
        bits, looked = np.empty_like(columns), np.empty_like(columns)
        there = np.empty(columns.shape, bool)
        for low in range(length - 1):
            left = length - low - 1
            pairs = np.bitwise_xor(columns[low + 1 :], columns[low], out=bits[:left])
            bucket = np.bitwise_and(pairs, self._mask, out=looked[:left])
            self._filled.take(bucket, out=there[:left], mode="wrap")  # "raise" copies
            hit = np.flatnonzero(there[:left])
            found.append((hit + (low + 1) * width, np.full(len(hit), low), pairs.ravel()[hit]))
        places, lows, all_bits = map(np.concatenate, zip(*found, strict=True))
        hits, pair = self._look_up(all_bits)
        high, row = np.divmod(places[hits], width)
        return row, lows[hits], high, pair

    def _look_up(self, bits: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Which of these are the bits of a pair, and of which."""
        buckets = bits & self._mask
        pair, stop = self._buckets[buckets], self._buckets[buckets + 1]
        left = np.arange(len(bits))
        found = []
        while len(left):  # as often as the fullest of the buckets has pairs
            hit = self._bits[pair] == bits[left]
            found.append((left[hit], pair[hit]))
            more = pair + 1 < stop
            left, pair, stop = left[more], pair[more] + 1, stop[more]
        if not found:
            return left, left
        return _concatenated(found)

    def _candidates(self, rows: Int64Array, pairs: Int64Array) -> Iterator[Hits]:
        """What is filed under the pairs of some rows, in pieces of a bounded size."""
        begins = self._entries[pairs]
        lengths = self._entries[pairs + 1] - begins
        sizes = run_offsets(lengths)
        start = 0
        while start < len(pairs):
            stop = int(np.searchsorted(sizes, sizes[start] + _EXPANDED, side="right")) - 1
            some = slice(start, max(stop, start + 1))
            yield np.repeat(rows[some], lengths[some]), expand_runs(begins[some], lengths[some])
            start = some.stop

    def _complete(self, rows: Rows, found: Int64Array, entries: Int64Array) -> Hits:
        """Of rows that have an entry's pair, those that have its other tags too."""
        others, place = self._others, 0
        done: list[Hits] = []
        while len(found):
            more = self._more[entries] > place
            done.append((found[~more], self._numbers[entries[~more]]))
            found, entries = found[more], entries[more]
            there = _contains(rows, found, others.codes[others.starts[entries] + place])
            found, entries = found[there], entries[there]
            place += 1
        return _concatenated(done) if done else (found, entries)


def _concatenated(pieces: list[Hits]) -> Hits:
    left, right = zip(*pieces, strict=True)
    return np.concatenate(left), np.concatenate(right)


def _contains(rows: Rows, found: Int64Array, codes: Int32Array) -> npt.NDArray[np.bool_]:
    """Whether each row has the tag beside it. O(longest row x rows)."""
    there = np.zeros(len(found), bool)
    if len(found):
        begins = rows.starts[found]
        lengths = rows.starts[found + 1] - begins
        for place in range(lengths.max()):
            there |= rows.codes[begins + np.minimum(place, lengths - 1)] == codes
    return there
