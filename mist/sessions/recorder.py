"""The recorder: a server's counters over the last ten minutes, as time series in memory.

So that plots are full when somebody begins to look. Each two seconds the counters are noted as they
are, totals since the start, and each ten seconds the histograms of latencies, likewise. Rates and
quantiles are left to the reader: they come of the difference of any two samples.

Memory is bounded: 8 bytes a value, in arrays, some 90 KiB in all. A sample takes some 20 µs at any
number of sessions, since only what is counted for all of them together is read.

Time is that of a clock that nobody sets, and that goes on while the machine sleeps. So samples are
as far apart as they really were: where a machine slept or the process stood still, there is a gap
between two of them, and nothing else is wrong.
"""

import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from mist.broker.backlog import Written
from mist.broker.broker import Broker
from mist.broker.meters import Meters
from mist.sessions.session_table import SessionTable

__all__ = ["SPAN", "STEP", "Recorder", "Recording"]

STEP: Final = 2.0  # seconds between two samples
SPAN: Final = 600.0  # seconds that are kept

_EVERY: Final = 5  # samples for one of histograms
_SAMPLES: Final = int(SPAN / STEP) + 1
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _elapsed() -> float:
    return time.clock_gettime(_CLOCK)


@attrs.frozen
class Recording:
    """What was recorded in the last ten minutes, oldest first.

    Attributes:
        columns: by name, of each sample what was so then; `uptime` is when, in seconds.
        latency_uptime: when histograms were sampled, likewise.
        latencies: by name, of each of these samples the observations of each bucket.
    """

    columns: Mapping[str, Sequence[float]]
    latency_uptime: Sequence[float]
    latencies: Mapping[str, Sequence[Sequence[int]]]


class Recorder:
    """See the module.

    Args:
        broker, sessions, written, meters: of the hub.
        clock: seconds.

    Attributes:
        samples: taken so far. As long as it is the same, so is the recording.
    """

    def __init__(
        self,
        broker: Broker,
        sessions: SessionTable,
        written: Written,
        meters: Meters,
        clock: Callable[[], float] = _elapsed,
    ) -> None:
        self.samples = 0
        self._broker = broker
        self._sessions = sessions
        self._written = written
        self._meters = meters
        self._clock = clock
        self._began = clock()
        self._columns: dict[str, array[float] | array[int]] = {
            name: array("d" if isinstance(value, float) else "q")
            for name, value in self._now().items()
        }
        self._latencies: deque[tuple[float, dict[str, array[int]]]] = deque(
            maxlen=_SAMPLES // _EVERY + 1
        )

    @property
    def uptime(self) -> float:
        """Seconds since this was made, whatever the clock on the wall was set to meanwhile."""
        return self._clock() - self._began

    async def run(self) -> None:
        """Take samples, for ever."""
        due = trio.current_time()
        while True:
            self.sample()
            now = trio.current_time()
            # What was missed while nothing could be done is not made up for.
            due = due + STEP if due + STEP > now else now + STEP
            await trio.sleep_until(due)

    def sample(self) -> None:
        """Note how things are now."""
        now = self._now()
        for name, column in self._columns.items():
            column.append(now[name])  # type: ignore[arg-type]  # of the type it was made for
            if len(column) > _SAMPLES:
                del column[0]
        if not self.samples % _EVERY:
            counts = {name: array("q", each.counts) for name, each in self._meters.latencies()}
            self._latencies.append((now["uptime"], counts))
        self.samples += 1

    def recording(self) -> Recording:
        """What was recorded, as a copy. O(samples)."""
        since = self.uptime - SPAN - STEP
        first = bisect_left(self._columns["uptime"], since)
        young = [each for each in self._latencies if each[0] >= since]
        return Recording(
            {name: column[first:] for name, column in self._columns.items()},
            [uptime for uptime, _ in young],
            {name: [counts[name] for _, counts in young] for name, _ in self._meters.latencies()},
        )

    def _now(self) -> dict[str, float]:
        broker = self._broker.statistics()
        return {
            "uptime": self.uptime,
            "published": broker.published,
            "relayed": broker.relayed,
            "matched": broker.matched,
            "replayed": broker.replayed,
            "delivered": self._written.messages,
            "delivered_bytes": self._written.bytes,
            "unmatched": broker.unmatched,
            "rejected": broker.rejected,
            "dropped": sum(broker.dropped.values()),
            "connections": self._sessions.connected,
            "cpu_seconds": time.process_time(),
            "loop_lag": self._meters.take_longest_lag(),
        }
