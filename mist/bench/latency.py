"""Latency: how long a message takes from the publisher's write to the subscriber's read.

Messages go out at a fixed rate, one by one, each a turn of the server's loop of its own: the
opposite of a flood. Both ends are this process, so there is one clock. The *intended* latency
counts from when the message was due instead: it includes the driver's own lateness, and with
it every pause of the whole machine, so it shows what a saturated server hides.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from mist.bench.connections import Subscriber
from mist.bench.load import Load, Run, Target, open_load
from mist.bench.receiver import Receiver

__all__ = ["Latency", "Quantiles", "Stopwatch", "measure_latency", "time_deliveries"]

_WARM: Final = 0.2  # seconds at the rate, before


@attrs.frozen
class Quantiles:
    """Latencies in microseconds; all zero where there are none."""

    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Quantiles":
        """The quantiles of latencies. O(n log n)."""
        ordered = sorted(seconds) or [0.0]
        last = len(ordered) - 1
        shares = (0.5, 0.9, 0.99, 1.0)
        return cls(*[ordered[min(last, int(share * len(ordered)))] * 1e6 for share in shares])


@attrs.frozen
class Latency:
    """Latency at a rate.

    Attributes:
        rate: messages per second asked for.
        subscribers: each gets every message; all their latencies are counted.
        size_bytes: of data in a message.
        written: from the publisher's write to the subscriber's read.
        intended: from when the write was due.
        run: counts and costs.
    """

    rate: float
    subscribers: int
    size_bytes: int
    written: Quantiles
    intended: Quantiles
    run: Run


class Stopwatch:
    """Times the deliveries of a paced run.

    Give `sending` to `Load.pace`. Latencies are those of messages in the order they come, so
    they mean nothing for a subscriber that lost one.

    Attributes:
        written, intended: seconds, one a delivery.
    """

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self.written: list[float] = []
        self.intended: list[float] = []
        self._sent: list[tuple[float, float]] = []
        for each in subscribers:
            each.on_read = self._reader(each.got)

    def sending(self, due: float, now: float) -> None:
        """A message is about to be sent."""
        self._sent.append((due, now))

    def _reader(self, got: Receiver) -> Callable[[], None]:
        base = seen = got.received

        def on_read() -> None:
            nonlocal seen
            now = time.perf_counter()
            for due, sent in self._sent[seen - base : got.received - base]:
                self.written.append(now - sent)
                self.intended.append(now - due)
            seen = got.received

        return on_read


def time_deliveries(load: Load, messages: int, rate: float) -> tuple[Stopwatch, Run]:
    """Publish at a rate on an open load, and time every delivery."""
    watch = Stopwatch(load.subscribers)
    run = load.pace(messages, rate, watch.sending)
    for each in load.subscribers:
        each.on_read = None
    return watch, run


def measure_latency(
    target: Target,
    *,
    rate: float = 5_000,
    messages: int = 25_000,
    subscribers: int = 1,
    size: int = 100,
) -> Latency:
    """Publish at a rate; time every delivery.

    Takes messages/rate seconds.

    Raises:
        BenchError: no server, no sense in what it says, or a rate beyond this machine.
    """
    with open_load(target, 1, subscribers, messages=messages, size=size) as load:
        time_deliveries(load, max(int(_WARM * rate), 1), rate)
        watch, run = time_deliveries(load, messages, rate)
    return Latency(
        rate=rate,
        subscribers=subscribers,
        size_bytes=size,
        written=Quantiles.of(watch.written),
        intended=Quantiles.of(watch.intended),
        run=run,
    )
