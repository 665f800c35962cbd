"""A server that notes for how long it held its event loop.

Run it as a module, in place of `mist serve`.

What counts is one *pass* of the loop, from one poll for I/O to the next, by the CPU time of the
loop's thread. Nobody else is served meanwhile, and what other processes or threads do isn't in
it. A timer that fires late would show a part of it only: those passes in which it was due.

The longest pass is in a file that both processes map, so that it can be read, and set to zero,
while the server is too busy to answer.
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

from mist import collector, logs
from mist.bench.process import Started, start_server
from mist.config import load_config
from mist.server import serve

__all__ = ["LoopWatch", "Watched", "start_watched"]

_BYTES: Final = 8  # of a double


class LoopWatch(trio.abc.Instrument):
    """Keeps the longest pass of the event loop.

    Args:
        longest: seconds of CPU, one number that others may set back.
    """

    def __init__(self, longest: "memoryview[float]") -> None:
        self._longest = longest
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        """A pass begins; called by trio."""
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        """A pass has ended; called by trio."""
        held = time.thread_time() - self._began
        if held > self._longest[0]:
            self._longest[0] = held


@attrs.frozen
class Watched:
    """A watched server, seen from outside."""

    server: Started
    _longest: "memoryview[float]"

    def take_longest(self) -> float:
        """The longest pass since it was taken last, in seconds of CPU."""
        found = self._longest[0]
        self._longest[0] = 0.0
        return found


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
        _mapped(path) as longest,
        start_server(*options, history=history, nats=nats, command=command) as server,
    ):
        yield Watched(server, longest)


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
    config = load_config(_flags(arguments), os.environ)
    logs.configure(config.log_format, config.log_level)
    collector.settle()
    with _mapped(path) as longest:
        trio.run(serve, config, _announce, instruments=[LoopWatch(longest)])


def _announce(url: str) -> None:
    print(f"listening on {url}", flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
