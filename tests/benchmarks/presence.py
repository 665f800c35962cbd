"""What presence costs for each session: bytes, and time to come and go.

python -m tests.benchmarks.presence
"""

import gc
import sys
import time
import tracemalloc

from mist.attributes import Attributes
from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.presence import Presence, PresenceTags
from mist.protocols.line.forms import PLAIN

SESSIONS = 100_000


def measure(rooms: int) -> tuple[float, float, float]:
    """Bytes of presence for each session, and µs to subscribe and unsubscribe, without and with."""
    took: list[float] = []
    size = 0
    for on in (False, True):
        broker = Broker()
        outboxes = [Outbox(PLAIN, OutboxLimits(), broker.ready) for _ in range(SESSIONS)]
        for number, outbox in enumerate(outboxes):
            broker.assign(outbox, "token", ())
            broker.describe(outbox, Attributes(user=f"{number}"), ())
        if on:
            broker.presence = Presence(PresenceTags(("room:*",)), time.time)
        tags = [frozenset({f"room:{number % rooms}"}) for number in range(SESSIONS)]
        gc.collect()
        began = time.perf_counter()
        groups = [broker.subscribe(*each) for each in zip(outboxes, tags, strict=True)]
        for outbox, group in zip(outboxes, groups, strict=True):
            broker.unsubscribe(outbox, group)
        took.append((time.perf_counter() - began) / SESSIONS * 1e6)
        tracemalloc.start()
        groups = [broker.subscribe(*each) for each in zip(outboxes, tags, strict=True)]
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - size
        tracemalloc.stop()
        del groups
    return size / SESSIONS, took[0], took[1]


def main() -> None:
    print(f"{SESSIONS:,} sessions")
    print(f"{'rooms':>10} {'bytes each':>12} {'µs without':>12} {'µs with':>10}")
    for rooms in (1, 1_000, 10_000, SESSIONS):
        size, without, with_it = measure(rooms)
        print(f"{rooms:>10,} {size:>12.0f} {without:>12.2f} {with_it:>10.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
