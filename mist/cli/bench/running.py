"""Measuring, with a bar for whoever waits; then tables, or one JSON object."""

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
from mist.cli.common import INTERRUPTED, REFUSED, UNREACHABLE, fail

__all__ = ["run"]

_PIPE_WIDTH: Final = 120  # columns


def run(settings: Settings, cells: Sequence[Cell]) -> None:
    """Measure, then print, whatever came of it."""
    raise_file_limit()
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
        _print(settings, results)
    if error is not None:
        where = f"{current}: " if current else ""
        fail(f"{where}{error}", UNREACHABLE if isinstance(error, NotThere) else REFUSED)


def _print(settings: Settings, results: Mapping[str, Sequence[Row]]) -> None:
    about = {"python": platform.python_version(), "processors": os.cpu_count()}
    if settings.as_json:
        click.echo(json.dumps({**about, **results}))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)  # nothing is cut where nobody could widen it
    console.print(f"Python {about['python']}, {about['processors']} processors", highlight=False)
    print_tables(console, results)
