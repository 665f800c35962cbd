"""Publishing end to end over TCP: to a server that keeps messages, and to one that doesn't.

All servers run at once and are loaded in turns, so that whatever else the machine does falls
on each alike. A message counts once its publisher has the proof that it was handled, which
with a history means durable, and the subscriber has it.

A server that keeps messages has something to do afterwards: it joins small blocks and indexes
them. The next one's turn begins when that is done, and what it took is counted apart.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

from mist.bench.errors import BenchError
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.stored import SIZE, serving
from mist.bench.load import Run, Target, open_load
from mist.bench.site import own_site
from mist.bench.throughput import measure_throughput
from mist.errors import MistError

__all__ = ["MODES", "Publishing", "measure_publishing", "while_publishing"]

MODES: Final = ("none", "process", "power")
"""What a published message survives: by `--durability`, or `none` for no history."""

_MOST: Final = 4_000_000  # messages a second that could be published; time ends a run, not these
_STALL_TIMEOUT: Final = 30.0  # seconds that a disk may keep everyone waiting
_REST: Final = 0.3  # seconds; a server looks after its log every quarter of one
_RESTING: Final = 0.005  # seconds of CPU in that time
_MAX_REST: Final = 20.0  # seconds
_WINDOW: Final = 500  # messages in flight, of who publishes meanwhile
_PIECE: Final = 0.2  # seconds, after which it may stop


@attrs.frozen(kw_only=True)
class Publishing:
    """What one server came to.

    Attributes:
        durability: of `MODES`.
        file_system: that the log is on; None where there is none, or it can't be told.
        tag_lists: how many different ones the messages carry, in turns.
        window: messages in flight at most; 0 for unthrottled.
        size: bytes of data in a message.
        runs: one a round.
        housekeeping: CPU seconds of the server after the runs, until it was at rest; None
            where it can't be told.
    """

    durability: str
    file_system: str | None
    tag_lists: int
    window: int
    size: int
    runs: list[Run] = attrs.field(repr=False)
    housekeeping: float | None

    @property
    def rates(self) -> list[float]:
        """Messages a second of each round."""
        return [run.messages / run.seconds for run in self.runs]

    @property
    def messages_per_second(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rates)

    @property
    def total(self) -> Run:
        """All rounds as one."""
        cpus = [run.server_cpu for run in self.runs if run.server_cpu is not None]
        return Run(
            messages=sum(run.messages for run in self.runs),
            deliveries=sum(run.deliveries for run in self.runs),
            lost=sum(run.lost for run in self.runs),
            repeated=sum(run.repeated for run in self.runs),
            reordered=sum(run.reordered for run in self.runs),
            seconds=sum(run.seconds for run in self.runs),
            server_cpu=sum(cpus) if len(cpus) == len(self.runs) else None,
            driver_cpu=sum(run.driver_cpu for run in self.runs),
        )


def measure_publishing(
    folder: Path | None,
    *,
    modes: Sequence[str] = MODES,
    windows: Sequence[int] = (0, 500),
    tag_lists: int = 1,
    seconds: float = 1.0,
    rounds: int = 3,
) -> list[Publishing]:
    """One publisher to one subscriber, for `seconds` in each round, by window and mode.

    Args:
        folder: where logs are made and removed; None for the system's place for such.
        windows: messages in flight at most; 0 for unthrottled.
        tag_lists: different ones, that messages carry in turns; each run begins with the first.

    Raises:
        BenchError: a server didn't start, or cut a connection off.
    """
    with scratch(folder) as place, ExitStack() as stack:
        targets = {}
        for mode in modes:
            log = place / f"{mode}.db"
            site = own_site() if mode == "none" else serving(log, mode)
            targets[mode] = stack.enter_context(site).target("tcp")
        system = file_system(place)
        found = []
        for window in windows:
            turns = {
                mode: _Turns(target, tag_lists, window, seconds) for mode, target in targets.items()
            }
            for _ in range(rounds):
                for each in turns.values():
                    each.take()
            found += [
                each.result(mode, None if mode == "none" else system)
                for mode, each in turns.items()
            ]
        return found


class _Turns:
    """The runs of one server."""

    def __init__(self, target: Target, tag_lists: int, window: int, seconds: float) -> None:
        self._target = target
        self._tag_lists = tag_lists
        self._window = window
        self._seconds = seconds
        self._runs: list[Run] = []
        self._housekeeping: list[float | None] = []

    def take(self) -> None:
        done = measure_throughput(
            self._target,
            messages=max(int(self._seconds * _MOST), 1),
            size=SIZE,
            tag_lists=self._tag_lists,
            window=self._window,
            seconds=self._seconds,
            stall_timeout=_STALL_TIMEOUT,
        )
        self._runs.append(done.run)
        self._housekeeping.append(_rest(self._target.cpu))

    def result(self, durability: str, system: str | None) -> Publishing:
        known = [seconds for seconds in self._housekeeping if seconds is not None]
        return Publishing(
            durability=durability,
            file_system=system,
            tag_lists=self._tag_lists,
            window=self._window,
            size=SIZE,
            runs=self._runs,
            housekeeping=sum(known) if len(known) == len(self._runs) else None,
        )


def _rest(cpu: Callable[[], float | None]) -> float | None:
    """Wait until a server is at rest; CPU seconds that it took until then."""
    begin = last = cpu()
    deadline = time.perf_counter() + _MAX_REST
    while True:
        time.sleep(_REST)
        now = cpu()
        if begin is None or last is None or now is None:
            return None
        if now - last < _RESTING or time.perf_counter() > deadline:
            return now - begin
        last = now


@contextmanager
def while_publishing(target: Target) -> Iterator[None]:
    """Have someone publish meanwhile, in a thread, to one subscriber, as fast as both can.

    Raises:
        BenchError: at the end, where that went wrong.
    """
    ended = threading.Event()
    begun = threading.Event()
    errors: list[Exception] = []

    def publish() -> None:
        try:
            with open_load(target, 1, 1, messages=10_000) as load:
                load.stall_timeout = _STALL_TIMEOUT
                begun.set()
                while not ended.is_set():
                    load.flood(_MOST, _WINDOW, _PIECE)
        except (MistError, OSError) as error:
            errors.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=publish, name="publishing")
    thread.start()
    try:
        begun.wait()
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise BenchError(f"publishing meanwhile: {errors[0]}") from errors[0]
