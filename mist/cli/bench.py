"""`mist bench`: what mist does on this machine, in figures that print.

match     the index alone: microseconds a message that isn't remembered, and nanoseconds one
          that is
1→N       one publisher, N subscribers over loopback TCP, against a server of its own in
          another process; messages of 100 bytes, at most a window of them underway, so that
          nothing has to be dropped. Rates move with the machine's load; the server's CPU
          seconds per million deliveries much less.
"""

import gc
import json
import os
import platform
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import click
from rich.console import Console
from rich.table import Table

from mist.index import Index, Memo

__all__ = ["bench"]

_SIZE: Final = 100  # bytes of data in a message
_WINDOW: Final = 5_000  # messages underway at most


@click.command()
@click.option("--quick", is_flag=True, help="A few seconds instead of a minute; rougher")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables")
def bench(quick: bool, as_json: bool) -> None:
    """Measure matching and delivery on this machine."""
    console = Console(stderr=True)
    results: dict[str, object] = {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "match": [],
        "deliver": [],
    }
    shapes = [(1_000, 100), (20_000, 1_000)] if quick else [(1_000, 100), (100_000, 10_000)]
    with console.status("matching"):
        results["match"] = [attrs.asdict(measure_match(*shape)) for shape in shapes]
    messages = 20_000 if quick else 500_000
    with console.status("delivering"), _server() as (port, pid):
        results["deliver"] = [
            attrs.asdict(measure_delivery(port, pid, fanout, max(messages // fanout, 2_000)))
            for fanout in (1, 10, 100)
        ]
    if as_json:
        click.echo(json.dumps(results))
    else:
        _print(results)


@attrs.frozen
class Matched:
    """Matching messages of 3 to 10 tags against subscriptions of 2 to 4, all of one vocabulary.

    Attributes:
        p50_us, p99_us: microseconds a match, nothing remembered.
        memo_ns: nanoseconds where the tag list is remembered.
        matches: subscriptions that a message matched, on average.
    """

    subscriptions: int
    vocabulary: int
    p50_us: float
    p99_us: float
    memo_ns: float
    matches: float


def measure_match(subscriptions: int, vocabulary: int, messages: int = 5_000) -> Matched:
    """Fill an index, then match."""
    rng = random.Random(1)  # noqa: S311  # the same load each time
    words = [f"tag{n}" for n in range(vocabulary)]
    index: Index[int] = Index()
    while len(index) < subscriptions:
        tags = frozenset(rng.sample(words, rng.randint(2, 4)))
        if index.get(tags) is None:
            index.add(tags, len(index))
    load = [frozenset(rng.sample(words, rng.randint(3, 10))) for _ in range(messages)]
    gc.collect()
    gc.freeze()
    times = []
    found = 0
    for tags in load:
        start = time.perf_counter_ns()
        groups = index.match(tags)
        times.append(time.perf_counter_ns() - start)
        found += len(groups)
    gc.unfreeze()
    memo: Memo[int] = Memo()
    for _ in range(2):
        memo.admit(b"tag1,tag2", frozenset({"tag1", "tag2"}), 1)
    look, rounds = memo.entries.get, range(200_000)
    start = time.perf_counter_ns()
    for _ in rounds:
        look(b"tag1,tag2")
    memo_ns = (time.perf_counter_ns() - start) / len(rounds)
    cuts = statistics.quantiles(times, n=100)
    return Matched(
        subscriptions, vocabulary, cuts[49] / 1e3, cuts[98] / 1e3, memo_ns, found / messages
    )


@attrs.frozen
class Delivered:
    """One publisher, `fanout` subscribers.

    Attributes:
        messages: published.
        lost: deliveries that didn't come; anything but 0 makes the rest worthless.
        per_second: deliveries.
        server_cpu_us: microseconds of the server's CPU for a delivery; None where the system
            doesn't tell.
    """

    fanout: int
    messages: int
    lost: int
    per_second: float
    server_cpu_us: float | None


def measure_delivery(port: int, pid: int, fanout: int, messages: int) -> Delivered:
    """Publish `messages`, count what `fanout` subscribers get."""
    line = b"publish bench " + b"x" * _SIZE + b"\n"
    with selectors.DefaultSelector() as selector:
        subscribers = [_connect(port) for _ in range(fanout)]
        publisher = _connect(port)
        received = dict.fromkeys(subscribers, 0)
        try:
            for subscriber in subscribers:
                subscriber.sendall(b"subscribe bench\nping\n")
                _expect(subscriber, b"pong\n")
                subscriber.setblocking(False)
                selector.register(subscriber, selectors.EVENT_READ)
            cpu, start = _cpu_seconds(pid), time.perf_counter()
            published = 0
            window = min(_WINDOW, messages)
            deadline = start + 60
            while min(received.values()) < messages * len(line) and time.perf_counter() < deadline:
                behind = published - min(received.values()) // len(line)
                step = min(window - behind, messages - published, 1_000)
                if step > 0:
                    publisher.sendall(line * step)
                    published += step
                for key, _ in selector.select(0 if step > 0 else 1.0):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    received[ready] += len(ready.recv(1 << 20))
            seconds = time.perf_counter() - start
            used = _cpu_seconds(pid)
        finally:
            for each in (*subscribers, publisher):
                each.close()
    deliveries = sum(received.values()) // len(line)
    cpu_us = None if used is None or cpu is None else (used - cpu) * 1e6 / max(deliveries, 1)
    lost = messages * fanout - deliveries
    return Delivered(fanout, messages, lost, deliveries / seconds, cpu_us)


def _connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=10)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _expect(sock: socket.socket, text: bytes) -> None:
    got = b""
    while len(got) < len(text):
        got += sock.recv(100)


def _cpu_seconds(pid: int) -> float | None:
    """User and system time of a process, where /proc tells; in steps of 10 ms."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server() -> Iterator[tuple[int, int]]:
    """A server in another process: its port and process id."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["serve", "--listen", "tcp://127.0.0.1:0", "--tokens", "memory://"]
        arguments += ["--log-level", "error"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MIST_")}
        with subprocess.Popen(  # noqa: S603  # ourselves
            [sys.executable, "-m", "mist", *arguments, "--data", folder],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            try:
                assert process.stdout is not None
                port = process.stdout.readline().strip().rpartition(":")[2]
                if not port:
                    raise click.ClickException("the server did not start")
                yield int(port), process.pid
            finally:
                process.terminate()


def _print(results: dict[str, object]) -> None:
    console = Console()
    console.print(f"Python {results['python']}, {results['processors']} processors")
    match = Table("subscriptions", "vocabulary", "p50 µs", "p99 µs", "remembered ns", "matches")
    for row in results["match"]:  # type: ignore[attr-defined]
        match.add_row(
            f"{row['subscriptions']:,}",
            f"{row['vocabulary']:,}",
            f"{row['p50_us']:.1f}",
            f"{row['p99_us']:.1f}",
            f"{row['memo_ns']:.0f}",
            f"{row['matches']:.2f}",
        )
    deliver = Table("shape", "messages", "deliveries/s", "server CPU µs a delivery", "lost")
    for row in results["deliver"]:  # type: ignore[attr-defined]
        cpu = "?" if row["server_cpu_us"] is None else f"{row['server_cpu_us']:.3f}"
        deliver.add_row(
            f"1→{row['fanout']}",
            f"{row['messages']:,}",
            f"{row['per_second']:,.0f}",
            cpu,
            f"{row['lost']:,}",
        )
    for table in (match, deliver):
        for column in table.columns:
            column.justify = "right"
        console.print(table)
