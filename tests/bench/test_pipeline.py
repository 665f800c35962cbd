"""What the pipeline's figures say, and that CPU of processes below ours counts."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from rich.console import Console

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.pipeline.cells import JOBS, pipeline_cells
from mist.bench.pipeline.compared import Compared
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed, in_turns, timed
from mist.bench.pipeline.sizes import Sizes
from mist.bench.report import row_of
from mist.bench.tables import print_tables
from mist.pipeline.progress import silent
from tests.processes import mist

SMALL = ("--messages", "20000", "--subscriptions", "500", "--rounds", "1")

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


def test_each_round_is_told() -> None:
    told: list[str] = []
    in_turns(lambda: None, lambda: None, 2, told.append)
    assert [line.partition(":")[0] for line in told] == ["round 1 of 2", "round 2 of 2"]
    assert all(" s" in line and "plain" in line for line in told)


def tables(ours: list[int], plainly: list[int]) -> tuple[Compared, list[tuple[str, int]]]:
    """A job and its plain form that count something, and the calls of both."""
    calls: list[tuple[str, int]] = []

    def giving(name: str, counts: list[int]) -> Callable[[int], pa.Table]:
        def call(upto: int) -> pa.Table:
            calls.append((name, upto))
            return pa.table({"tag": [f"t{n}" for n in counts], "messages": counts})

        return call

    return Compared("job", giving("ours", ours), giving("plain", plainly), ["tag"], 5, 9), calls


def test_a_job_and_its_plain_form_go_over_the_same_messages_in_turns() -> None:
    compared, calls = tables([1, 2, 3], [3, 1, 2])  # an order is not compared
    compared.run(2, silent)
    turns = [("ours", 5), ("plain", 5)]
    assert calls == [*turns, *turns, *turns, ("ours", 9)]
    calls.clear()
    same, _, took = attrs.evolve(compared, upto=9).run(1, silent)
    assert calls == [("ours", 9), ("plain", 9)] * 2
    assert took is same


def test_a_plain_form_that_gives_something_else_ends_it() -> None:
    compared, calls = tables([1, 2, 3], [1, 2])
    with pytest.raises(BenchError, match="job: the plain form gives something else"):
        compared.run(2, silent)
    assert len(calls) == 2


def sizes_of(cell: Cell) -> Sizes:
    sizes = cell.measure.args[1]  # type: ignore[attr-defined]
    assert isinstance(sizes, Sizes)
    return sizes


def test_each_job_is_a_cell() -> None:
    for cells in (pipeline_cells(), pipeline_cells(quick=True)):
        assert [each.label for each in cells] == [f"pipeline: {job}" for job in JOBS]
    (only,) = pipeline_cells(["rollup"], rounds=5)
    assert only.label == "pipeline: rollup"
    assert sizes_of(only) == Sizes(rounds=5)


def test_no_part_is_larger_than_the_whole() -> None:
    (few,) = pipeline_cells(["match"], messages=2_000)
    given = sizes_of(few)
    assert (given.messages, given.plain_messages, given.hard, given.few) == (2_000,) * 4
    (part,) = pipeline_cells(["match"], messages=2_000, plain_messages=100)
    assert sizes_of(part).plain_messages == 100
    (quick,) = pipeline_cells(["match"], plain_messages=9_000_000, quick=True)
    assert sizes_of(quick).plain_messages == sizes_of(quick).messages == 500_000


@pytest.mark.slow
def test_the_command_measures_every_figure(tmp_path: Path) -> None:
    done = mist("bench", "pipeline", *SMALL, "--json", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())  # what it made is gone
    assert "match: round 1 of 1: " in done.stderr
    rows = json.loads(done.stdout)["pipeline"]
    assert [row["job"] for row in rows] == [
        "match",
        "match_hard",
        "match_one_core",
        "rollup",
        "rollup_hard",
        "compact",
        "rollup_small",
        "stream",
        "cluster_match",
        "cluster_rollup",
        "cluster_compact",
    ]
    assert all(row["messages_per_second"] > 0 for row in rows)
