"""Tags that never come again cost no memory that stays, and files that retention bounds.

Each message has three tags that no other has, and one that is subscribed to. What the subscriber
gets is compared byte by byte with what was published, so nothing is lost, there twice or out of
order. The server's RSS and the size of its files are looked at all the while.

    pytest tests/system/test_soak.py --slow -s      100 million tags; prints its figures

MIST_TEST_SOAK_TAGS and MIST_TEST_SOAK_STORED_TAGS make it shorter.
"""

import itertools
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mist.bench.process import cpu_seconds, resident_bytes
from tests.processes import Process, dial, serving

TAGS = int(os.environ.get("MIST_TEST_SOAK_TAGS", "100_000_000"))
STORED_TAGS = int(os.environ.get("MIST_TEST_SOAK_STORED_TAGS", "45_000_000"))
NEW = 3  # tags of a message
BATCH = 1_000  # messages that are made at once
WINDOW = 20  # batches in flight: no more than a send queue holds
SAMPLED = 5.0  # seconds between two samples

# Bytes that RSS may rise by after the first tenth. A byte kept of each tag would be 95 MiB.
MARGIN = 4 << 20

KEPT = 32 << 20  # bytes of messages that the history keeps
RETENTION = 10.0  # seconds between two passes of it
SPARE = 96 << 20  # bytes: SQLite's write-ahead log, and free pages that are not returned yet

_TEMPLATE = b"".join(
    b"publish all,order:@%03d,request:@%03d,user:@%03d x\n" % (place, place, place)
    for place in range(BATCH)
)


def batch(number: int) -> bytes:
    """The messages of one batch. Fast: the server, not this, is what a run waits for."""
    return _TEMPLATE.replace(b"@", b"%d" % number)


@attrs.frozen
class Sample:
    """What a server has after so many messages."""

    messages: int
    seconds: float
    resident: int
    files: int


class Expected:
    """What a subscriber is to get, as far as it has been published."""

    def __init__(self) -> None:
        self.received = 0  # batches, to their ends
        self._batches: deque[bytes] = deque()
        self._place = 0  # in the first of them

    def add(self, published: bytes) -> None:
        self._batches.append(published)

    def check(self, data: bytes) -> None:
        """Compare what has come next."""
        place = 0
        while place < len(data):
            first = self._batches[0]
            piece = data[place : place + len(first) - self._place]
            assert first.startswith(piece, self._place), (self.received, piece[:200])
            place += len(piece)
            self._place += len(piece)
            if self._place == len(first):
                self._batches.popleft()
                self.received += 1
                self._place = 0


def subscribed(url: str) -> socket.socket:
    """A connection that gets every message that is published from now on."""
    peer = dial(url)
    peer.sendall(b"subscribe all\nping\n")
    assert peer.recv(100) == b"pong\n"
    return peer


def publish(url: str, batches: int, sample: Callable[[int], None]) -> None:
    """Publish batches, and get them all; `sample` is called with the messages received so far."""
    with subscribed(url) as subscriber, dial(url) as publisher:
        publisher.setblocking(False)
        expected = Expected()
        made = 0
        left = memoryview(b"")
        while expected.received < batches:
            if not left and made < batches and made - expected.received < WINDOW:
                expected.add(batch(made))
                left = memoryview(batch(made))
                made += 1
            writers = [publisher] if left else []
            readable, writable, _ = select.select([subscriber], writers, [], 60)
            assert readable or writable
            if writable:
                left = left[publisher.send(left) :]
            if readable:
                data = subscriber.recv(1 << 20)
                assert data, "the server has hung up"
                expected.check(data)
            sample(expected.received * BATCH)


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(each.stat().st_size for each in folder.iterdir())


def soak(process: Process, data: Path, messages: int, every: float = SAMPLED) -> list[Sample]:
    """Publish so many messages. Returns samples: of the first tenth or so, the last of the end."""
    samples: list[Sample] = []
    began = looked = time.monotonic()

    def look(received: int) -> None:
        resident = resident_bytes(process.popen.pid)
        assert resident is not None
        found = Sample(received, time.monotonic() - began, resident, size_of(data))
        samples.append(found)
        print(
            f"{found.seconds:7.1f} s {NEW * received:12,} tags, RSS {resident / 2**20:7.2f} MiB, "
            f"files {found.files / 2**20:7.1f} MiB",
            flush=True,
        )

    def sample(received: int) -> None:
        nonlocal looked
        if received < messages / 10:
            looked = time.monotonic()
        elif not samples or time.monotonic() - looked >= every:
            looked = time.monotonic()
            look(received)

    publish(process.urls[0], messages // BATCH, sample)
    look(messages)
    return samples


def assert_flat(samples: list[Sample], margin: int = MARGIN) -> None:
    first, last = samples[0], samples[-1]
    print(
        f"{NEW * last.messages:,} tags in {last.seconds:.0f} s, "
        f"{last.messages / last.seconds:,.0f} messages a second; "
        f"RSS {first.resident / 2**20:.2f} MiB after {NEW * first.messages:,} tags, "
        f"{last.resident / 2**20:.2f} at the end, "
        f"{max(each.resident for each in samples) / 2**20:.2f} at most"
    )
    assert last.resident < first.resident + margin


def assert_bounded(samples: list[Sample]) -> None:
    """Files hold no more than is kept, and what comes in twice the time between two passes."""
    last = samples[-1]
    fastest = max(
        after.messages - before.messages
        for before, after in itertools.combinations(samples, 2)
        if after.seconds - before.seconds <= 2 * RETENTION
    )
    size = len(batch(last.messages // BATCH)) // BATCH
    bound = KEPT + fastest * size + SPARE
    most = max(each.files for each in samples)
    print(
        f"files at most {most / 2**20:.0f} MiB of {last.messages * size / 2**20:.0f} published, "
        f"{last.files / 2**20:.0f} at the end; the bound is {bound / 2**20:.0f}"
    )
    assert most < bound


def test_a_short_soak_costs_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, "--history", "none") as process:
        assert_flat(soak(process, tmp_path, 200_000))


def test_a_short_soak_that_is_stored_costs_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, "--keep-bytes", "32MiB") as process:
        # SQLite's caches fill later than after a tenth of this.
        assert_flat(soak(process, tmp_path, 100_000), 16 << 20)


@pytest.mark.slow
def test_a_hundred_million_tags_cost_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, "--history", "none") as process:
        assert_flat(soak(process, tmp_path, TAGS // NEW))
        print(f"{cpu_seconds(process.popen.pid) or 0.0:.0f} s of CPU")


@pytest.mark.slow
def test_millions_of_tags_that_are_stored_cost_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, "--keep-bytes", "32MiB") as process:
        samples = soak(process, tmp_path, STORED_TAGS // NEW)
        assert_flat(samples)
        assert_bounded(samples)
