"""Which figures of the history are measured, and how large."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from mist.bench.cell import Cell
from mist.bench.history.appends import measure_appends
from mist.bench.history.publishing import MODES, measure_publishing
from mist.bench.history.replay import measure_replay
from mist.bench.history.search import measure_search
from mist.bench.history.size import measure_size
from mist.bench.report import Result
from mist.bench.site import Site
from mist.history import Durability

__all__ = ["glance_cells", "history_cells"]

_EXTREMES: Final = (MODES[0], MODES[-1])
_REPLAYED: Final = 500_000  # messages, at most; as many for the size of a file
_SEARCHED: Final = 1_000  # tag lists


def history_cells(
    folder: Path | None = None,
    *,
    messages: int | None = None,
    tag_lists: int | None = None,
    seconds: float | None = None,
    busy: bool = True,
    quick: bool = False,
) -> list[Cell]:
    """All figures of the history: about two minutes, or (`quick`) some fifteen seconds.

    Args:
        folder: where logs are made and removed; None for the system's place for such.
        messages: to search among; at most 500,000 of them are replayed, and make the file that is
            looked at. None for a million.
        tag_lists: different ones, that messages carry in turns. None for 1 and 1,000: both, or
            one of them, as fits the figure.
        seconds: for each figure; None for one.
        busy: whether the log is measured beside a saturated event loop.
    """
    messages = messages or (100_000 if quick else 1_000_000)
    seconds = seconds or (0.2 if quick else 1.0)
    sizes = (2_000,) if quick else (500, 2_000, 10_000)
    both = (1, 1_000) if tag_lists is None else (tag_lists,)
    larger = both[-1:]
    shapes = product((Durability.POWER, Durability.PROCESS), sizes, both)
    appends = [
        _cell(
            "history_append",
            f"appending {group:,} at a time, durability {durability.value}",
            partial(
                measure_appends,
                folder,
                durability=durability,
                group=group,
                lists=lists,
                seconds=seconds,
                busy=busy,
            ),
        )
        for durability, group, lists in shapes
    ]
    publishing = _cell(
        "history_publish",
        "publishing with a history and without",
        partial(
            measure_publishing,
            folder,
            modes=_EXTREMES if quick else MODES,
            tag_lists=tag_lists or 1,
            seconds=seconds,
            rounds=1 if quick else 3,
        ),
    )
    replayed = min(messages, _REPLAYED)
    replays = [
        _cell(
            "history_replay",
            f"storing and replaying {replayed:,} messages",
            partial(
                measure_replay,
                folder,
                messages=replayed,
                lists=lists,
                seconds=seconds,
                busy=busy,
            ),
        )
        for lists in (larger if quick else both)
    ]
    file_sizes = [
        _cell(
            "history_size",
            f"storing {replayed:,} messages, and as many bare rows",
            partial(measure_size, folder, messages=replayed, lists=lists),
        )
        for lists in (larger if quick else both)
    ]
    search = _cell(
        "history_search",
        f"storing {messages:,} messages and looking for 1,000",
        partial(
            measure_search,
            folder,
            messages=messages,
            lists=tag_lists or _SEARCHED,
            seconds=seconds,
            busy=busy,
        ),
    )
    return [*appends, publishing, *file_sizes, *replays, search]


def glance_cells(*, quick: bool = False) -> list[Cell]:
    """What a history costs a publisher, at a glance: a few seconds."""
    return [
        _cell(
            "history_publish",
            "publishing with a history and without",
            partial(
                measure_publishing,
                None,
                modes=_EXTREMES,
                windows=(0,),
                seconds=0.1 if quick else 0.3,
                rounds=1,
            ),
        )
    ]


def _cell(kind: str, label: str, measure: Callable[[], Result | Sequence[Result]]) -> Cell:
    """A cell that needs no server but those it starts itself."""

    def at(_: Site) -> Result | Sequence[Result]:
        return measure()

    return Cell(kind, label, None, at)
