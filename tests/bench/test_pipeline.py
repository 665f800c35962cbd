"""What the pipeline's figures say, and that CPU of processes below ours counts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, in_turns, timed
from mist.bench.report import row_of
from mist.bench.tables import print_tables
from tests.processes import mist

SMALL = ("--messages", "20000", "--subscriptions", "500")

WITH_PLAIN = Figure("match", 2_000_000, 10, Timed(2.0, 3.0), 100_000, Timed(1.0, 1.5), 5, 9)
STREAM = Figure("stream", 2_000_000, None, Timed(4.0, 9.0), server_seconds=4.0)
ALONE = Figure("match_one_core", 1000, 10, Timed(0.5, None))


def test_a_figure_compares_rates_and_cpu_for_the_same_number_of_messages() -> None:
    row = row_of(WITH_PLAIN)
    assert row["messages_per_second"] == 1_000_000
    assert row["plain_messages_per_second"] == 100_000
    assert row["times"] == 10
    assert row["cpu_seconds_per_million_messages"] == 1.5
    assert row["plain_cpu_seconds_per_million_messages"] == 15
    assert row["cpu_times"] == 10


def test_a_figure_of_the_same_messages_compares_these() -> None:
    figure = Figure(
        "match", 2_000_000, 10, Timed(2.0, 3.0), 100_000, Timed(1.0, 1.5), same=Timed(0.25, 0.5)
    )
    row = row_of(figure)
    assert row["messages_per_second"] == 1_000_000
    assert (row["times"], row["cpu_times"]) == (4, 3)


def test_what_is_measured_in_turns_is_told_by_its_medians() -> None:
    calls: list[str] = []
    one, other = in_turns(lambda: calls.append("one"), lambda: calls.append("other"), 3)
    assert calls == ["one", "other"] * 3
    assert one.seconds > 0
    assert other.seconds > 0


def test_a_servers_cpu_is_told_apart() -> None:
    row = row_of(STREAM)
    assert row["cpu_seconds_per_million_messages"] == 4.5
    assert row["server_cpu_seconds_per_million_messages"] == 2
    assert row_of(ALONE)["server_cpu_seconds_per_million_messages"] is None


def test_what_has_no_plain_form_or_no_known_cpu_says_so() -> None:
    row = row_of(ALONE)
    assert row.keys() == row_of(WITH_PLAIN).keys()
    unknown = {"times", "cpu_times", "plain_messages", "cpu_seconds_per_million_messages"}
    assert {key for key in unknown if row[key] is None} == unknown


def test_a_table_has_a_line_for_each_figure() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        print_tables(console, {"pipeline": [row_of(WITH_PLAIN), row_of(ALONE)]})
    lines = captured.get().splitlines()
    assert any("match_one_core" in line and "?" in line for line in lines)
    assert any("1,000,000" in line and "10.0" in line for line in lines)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_cpu_of_processes_below_counts_after_they_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    _, took = timed(lambda: subprocess.run([sys.executable, "-c", burn], check=True))
    assert took.cpu is not None
    assert took.cpu >= 0.29  # clock ticks are coarse
    _, idle = timed(lambda: None)
    assert idle.cpu is not None
    assert idle.cpu < 0.29


@pytest.mark.slow
def test_the_command_measures_every_figure(tmp_path: Path) -> None:
    done = mist("bench", "pipeline", *SMALL, "--json", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())  # what it made is gone
    rows = json.loads(done.stdout)["pipeline"]
    assert [row["job"] for row in rows] == [
        "match",
        "match_hard",
        "match_one_core",
        "rollup",
        "rollup_hard",
        "compact",
        "stream",
        "cluster_match",
        "cluster_rollup",
        "cluster_compact",
    ]
    assert all(row["messages_per_second"] > 0 for row in rows)
