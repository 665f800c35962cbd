"""Run benchmarks with a progress bar; print tables or one JSON object."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.console import Console

from mist.bench.cell import KINDS, Cell, run_cells
from mist.bench.errors import BenchError, NotThere
from mist.bench.process import raise_file_limit, terminable
from mist.bench.report import Row
from mist.bench.tables import print_tables, show_progress
from mist.cli.bench.settings import Settings
from mist.cli.exits import INTERRUPTED, REFUSED, UNREACHABLE, fail

__all__ = ["run"]

_PIPE_WIDTH: Final = 160  # columns


def run(settings: Settings, cells: Sequence[Cell]) -> None:
    """Measure, then print, whatever came of it."""
    raise_file_limit()
    load = _load()
    kinds = {cell.kind for cell in cells}
    results: dict[str, list[Row]] = {kind: [] for kind in KINDS if kind in kinds}
    error: BenchError | ValueError | None = None
    current = ""
    with terminable(), show_progress(len(cells)) as show:

        def started(cell: Cell) -> None:
            nonlocal current
            current = cell.label
            show(current)

        try:
            run_cells(cells, settings.open_site, results, started)
        except (BenchError, ValueError) as caught:
            error = caught
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    if error is None or any(results.values()):
        _print(settings, results, load)
    if error is not None:
        where = f"{current}: " if current else ""
        fail(f"{where}{error}", UNREACHABLE if isinstance(error, NotThere) else REFUSED)


def _print(settings: Settings, results: Mapping[str, Sequence[Row]], load: float | None) -> None:
    about = {"python": platform.python_version(), "processors": os.cpu_count(), "load": load}
    if settings.as_json:
        click.echo(json.dumps({**about, **results}))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)  # nothing is cut where nobody could widen it
    words = [f"Python {about['python']}", f"{about['processors']} processors"]
    if load is not None:
        words.append(f"load {load:.1f} beforehand")
    console.print(", ".join(words), highlight=False)
    print_tables(console, results)


def _load() -> float | None:
    """How many processes were at work in the minute before; None where it can't be told."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
