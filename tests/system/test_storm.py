"""A storm: thousands of clients that lose their connections and come back at once, with recovery.

Once their connections are cut and once the server is killed and started again, while messages are
published that all of them have missed. Beside them a pair of connections that lost nothing (in
the restart: that were first) tells what it costs others. Thousands of clients load the machine,
too: another server, which none of them uses, tells how much of that cost is due to it.
"""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from mist.bench.fairness.probe import Probe, start_probe
from mist.bench.process import cpu_seconds, raise_file_limit
from tests.ports import free_ports
from tests.processes import Process, dial, serving
from tests.servers import port_of
from tests.system.storm_clients import KINDS, TOKEN, Clients, Settings, room_of, start_clients

LIVE = 30.0  # seconds in which all have to be live
RATIO = 3.0  # by which the p99 of others may grow
QUIET = 5.0  # seconds
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")


@attrs.frozen
class Size:
    """How large a storm is.

    Attributes:
        clients: in all.
        processes: that they are in.
        rooms: that they share.
        missed: messages of each room that are published while nobody is connected.
        quiet: seconds for which the pair is watched before.
    """

    clients: int
    processes: int
    rooms: int
    missed: int
    quiet: float


class Publisher:
    """Numbers the messages of each room."""

    def __init__(self, rooms: int) -> None:
        self._rooms = rooms
        self.number = 0

    def publish(self, url: str, count: int) -> str:
        """Publish so many to each room; the epoch."""
        with dial(url) as sock, sock.makefile("rb") as answers:
            for _ in range(count):
                self.number += 1
                lines = [f"publish room-{n} {self.number}\n" for n in range(self._rooms)]
                sock.sendall("".join(lines).encode())
            sock.sendall(b"last\n")
            return answers.readline().split()[1].decode()


def register(url: str) -> None:
    """Make the token that clients in browsers have."""
    with dial(url) as sock:
        sock.sendall(f"register room-* {TOKEN}\nping\n".encode())
        assert sock.recv(100) == b"pong\n"


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def told(every: Sequence[Clients], word: str, *arguments: object) -> list[dict]:
    """Tell all processes at once, and wait for all."""
    for clients in every:
        clients.tell(word, *arguments)
    return [clients.answer() for clients in every]


def storm(
    name: str,
    pid: int,
    every: Sequence[Clients],
    probe: Probe,
    elsewhere: Probe,
    size: Size,
    epoch: str,
    target: int,
) -> tuple[float, float]:
    """All come back at once. Seconds until the last is live, and the ratio of both p99."""
    probe.begin()
    time.sleep(size.quiet)
    quiet = p99(probe.end().line)
    for each in (probe, elsewhere):
        each.begin()
    before = cpu_seconds(pid) or 0.0
    found = told(every, "connect", epoch, target)
    cpu = (cpu_seconds(pid) or 0.0) - before
    stormy, calm = (p99(each.end().line) for each in (probe, elsewhere))
    assert sum(each["missing"] + each["too_many"] + each["errors"] for each in found) == 0
    last = max(each["last"] for each in found)
    half = max(each["p50"] for each in found)
    refused = sum(each["refused"] for each in found)
    print(
        f"{name}: {size.clients:,} clients live after {last:.1f} s, half after {half:.1f} s; "
        f"{refused:,} connections made again; {cpu:.1f} s of the server's CPU; p99 of others "
        f"{quiet * 1e3:.1f} ms before, {stormy * 1e3:.1f} ms meanwhile; {calm * 1e3:.1f} ms on "
        f"another server: {stormy / calm:.1f} x"
    )
    return last, stormy / calm


def weather(folder: Path, size: Size) -> list[tuple[float, float]]:
    """Two storms; what each of them took."""
    raise_file_limit()
    ports = free_ports(3)
    schemes = ("tcp", "ws", "http")
    options = [
        # They come from one address, with one token.
        *("--max-connections-per-address", str(size.clients), "--token-rate", "1000000"),
        *("--max-unauthenticated", str(size.clients), "--log-level", "error"),
        # While nothing is asked of them they don't read, and so answer no pings.
        *("--ping-seconds", "600", "--idle-seconds", "1200"),
    ]
    listen = [
        part
        for scheme, port in zip(schemes, ports, strict=True)
        for part in ("--listen", f"{scheme}://127.0.0.1:{port}")
    ]

    def serve(stack: ExitStack) -> Process:
        return stack.enter_context(serving(folder, *options, listen=listen))

    publisher = Publisher(size.rooms)
    share = size.clients // size.processes
    with ExitStack() as stack:
        calm = stack.enter_context(serving(folder / "calm", *options, listen=LISTEN))
        elsewhere = stack.enter_context(start_probe(*map(port_of, calm.urls)))
        every = [
            stack.enter_context(
                start_clients(
                    Settings([(ports[0], ports[1], ports[2])], n * share, share, size.rooms)
                )
            )
            for n in range(size.processes)
        ]
        with ExitStack() as first:
            server = serve(first)
            url = server.urls[0]
            register(url)
            epoch = publisher.publish(url, 1)
            (begun, *_) = [told(every, "connect", epoch, publisher.number)]
            assert sum(each["errors"] + each["missing"] for each in begun) == 0
            with start_probe(ports[0], ports[2]) as probe:
                told(every, "cut")
                publisher.publish(url, size.missed)
                cut = storm(
                    *("cut", server.popen.pid, every, probe, elsewhere),
                    *(size, epoch, publisher.number),
                )
                publisher.publish(url, 1)
                assert_live(every, publisher.number)
            server.stop(signal.SIGKILL)
        told(every, "cut")
        server = serve(stack)
        with start_probe(ports[0], ports[2]) as probe:
            assert publisher.publish(url, size.missed) == epoch
            restart = storm(
                *("restart", server.popen.pid, every, probe, elsewhere),
                *(size, epoch, publisher.number),
            )
            publisher.publish(url, 1)
            assert_live(every, publisher.number)
        told(every, "cut")
        assert server.stop() == 0
        assert server.popen.stderr is not None
        assert server.popen.stderr.read() == ""
    return [cut, restart]


def assert_live(every: Sequence[Clients], number: int) -> None:
    """Everyone gets what is published now, and nothing else."""
    for each in told(every, "wait", number):
        assert each["missing"] == each["too_many"] == each["errors"] == 0


def test_every_kind_of_client_shares_every_room() -> None:
    clients = {(KINDS[n % 3], room_of(n // 3, 10)) for n in range(60)}
    assert len(clients) == 30


def test_clients_that_come_back_at_once_miss_nothing(tmp_path: Path) -> None:
    weather(tmp_path, Size(clients=60, processes=2, rooms=10, missed=20, quiet=0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rooms", [100, 1_667, 5_000], ids=["shared rooms", "a room for three", "a room for each"]
)
def test_five_thousand_clients_that_come_back_at_once_are_live_in_time(
    tmp_path: Path, rooms: int
) -> None:
    for last, ratio in weather(tmp_path, Size(5_000, 2, rooms, 50, QUIET)):
        assert last <= LIVE
        assert ratio <= RATIO
