"""A *cell* is one measurement and makes one row, or a few; running them one after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

import attrs

from mist.bench.report import Result, Row, row_of
from mist.bench.site import Site

__all__ = ["KINDS", "TRANSPORTS", "Cell", "run_cells"]

KINDS: Final = (
    "match",
    "publish",
    "fanout",
    "latency",
    "idle",
    "slow_consumer",
    "http_request",
    "ws_connect",
    "http_stream",
    "history_append",
    "history_publish",
    "history_size",
    "history_replay",
    "history_search",
    "fairness",
    "nodes",
    "pipeline",
)
TRANSPORTS: Final = ("tcp", "ws")

_NOWHERE: Final = Site(None, None, None)


@attrs.frozen
class Cell:
    """One measurement.

    Attributes:
        kind: of `KINDS`; which list its row goes to.
        label: what is measured, for a person who waits.
        transport: what is measured of a server: `tcp`, `ws`, `http` or `sse`; None where no
            server takes part, or one that the measurement starts itself.
        share: of the time that its kind usually takes.
        alone: whether it needs a server that nothing was measured on before.
        measure: makes it, or several of one kind that only mean something together; at a
            site without endpoints where `transport` is None.
    """

    kind: str
    label: str
    transport: str | None
    measure: Callable[[Site], Result | Sequence[Result]]
    alone: bool = False
    share: float = 1.0


def run_cells(
    cells: Sequence[Cell],
    open_site: Callable[[], AbstractContextManager[Site]],
    results: dict[str, list[Row]],
    started: Callable[[Cell], None] = lambda cell: None,
) -> None:
    """Run all: those without a server, those that need one alone, then the others.

    Args:
        open_site: opens a server; called for each cell that needs one alone, and once for all
            others.
        results: where rows are added for each cell that is done, under its kind.
        started: called before each.

    Raises:
        BenchError: from the first cell that couldn't be measured; rows so far are kept.
    """

    def run(cell: Cell, site: Site) -> None:
        started(cell)
        made = cell.measure(site)
        rows = [row_of(each) for each in (made if isinstance(made, Sequence) else [made])]
        if cell.transport is not None:
            rows = [{"transport": cell.transport, **row} for row in rows]
        results.setdefault(cell.kind, []).extend(rows)

    served = [cell for cell in cells if cell.transport is not None]
    for cell in cells:
        if cell.transport is None:
            run(cell, _NOWHERE)
    for cell in served:
        if cell.alone:
            with open_site() as site:
                run(cell, site)
    shared = [cell for cell in served if not cell.alone]
    if shared:
        with open_site() as site:
            for cell in shared:
                run(cell, site)
