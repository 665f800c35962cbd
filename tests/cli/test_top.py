"""`mist top`: figures and screen by themselves, and the command in a terminal of its own."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.cells import cell_len

from mist.cli.top.figures import Sample, Series, compare, quantile
from mist.cli.top.screen import View, render
from tests.ports import free_port
from tests.processes import Process, dial, environment, mist, serving

pyte = pytest.importorskip("pyte")

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")


def connection(name: str, **values: Any) -> dict[str, Any]:
    plain = {"name": name, "transport": "tcp", "peer": "10.0.0.1", "token": None, "behind": False}
    counts = dict.fromkeys(("subscriptions", "queued", "queued_bytes", "sent", "dropped"), 0)
    return {**plain, **counts, "sent_bytes": 0, **values}


def sample(at: float = 0.0, **values: Any) -> Sample:
    stats = {
        "version": "1.2.3",
        "uptime": 100.0 + at,
        "published": 0,
        "relayed": 0,
        "matched": 0,
        "replayed": 0,
        "delivered": 0,
        "delivered_bytes": 0,
        "queued": 0,
        "rejected": 0,
        "unmatched": 0,
        "dropped": {"full": 0},
        "connections": {"tcp": 1, "ws": 0},
        "tag_sets": 0,
        "loop_lag": 0.0,
        "cpu_seconds": 0.0,
        "resident_bytes": 50 << 20,
        "nodes": None,
        "history": None,
        "slowest": [],
        "top_tags": [],
    }
    return Sample(at, {**stats, **values}, [])


def text(view: View, width: int = 80, height: int = 24) -> list[str]:
    lines = [each.text for each in render(view, width, height)]
    assert len(lines) == height
    assert all(cell_len(each) <= width for each in lines)
    return lines


# Figures


def test_rates_are_what_was_counted_by_the_time_between() -> None:
    before = sample(10.0, published=100, dropped={"full": 1, "gone": 0}, cpu_seconds=1.0)
    after = sample(12.0, published=300, dropped={"full": 1, "gone": 6}, cpu_seconds=1.5)
    found = compare(before, after)
    assert found.seconds == 2.0
    assert (found.rates["published"], found.rates["dropped"], found.cpu) == (100.0, 3.0, 0.25)


def test_a_server_that_began_anew_has_no_rates_yet() -> None:
    assert compare(None, sample()).rates == {}
    found = compare(sample(10.0, published=100), sample(12.0, published=5, uptime=0.5))
    assert (found.rates, found.cpu, found.seconds) == ({}, None, 0.0)


def test_counts_that_fall_are_no_negative_rates() -> None:
    found = compare(sample(1.0, delivered=100), sample(2.0, delivered=90))
    assert found.rates["delivered"] == 0.0


def latency(*counts: int) -> dict[str, Any]:
    return {"publish_to_write": {"bounds": [0.001, 0.01], "counts": counts}, "commit": None}


def test_latencies_are_of_the_last_ten_seconds() -> None:
    series = Series()
    assert series.add(sample(0.0, latency=latency(100, 0, 0))).latency == {}
    assert series.add(sample(1.0, latency=latency(100, 0, 0))).latency == {}  # nothing observed
    found = series.add(sample(2.0, latency=latency(100, 9, 1)))
    assert found.latency == {"publish_to_write": (pytest.approx(0.006), 0.01)}
    assert found.as_json()["latency"] == {"publish_to_write": {"p50": 0.006, "p99": 0.01}}
    for at in range(3, 13):
        found = series.add(sample(float(at), latency=latency(100, 9, 1)))
        assert bool(found.latency) is (at < 12)
    found = series.add(sample(13.0, uptime=1.0, latency=latency(1, 0, 0)))
    assert found.latency == {}  # another process
    found = series.add(sample(14.0, uptime=2.0, latency=latency(2, 0, 0)))
    assert found.latency == {"publish_to_write": (0.0005, pytest.approx(0.00099))}


def test_latencies_are_on_the_screen() -> None:
    figures = compare(
        sample(0.0, latency=latency(0, 0, 0)), sample(1.0, latency=latency(0, 100, 0))
    )
    assert "latency   to write p50 5.5 ms p99 9.9 ms" in text(View("s", figures))
    assert "latency   -" in text(View("s", compare(None, sample(latency=latency(0, 0, 0)))))
    older = compare(None, sample())  # a server that tells nothing of it
    assert not any(each.startswith("latency") for each in text(View("s", older)))


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ((4, 0, 0, 0), 0.5, 0.5),
        ((0, 4, 0, 0), 0.5, 1.5),
        ((1, 1, 1, 0), 1.0, 4.0),
        ((2, 0, 2, 0), 0.5, 1.0),
        ((2, 0, 2, 0), 0.75, 3.0),
        ((0, 0, 0, 3), 0.5, 4.0),
        ((1, 0, 0, 99), 0.99, 4.0),
    ],
)
def test_quantiles_are_those_of_the_dashboard(
    counts: tuple[int, ...], part: float, expected: float
) -> None:
    assert quantile((1.0, 2.0, 4.0), counts, part) == expected


def test_a_connection_has_a_rate_from_the_second_time_on() -> None:
    before = sample(1.0, slowest=[connection("a", sent=10)])
    after = sample(3.0, slowest=[connection("a", sent=30), connection("b", sent=5)])
    assert [each["rate"] for each in compare(before, after).connections] == [10.0, None]


# Screen


def test_the_screen_fits_any_terminal() -> None:
    slow = [
        connection(f"tcp-{n}", queued=n, queued_bytes=n << 30, dropped=10**n) for n in range(20)
    ]
    tags = [{"tag": "t" * 500, "published_rate": 1e9}, {"tag": "漢字" * 99, "published_rate": 0.1}]
    history = {"epoch": "e", "first": 1, "newest": 10**15, "messages": 5, "bytes": 10**14}
    full = sample(
        1.0,
        published=10**12,
        slowest=slow,
        top_tags=tags * 10,
        history={**history, "failing": True, "sealed": None},
        dropped=dict.fromkeys(("full", "gone", "error", "unframable"), 10**9),
    )
    view = View("a" * 200, compare(sample(0.0, slowest=slow), full))
    for width in (1, 20, 80, 300):
        for height in (1, 2, 5, 24, 100):
            text(view, width, height)
    lines = text(view)
    for words in ("SLOW, BY BYTES", "TOP TAGS", "FAILING", "q quit"):
        assert any(words in line for line in lines), words


def test_slow_connections_are_sorted_as_asked() -> None:
    slow = [
        connection("x", queued=1, queued_bytes=9, dropped=5),
        connection("y", queued=3, queued_bytes=1, dropped=7),
    ]
    view = View("s", compare(None, sample(slowest=slow)))
    for key, first in (("b", "x"), ("m", "y"), ("d", "y")):
        view.sort = key
        lines = text(view)
        [index] = [index for index, line in enumerate(lines) if line.startswith("SLOW")]
        assert lines[index + 1].split()[0] == first


def test_nobody_can_control_the_readers_terminal() -> None:
    evil = "\x1b]0;owned\x07\r\n\u202e"
    found = sample(
        version=evil,
        slowest=[connection(evil, peer=evil, token=evil)],
        top_tags=[{"tag": evil, "published_rate": 1.0}],
        dropped={evil: 1},
        connections={evil: 1},
    )
    node = {"name": evil, "here": True, "status": evil, "reason": None, "lag": 0.0}
    nodes = [{**node, "newest": 1, "sessions": 1, "uptime": 1.0}]
    figures = compare(None, attrs.evolve(found, nodes=nodes))
    assert "".join(text(View(evil, figures), 200, 50)).isprintable()


# The command

Screen = Any


@attrs.define
class Watched:
    """`mist top` in a terminal of 80 by 24."""

    popen: "subprocess.Popen[bytes]"
    master: int
    slave: int
    screen: Screen
    stream: Any
    raw: bytes = b""

    def until(self, holds: Callable[[str], bool], seconds: float = 20.0) -> str:
        """Feed the screen until its text is as wanted."""
        give_up = time.monotonic() + seconds
        while not holds(shown := "\n".join(self.screen.display)):
            assert time.monotonic() < give_up, shown
            if select.select([self.master], [], [], 0.1)[0]:
                data = os.read(self.master, 65_536)
                self.raw += data
                self.stream.feed(data)
        return shown

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        """Its exit code; the terminal has to be as it was before."""
        while self.popen.poll() is None:
            if select.select([self.master], [], [], 0.1)[0]:
                self.raw += os.read(self.master, 65_536)
        while select.select([self.master], [], [], 0)[0]:
            self.raw += os.read(self.master, 65_536)
        assert self.raw.endswith(b"\x1b[0m\x1b[?25h\x1b[?1049l")
        local = termios.tcgetattr(self.slave)[3]
        assert local & termios.ICANON
        assert local & termios.ECHO
        return self.popen.returncode


@contextmanager
def watching(url: str, *arguments: str) -> Iterator[Watched]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "mist", "top", "--server", url, "-i", "0.2", *arguments]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm")
    ) as popen:
        screen = pyte.Screen(80, 24)
        try:
            yield Watched(popen, master, slave, screen, pyte.ByteStream(screen))
        finally:
            popen.kill()
            os.close(master)
            os.close(slave)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("data"), listen=LISTEN) as process:
        yield process


def test_it_shows_a_server_at_work_and_is_quit_by_a_key(process: Process) -> None:
    with dial(process.urls[0]) as sock, watching(process.urls[1]) as watched:
        sock.sendall(b"subscribe top,x\n")
        watched.until(lambda shown: "mist " in shown and "connected 1 (tcp 1)" in shown)
        sock.sendall(b"".join(b"publish top,x %d\n" % n for n in range(500)))
        shown = watched.until(lambda shown: "/s top" in shown)
        assert "TOP TAGS" in shown
        watched.press(b"d")
        watched.until(lambda shown: "SLOW, BY DROPPED" in shown)
        watched.press(b" ")
        watched.until(lambda shown: "paused" in shown)
        watched.press(b"\x1b[A\x1bOq ")  # neither an arrow nor a key of the keypad is one of ours
        watched.until(lambda shown: "paused" not in shown)
        watched.press(b"q")
        assert watched.ended() == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_the_terminal_as_it_was(
    process: Process, number: signal.Signals, code: int
) -> None:
    with watching(process.urls[1]) as watched:
        watched.until(lambda shown: "q quit" in shown)
        watched.popen.send_signal(number)
        assert watched.ended() == code
        assert b"Traceback" not in watched.raw


def test_another_size_is_taken(process: Process) -> None:
    with watching(process.urls[1]) as watched:
        watched.until(lambda shown: "q quit" in shown)
        fcntl.ioctl(watched.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        watched.screen.resize(12, 60)
        watched.popen.send_signal(signal.SIGWINCH)
        watched.until(lambda shown: shown.rstrip().rpartition("\n")[2].startswith("q quit"))
        watched.press(b"q")
        assert watched.ended() == 0


def test_a_server_that_comes_back_is_shown_again(tmp_path: Path) -> None:
    listen = ("--listen", f"http://127.0.0.1:{free_port()}")
    with serving(tmp_path / "d", listen=listen) as server:
        with watching(server.urls[0]) as watched:
            watched.until(lambda shown: "connected 0 (none)" in shown)
            assert server.stop() == 0
            watched.until(lambda shown: "can't reach" in shown and "trying again" in shown)
            with serving(tmp_path / "d", listen=listen):
                watched.until(lambda shown: "can't reach" not in shown and "mist " in shown)
                watched.press(b"q")
                assert watched.ended() == 0


def test_once_is_text_and_json_is_an_object(process: Process) -> None:
    done = mist("top", "--once", "-i", "0.2", "--server", process.urls[1])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mist ")
    assert "\x1b" not in done.stdout
    assert "q quit" not in done.stdout
    done = mist("top", "--once", "--json", "-i", "0.2", MIST_SERVER=process.urls[1])
    found = json.loads(done.stdout)
    assert found["seconds"] >= 0.2
    assert found["rates"]["published"] == 0.0
    assert found["stats"]["uptime"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--server", "http://127.0.0.1:1"), 3, "can't reach 127.0.0.1:1"),
        (("--server", "tcp://127.0.0.1:1"), 2, "not an HTTP listener"),
    ],
)
def test_no_server_is_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = mist("top", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("mist top: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_terminal_it_says_what_to_give(process: Process) -> None:
    done = mist("top", "--server", process.urls[1])
    assert (done.returncode, done.stderr) == (
        2,
        "mist top: not a terminal: give --once or --json\n",
    )


def test_nodes_of_an_engine_are_shown(tmp_path: Path) -> None:
    options = ("--engine", "memory://", "--tokens", "memory://", "--node", "eu-1")
    with serving(tmp_path / "d", *options, listen=LISTEN) as server:
        done = mist("top", "--once", "-i", "0.2", "--server", server.urls[1])
    assert "NODE " in done.stdout
    assert "\neu-1* " in done.stdout
