"""Nodes behind nginx that are restarted one after another, or killed, under our own client.

pytest tests/system/test_nodes_rolling.py --slow -s      the whole of it; prints its figures
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from random import Random

import attrs
import h11
import pytest
import trio

from mist.client import Client, State, connect
from tests.http.client import request
from tests.ports import free_port
from tests.processes import dial
from tests.system.nodes import ON_REDIS, EngineServer, Nodes, engine_server
from tests.waiting import until

TOKEN = "rolling-t0ken"
CONFIGURATION = Path(__file__).parents[2] / "examples" / "nodes" / "nginx.conf"
ROOM = frozenset({"room"})


@pytest.fixture(params=ON_REDIS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineServer]:
    with engine_server(request.param, tmp_path) as server:
        yield server


def find_nginx() -> str:
    """Its path. Skips the test where it is missing, but never in CI."""
    found = shutil.which("nginx")
    if found is None:
        assert os.environ.get("CI") != "true", "in CI there has to be an nginx"
        pytest.skip("no nginx; Debian: apt-get install nginx-light")
    return found


@contextmanager
def nginx(folder: Path, nodes: Nodes) -> Iterator[int]:
    """An nginx before all nodes, as the example has it; its port."""
    port = free_port()
    servers = "\n".join(
        [f"server 127.0.0.1:{ports[2]} max_fails=1 fail_timeout=2s;" for ports in nodes.ports]
    )
    configuration = CONFIGURATION.read_text()
    for word, value in {"folder": folder, "servers": servers, "port": port}.items():
        configuration = configuration.replace(f"{{{word}}}", str(value))
    path = folder / "nginx.conf"
    path.write_text(configuration)
    command = [find_nginx(), "-p", str(folder), "-e", "stderr", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            give_up = time.monotonic() + 20
            while not listens(port):
                assert process.poll() is None, "nginx has ended"
                assert time.monotonic() < give_up, "nginx does not listen"
                time.sleep(0.01)
            yield port
        finally:
            process.terminate()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@attrs.define(eq=False)
class Reader:
    """A subscriber, with the connections and waits that our client makes by itself.

    Attributes:
        numbers: what it got, in order.
        lost: how often its connection was.
        gaps: how often it was told of one.
        connected: whether it is.
        reconnected: whether it is connected anew, and has got nothing since.
        moments: when it got something for the first time on each new connection.
    """

    numbers: list[int] = attrs.field(factory=list)
    lost: int = 0
    gaps: int = 0
    connected: bool = False
    reconnected: bool = False
    moments: list[float] = attrs.field(factory=list)

    def state(self, state: State) -> None:
        connected = state is State.CONNECTED
        self.lost += self.connected and not connected  # once, however many attempts fail then
        self.reconnected = connected and self.lost > 0
        self.connected = connected

    async def run(self, client: Client) -> None:
        def gap(*_: object) -> None:
            self.gaps += 1

        async with client.subscribe(ROOM, since=0, queue=100_000, on_gap=gap) as messages:
            async for message in messages:
                self.numbers.append(int(message.text))
                if self.reconnected:
                    self.reconnected = False
                    self.moments.append(trio.current_time())


@attrs.define(eq=False)
class Site:
    """Nodes behind an nginx.

    Attributes:
        urls: of nginx, as `request` wants it.
        number: of the last message that was published.
        failed: attempts to publish that were refused or not answered, by what came instead.
        failures: attempts of readers to connect that failed, likewise.
    """

    nodes: Nodes
    urls: list[str]
    readers: list[Reader] = attrs.field(factory=list)
    number: int = 0
    failed: Counter[str] = attrs.field(factory=Counter)
    failures: Counter[str] = attrs.field(factory=Counter)
    done: bool = False

    async def read(self, count: int, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        """Have so many subscribers."""
        url = self.urls[0].replace("http", "ws")
        for _ in range(count):
            reader = Reader()
            client = await stack.enter_async_context(
                connect(url, token=TOKEN, on_state=reader.state)
            )
            self.readers.append(reader)
            nursery.start_soon(reader.run, client)

    async def publish(self) -> None:
        """Publish numbers through nginx, each until it is stored: a repeat is known by its key."""
        while not self.done:
            number = self.number + 1
            body = {"tags": sorted(ROOM), "data": str(number)}
            headers = {"Idempotency-Key": json.dumps(f"message {number}")}
            while problem := await self._attempt(headers, body):
                self.failed[problem] += 1
                await trio.sleep(0.05)
            self.number = number
            await trio.sleep(0.005)

    async def _attempt(self, headers: dict[str, str], body: object) -> str:
        """What went wrong; empty where nothing did."""
        try:
            with trio.fail_after(5):
                answer = await request(self, "POST", "/v1/messages", headers, json=body)
        except (OSError, h11.RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError) as e:
            return type(e).__name__
        return "" if answer.status == 200 else f"HTTP {answer.status}"

    async def all_read(self) -> None:
        """Wait until all have all; each once and in order."""
        await until(lambda: all(each.numbers[-1:] == [self.number] for each in self.readers))
        for each in self.readers:
            assert each.numbers == list(range(1, self.number + 1))
            assert each.gaps == 0


class _Failures(logging.Handler):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # A connection that was there is told as lost.
        if "trying again" in text and not text.startswith("connection lost"):
            self._found[text.partition("; trying again")[0]] += 1


@pytest.fixture
async def site(tmp_path: Path, engine: EngineServer) -> AsyncIterator[Site]:
    with Nodes(tmp_path, engine, 3) as nodes, nginx(tmp_path, nodes) as port:
        for number in range(3):
            await trio.to_thread.run_sync(nodes.until_ready, number)
        with dial(nodes.url(0)) as admin:
            admin.sendall(f"register room {TOKEN}\nping\n".encode())
            assert admin.recv(100) == b"pong\n"
        site = Site(nodes, [f"http://127.0.0.1:{port}"])
        log = logging.getLogger("mist.client")
        handler, level = _Failures(site.failures), log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        yield site
        log.removeHandler(handler)
        log.setLevel(level)


def told(found: Counter[str]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in found.items()) or "none"


async def roll(site: Site, readers: int, rounds: int, pause: float) -> None:
    """Restart all nodes one after the other, again and again, half of them without a mirror.

    Args:
        pause: seconds between a node that is ready again and the next one.
    """
    nodes, began = site.nodes, trio.current_time()
    restarts = 0
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await site.read(readers, stack, nursery)
        nursery.start_soon(site.publish)
        for turn in range(rounds):
            for number in range(3):
                await trio.to_thread.run_sync(nodes.stop, number)
                if (turn + number) % 2:
                    nodes.forget(number)
                await trio.to_thread.run_sync(nodes.start, number)
                await trio.to_thread.run_sync(nodes.until_ready, number)
                await trio.sleep(pause)
                restarts += 1
        site.done = True
        await site.all_read()
        nursery.cancel_scope.cancel()
    lost = sum(each.lost for each in site.readers)
    assert lost >= restarts
    print(
        f"\n{restarts} restarts of three nodes behind nginx, half of them without their mirrors: "
        f"{site.number:,} messages to {readers} subscribers, none lost, none twice; connections "
        f"were ended {lost} times; attempts to connect that failed: {told(site.failures)}, to "
        f"publish: {told(site.failed)}; {trio.current_time() - began:.0f} s"
    )


async def test_nodes_are_restarted_one_after_another_and_nobody_misses_anything(
    site: Site,
) -> None:
    await roll(site, readers=12, rounds=1, pause=0.3)


@pytest.mark.slow
async def test_nodes_are_restarted_again_and_again(site: Site) -> None:
    # For longer than nginx takes a server that failed for down.
    await roll(site, readers=60, rounds=7, pause=2.5)


# together with the engine


def epoch_at(nodes: Nodes, number: int) -> str:
    with dial(nodes.url(number)) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"last\n")
        return replies.readline().split()[1].decode()


async def test_nobody_misses_anything_where_a_node_dies_with_the_engine(
    site: Site, engine: EngineServer
) -> None:
    nodes = site.nodes
    epoch = await trio.to_thread.run_sync(epoch_at, nodes, 0)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await site.read(12, stack, nursery)
        nursery.start_soon(site.publish)
        await until(lambda: site.number >= 20)
        await trio.to_thread.run_sync(nodes.kill, 1)
        await trio.to_thread.run_sync(engine.kill)
        await trio.to_thread.run_sync(engine.start)
        await trio.to_thread.run_sync(nodes.start, 1)
        for number in range(3):
            await trio.to_thread.run_sync(nodes.until_ready, number)
        goal = site.number + 20
        await until(lambda: site.number >= goal)
        site.done = True
        await site.all_read()
        nursery.cancel_scope.cancel()
    # Nobody can tell what the node had, so the log is in another epoch. Positions hold.
    assert await trio.to_thread.run_sync(epoch_at, nodes, 0) != epoch


# killed nodes


def p(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def kill(site: Site, readers: int, kills: int, pause: float) -> list[float]:
    """Kill nodes, one after another; the seconds after which their clients were live elsewhere.

    Args:
        pause: seconds before each.
    """
    nodes, random, seconds = site.nodes, Random(kills), []
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await site.read(readers, stack, nursery)
        nursery.start_soon(site.publish)
        for turn in range(kills):
            number = turn % 3
            await trio.sleep(pause + random.random() / 2)
            for each in site.readers:
                each.moments.clear()
            before = sum(each.lost for each in site.readers)
            killed = trio.current_time()
            await trio.to_thread.run_sync(nodes.kill, number)
            await trio.sleep(0.2)  # until its clients have noticed
            lost = sum(each.lost for each in site.readers) - before
            await until(
                lambda lost=lost: sum(len(each.moments) for each in site.readers) >= lost  # type: ignore[misc]
            )
            found = [each.moments[0] - killed for each in site.readers if each.moments]
            seconds += found
            await trio.to_thread.run_sync(nodes.start, number)
            await trio.to_thread.run_sync(nodes.until_ready, number)
        site.done = True
        await site.all_read()
        nursery.cancel_scope.cancel()
    print(
        f"\n{kills} kills of three nodes behind nginx: {len(seconds)} clients live elsewhere after "
        f"{p(seconds, 0.5):.2f} s (p50), {p(seconds, 0.99):.2f} s (p99), {max(seconds):.2f} s "
        f"(most), with their own backoff; attempts to connect that failed: "
        f"{told(site.failures)}; {site.number:,} messages, none lost, none twice"
    )
    return seconds


async def test_clients_of_a_killed_node_are_live_at_another_one_soon(site: Site) -> None:
    seconds = await kill(site, readers=12, kills=2, pause=0)
    assert p(seconds, 0.99) < 10


@pytest.mark.slow
async def test_clients_of_many_killed_nodes_are_live_at_others_soon(site: Site) -> None:
    # A connection that has lasted for five seconds is lost as if it were the first.
    seconds = await kill(site, readers=60, kills=40, pause=5)
    assert p(seconds, 0.99) < 4
