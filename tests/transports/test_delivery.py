"""Each message once and in order, whatever is joined, full, or coming and going meanwhile.

Publishers write numbered messages in pieces of any size at the same time; subscribers of every
kind hold what they get against what was sent.
"""

import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio_websocket import open_websocket_url

from mist.server import Server
from tests.servers import port_of, running
from tests.transports.lines import Lines, talk

PUBLISHERS = "xyz"
COUNT = 400  # messages of each publisher
CHURN = [  # beside a subscription to `a`, which it leaves as it was
    b"subscribe c,a\n",
    b"subscribe a,b\nsubscribe a\n",
    b"unsubscribe a,c\nescape on\n",
    b"unsubscribe b,a\nescape off\nunsubscribe a\n",
]
PADDING = "." * 4_000  # more than the kernel takes for a reader that is behind


def tag_lists(random: Random) -> list[str]:
    """One publisher's tags, most with `a` among them, as anybody might write them."""
    return [
        ",".join(random.choice(["a", "b", "c"]) for _ in range(random.randint(1, 4)))
        for _ in range(COUNT)
    ]


def carrying_a(written: list[str]) -> list[int]:
    return [number for number, tags in enumerate(written) if "a" in tags]


async def publish(lines: Lines, name: str, written: list[str], random: Random) -> None:
    """Write everything in pieces that know nothing of lines, then wait for the fence."""
    wire = "".join(
        f"publish {tags} {name} {number} {PADDING}\n" for number, tags in enumerate(written)
    ).encode()
    while wire:
        size = random.choice([1, 10, 5_000, 50_000, 200_000])
        await lines.send(wire[:size])
        wire = wire[size:]
        if random.random() < 0.3:
            await trio.lowlevel.checkpoint()


class Received:
    """The numbers that one subscriber has got, by publisher, in the order they came."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.total = 0

    def add(self, data: str) -> None:
        name, number, padding = data.split(" ")
        assert padding == PADDING
        self.numbers[name].append(int(number))
        self.total += 1

    def add_line(self, line: bytes) -> None:
        word, tags, data = line.decode().rstrip("\n").split(" ", 2)
        assert word == "publish"
        assert tags == ",".join(sorted(set(tags.split(","))))
        self.add(data)


async def receive_lines(lines: Lines, received: Received, total: int) -> None:
    while received.total < total:
        line = await lines.line()
        assert line, "the server closed the connection"
        if line != b"pong\n":
            received.add_line(line)


async def come_and_go(lines: Lines, commands: list[bytes], done: trio.Event) -> None:
    while not done.is_set():
        for command in commands:
            await lines.send(command)
            await trio.sleep(0.001)


@asynccontextmanager
async def talk_slowly(server: Server) -> AsyncIterator[Lines]:
    """A connection with the least room in its kernel."""
    port = port_of(server.urls[0])
    with trio.socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await sock.connect(("127.0.0.1", port))
        yield Lines(trio.SocketStream(sock))


@pytest.mark.parametrize("seed", range(3))
async def test_every_subscriber_gets_each_message_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    written = {name: tag_lists(random) for name in PUBLISHERS}
    expected = {name: carrying_a(tags) for name, tags in written.items()}
    total = sum(map(len, expected.values()))
    got = {kind: Received() for kind in ("steady", "slow", "churning", "browser", "x")}
    done = trio.Event()
    async with running(tmp_path, outbox_bytes=64 << 20) as server, talk(server) as steady:
        await steady.ask(b"register a t\n")
        url = server.urls[1] + "/subscribe/websocket"
        async with (
            talk_slowly(server) as slow,
            talk(server) as churning,
            talk(server) as x,
            talk(server) as y,
            talk(server) as z,
            open_websocket_url(url, extra_headers=[("x-auth-token", "t")]) as browser,
        ):
            for lines in (steady, slow, churning, x):  # x is a publisher that hears itself
                await lines.ask(b"subscribe a\n")
            await browser.send_message('{"command":"subscribe","tags":["a"]}')
            await browser.get_message()

            async def receive_frames() -> None:
                while got["browser"].total < total:
                    message = json.loads(await browser.get_message())
                    assert "a" in message["keys"]
                    got["browser"].add(message["data"])

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    start = nursery.start_soon
                    start(receive_lines, steady, got["steady"], total)
                    start(receive_lines, churning, got["churning"], total)
                    start(receive_lines, x, got["x"], total)
                    start(receive_frames)
                    start(come_and_go, churning, CHURN, done)
                    async with trio.open_nursery() as publishers:
                        for name, lines in zip(PUBLISHERS, (x, y, z), strict=True):
                            publishers.start_soon(publish, lines, name, written[name], random)
                    for lines in (y, z):
                        await lines.ask(b"")  # all of it has been handled
                    behind = max(s.outbox.size for s in server.hub.sessions)
                    done.set()
                    await receive_lines(slow, got["slow"], total)
            assert behind > 0, "no socket was ever full"
            for lines in (steady, slow, churning):
                assert await lines.ask(b"") == []  # nothing more than was asked for
    for kind, received in got.items():
        assert received.numbers == expected, kind


async def test_who_comes_and_goes_never_gets_one_twice_or_out_of_order(tmp_path: Path) -> None:
    random = Random(7)
    done = trio.Event()
    received = Received()

    async def listen(lines: Lines) -> None:
        while (line := await lines.line()) != b"pong\n":
            received.add_line(line)

    async with (
        running(tmp_path) as server,
        talk(server) as comer,
        talk(server) as x,
        talk(server) as y,
        talk(server) as z,
    ):
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, comer)
                async with trio.open_nursery() as busy:
                    busy.start_soon(
                        come_and_go, comer, [b"subscribe a\n", b"unsubscribe a\n"], done
                    )
                    async with trio.open_nursery() as publishers:
                        for name, lines in zip(PUBLISHERS, (x, y, z), strict=True):
                            publishers.start_soon(publish, lines, name, ["a"] * COUNT, random)
                    for lines in (x, y, z):
                        await lines.ask(b"")
                    done.set()
                await comer.send(b"ping\n")
    assert 0 < received.total < COUNT * len(PUBLISHERS)
    for numbers in received.numbers.values():
        assert numbers == sorted(set(numbers))


async def test_who_is_too_slow_misses_what_is_counted_and_nothing_else(tmp_path: Path) -> None:
    random = Random(11)
    received = Received()
    async with (
        running(tmp_path, outbox_bytes=100_000) as server,
        talk_slowly(server) as slow,
        talk(server) as x,
    ):
        await slow.ask(b"subscribe a\n")
        [session] = [s for s in server.hub.sessions if s.subscriptions]
        with trio.fail_after(60):
            await publish(x, "x", ["a"] * COUNT * 3, random)
            await x.ask(b"")
            dropped = session.outbox.statistics().dropped_full
            await receive_lines(slow, received, COUNT * 3 - dropped)
            assert await slow.ask(b"") == []
    assert dropped > 0
    numbers = received.numbers["x"]
    assert numbers == sorted(set(numbers))
