"""What the start of a server costs, and what an empty one takes: seconds, CPU, memory.

python -m tests.benchmarks.start [--rounds N] [--tree DIR]...

Beside it the same of Python with the libraries that a server can't do without, which is what no
change to mist could go below; `mist --help`; and the first requests of a server beside the second
ones, for what isn't done at the start has to be done then.

With `--tree` it measures other source trees in turns with this one: another commit's, checked out
elsewhere. Bytecode is there before, as after `pip install`; only the row `compiling` has none.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from tests.processes import dial, environment

HERE = Path(__file__).parents[2]
LISTENERS = ("tcp", "ws", "http")
REQUESTS = ("/v1/live", "/", "/metrics", "/openapi.json", "/v1/stats")
LIBRARIES = (
    "import sys; sys.modules['rich'] = None\n"
    "import attrs, bitarray, click, httptools, msgspec, sqlite3, ssl, starlette.routing, structlog,"
    " trio"
)
FLOORS = {"python": "pass", "python, trio": "import trio", "python, its libraries": LIBRARIES}
_TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Cost:
    """What a process took: seconds, CPU seconds, and MiB."""

    seconds: float
    cpu: float
    rss: float = 0.0
    pss: float = 0.0


def of_process(pid: int, seconds: float) -> Cost:
    """What a process that runs has taken so far."""
    times = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[11:13]
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
    rss, pss = (int(re.findall(rf"{name}:\s+(\d+)", memory)[0]) / 1024 for name in ("Rss", "Pss"))
    return Cost(seconds, sum(map(int, times)) / _TICKS, rss, pss)


def script(code: str, variables: Mapping[str, str]) -> Cost:
    """Python that runs `code` and stays."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
    ) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdout.readline()
        cost = of_process(popen.pid, time.perf_counter() - began)
        popen.communicate(b"\n")
    return cost


def command(arguments: Sequence[str], variables: Mapping[str, str]) -> Cost:
    """`mist`, until it has ended."""
    before = os.times()
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "mist", *arguments],
        cwd=variables["PYTHONPATH"],  # which Python looks through first
        env=variables,
        check=True,
        capture_output=True,
    )
    seconds = time.perf_counter() - began
    after = os.times()
    cpu = after.children_user + after.children_system
    return Cost(seconds, cpu - before.children_user - before.children_system)


@contextmanager
def serving(variables: Mapping[str, str]) -> Iterator[tuple[Cost, list[str]]]:
    """An empty server, with what it took a second after it listened; and its URLs."""
    with tempfile.TemporaryDirectory() as folder:
        listen = [each for name in LISTENERS for each in ("--listen", f"{name}://127.0.0.1:0")]
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "mist", "serve", "--data", folder, *listen],
            cwd=variables["PYTHONPATH"],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as popen:
            assert popen.stdout is not None
            urls = [popen.stdout.readline().split()[-1] for _ in LISTENERS]
            seconds = time.perf_counter() - began
            try:
                time.sleep(1)
                yield of_process(popen.pid, seconds), urls
            finally:
                popen.terminate()


def requested(urls: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The milliseconds of first and second requests."""
    tcp, _, http = urls
    with dial(tcp) as sock:
        for turn in ("first", "second"):
            began = time.perf_counter()
            sock.sendall(b"subscribe a\npublish a x\nping\n")
            read = b""
            while not read.endswith(b"pong\n"):
                read += sock.recv(4096)
            yield f"TCP: publish, {turn}", (time.perf_counter() - began) * 1e3
    for path in REQUESTS:
        for turn in ("first", "second"):
            began = time.perf_counter()
            with suppress(urllib.error.HTTPError), urllib.request.urlopen(http + path) as answer:
                answer.read()
            yield f"GET {path}, {turn}", (time.perf_counter() - began) * 1e3


def measure(trees: Sequence[Path], rounds: int) -> Iterator[tuple[Path, str, Cost | float]]:
    """Each figure of each tree, in turns."""
    with tempfile.TemporaryDirectory() as cache:
        base = environment()
        base.pop("PYTHONDONTWRITEBYTECODE", None)
        compiled = {**base, "PYTHONPYCACHEPREFIX": cache}
        for number in range(rounds + 1):
            for tree in trees:
                at = {**compiled, "PYTHONPATH": str(tree)}
                found: list[tuple[str, Cost | float]] = []
                if tree == trees[0]:
                    found += [(name, script(code, at)) for name, code in FLOORS.items()]
                found.append(("mist --help", command(["--help"], at)))
                with serving(at) as (cost, urls):
                    found.append(("mist serve", cost))
                    found += requested(urls)
                source = {**base, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
                with serving(source) as (cost, _):
                    found.append(("mist serve, compiling", cost))
                if number:  # the first round makes the bytecode
                    yield from ((tree, *each) for each in found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tree", type=Path, action="append", default=[])
    options = parser.parse_args()
    trees = [HERE, *(each.resolve() for each in options.tree)]
    costs: dict[tuple[str, Path], list[Cost]] = defaultdict(list)
    requests: dict[tuple[str, Path], list[float]] = defaultdict(list)
    for tree, name, found in measure(trees, options.rounds):
        if isinstance(found, Cost):
            costs[name, tree].append(found)
        else:
            requests[name, tree].append(found)
    print(f"medians of {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':32} {'seconds':>8} {'CPU':>7} {'RSS MiB':>8} {'PSS':>6}")
    for (name, tree), taken in sorted(costs.items(), key=lambda each: each[0][0]):
        label = name if len(trees) == 1 or name in FLOORS else f"{name}, {tree.name}"
        seconds, cpu, rss, pss = (
            statistics.median(row) for row in zip(*map(attrs.astuple, taken), strict=True)
        )
        print(f"{label:32} {seconds:8.3f} {cpu:7.3f} {rss:8.1f} {pss:6.1f}")
    print(f"\n{'':32} {'ms':>8}")
    for (name, tree), times in requests.items():
        label = name if len(trees) == 1 else f"{name}, {tree.name}"
        print(f"{label:40} {statistics.median(times):8.2f}")


if __name__ == "__main__":
    sys.exit(main())
