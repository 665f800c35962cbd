"""Rounds: what medians are of, and what one round takes."""

import pytest

from mist.bench.http.rounds import Round, Rounds, measure_round


def test_figures_are_medians_over_the_rounds() -> None:
    rounds = Rounds([Round(10, 1.0, 0.001, 0.01), Round(10, 2.0, 0.005, 0.02)])
    rounds.rounds.append(Round(20, 1.0, 0.004, 0.08))
    assert rounds.count == 40
    assert rounds.per_second == 10
    assert rounds.server_cpu_us == pytest.approx([100, 500, 200])
    assert rounds.driver_cpu_us == pytest.approx(2_000)


def test_a_round_without_the_servers_time_has_none() -> None:
    assert Rounds([Round(1, 1.0, None, 0.0)]).server_cpu_us == []


def test_a_round_takes_the_difference_of_the_servers_time() -> None:
    readings = iter([1.5, 2.0])
    done: list[str] = []

    def work() -> None:
        done.append("work")

    found = measure_round(5, work, lambda: next(readings))
    assert (found.count, found.server_cpu, done) == (5, 0.5, ["work"])
    assert found.seconds > 0
    assert measure_round(1, work, lambda: None).server_cpu is None
