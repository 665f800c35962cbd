"""Instructions of a server for each message, of this source tree and of others.

    python -m tests.benchmarks.instructions [--tree DIR]...    needs valgrind

A publisher sends messages of 100 bytes, each batch when the one before it has been delivered, so
that a server of any speed does nearly the same. What the start takes is left out: each figure is
the difference of a long run and a short one. So is what a server does each second: the same of two
idle ones tells how much that is. Not left out is whether a batch is read in one piece, by which
figures differ where a machine is busy now and then. Of Python alone, since the other trees may not
be compiled.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.processes import dial, environment

HERE = Path(__file__).parents[2]
SECONDS = 600.0  # what nothing takes
IDLE = (1.0, 21.0)  # seconds, of a short and of a long run


@attrs.frozen
class Shape:
    """What is published.

    Attributes:
        batch: messages at a time.
        fresh: whether each has three tags that no other one has.
    """

    batch: int
    fresh: bool = False

    @property
    def messages(self) -> tuple[int, int]:
        """Of a short and of a long run."""
        return (2_000, 12_000) if self.batch > 1 else (200, 1_200)

    def lines(self, first: int) -> bytes:
        """A batch; `first` is the number of its first message."""
        data = "x" * 100
        return "".join(
            f"publish {self._tags(number)} {data}\n" for number in range(first, first + self.batch)
        ).encode()

    def _tags(self, number: int) -> str:
        return f"order,x{number},y{number},z{number}" if self.fresh else "eu,order"


SHAPES = {
    "100 at a time, one tag list": Shape(100),
    "100 at a time, tags never again": Shape(100, fresh=True),
    "one at a time": Shape(1),
}
HISTORIES = {"no history": ("--history", "none"), "sqlite, power": ()}


@contextmanager
def serving(tree: Path, options: tuple[str, ...], report: Path) -> Iterator[str]:
    """A server under valgrind, which writes its report at the end; its URL."""
    counting = ("--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", *counting, f"--log-file={report}", sys.executable, "-m", "mist"]
        command += ["serve", "--data", folder, "--listen", "tcp://127.0.0.1:0", *options]
        # Hashes that differ would have sets and dicts differ.
        own = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "MIST_PURE": "1"}
        with subprocess.Popen(
            command,
            cwd=tree,  # which Python looks through first
            env=environment(**own),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as popen:
            assert popen.stdout is not None
            try:
                yield popen.stdout.readline().split()[-1]
            finally:
                popen.terminate()


def read_until(sock: socket.socket, word: bytes, count: int) -> None:
    """Read until so many lines have begun with a word."""
    rest, found = b"", 0
    while found < count:
        read = sock.recv(1 << 20)
        if not read:
            raise ConnectionError("the server has hung up")
        *lines, rest = (rest + read).split(b"\n")
        found += sum(line.startswith(word) for line in lines)


@attrs.frozen
class Run:
    """What a server took from its start to its end: instructions, and seconds."""

    instructions: int
    seconds: float


def run(
    tree: Path, options: tuple[str, ...], shape: Shape, messages: int, idle: float = 0.0
) -> Run:
    """Publish so many messages, and then nothing for some seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        with serving(tree, options, report) as url, dial(url) as reader, dial(url) as publisher:
            for each in (reader, publisher):
                each.settimeout(SECONDS)
            reader.sendall(b"subscribe order\nping\n")
            read_until(reader, b"pong", 1)
            for first in range(0, messages, shape.batch):
                publisher.sendall(shape.lines(first) + b"ping\n")
                read_until(reader, b"publish ", shape.batch)
                read_until(publisher, b"pong", 1)
            time.sleep(idle)
            seconds = time.monotonic() - began
        counted = re.search(r"I\s+refs:\s+([\d,]+)", report.read_text())
    assert counted is not None
    return Run(int(counted[1].replace(",", "")), seconds)


def per_second(tree: Path, options: tuple[str, ...]) -> float:
    """What an idle server takes each second."""
    short, long = (run(tree, options, Shape(1), 1, each) for each in IDLE)
    return (long.instructions - short.instructions) / (long.seconds - short.seconds)


def per_message(tree: Path, options: tuple[str, ...], shape: Shape, idle: float) -> float:
    """The difference between a long run and a short one, for each message.

    Args:
        idle: see `per_second`.
    """
    few, many = shape.messages
    short, long = (run(tree, options, shape, each) for each in (few, many))
    took = long.instructions - short.instructions - idle * (long.seconds - short.seconds)
    return took / (many - few)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, action="append", default=[])
    others = [each.resolve() for each in parser.parse_args().tree]
    if shutil.which("valgrind") is None:
        parser.error("no valgrind; Debian: apt-get install valgrind")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for each in (HERE, *others):  # or the first short run would, which is taken off the long one
        subprocess.run([sys.executable, "-m", "compileall", "-q", each / "mist"], check=True)
    print(f"{'instructions a message':48} {'here':>10}", *[f"{each.name:>18}" for each in others])
    for history, options in HISTORIES.items():
        idle = {each: per_second(each, options) for each in (HERE, *others)}
        told = [f"{idle[each]:10,.0f}        " for each in others]
        print(f"{history + ', idle, each second':48} {idle[HERE]:10,.0f}", *told, flush=True)
        for name, shape in SHAPES.items():
            own, *found = (
                per_message(each, options, shape, idle[each]) for each in (HERE, *others)
            )
            told = [f"{each:10,.0f} ({own / each:.3f})" for each in found]
            print(f"{history + ', ' + name:48} {own:10,.0f}", *told, flush=True)


if __name__ == "__main__":
    main()
