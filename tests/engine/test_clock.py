"""The engine's clock, as a node knows it."""

from mist.engine.clock import EngineClock
from mist.engine.members import BeatReply
from tests.clocks import Clock


def told(time: float) -> BeatReply:
    return BeatReply(offset=0, time=time, questions=())


def test_it_goes_on_from_what_the_last_heartbeat_told() -> None:
    steady = Clock()
    clock = EngineClock(5_000_000, steady)
    assert clock.now() == 5.0  # of the last record
    steady.work(1)
    assert clock.now() == 6.0
    clock.note_beat(told(100.0))
    assert clock.now() == 100.0
    steady.work(7_200)  # without an answer, time passes all the same
    assert clock.now() == 7_300.0
    clock.note_beat(told(7_299.0))
    assert clock.now() == 7_299.0


def test_it_is_the_time_of_a_machine_that_is_not_set() -> None:
    clock = EngineClock(1_000_000_000_000_000)
    assert 0 <= clock.now() - 1e9 < 60
