"""Run benchmarks with a progress bar; print tables or one JSON object, and write a page."""

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import click
from rich.console import Console

from mist.bench.cell import KINDS, Cell, run_cells
from mist.bench.duration import Estimate, busy_share, spoken
from mist.bench.errors import BenchError, NotThere
from mist.bench.page import Circumstances, bench_page
from mist.bench.process import raise_file_limit, terminable
from mist.bench.report import Row
from mist.bench.tables import print_tables, show_progress
from mist.cli.bench.settings import Settings
from mist.cli.exits import INTERRUPTED, REFUSED, UNREACHABLE, USAGE, fail
from mist.version import __version__

__all__ = ["run"]

_PIPE_WIDTH: Final = 160  # columns
_BUSY: Final = 0.1  # share of all processors at work beforehand, above which figures are unreliable


@attrs.frozen
class _Machine:
    """What figures depend on, as it was before anything was measured.

    Attributes:
        load: how many processes were at work in the minute before; None where it isn't known.
        busy: the share of all processors that was at work in the moment before.
    """

    load: float | None
    busy: float | None

    @classmethod
    def look(cls) -> "_Machine":
        """Now. Blocks for a moment."""
        try:
            load = round(os.getloadavg()[0], 2)
        except OSError:
            load = None
        busy = busy_share()
        return cls(load, None if busy is None else round(busy, 3))

    @property
    def warning(self) -> str:
        """A sentence, where the machine has other things to do; else empty."""
        if self.busy is None or self.busy < _BUSY:
            return ""
        load = "" if self.load is None else f" (load {self.load:.1f})"
        return (
            f"{self.busy:.0%} of its {os.cpu_count()} processors were at work beforehand{load}: "
            "rates and latencies are worse than they could be, CPU seconds hardly"
        )

    @property
    def facts(self) -> dict[str, object]:
        """As keys of `--json`."""
        return {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load": self.load,
            "busy": self.busy,
        }


def run(settings: Settings, cells: Sequence[Cell]) -> None:
    """Measure, then print, whatever came of it."""
    raise_file_limit()
    page = settings.html
    if page is not None and not os.access(page.parent, os.W_OK | os.X_OK):
        fail(f"--html: {page.parent} is no directory that can be written", USAGE)
    machine = _Machine.look()
    if machine.warning:
        click.echo(f"the machine is busy: {machine.warning}", err=True)
    began, clock = time.time(), time.monotonic()
    kinds = {cell.kind for cell in cells}
    results: dict[str, list[Row]] = {kind: [] for kind in KINDS if kind in kinds}
    error: BenchError | ValueError | None = None
    watch = _Watch(Estimate(cells, settings.quick))
    with terminable(), show_progress(len(cells)) as show:
        try:
            run_cells(cells, settings.open_site, results, lambda cell: show(watch.begin(cell)))
        except (BenchError, ValueError) as caught:
            error = caught
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    if error is None or any(results.values()):
        _print(settings, results, machine)
        if page is not None:
            seconds = time.monotonic() - clock
            about = _circumstances(machine, began, seconds, complete=error is None)
            _write(page, bench_page(results, about))
    if error is not None:
        where = f"{watch.label}: " if watch.label else ""
        fail(f"{where}{error}", UNREACHABLE if isinstance(error, NotThere) else REFUSED)


@attrs.define
class _Watch:
    """Which cell is measured, and how long the others will take."""

    estimate: Estimate
    label: str = ""
    _cell: Cell | None = None
    _since: float = 0.0

    def begin(self, cell: Cell) -> str:
        """A cell begins, the one before has ended. What a person is shown."""
        now = time.monotonic()
        if self._cell is not None:
            self.estimate.done(self._cell, now - self._since)
        self._cell, self._since, self.label = cell, now, cell.label
        return f"{spoken(self.estimate.seconds)} left: {cell.label}"


def _print(settings: Settings, results: Mapping[str, Sequence[Row]], machine: _Machine) -> None:
    if settings.as_json:
        click.echo(json.dumps({**machine.facts, **results}))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)  # nothing is cut where nobody could widen it
    words = [f"Python {platform.python_version()}", f"{os.cpu_count()} processors"]
    if machine.load is not None:
        words.append(f"load {machine.load:.1f} beforehand")
    console.print(", ".join(words), highlight=False)
    print_tables(console, results)


def _circumstances(
    machine: _Machine, began: float, seconds: float, *, complete: bool
) -> Circumstances:
    facts = [
        ("Python", platform.python_version()),
        ("processors", f"{os.cpu_count()}, {platform.machine()}"),
        ("system", f"{platform.system()} {platform.release()}"),
    ]
    if machine.load is not None:
        facts.append(("load beforehand", f"{machine.load:.1f}"))
    by = f"{click.get_current_context().command_path}, mist {__version__}"
    return Circumstances(began, seconds, facts, machine.warning, complete, by)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        fail(f"--html: {path}: {error.strerror}", REFUSED)
