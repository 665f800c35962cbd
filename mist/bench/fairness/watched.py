"""A server that notes for how long it held its event loop.

Run it as a module, in place of `mist serve`.

What counts is one *pass* of the loop, from one poll for I/O to the next, by the CPU time of the
loop's thread. Nobody else is served meanwhile, and what other processes or threads do isn't in
it. A timer that fires late would show a part of it only: those passes in which it was due.

The longest pass is in a file that both processes map, so that it can be read, and set to zero,
while the server is too busy to answer. Of a pass that goes on it says when it began.
"""

import mmap
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from mist import allocator, collector, descriptors, logs
from mist.bench.process import Started, cpu_seconds, start_server
from mist.config import load_config
from mist.serving import serve

__all__ = ["LoopWatch", "Watched", "start_watched"]

_LONGEST, _BEGAN = 0, 1  # places of the numbers
_BYTES: Final = 16  # of these doubles


class LoopWatch(trio.abc.Instrument):
    """Keeps the longest pass of the event loop.

    Args:
        numbers: the longest pass, seconds of CPU, which others may set back; and the CPU time of
            the process when this pass began, 0 between two.
    """

    def __init__(self, numbers: "memoryview[float]") -> None:
        self._numbers = numbers
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        """A pass begins; called by trio."""
        self._began = time.thread_time()
        self._numbers[_BEGAN] = time.process_time()

    def before_io_wait(self, timeout: float) -> None:
        """A pass has ended; called by trio."""
        held = time.thread_time() - self._began
        self._numbers[_BEGAN] = 0.0
        if held > self._numbers[_LONGEST]:
            self._numbers[_LONGEST] = held


@attrs.frozen
class Watched:
    """A watched server, seen from outside."""

    server: Started
    _numbers: "memoryview[float]"

    def take_longest(self) -> float:
        """The longest pass since it was taken last, in seconds of CPU.

        One that goes on counts by what the whole process has taken since it began.
        """
        found, began = self._numbers[_LONGEST], self._numbers[_BEGAN]
        self._numbers[_LONGEST] = 0.0
        cpu = cpu_seconds(self.server.pid) if began else None
        return found if cpu is None else max(found, cpu - began)


@contextmanager
def start_watched(
    folder: Path, *options: str, history: str = "none", nats: bool = False
) -> Iterator[Watched]:
    """`start_server`, watched.

    Args:
        folder: where the file is made.

    Raises:
        BenchError: it didn't start.
    """
    path = folder / "loop"
    path.write_bytes(bytes(_BYTES))
    command = ("mist.bench.fairness.watched", str(path))
    with (
        _mapped(path) as numbers,
        start_server(*options, history=history, nats=nats, command=command) as server,
    ):
        yield Watched(server, numbers)


@contextmanager
def _mapped(path: Path) -> "Iterator[memoryview[float]]":
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), _BYTES) as shared,
        memoryview(shared) as raw,
        raw.cast("d") as numbers,
    ):
        yield numbers


def _flags(arguments: Sequence[str]) -> dict[str, object]:
    """Options of `mist serve` as its configuration takes them, a name and a value each."""
    flags: dict[str, list[str]] = {}
    for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
        flags.setdefault(flag.removeprefix("--").replace("-", "_"), []).append(value)
    return {
        name: tuple(values) if name in ("listen", "keep") else values[0]
        for name, values in flags.items()
    }


def _main(path: Path, arguments: Sequence[str]) -> None:
    allocator.settle()
    config = load_config(_flags(arguments), os.environ)
    logs.configure(config.log_format, config.log_level)
    descriptors.reserve(config.max_connections)
    collector.settle()
    with _mapped(path) as numbers:
        trio.run(serve, config, _announce, instruments=[LoopWatch(numbers)])


def _announce(url: str) -> None:
    print(f"listening on {url}", flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
