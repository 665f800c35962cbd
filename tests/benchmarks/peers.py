"""mist beside NATS, Redis and bare loops: the same driver, the same shapes, the same minutes.

    python -m tests.benchmarks.peers                             all of it, some two minutes
    python -m tests.benchmarks.peers --shapes '1-100*' --rounds 5
    python -m tests.benchmarks.peers --shapes latency --pin
    python -m tests.benchmarks.peers --list

Printed are medians over the rounds of the server's CPU seconds (user and system, all threads)
per million deliveries; a round takes every server once for a shape before the next shape.
The last column is mist over the better of NATS and Redis. Rates, which move with whatever
else the machine does, are in the JSON.

Shapes are named PUBLISHERS-SUBSCRIBERS[-mixed|-new][-unthrottled]. 100 bytes of data; at most 500
messages in flight, so that nothing has to be dropped, or as fast as the server reads. *mixed*:
messages have 100 tag lists (subjects, channels) in turns, all beginning with one tag to which
every subscriber subscribes: that tag with mist, `bench.>` with NATS, PSUBSCRIBE `bench,*` with
Redis. *new*: so do those, but each message has three more tags that no other has.

For latency there are two more servers, which only forward: *trio*, a loop as simple as one on
that library can be, and *epoll*, one in C. `--pin` keeps the servers on one processor and the
driver on another. Without it the system moves them about, and a server that is still busy
with the message before may stand in the way of its own reader: medians then differ by half from
one minute to the next.

A subscriber that falls behind costs mist messages (counted as lost), and NATS and Redis the
connection: their defaults. A run in which anything was lost or cut is marked.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatch
from itertools import product
from typing import Final

import attrs
from rich.console import Console
from rich.table import Table

from mist.bench.errors import BenchError
from mist.bench.latency import Latency, measure_latency
from mist.bench.load import Run, Target, open_load
from mist.bench.process import raise_file_limit, terminable
from mist.bench.script import MANY, NEVER_AGAIN, lists_that_never_come_again
from tests.benchmarks.peers_servers import SERVERS, Missing, bare, epoll

__all__ = ["SHAPES", "Shape", "main"]

SIZE: Final = 100  # bytes of data
WINDOW: Final = 500  # messages in flight
SECONDS: Final = 20.0  # that a run may publish
DELIVERIES: Final = 1_000_000  # of a run, about
MAX_MESSAGES: Final = 400_000  # of a run
RATE: Final = 5_000  # messages a second, for latency
PACED: Final = 10_000  # messages of a latency run


@attrs.frozen
class Shape:
    """What is published, to which subscribers, and how."""

    publishers: int
    subscribers: int
    lists: int = 1
    window: int = WINDOW

    @property
    def name(self) -> str:
        """As `--shapes` takes it."""
        mixed = "" if self.lists == 1 else "-new" if self.lists >= MANY else "-mixed"
        unthrottled = "" if self.window else "-unthrottled"
        return f"{self.publishers}-{self.subscribers}{mixed}{unthrottled}"

    def measure(self, target: Target, scale: float) -> Run:
        """One run on connections of its own."""
        most = NEVER_AGAIN if self.lists >= MANY else MAX_MESSAGES
        messages = int(min(DELIVERIES / self.subscribers, most) * scale)
        with open_load(
            target,
            self.publishers,
            self.subscribers,
            messages=messages,
            size=SIZE,
            lists=self.lists,
        ) as load:
            return load.flood(messages, self.window, SECONDS)


SHAPES: Final = [
    Shape(publishers, subscribers, lists, window)
    for window in (WINDOW, 0)
    for lists in (1, 100)
    for publishers, subscribers in ((1, 1), (1, 10), (1, 100), (10, 10))
]
NEW: Final = lists_that_never_come_again(NEVER_AGAIN)
SHAPES += [Shape(1, 1, NEW), Shape(1, 10, NEW)]
LATENCY: Final = "latency"
EPOLL: Final = "epoll"
LOOPS: Final = {"trio": bare, EPOLL: epoll}  # take part in latency only


Cell = list[Run | str]
"""One server's runs of a shape: what they came to, or why they came to nothing."""


@attrs.define
class Results:
    """All that was measured, by shape and server, in the order of the rounds."""

    runs: dict[str, dict[str, Cell]] = attrs.field(factory=dict)
    latency: dict[str, list[Latency]] = attrs.field(factory=dict)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = _parse(arguments)
    if options.list:
        print(*(shape.name for shape in SHAPES), LATENCY, sep="\n")
        return
    raise_file_limit()
    with terminable():
        results = _measure(options, Console(stderr=True))
    if options.json:
        print(json.dumps(_as_json(results)))
        return
    _print_shapes(results.runs)
    _print_latency(results.latency)


def _measure(options: argparse.Namespace, console: Console) -> Results:
    results = Results()
    shapes = [shape for shape in SHAPES if _chosen(shape.name, options.shapes)]
    latency = _chosen(LATENCY, options.shapes)
    servers = [name for name in options.servers if latency or name not in LOOPS]
    with ExitStack() as stack, console.status("starting") as status:
        if options.pin:
            _pin(-1)  # which the servers inherit
        targets = dict(_start(servers, stack, console))
        if options.pin:
            _pin(0)
        flooded = {name: target for name, target in targets.items() if name not in LOOPS}
        for number in range(1, options.rounds + 1):
            for shape, (name, target) in product(shapes, flooded.items()):
                status.update(f"round {number}: {shape.name}, {name}")
                cell = results.runs.setdefault(shape.name, {}).setdefault(name, [])
                cell.append(_attempt(shape, target, options.scale))
            for name, target in targets.items() if latency else ():
                status.update(f"round {number}: {LATENCY}, {name}")
                found = measure_latency(target, rate=RATE, messages=PACED, size=SIZE)
                results.latency.setdefault(name, []).append(found)
    return results


PROCESSORS: Final = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def _pin(number: int) -> None:
    """Keep this process on one of the processors that it may use."""
    os.sched_setaffinity(0, {PROCESSORS[number]})


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (3)")
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="shapes to run, as `1-100*`; also `latency`",
    )
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=[*SERVERS, *LOOPS],
        default=[*SERVERS, *LOOPS],
        metavar="NAME",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer messages (1.0)")
    parser.add_argument(
        "--pin", action="store_true", help="servers on one processor, the driver on another (Linux)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--list", action="store_true", help="name all shapes")
    options = parser.parse_args(arguments)
    if options.pin and len(PROCESSORS) < 2:
        parser.error("--pin takes Linux and two processors")
    if options.rounds < 1 or not 0 < options.scale <= 100:
        parser.error("--rounds is at least 1, --scale above 0 and at most 100")
    return options


def _chosen(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _start(names: list[str], stack: ExitStack, console: Console) -> Iterator[tuple[str, Target]]:
    for name in names:
        make = LOOPS.get(name) or SERVERS[name]
        try:
            yield name, stack.enter_context(make())
        except Missing as error:
            console.print(f"left out: {error}")


def _attempt(shape: Shape, target: Target, scale: float) -> Run | str:
    """A run, or why there is none."""
    try:
        return shape.measure(target, scale)
    except BenchError as error:
        return str(error)


def _cost(cell: Cell) -> float | None:
    """Median CPU seconds per million deliveries; None where not one run came to an end."""
    found = [run.cpu_per_million_deliveries for run in cell if isinstance(run, Run)]
    return statistics.median([each for each in found if each is not None]) if found else None


def _ratio(costs: dict[str, float | None]) -> float | None:
    peers = [cost for name in ("nats", "redis") if (cost := costs.get(name)) is not None]
    mist = costs.get("mist")
    return mist / min(peers) if peers and mist is not None else None


def _print_shapes(runs: dict[str, dict[str, Cell]]) -> None:
    if not runs:
        return
    console = Console()
    names = list(next(iter(runs.values())))
    table = Table(
        "shape", *names, "mist / better", title="server CPU seconds per million deliveries"
    )
    remarks = []
    for shape, cells in runs.items():
        costs = {name: _cost(cell) for name, cell in cells.items()}
        row = []
        for name, cell in cells.items():
            cost = costs[name]
            remark = _remark(cell)
            remarks += [f"{shape}, {name}: {remark}"] if remark else []
            row.append(("-" if cost is None else f"{cost:.3f}") + ("*" if remark else ""))
        ratio = _ratio(costs)
        table.add_row(shape, *row, "-" if ratio is None else f"{ratio:.2f}")
    _show(console, table)
    for remark in remarks:
        console.print(f"* {remark}", highlight=False)


def _remark(cell: Cell) -> str:
    """What went wrong in any of the runs."""
    failed = {run for run in cell if isinstance(run, str)}
    done = [run for run in cell if isinstance(run, Run)]
    expected = sum(run.deliveries + run.lost for run in done)
    faults = [f"{sum(run.lost for run in done) / expected:.1%} lost"] if expected else []
    faults = faults if any(run.lost for run in done) else []
    faults += [f"{n} repeated" for n in [sum(run.repeated for run in done)] if n]
    faults += [f"{n} reordered" for n in [sum(run.reordered for run in done)] if n]
    return ", ".join([*faults, *sorted(failed)])


def _print_latency(paced: dict[str, list[Latency]]) -> None:
    if not paced:
        return
    table = Table(
        *("server", "p50", "p99", "intended p50", "CPU s/M", "p50 / epoll"),
        title=f"latency in µs at {RATE:,} messages/s, 1-1",
    )
    p50 = {n: statistics.median(each.written.p50_us for each in rows) for n, rows in paced.items()}
    for name, rows in paced.items():
        p99 = statistics.median(each.written.p99_us for each in rows)
        intended = statistics.median(each.intended.p50_us for each in rows)
        cost = _cost([each.run for each in rows])
        table.add_row(
            name,
            f"{p50[name]:.0f}",
            f"{p99:.0f}",
            f"{intended:.0f}",
            "-" if cost is None else f"{cost:.2f}",
            f"{p50[name] / p50[EPOLL]:.2f}" if EPOLL in p50 else "-",
        )
    _show(Console(), table)


def _show(console: Console, table: Table) -> None:
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)


def _as_json(results: Results) -> dict[str, object]:
    def rows(cell: Cell) -> list[object]:
        return [attrs.asdict(run) if isinstance(run, Run) else {"failed": run} for run in cell]

    shapes: dict[str, object] = {}
    for shape, cells in results.runs.items():
        costs = {name: _cost(cell) for name, cell in cells.items()}
        shapes[shape] = {
            "server_cpu_seconds_per_million_deliveries": costs,
            "mist_over_better": _ratio(costs),
            "runs": {name: rows(cell) for name, cell in cells.items()},
        }
    latency = {name: [attrs.asdict(row) for row in rows] for name, rows in results.latency.items()}
    return {"shapes": shapes, "latency": latency}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
