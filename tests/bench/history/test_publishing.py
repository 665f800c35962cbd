"""Publishing to servers that keep messages and to one that doesn't, small."""

import sys
from pathlib import Path

import pytest

from mist.bench.errors import BenchError
from mist.bench.history.publishing import Publishing, measure_publishing, while_publishing
from mist.bench.load import Run
from tests.bench.fakes import faulty_server


def test_each_mode_has_its_turn_in_each_window(tmp_path: Path) -> None:
    found = measure_publishing(
        tmp_path,
        modes=("none", "power"),
        windows=(50, 20),
        tag_lists=7,
        seconds=0.02,
        rounds=1,
    )
    assert [(each.durability, each.window) for each in found] == [
        ("none", 50),
        ("power", 50),
        ("none", 20),
        ("power", 20),
    ]
    for each in found:
        assert (len(each.runs), each.tag_lists) == (1, 7)
        assert each.total.messages > 0
        assert (each.total.lost, each.total.repeated, each.total.reordered) == (0, 0, 0)
        if sys.platform == "linux":
            assert each.total.server_cpu is not None
            assert each.housekeeping is not None
            assert (each.file_system is None) == (each.durability == "none")
    assert not list(tmp_path.iterdir())


def test_the_rate_is_that_of_the_median_round_and_costs_are_of_all() -> None:
    def run(messages: int, cpu: float | None) -> Run:
        return Run(messages, messages, 0, 0, 0, 1.0, cpu, 0.1)

    def publishing(*runs: Run) -> Publishing:
        return Publishing(
            durability="power",
            file_system=None,
            tag_lists=1,
            window=0,
            size=100,
            runs=[*runs],
            housekeeping=None,
        )

    found = publishing(run(10, 1.0), run(90, 2.0), run(20, 3.0))
    assert found.messages_per_second == 20
    assert found.rates == [10, 90, 20]
    assert (found.total.messages, found.total.server_cpu) == (120, 6.0)
    assert found.total.cpu_per_million_messages == pytest.approx(50_000)
    assert publishing(run(10, 1.0), run(10, None)).total.server_cpu is None


def test_someone_publishes_as_long_as_the_block_lasts() -> None:
    seen: list[int] = []

    def watch(number: int, line: bytes) -> list[bytes]:
        seen.append(number)
        return [line]

    with faulty_server(watch) as target, while_publishing(target):
        before = len(seen)
        while len(seen) < before + 1_000:
            pass
    after = len(seen)
    assert seen == [*range(after)]


def test_who_can_not_publish_meanwhile_is_heard_of_at_the_end() -> None:
    def hang_up(number: int, line: bytes) -> list[bytes]:
        return [b"hang up"] if number == 1_000 else [line]

    with (
        pytest.raises(BenchError, match="meanwhile"),
        faulty_server(hang_up) as target,
        while_publishing(target),
    ):
        pass
