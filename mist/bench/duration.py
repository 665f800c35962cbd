"""How long a run will take, and whether the machine has anything else to do.

The estimate begins with what each kind of measurement took where it was tried, and goes on with
what those of this run took: a slower machine is noticed after the first of them.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from mist.bench.cell import Cell

__all__ = ["Estimate", "busy_share", "spoken"]

_STAT: Final = Path("/proc/stat")
_SAMPLE: Final = 0.3  # seconds
_NONE: Final = 1.0  # seconds, of a kind that the table lacks

# Seconds for one cell: whole, and with --quick; about, on a machine with little else to do.
_SECONDS: Final[Mapping[str, tuple[float, float]]] = {
    "match": (5.0, 0.7),
    "publish": (2.0, 0.2),
    "fanout": (1.8, 0.3),
    "latency": (5.5, 0.7),
    "idle": (4.0, 1.5),
    "slow_consumer": (8.0, 1.5),
    "http_request": (18.0, 1.0),
    "ws_connect": (10.0, 0.5),
    "http_stream": (11.0, 1.0),
    "history_append": (2.2, 0.8),
    "history_publish": (50.0, 5.0),
    "history_size": (6.0, 2.0),
    "history_replay": (6.0, 2.0),
    "history_search": (20.0, 3.0),
    "fairness": (30.0, 4.0),
    "nodes": (50.0, 20.0),
    "pipeline": (180.0, 25.0),
}


@attrs.define
class Estimate:
    """What is left of a run.

    Args:
        cells: to be measured.
        quick: whether with --quick.
    """

    cells: Sequence[Cell]
    quick: bool
    _expected: float = attrs.field(init=False, default=0.0)  # of those that are done
    _spent: float = attrs.field(init=False, default=0.0)
    _left: float = attrs.field(init=False)

    @_left.default
    def _all(self) -> float:
        return sum(map(self._of, self.cells))

    @property
    def seconds(self) -> float:
        """Left, as far as is known now.

        Half of the weight is with the table until as much as half a minute of it is done.
        """
        trust = self._expected / (self._expected + 15.0)
        pace = self._spent / self._expected if self._expected else 1.0
        return self._left * (trust * pace + (1 - trust))

    def done(self, cell: Cell, seconds: float) -> None:
        """A cell has taken so long."""
        expected = self._of(cell)
        self._expected += expected
        self._left = max(self._left - expected, 0.0)
        self._spent += seconds

    def _of(self, cell: Cell) -> float:
        whole, quick = _SECONDS.get(cell.kind, (_NONE, _NONE))
        return quick if self.quick else whole * cell.share


def spoken(seconds: float) -> str:
    """`about 40 s`, `about 3 min`: no more digits than are known."""
    if seconds < 10:
        return f"about {max(round(seconds), 1)} s"
    if seconds < 90:
        return f"about {round(seconds / 5) * 5} s"
    return f"about {round(seconds / 60)} min"


def busy_share(seconds: float = _SAMPLE, place: Path = _STAT) -> float | None:
    """The share of all processors that is at work now; None where the system doesn't tell.

    Looked at for a moment, since the load average goes on for minutes after what has ended, such as
    the benchmark before this one. Blocks.
    """
    before = _times(place)
    if before is None:
        return None
    time.sleep(seconds)
    after = _times(place)
    if after is None or after[1] <= before[1]:
        return None
    return min(max(1 - (after[0] - before[0]) / (after[1] - before[1]), 0.0), 1.0)


def _times(place: Path) -> tuple[int, int] | None:
    """Idle and all time of all processors together, in ticks (proc(5))."""
    try:
        words = place.read_text().partition("\n")[0].split()
        numbers = [int(word) for word in words[1:9]]
        return numbers[3] + numbers[4], sum(numbers)
    except (OSError, ValueError, IndexError):
        return None
