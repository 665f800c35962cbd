"""What latest values cost: the index, the answers, and publishing with and without.

python -m tests.benchmarks.latest [--keys 1000000] [--states 2] [--memory]

Each key is published once for each state, in random order; one of 1,000 keys is `vip`. Prints
times, and bytes for each key. For comparison, `scan` is what it takes to look at all messages.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from mist.history import Durability, History, LatestQuery, Publication, Selection
from mist.history.log import Log
from mist.history.opening import open_history
from mist.wire import Batch, record

STATES = (b"new", b"paid", b"sent", b"gone")
AT_ONCE = 1_000  # messages in an append


def publications(keys: int, states: int) -> Iterator[list[Publication]]:
    order = list(range(keys))
    random.Random(1).shuffle(order)
    for state in STATES[:states]:
        for start in range(0, keys, AT_ONCE):
            runs = []
            for key in order[start : start + AT_ONCE]:
                tags = b"order,order:%07d,%s" % (key, state)
                if not key % 1_000:
                    tags += b",vip"
                tags = b",".join(sorted(tags.split(b",")))
                runs.append((tags, record(tags, b'{"price": %d}' % key), 1))
            yield [Publication(Batch.of_runs(runs, framable=True), time.time())]


async def append(history: History, keys: int, states: int) -> float:
    """Seconds to publish all, with maintenance beside it, as a server has it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(maintain, history)
        began = time.perf_counter()
        for each in publications(keys, states):
            await history.append(each)
        took = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    return took


async def maintain(history: History) -> None:
    while True:
        for _ in range(50):
            if not await history.compact():
                break
        await trio.sleep(0.25)


async def scan(history: History) -> float:
    began, after, seen = time.perf_counter(), 0, set()
    while True:
        page = await history.read(Selection([frozenset(["order"])]), after=after)
        for stored in page.stored:
            for tag_list, _, _ in stored.entries:
                seen.update(tag for tag in tag_list.tags if tag.startswith("order:"))
        after = page.after
        if page.complete:
            return time.perf_counter() - began


async def ask(history: History, *tags: str) -> None:
    selection, query = Selection([frozenset(tags)]), LatestQuery("order:*", lambda: None)
    began, first, longest, after, count = time.perf_counter(), 0.0, 0.0, 0, 0
    while True:
        turn = time.perf_counter()
        page = await history.latest(query, selection, after=after, max_bytes=1 << 20, packed=True)
        now = time.perf_counter()
        longest = max(longest, now - turn)
        count += page.count
        if page.count and not first:
            first = now - began
        after = page.after
        if page.complete:
            break
    print(
        f"{','.join(tags):12} {count:>9,} values   first after {first * 1e3:.1f} ms, all after "
        f"{now - began:.2f} s, longest page {longest * 1e3:.0f} ms",
        flush=True,
    )


async def main(keys: int, states: int, folder: Path, *, in_memory: bool) -> None:
    for kept in (False, True):
        url = "memory://" if in_memory else f"sqlite:///{folder}/{kept}.db"
        durability = Durability.POWER if in_memory else Durability.PROCESS
        history = await open_history(url, durability=durability)
        assert isinstance(history, Log)
        await history.keep_latest(["order:*"] if kept else [])
        took = await append(history, keys, states)
        with_or_without = "with latest values" if kept else "without"
        print(f"publish      {keys * states / took:>9,.0f} /s {with_or_without}", flush=True)
        if kept:
            await answers(history, keys, states)
        await history.close()


async def answers(history: Log, keys: int, states: int) -> None:
    began = time.perf_counter()
    while await history.compact():
        pass
    print(f"follow       {time.perf_counter() - began:.1f} s behind the last publication")
    latest = history._latest
    assert latest is not None
    entries, size = await latest.statistics()
    print(f"index        {entries:,} entries, {size / keys:.0f} bytes a key", flush=True)
    await history.keep_latest([])
    await history.keep_latest(["order:*"])
    began = time.perf_counter()
    while await history.compact():
        pass
    took = time.perf_counter() - began
    print(f"made anew    {took:.1f} s, {took / keys / states * 1e6:.1f} us a message", flush=True)
    for tags in (["order"], ["order", "new"], ["order", "vip"], ["none"]):
        await ask(history, *tags)
    print(f"scan         {await scan(history):.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--states", type=int, default=1)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        trio.run(lambda: main(given.keys, given.states, Path(place), in_memory=given.memory))
