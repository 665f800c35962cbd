"""The recorder: counters over the last ten minutes."""

import sys
from itertools import pairwise

import pytest
import trio
import trio.testing

from mist.broker.backlog import Written
from mist.broker.broker import Broker
from mist.broker.meters import Meters
from mist.sessions.recorder import SPAN, STEP, Recorder
from mist.sessions.session_table import SessionTable


class Recorded:
    """A recorder with a clock and counters of the test's own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meters = Meters(lambda: self.now)
        self.written = Written()
        self.recorder = Recorder(
            Broker(), SessionTable(10), self.written, self.meters, lambda: self.now
        )

    def column(self, name: str) -> list[float]:
        return list(self.recorder.recording().columns[name])

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a sample at each step."""
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            self.recorder.sample()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_samples_are_totals_and_when_they_were_so(recorded: Recorded) -> None:
    recorded.recorder.sample()
    recorded.written.messages, recorded.written.bytes = 7, 700
    recorded.now += 2.5
    recorded.recorder.sample()
    assert recorded.column("uptime") == [0.0, 2.5]
    assert recorded.column("delivered") == [0, 7]
    assert recorded.column("delivered_bytes") == [0, 700]
    assert recorded.column("published") == [0, 0]
    assert recorded.recorder.samples == 2


def test_the_longest_lag_between_two_samples_is_kept(recorded: Recorded) -> None:
    recorded.recorder.sample()
    for lag in (0.2, 3.0, 0.1):
        recorded.meters.note_lag(lag)
    for _ in range(20):
        recorded.meters.note_lag(0.01)  # `Meters.lag` has forgotten it by now
    recorded.recorder.sample()
    recorded.recorder.sample()
    assert recorded.column("loop_lag") == [0.0, 3.0, 0.0]


def test_ten_minutes_are_kept_and_no_more(recorded: Recorded) -> None:
    recorded.pass_time(3 * SPAN)
    uptime = recorded.column("uptime")
    assert uptime[-1] == 3 * SPAN
    assert uptime[0] == 2 * SPAN
    recording = recorded.recorder.recording()
    assert {len(each) for each in recording.columns.values()} == {len(uptime)}
    assert SPAN - 10 <= recording.latency_uptime[-1] - recording.latency_uptime[0] <= SPAN
    assert {len(each) for each in recording.latencies.values()} == {len(recording.latency_uptime)}


def test_memory_is_bounded(recorded: Recorded) -> None:
    recorded.pass_time(3 * SPAN)
    recording = recorded.recorder.recording()
    size = sum(sys.getsizeof(each) for each in recording.columns.values())
    size += sum(sys.getsizeof(row) for rows in recording.latencies.values() for row in rows)
    assert size < 100_000


def test_histograms_are_totals_of_each_bucket(recorded: Recorded) -> None:
    recorded.recorder.sample()
    recorded.meters.commit.observe(0.0003)
    recorded.meters.commit.observe(99.0)
    recorded.pass_time(10)
    recording = recorded.recorder.recording()
    assert recording.latency_uptime == [0.0, 10.0]
    first, second = recording.latencies["commit"]
    assert sum(first) == 0
    assert list(second) == recorded.meters.commit.counts
    assert second[-1] == 1  # beyond the last bound


def test_a_machine_that_slept_leaves_a_gap_and_nothing_that_is_too_old(recorded: Recorded) -> None:
    recorded.pass_time(100)
    recorded.now += 300
    recorded.pass_time(20)
    uptime = recorded.column("uptime")
    assert len(uptime) == 60
    assert max(after - before for before, after in pairwise(uptime)) == 300 + STEP
    recorded.now += 2 * SPAN
    recorded.recorder.sample()
    assert recorded.column("uptime") == [120 + 300 + 2 * SPAN]
    assert min(recorded.recorder.recording().latency_uptime, default=1e9) > 1000


async def test_it_does_not_make_up_for_samples_that_were_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recorder = Recorder(Broker(), SessionTable(10), Written(), Meters(float), trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        await trio.sleep(5)
        assert list(recorder.recording().columns["uptime"]) == pytest.approx([0, 2, 4])
        autojump_clock.jump(60)
        await trio.sleep(3)
        assert recorder.samples == 5
        nursery.cancel_scope.cancel()
