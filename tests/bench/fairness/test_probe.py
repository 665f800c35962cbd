"""The probe's phases: what was sent in one is counted to it, whenever it comes."""

import time

import pytest

from mist.bench.errors import BenchError
from mist.bench.fairness.probe import TIMEOUT, Waits, _Sent, start_probe
from mist.bench.process import start_server


def test_what_is_sent_in_a_phase_counts_to_it_and_nothing_else() -> None:
    sent = _Sent()
    now = time.perf_counter()
    sent.sent(now - 10)
    sent.begin()
    sent.sent(now - 20)
    sent.sent(now - 30)
    sent.end()
    sent.sent(now - 40)
    assert sent.missing == 2
    sent.came(2)
    assert sent.missing == 1
    sent.came(2)
    assert sent.missing == 0
    assert [round(wait) for wait in sent.waits] == [20, 30]


def test_what_was_due_in_a_phase_counts_though_it_is_sent_later() -> None:
    sent = _Sent()
    sent.begin()
    sent.end(unsent=1)
    assert sent.missing == 1
    sent.sent(time.perf_counter() - 5)
    sent.came(1)
    assert (sent.missing, [round(wait) for wait in sent.waits]) == (0, [5])


def test_what_never_comes_counts_as_the_longest_wait() -> None:
    sent = _Sent()
    sent.begin()
    sent.sent(time.perf_counter())
    sent.end()
    assert (sent.give_up(), sent.waits) == (1, [TIMEOUT])


def test_phases_can_be_joined() -> None:
    both = Waits([1], [2], [3], 4, 5).plus(Waits([6], [7], [8], 9, 10))
    assert both == Waits([1, 6], [2, 7], [3, 8], 13, 15)


def test_a_probe_times_messages_and_requests() -> None:
    with start_server() as server, start_probe(server.tcp_port, server.http_port) as probe:
        for _ in range(2):
            probe.begin()
            waits = Waits([], [], [], 0, 0)
            while not (waits.line and waits.http):
                waits = waits.plus(probe.end())
            assert min(waits.line + waits.http) > 0
            assert (waits.unanswered, waits.hung_up) == (0, 0)


def test_a_probe_without_a_server_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="probe"), start_probe(1, 1):
        pass
    capfd.readouterr()
