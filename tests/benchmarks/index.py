"""The index at scale: every figure asked of it, from a thousand subscriptions to ten million.

    python -m tests.benchmarks.index [--sizes 1k,100k,1M,10M] [--vocabularies 100,10k,1M]
                                     [--popularity uniform,zipf] [--json]

A *cell* is one size, vocabulary and popularity of tags. Each runs in a process of its own, so
that no cell finds the memory, the caches or the collector as another left them, and within
limits of time. A million subscriptions take half a minute and half a gigabyte, ten million
ten times that.

Subscriptions have 2 to 4 tags. Nothing is remembered between matches, except where the memo
itself is measured. The collector is off while single calls are timed; what it costs is a
figure of its own. Percentiles are over single calls, timer included (about 0.1 µs).

Machines differ by more than indexes do, and a shared one from hour to hour. So each cell also
tells what two simple things took in the same minute, one of them computing, the other waiting
for memory: compare figures of two machines or two hours by these.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from itertools import cycle, islice, product
from typing import Final, TypeVar

import attrs

from mist.bench.match import (
    LENGTHS,
    NARROW,
    Filled,
    Load,
    Width,
    fill,
    measure_memo,
    quantile,
    timed,
    timed_match,
)
from mist.broker.broker import Group
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.index import Index, Memo
from mist.message import format_tags
from mist.protocols.line.forms import PLAIN

G = TypeVar("G")

WIDTHS: Final[dict[str, Width]] = {
    "3-10 tags": NARROW,
    "20": (20, 20),
    "40": (40, 40),
    "80": (80, 80),
}
_MESSAGES: Final = 5_000  # of each width, at most
_WIDTH_LIMIT: Final = 3.0  # seconds for the messages of one width
_CHURN: Final = 20_000  # replaced subscriptions a round
_ROUNDS: Final = 5
_REMEMBERED: Final = 50_000  # tag lists in the memo
_COMPARED: Final = 1_000  # sets, for a yardstick
_FETCHED: Final = 1 << 28  # bytes to fetch from, more than any cache
_STEPS: Final = 100_000  # fetches


@attrs.frozen
class Spread:
    """Microseconds of many calls. The maximum shows pauses."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, times: list[int]) -> "Spread":
        """Of calls timed in nanoseconds."""
        return cls(quantile(times, 0.5), quantile(times, 0.99), max(times) / 1e3)

    def __str__(self) -> str:
        return f"{self.p50:9,.1f}{self.p99:9,.1f}{self.max:11,.1f}"


@attrs.frozen
class Match:
    """Matching messages of one width.

    Attributes:
        took: nothing remembered.
        matches: subscriptions a message matched, on average.
        messages: how many there was time for.
    """

    took: Spread
    matches: float
    messages: int


@attrs.frozen
class Cell:
    """What one cell showed.

    Attributes:
        match: by width of the messages; only those the vocabulary is wide enough for.
        add: the last adds; `max` is over all there were, and CPU time.
        remove: subscriptions taken from all ages.
        memory: bytes a subscription, resident, all in.
        churn: a removal and an addition together, every tenth time with a match.
        grown: MiB since the first of such changes, after each 20,000. Levels off when every
            subscription was replaced a few times.
        collect_ms: pause of a full garbage collection.
        frozen_ms: the same after `gc.freeze`.
        tracked: objects the collector walks, for each subscription.
        memo_ns: a tag list that is remembered.
        invalidate: making the memo forget what a new subscription changes.
        compare_us: a yardstick: 1,000 subscriptions compared with a message one by one, p50.
        fetch_ns: another: a byte from somewhere in 256 MiB, each place known by the one before.
    """

    subscriptions: int
    vocabulary: int
    popularity: str
    match: dict[str, Match]
    add: Spread
    remove: Spread
    memory: float
    churn: Spread
    grown: list[float]
    collect_ms: float
    frozen_ms: float
    tracked: float
    memo_ns: float
    invalidate: Spread
    compare_us: float
    fetch_ns: float


# one cell, in its own process


def measure(size: int, vocabulary: int, popularity: str) -> Cell:
    """Every figure of one cell.

    Args:
        popularity: uniform, zipf, or groups: uniform, with a subscriber's group behind each
            entry as the broker keeps it. Else there is nothing behind an entry.

    Raises:
        ValueError: there is no such cell.
    """
    load = Load(vocabulary, zipf=popularity == "zipf")
    messages = {
        name: load.tag_lists(_MESSAGES, width)
        for name, width in WIDTHS.items()
        if width[1] <= vocabulary
    }
    outbox = Outbox(PLAIN, OutboxLimits(), [])

    def make(tags: frozenset[str]) -> Group | bool:
        if popularity != "groups":
            return True
        group = Group(format_tags(tags).encode())
        group.add(outbox)
        return group

    gc.collect()
    gc.freeze()  # so that what is collected later is the index, and nothing else
    gc.disable()
    index, filled, memory = _fill(load, size, make)
    gc.collect()  # the other copies
    tracked = len(gc.get_objects())
    collect_ms = _collect()
    gc.freeze()
    frozen_ms = _collect()
    match = {name: _match(index, tag_lists) for name, tag_lists in messages.items()}
    churn, grown = _churn(index, load, filled, make)
    remove = [timed(index.remove, tags) for tags in filled.sample if index.get(tags) is not None]
    del index
    return Cell(
        subscriptions=size,
        vocabulary=vocabulary,
        popularity=popularity,
        match=match,
        add=attrs.evolve(Spread.of(filled.add_ns), max=filled.slowest_ns / 1e3),
        remove=Spread.of(remove),
        memory=memory,
        churn=churn,
        grown=grown,
        collect_ms=collect_ms,
        frozen_ms=frozen_ms,
        tracked=tracked / size,
        memo_ns=measure_memo(load),
        invalidate=_invalidate(load),
        compare_us=_compare(),
        fetch_ns=_fetch(),
    )


def _fill(
    load: Load, size: int, make: Callable[[frozenset[str]], G]
) -> tuple[Index[G], Filled, float]:
    # Memory comes from the system in pieces of a megabyte: a small index is made many times.
    copies = max(1, 100_000 // size)
    before = resident()
    indexes: list[Index[G]] = []
    own = 0
    for _ in range(copies):
        indexes.append(Index())
        filled = fill(indexes[-1], load, size, make)
        own = sum(sys.getsizeof(kept) for kept in (*filled.written, *filled.add_ns))
    return indexes[-1], filled, (resident() - before - own) / size / copies


def _collect() -> float:
    return timed(gc.collect) / 1e6


def _match(index: Index[G], tag_lists: list[str]) -> Match:
    deadline = time.perf_counter() + _WIDTH_LIMIT
    times = []
    found = 0
    for tag_list in tag_lists:
        took, hits = timed_match(index, tag_list)
        times.append(took)
        found += hits
        if time.perf_counter() > deadline:
            break
    return Match(Spread.of(times), found / len(times), len(times))


def _churn(
    index: Index[G], load: Load, filled: Filled, make: Callable[[frozenset[str]], G]
) -> tuple[Spread, list[float]]:
    """Replace subscriptions round after round. Returns times, and MiB grown after each.

    The collector is off: what is let go must need none to be given back.
    """
    rng = random.Random(3)
    fresh = (tags for tags in load.sets(LENGTHS, seed=3) if index.get(tags) is None)
    messages = cycle(load.messages(1_000))
    there = filled.written
    before = resident()
    times = array("q", bytes(8 * _CHURN))
    grown = []
    for _ in range(_ROUNDS):
        for n in range(_CHURN):
            at = rng.randrange(len(there))
            old = frozenset(there[at].split(","))
            new = next(fresh)
            group = make(new)
            start = time.perf_counter_ns()
            index.remove(old)
            index.add(new, group)
            if n % 10 == 0:
                index.match(next(messages))
            times[n] = time.perf_counter_ns() - start
            there[at] = ",".join(new)
        grown.append((resident() - before) / 2**20)
    return Spread.of(list(times)), grown


def _invalidate(load: Load) -> Spread:
    memo: Memo[bytes, int] = Memo()
    for tags in islice(load.sets(NARROW, seed=4), _REMEMBERED):
        key = ",".join(tags).encode()
        memo.admit(key, tags, 0)
        memo.admit(key, tags, 0)
    return Spread.of([timed(memo.invalidate, tags) for tags in islice(load.subscriptions(), 5_000)])


def _compare() -> float:
    load = Load(100)
    sets = list(islice(load.subscriptions(), _COMPARED))

    def subsets(tags: frozenset[str]) -> list[frozenset[str]]:
        return [each for each in sets if each <= tags]

    return quantile([timed(subsets, tags) for tags in load.messages(500)], 0.5)


def _fetch() -> float:
    return (_walk(b"\1" * _FETCHED) - _walk(b"\1" * 1024)) / _STEPS


def _walk(memory: bytes) -> int:
    """Nanoseconds for steps all over some bytes, each of them 1."""
    mask = len(memory) - 1
    at = 0
    start = time.perf_counter_ns()
    for _ in range(_STEPS):
        at = (at * 1_664_525 + memory[at]) & mask  # comes by every byte before it repeats
    return time.perf_counter_ns() - start


def resident() -> int:
    """Bytes of memory this process has in use."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# all cells


def run(size: int, vocabulary: int, popularity: str, *, as_json: bool) -> None:
    """Measure and print one cell in a process of its own, or why there are no figures."""
    name = f"{size},{vocabulary},{popularity}"
    command = [sys.executable, "-m", "tests.benchmarks.index", "--cell", name]
    if as_json:
        command.append("--json")
    limit = 60 + 90 * size / 1_000_000  # seconds
    try:
        subprocess.run(command, timeout=limit, check=True)
        return
    except subprocess.TimeoutExpired:
        why = f"not done within {limit:.0f} s"
    except subprocess.CalledProcessError as error:
        why = f"ended with status {error.returncode}"
    _refuse(size, vocabulary, popularity, why, as_json=as_json)


def _refuse(size: int, vocabulary: int, popularity: str, why: str, *, as_json: bool) -> None:
    if as_json:
        cell = {"subscriptions": size, "vocabulary": vocabulary, "popularity": popularity}
        print(json.dumps(cell | {"refused": why}), flush=True)
    else:
        print(f"{title(size, vocabulary, popularity)}: {why}\n", flush=True)


def title(size: int, vocabulary: int, popularity: str) -> str:
    """How a cell is called."""
    return f"{size:,} subscriptions, vocabulary {vocabulary:,}, {popularity}"


def describe(cell: Cell) -> str:
    """A cell's figures, a line each."""
    lines = [title(cell.subscriptions, cell.vocabulary, cell.popularity)]
    lines.append(f"  {'':22}{'p50':>9}{'p99':>9}{'max':>11}   µs")
    for name, match in cell.match.items():
        lines.append(f"  {'match, ' + name:22}{match.took}   {match.matches:,.2f} matches")
    lines += [
        f"  {'add':22}{cell.add}",
        f"  {'remove':22}{cell.remove}",
        f"  {'replace, 1/10 match':22}{cell.churn}",
        f"  {'invalidate the memo':22}{cell.invalidate}",
        f"  memo hit {cell.memo_ns:.0f} ns",
        f"  memory {cell.memory:.0f} B a subscription; MiB grown by replacing "
        + ", ".join(f"{grown:.1f}" for grown in cell.grown),
        f"  full collection {cell.collect_ms:.1f} ms, {cell.frozen_ms:.2f} after gc.freeze; "
        f"{cell.tracked:.2f} tracked objects a subscription",
        f"  in the same minute 1,000 sets compared one by one {cell.compare_us:.1f} µs, "
        f"a byte out of 256 MiB {cell.fetch_ns:.0f} ns",
    ]
    return "\n".join(lines) + "\n"


def numbers(text: str) -> list[int]:
    """`1k,2M` as [1_000, 2_000_000]."""
    units = {"k": 1_000, "M": 1_000_000}
    return [int(word.rstrip("kM")) * units.get(word[-1:], 1) for word in text.split(",")]


def main() -> None:
    """Measure the cells asked for; each is printed as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.index",
        description="The index at scale, a process for each cell.",
    )
    shown = "default: %(default)s"
    parser.add_argument("--sizes", type=numbers, default="1k,100k,1M,10M", help=shown)
    parser.add_argument("--vocabularies", type=numbers, default="100,10k,1M", help=shown)
    parser.add_argument(
        "--popularity",
        default="uniform,zipf",
        help=f"uniform, zipf, or groups: uniform, with a subscriber behind each entry; {shown}",
    )
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell is None:
        for cell in product(asked.sizes, asked.vocabularies, asked.popularity.split(",")):
            run(*cell, as_json=asked.json)
        return
    size, vocabulary, popularity = asked.cell.split(",")
    try:
        figures = measure(int(size), int(vocabulary), popularity)
    except ValueError as error:
        _refuse(int(size), int(vocabulary), popularity, str(error), as_json=asked.json)
    else:
        print(json.dumps(attrs.asdict(figures)) if asked.json else describe(figures), flush=True)


if __name__ == "__main__":
    main()
