"""How long a server holds its event loop, seen from outside."""

import os
import time
from pathlib import Path

from mist.bench.connections import Endpoint, ask
from mist.bench.dialect import Line
from mist.bench.fairness.watched import LoopWatch, Watched, start_watched
from mist.bench.process import Started


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_longest_pass_is_kept() -> None:
    numbers = memoryview(bytearray(16)).cast("d")
    watch = LoopWatch(numbers)
    for seconds in (0.001, 0.02, 0.001):
        watch.after_io_wait(0)
        burn(seconds)
        watch.before_io_wait(0)
        burn(0.03)  # waiting for I/O
    assert 0.02 <= numbers[0] < 0.03
    assert numbers[1] == 0


def test_a_pass_that_goes_on_counts_by_what_it_has_taken() -> None:
    numbers = memoryview(bytearray(16)).cast("d")
    LoopWatch(numbers).after_io_wait(0)
    burn(0.02)
    watched = Watched(Started("", 0, 0, 0, os.getpid()), numbers)
    assert watched.take_longest() >= 0.02
    numbers[1] = 0
    assert watched.take_longest() == 0


def test_a_watched_server_serves_and_says_how_long_it_held_its_loop(tmp_path: Path) -> None:
    with start_watched(tmp_path, "--max-message-tags", "10000", nats=True) as watched:
        server = watched.server
        assert server.nats_port
        watched.take_longest()
        line = Line()
        big = line.publish([f"t{number}" for number in range(10_000)], b"x")
        with Endpoint(server.host, server.tcp_port, line).connect() as sock:
            ask(sock, big + line.fence, line.fenced)
            ask(sock, line.fence, line.fenced)  # the pass before has ended
            held = watched.take_longest()
            for _ in range(2):  # by the second answer, the pass of the first has ended
                ask(sock, line.fence, line.fenced)
            assert 0 < watched.take_longest() < held
