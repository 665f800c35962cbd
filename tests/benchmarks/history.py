"""What the log costs, beside an event loop that never rests.

    python -m tests.benchmarks.history [--seconds N] [--messages N] [--folder DIR]

Prints, each with the loop saturated (`--idle` leaves it in peace):

    appends     durable messages a second by size of group, in turns with SQLite's own bare
                appends of as many bytes to a file beside it; and which share of them is ours
    replay      stored messages a second to one reader, and bytes a message on disk
    search      1,000 matches spread over, or at the end of, N messages: until the first
                page with a match, and until the last

Rates are of medians of wall time, which is what is asked: the slowest is printed beside them,
and the machine's load above. The bare appends have the log's switch interval, too.
"""

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mist.history import Durability, History, Policy, Publication, Selection, open_history
from mist.history.keeper import keep
from mist.message import TagList

DATA = b"x" * 100


async def spin() -> None:
    """Work on the loop in slices of half a millisecond, as a busy server's sessions would."""
    while True:
        until = time.perf_counter() + 0.0005
        while time.perf_counter() < until:
            pass
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def beside(busy: bool) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        if busy:
            nursery.start_soon(spin)
        yield
        nursery.cancel_scope.cancel()


def tag_list(*tags: str) -> TagList:
    return TagList(frozenset(tags))


def run_of(tags: TagList, count: int) -> tuple[TagList, bytes, int]:
    return tags, (tags.head + DATA + b"\n") * count, count


def groups(count: int) -> Iterator[tuple[str, list[Publication]]]:
    """Groups of `count` messages, by shape."""
    now = time.time()
    one = tag_list("sensor:1", "eu")
    runs = [Publication([run_of(one, min(count, 500))], now) for _ in range(max(count // 500, 1))]
    yield "runs of 500", runs
    many = [tag_list(f"sensor:{n}", "eu") for n in range(1000)]
    singles = [run_of(many[n % 1000], 1) for n in range(count)]
    yield "1,000 tag lists", [Publication(singles[n : n + 50], now) for n in range(0, count, 50)]


class Bare:
    """SQLite by itself, with the settings of the log: a row of as many bytes."""

    def __init__(self, folder: str, size: int, durability: Durability) -> None:
        self._connection = sqlite3.connect(
            f"{folder}/bare-{size}.db", isolation_level=None, check_same_thread=False
        )
        for pragma in ("page_size = 8192", "journal_mode = WAL", "wal_autocheckpoint = 2048"):
            self._connection.execute(f"PRAGMA {pragma}")
        if durability is Durability.PROCESS:
            self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB)")
        self._body = os.urandom(size)

    async def append(self) -> None:
        await trio.to_thread.run_sync(
            self._connection.execute, "INSERT INTO row (body) VALUES (?)", (self._body,)
        )


async def measure_appends(folder: str, durability: Durability, busy: bool, seconds: float) -> None:
    for count in (500, 2_000, 10_000):
        for shape, group in groups(count):
            url = f"sqlite:///{folder}/{durability.value}-{count}-{len(group)}.db"
            async with await open_history(url, durability=durability) as history:
                size = sum(len(data) for each in group for _, data, _ in each.entries)
                bare = Bare(tempfile.mkdtemp(dir=folder), size, durability)
                ours, theirs = await _in_turns(history, group, bare, busy, seconds)
            rate = count / statistics.median(ours)
            bare_rate = count / statistics.median(theirs)
            print(
                f"append {durability.value:<8}{count:>6,} in {shape:<16}{rate:>11,.0f}/s "
                f"(slowest {max(ours) * 1e3:5.0f} ms)   bare {bare_rate:>11,.0f}/s "
                f"(slowest {max(theirs) * 1e3:5.0f} ms)   ours {rate / bare_rate:4.0%}"
            )


async def _in_turns(
    history: History, group: list[Publication], bare: Bare, busy: bool, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds that each append took: the log's, and the bare one right after it."""
    ours, theirs = [], []
    async with beside(busy), trio.open_nursery() as nursery:
        nursery.start_soon(keep, history, Policy())
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            await history.append(group)
            middle = time.perf_counter()
            await bare.append()
            ours.append(middle - start)
            theirs.append(time.perf_counter() - middle)
        nursery.cancel_scope.cancel()
    return ours, theirs


async def build(history: History, messages: int) -> None:
    """`messages` in groups of 10,000 of 1,000 tag lists; 1,000 carry `rare`, and 1,000 at the
    very end `late`."""
    start = time.perf_counter()
    usual = dict(groups(10_000))["1,000 tag lists"]
    every = max(messages // 10_000 // 100, 1)
    rare = Publication([run_of(tag_list("rare", "eu"), 1)] * 10, time.time())
    for number in range(messages // 10_000):
        await history.append([*usual, rare] if number % every == 0 else usual)
        if number % 50 == 0:
            while await history.tidy():
                pass
    await history.append([Publication([run_of(tag_list("late", "eu"), 1)] * 1_000, time.time())])
    while await history.tidy():
        pass
    print(f"built {messages:,} messages in {time.perf_counter() - start:.0f} s")


async def measure_replay(history: History, busy: bool, seconds: float) -> None:
    found = await history.statistics()
    size, file_size = found.size / found.messages, found.file_size / found.messages
    print(
        f"stored {size:.0f} bytes a message of {len(DATA)} bytes and two tags, {file_size:.0f} "
        "with all that the file holds"
    )
    count = after = 0
    async with beside(busy):
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            page = await history.read(after=after)
            count += page.count
            after = 0 if page.complete else page.after
        elapsed = time.perf_counter() - start
    print(f"replay {count / elapsed:,.0f} messages/s")


async def measure_search(history: History, busy: bool) -> None:
    for tag in ("rare", "late", "none"):
        firsts, wholes, count = [], [], 0
        async with beside(busy):
            for _ in range(5):
                start = time.perf_counter()
                first: float | None = None
                count = after = 0
                selection = Selection([frozenset({tag, "eu"})])
                while True:
                    page = await history.read(selection, after=after, limit=100)
                    if page.count and first is None:
                        first = time.perf_counter() - start
                    count += page.count
                    after = page.after
                    if page.complete:
                        break
                wholes.append(time.perf_counter() - start)
                firsts.append(wholes[-1] if first is None else first)
        first_ms, all_ms = statistics.median(firsts) * 1e3, statistics.median(wholes) * 1e3
        print(f"search {tag}: {count:,} matches, first page {first_ms:.1f} ms, all {all_ms:.1f} ms")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--messages", type=int, default=10_000_000, help="to search among")
    parser.add_argument("--folder", type=Path, help="where files are made and removed")
    parser.add_argument("--idle", action="store_true", help="leave the event loop in peace")
    options = parser.parse_args()
    busy = not options.idle
    print(f"event loop {'saturated' if busy else 'idle'}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for durability in (Durability.POWER, Durability.PROCESS):
            await measure_appends(folder, durability, busy, options.seconds)
        if options.messages:
            url = f"sqlite:///{folder}/large.db"
            async with await open_history(url, durability=Durability.PROCESS) as history:
                await build(history, options.messages)
                await measure_replay(history, busy, options.seconds)
                await measure_search(history, busy)


if __name__ == "__main__":
    trio.run(main)
