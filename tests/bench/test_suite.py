"""Which cells there are, in which order they run, and what their rows are."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from rich.console import Console

from mist.bench import report
from mist.bench.cell import KINDS, Cell, run_cells
from mist.bench.errors import BenchError
from mist.bench.fairness.cells import ATTACKS, fairness_cells
from mist.bench.fairness.probe import Waits
from mist.bench.fairness.unfairness import Phase, Unfairness
from mist.bench.history.appends import Appends
from mist.bench.history.cells import glance_cells, history_cells
from mist.bench.history.publishing import Publishing
from mist.bench.history.replay import Replay
from mist.bench.history.search import Search
from mist.bench.history.size import FileSize
from mist.bench.http.cells import http_cells
from mist.bench.http.handshakes import Handshakes
from mist.bench.http.requests import Requests
from mist.bench.http.rounds import Round, Rounds
from mist.bench.http.streams import Streams
from mist.bench.idle import Idle
from mist.bench.latency import Latency, Quantiles
from mist.bench.load import Run
from mist.bench.match import Matched
from mist.bench.nodes.figure import Measured, NodesFigure
from mist.bench.pipeline.figure import Figure
from mist.bench.pipeline.measuring import Timed
from mist.bench.report import Result, Row, row_of
from mist.bench.script import MANY
from mist.bench.site import Site
from mist.bench.slow_consumer import SlowConsumer
from mist.bench.suite import (
    all_cells,
    fanout_cells,
    latency_cells,
    never_again_cells,
    slow_consumer_cells,
)
from mist.bench.tables import print_tables
from mist.bench.throughput import Throughput
from mist.history import Durability

HTTP = {"http_request", "ws_connect", "http_stream"}
SERVED = {"match", "publish", "fanout", "latency", "idle", "slow_consumer"} | HTTP
ROUNDS = Rounds([Round(10, 1.0, 0.001, 0.01), Round(10, 2.0, 0.005, 0.02)])
RUN = Run(10, 20, 1, 2, 3, 0.5, None, 0.1)
QUANTILES = Quantiles(1.0, 2.0, 3.0, 4.0)
WAITS = Waits([0.001, 0.002], [0.003], [0.0], 0, 0)
ELSEWHERE = Waits([0.002, 0.004], [0.006], [0.0], 0, 0)
RESULTS: dict[str, Result] = {
    "match": Matched(1, 2, (3, 10), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    "publish": Throughput(1, 0, 100, 1, 0, RUN),
    "fanout": Throughput(1, 2, 100, 1, 500, RUN),
    "latency": Latency(5_000, 1, 100, QUANTILES, QUANTILES, RUN),
    "idle": Idle(2_000, 5_000.5),
    "slow_consumer": SlowConsumer(99, 200, QUANTILES, QUANTILES, 0, 100, 50, 0),
    "http_request": Requests(
        shape="unique",
        history="sqlite",
        durability="power",
        file_system="ext4",
        size=100,
        rounds=ROUNDS,
    ),
    "ws_connect": Handshakes(True, ROUNDS),
    "http_stream": Streams(
        transport="sse",
        subscribers=2,
        rate=500,
        size=100,
        runs=[RUN],
        cpu_us=300.0,
        over_tcp_us=100.0,
        times_ws=1.5,
        alone_us=200.0,
        alone_times_ws=2.0,
    ),
    "history_append": Appends(
        durability=Durability.POWER,
        file_system="ext4",
        busy=True,
        group=100,
        tag_lists=1,
        size=100,
        ours=[0.1, 0.2, 0.5],
        bare=[0.1, 0.1, 0.1],
    ),
    "history_publish": Publishing(
        durability="power",
        file_system="ext4",
        tag_lists=3,
        window=0,
        size=100,
        runs=[attrs.evolve(RUN, server_cpu=0.001)],
        housekeeping=0.0001,
    ),
    "history_size": FileSize(
        file_system="ext4", messages=10, tag_lists=7, size=100, ours=1_500, bare=1_200
    ),
    "history_replay": Replay(
        through="tcp",
        file_system="ext4",
        messages=1_000,
        tag_lists=7,
        size=100,
        stored=110.0,
        seconds=[0.1, 0.2],
        firsts=[0.002, 0.004],
        server_cpu=0.003,
    ),
    "history_search": Search(
        through="log",
        file_system=None,
        busy=False,
        messages=1_000_000,
        tag_lists=7,
        where="spread",
        matches=1_000,
        firsts=[0.001, 0.002, 0.009],
        seconds=[0.1, 0.2, 0.9],
    ),
    "fairness": Unfairness(
        "request, batch, no right",
        "a request",
        [
            (
                Phase(WAITS, WAITS, 2.0, 0.001, 0.1),
                Phase(Waits([0.01, 0.2], [0.3], [0.0], 1, 2), ELSEWHERE, 2.5, 0.15, 1.5, 7, 6),
            ),
            (
                Phase(WAITS, WAITS, 2.0, 0.001, None),
                Phase(Waits([0.01, 0.4], [0.3], [0.0], 0, 0), ELSEWHERE, 3.5, 0.05, 2.5, 7, 6),
            ),
        ],
        finished=True,
    ),
    "nodes": NodesFigure("redis", "everysec", Measured("publish", "messages/s", [1.0, 2.0])),
    "pipeline": Figure(
        "match", 10_000_000, 100_000, Timed(9.0, 15.0), 300_000, Timed(30.0, None), 1, 2
    ),
}


class Sites:
    """Counts what is opened; each site is known by its pid."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0

    @contextmanager
    def __call__(self) -> Iterator[Site]:
        self.opened += 1
        self.open += 1
        yield Site(None, None, self.opened)
        self.open -= 1


def cell(kind: str, transport: str | None, seen: list[Any], *, alone: bool = False) -> Cell:
    def measure(site: Site) -> Result:
        seen.append((kind, transport, site.pid))
        return RESULTS[kind]

    return Cell(kind, kind, transport, measure, alone)


def test_cells_run_without_a_server_alone_and_together() -> None:
    seen: list[Any] = []
    sites = Sites()
    cells = [
        cell("fanout", "tcp", seen),
        cell("idle", "tcp", seen, alone=True),
        cell("match", None, seen),
        cell("idle", "ws", seen, alone=True),
        cell("fanout", "ws", seen),
    ]
    results: dict[str, list[Row]] = {}
    started: list[Cell] = []
    run_cells(cells, sites, results, started.append)
    assert seen == [
        ("match", None, None),
        ("idle", "tcp", 1),
        ("idle", "ws", 2),
        ("fanout", "tcp", 3),
        ("fanout", "ws", 3),
    ]
    assert (sites.opened, sites.open) == (3, 0)
    assert [each.kind for each in started] == [kind for kind, _, _ in seen]
    assert [row["transport"] for row in results["fanout"]] == ["tcp", "ws"]
    assert "transport" not in results["match"][0]


def test_what_was_measured_before_a_failure_is_kept() -> None:
    def fail(site: Site) -> Result:
        raise BenchError("no")

    results: dict[str, list[Row]] = {}
    cells = [cell("match", None, []), Cell("idle", "idle", "tcp", fail)]
    with pytest.raises(BenchError):
        run_cells(cells, Sites(), results)
    assert [*results] == ["match"]


def test_a_cell_may_make_several_rows() -> None:
    both = [RESULTS["publish"], Throughput(10, 0, 100, 1, 0, RUN)]
    results: dict[str, list[Row]] = {}
    run_cells([Cell("publish", "two", "tcp", lambda site: both)], Sites(), results)
    assert [row["publishers"] for row in results["publish"]] == [1, 10]
    assert [row["transport"] for row in results["publish"]] == ["tcp", "tcp"]


def test_nothing_but_matching_needs_no_server() -> None:
    sites = Sites()
    run_cells([cell("match", None, [])], sites, {})
    assert sites.opened == 0


@pytest.mark.parametrize("quick", [False, True])
def test_everything_is_a_bit_of_each_kind(quick: bool) -> None:
    cells = all_cells(quick=quick)
    assert {each.kind for each in cells} == SERVED | {"history_publish"}
    assert {each.transport for each in cells if each.kind == "fanout"} == {"tcp", "ws"}
    assert {each.kind for each in all_cells(["tcp"]) if each.transport == "ws"} == set()
    assert {each.kind for each in all_cells(idle=False, history=False)} == SERVED - {"idle"}
    assert {each.kind for each in all_cells(http=False)} == SERVED - HTTP | {"history_publish"}


@pytest.mark.parametrize("quick", [False, True])
def test_no_tag_list_comes_again_where_that_is_measured(quick: bool) -> None:
    cells = never_again_cells(["tcp", "ws"], quick=quick)
    assert [each.transport for each in cells] == ["tcp", "tcp", "ws", "ws"]
    for each in cells:
        options = each.measure.keywords  # type: ignore[attr-defined]
        assert options["tag_lists"] >= max(options["messages"], MANY)


def test_http_is_measured_in_all_its_kinds() -> None:
    for cells in (http_cells(), http_cells(quick=True, requests=7)):
        assert {each.kind for each in cells} == HTTP
        assert [each.label for each in cells if each.kind == "http_stream"] == [
            "event streams, 1→1 at 500 messages/s",
            "event streams, 1→50 at 500 messages/s",
            "event streams, 1→1 flat out",
            "event streams, 1→1 flat out, 5,000 tag lists",
        ]
    paced, *_ = [each for each in http_cells(subscribers=3, rate=20) if each.kind == "http_stream"]
    assert paced.label == "event streams, 1→3 at 20 messages/s"


def test_figures_of_http_are_medians_in_microseconds() -> None:
    request = row_of(RESULTS["http_request"])
    assert (request["requests"], request["rounds"]) == (20, 2)
    assert request["requests_per_second"] == pytest.approx(7.5)
    keys = [f"{which}server_cpu_us_per_request" for which in ("", "lowest_", "highest_")]
    assert [request[key] for key in keys] == pytest.approx([300, 100, 500])
    assert request["driver_cpu_us_per_request"] == pytest.approx(1_500)
    unknown = row_of(Handshakes(False, Rounds([Round(1, 1.0, None, 0.0)])))
    assert unknown["server_cpu_us_per_connect"] is None
    assert unknown["lowest_server_cpu_us_per_connect"] is None


def test_a_history_is_measured_in_all_its_kinds() -> None:
    for cells in (history_cells(), history_cells(quick=True, messages=20_000)):
        assert {each.kind for each in cells} == {
            kind for kind in KINDS if kind.startswith("history_")
        }
        assert {each.transport for each in cells} == {None}
    assert "20,000 messages" in cells[-1].label
    assert "replaying 20,000" in cells[-2].label
    assert len(glance_cells()) == 1


@pytest.mark.parametrize("quick", [False, True])
def test_a_history_is_measured_with_as_many_tag_lists_as_wished(quick: bool) -> None:
    def wished(tag_lists: int | None) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for cell in history_cells(tag_lists=tag_lists, quick=quick):
            options = inspect.getclosurevars(cell.measure).nonlocals["measure"].keywords
            (count,) = [options[key] for key in ("lists", "tag_lists") if key in options]
            found.setdefault(cell.kind, []).append(count)
        return found

    for counts in wished(225_000).values():
        assert set(counts) == {225_000}
    usual = wished(None)
    assert set(usual["history_append"]) == {1, 1_000}
    assert (usual["history_publish"], usual["history_search"]) == ([1], [1_000])
    assert usual["history_replay"] == usual["history_size"] == ([1_000] if quick else [1, 1_000])


def test_figures_of_a_history_are_medians_in_milliseconds() -> None:
    append = row_of(RESULTS["history_append"])
    assert (append["messages_per_second"], append["share"]) == pytest.approx((500, 0.5))
    assert (append["slowest_ms"], append["bare_slowest_ms"]) == pytest.approx((500, 100))
    publish = row_of(RESULTS["history_publish"])
    assert (publish["history"], publish["durability"]) == ("sqlite", "power")
    assert publish["tag_lists"] == 3
    assert publish["server_cpu_seconds_per_million_messages"] == pytest.approx(100)
    assert publish["housekeeping_cpu_seconds_per_million_messages"] == pytest.approx(10)
    replay = row_of(RESULTS["history_replay"])
    assert (replay["replays"], replay["first_ms"]) == (2, pytest.approx(3))
    assert replay["server_cpu_seconds_per_million_messages"] == pytest.approx(1.5)
    size = row_of(RESULTS["history_size"])
    assert (size["file_bytes_per_message"], size["bare_file_bytes_per_message"]) == (150, 120)
    assert (size["tag_lists"], size["times"]) == (7, 1.25)
    search = row_of(RESULTS["history_search"])
    times = (search["first_ms"], search["slowest_first_ms"], search["all_ms"])
    assert times == pytest.approx((2, 9, 200))
    assert (search["event_loop"], search["tag_lists"]) == ("idle", 7)
    assert search["us_per_match"] == pytest.approx(200)
    nowhere = attrs.evolve(RESULTS["history_search"], matches=0)  # type: ignore[arg-type]
    assert row_of(nowhere)["us_per_match"] is None


def test_fairness_has_cells_for_each_attack() -> None:
    for cells in (fairness_cells(), fairness_cells(quick=True, seconds=1, rounds=2)):
        assert {each.label for each in cells} == {f"attack: {name}" for name in ATTACKS}
        assert {(each.kind, each.transport) for each in cells} == {("fairness", None)}
    assert {each.label for each in fairness_cells(["wide"])} == {"attack: wide"}


def test_figures_of_an_attack_are_medians_and_the_longest_of_all() -> None:
    row = row_of(RESULTS["fairness"])
    assert (row["rounds"], row["played"], row["refused"]) == (2, 14, 12)
    assert (row["quiet_p99_us"], row["attacked_p99_us"]) == pytest.approx((2_000, 300_000))
    assert (row["attacked_p50_us"], row["attacked_max_us"]) == pytest.approx((300_000, 400_000))
    times = [row[f"{which}times_p99"] for which in ("lowest_", "", "highest_")]
    assert times == pytest.approx([50, 75, 100])
    assert (row["elsewhere_p99_us"], row["http_elsewhere_p99_us"]) == pytest.approx((4_000, 6_000))
    assert (row["quiet_held_ms"], row["held_ms"]) == pytest.approx((1, 150))
    assert (row["seconds"], row["server_cpu_seconds"]) == pytest.approx((3, 4))
    assert (row["unanswered"], row["hung_up"]) == (1, 2)


def test_wishes_reach_the_measurement() -> None:
    (wished,) = fanout_cells([(2, 3)], ["ws"], messages=7, window=9, size=11, tag_lists=13)
    assert wished.measure.keywords == {  # type: ignore[attr-defined]
        "publishers": 2,
        "subscribers": 3,
        "messages": 7,
        "window": 9,
        "size": 11,
        "tag_lists": 13,
    }
    assert "2→3 over ws" in wished.label
    (paced,) = latency_cells(["tcp"], rate=100, quick=True)
    assert paced.measure.keywords["messages"] == 50  # type: ignore[attr-defined]
    (slow,) = slow_consumer_cells(subscribers=11)
    options = slow.measure.keywords  # type: ignore[attr-defined]
    assert (options["healthy"], options["rate"]) == (10, 2_000)


def test_rows_have_the_keys_that_are_documented() -> None:
    assert report.__doc__ is not None
    for kind, result in RESULTS.items():
        for key in row_of(result):
            stem = re.sub(r"_(p90|p99|max)_us$", "_p50_us", key)
            if key.startswith("intended_"):
                stem = "intended_"
            assert stem in report.__doc__, f"{kind}: {key}"


def test_rates_are_over_the_seconds_of_the_run() -> None:
    row = row_of(RESULTS["fanout"])
    assert (row["messages_per_second"], row["deliveries_per_second"]) == (20, 40)
    assert row["server_cpu_seconds_per_million_deliveries"] is None
    known = row_of(Throughput(1, 2, 100, 1, 500, attrs.evolve(RUN, server_cpu=0.001)))
    assert known["server_cpu_seconds_per_million_deliveries"] == pytest.approx(50)
    assert known["server_cpu_seconds_per_million_messages"] == pytest.approx(100)


def test_tables_show_each_kind_and_what_went_wrong() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        print_tables(
            console, {kind: [{"transport": "ws", **row_of(RESULTS[kind])}] for kind in KINDS}
        )
    text = shown.get()
    assert "1 lost, 2 repeated, 3 reordered" in text
    assert "1→2" in text
    assert "…" not in text


def test_quantiles_are_those_of_all_latencies() -> None:
    found = Quantiles.of([n / 1e6 for n in range(1000, 0, -1)])
    assert (found.p50_us, found.p90_us, found.p99_us, found.max_us) == pytest.approx(
        (501, 901, 991, 1000)
    )
    assert Quantiles.of([]) == Quantiles(0, 0, 0, 0)
