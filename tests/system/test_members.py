"""Members and leases, as processes on one Redis: killed, stopped, continued.

pytest tests/system/test_members.py -s      prints how long a lease took to move
"""

import json
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mist.engine.leases import LEASE
from tests.engine.redis_server import RedisServer
from tests.processes import Process, dial, environment, mist, serving, token_key
from tests.waiting import wait_until as until

LISTEN = tuple(
    each for scheme in ("tcp", "http", "nats") for each in ("--listen", f"{scheme}://127.0.0.1:0")
)

# Holds a lease whenever it gets it, and says so. Once it has lost it, it says whether it would
# still be taken for the holder.
HOLDER = """
import sys
import trio
from mist.engine.leases import run_under_lease
from mist.engine.opening import open_engine
from mist.history import Durability

async def main(url, name):
    async with await open_engine(url, durability=Durability.PROCESS) as engine:
        async def work(fence):
            print("holds", fence, flush=True)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    held = await engine.members.holds("x", fence)
                print("lost", fence, held, flush=True)
        await run_under_lease(engine.members, "x", lambda: name, work)

trio.run(main, *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(
        tmp_path_factory.mktemp("redis"), "wheel", "--appendfsync", "always"
    ) as server:
        yield server


# Leases


class Holder:
    """A process that holds the lease when it can.

    Attributes:
        fence: under which it works now, as far as it knows.
        lost: what it said as it lost the lease, each time.
    """

    def __init__(self, url: str, name: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", HOLDER, url, name],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.popen.stdout is not None
        self._lines = self.popen.stdout
        self.fence = 0
        self.lost: list[str] = []

    def hear(self) -> None:
        """Take in the next line that it says; waits for it."""
        word, fence, *more = self._lines.readline().split()
        if word == "holds":
            self.fence = int(fence)
        else:
            self.fence = 0
            self.lost += more


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lease_moves_from_a_holder_that_is(redis: RedisServer, how: signal.Signals) -> None:
    url = redis.url(how.name)
    first = Holder(url, "first")
    first.hear()
    second = Holder(url, "second")
    try:
        fence = first.fence
        assert fence > 0
        began = time.monotonic()
        first.popen.send_signal(how)
        second.hear()
        took = time.monotonic() - began
        assert second.fence > fence
        # A lease, the time between two tries, and the start of the second process.
        assert took < LEASE + 4
        print(f"\na lease whose holder was {how.name} took {took:.1f} s to move")
        if how is signal.SIGSTOP:
            first.popen.send_signal(signal.SIGCONT)
            first.hear()
            # It stops, and would not be taken for the holder meanwhile.
            assert first.lost == ["False"]
            assert first.fence == 0
    finally:
        for each in (first, second):
            each.popen.kill()
            each.popen.communicate()


# Nodes


class Realm:
    """Nodes on one Redis, by name."""

    def __init__(self, folder: Path, url: str) -> None:
        self.nodes: dict[str, Process] = {}
        self._folder = folder
        self._url = url
        self._key = token_key(folder)
        self._stacks: dict[str, ExitStack] = {}

    def start(self, name: str) -> Process:
        stack = self._stacks[name] = ExitStack()
        options = ("--engine", self._url, "--token-key-file", str(self._key), "--node", name)
        node = stack.enter_context(serving(self._folder / name, *options, listen=LISTEN))
        self.nodes[name] = node
        return node

    def get(self, name: str, path: str) -> tuple[int, Any]:
        """What a node answers to a request."""
        url = self.nodes[name].urls[1]
        try:
            with urllib.request.urlopen(url + path, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def states(self, name: str) -> dict[str, str]:
        """What a node says of all, by name."""
        status, found = self.get(name, "/v1/nodes")
        assert status == 200, found
        return {each["name"]: each["status"] for each in found["nodes"]}

    def close(self) -> None:
        for each in self._stacks.values():
            each.close()


@pytest.fixture
def realm(tmp_path: Path, redis: RedisServer) -> Iterator[Realm]:
    realm = Realm(tmp_path, redis.url(secrets.token_hex(4)))
    yield realm
    realm.close()


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.popen.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.popen.send_signal(signal.SIGCONT)


def test_nodes_that_are_killed_stopped_and_told_to_end_are_seen(realm: Realm) -> None:
    for name in ("a", "b", "c"):
        realm.start(name)
    until(lambda: realm.states("a") == {"a": "ready", "b": "ready", "c": "ready"})
    with stopped(realm.nodes["b"]):
        until(lambda: realm.states("a") == {"a": "ready", "b": "silent", "c": "ready"})
    until(lambda: realm.states("a") == {"a": "ready", "b": "ready", "c": "ready"})
    realm.nodes["b"].popen.kill()
    until(lambda: realm.states("a") == {"a": "ready", "b": "silent", "c": "ready"})
    assert realm.nodes["c"].stop() == 0
    # One that ends in order is gone at once, the other is forgotten.
    until(lambda: "c" not in realm.states("a"), 5)
    assert until(lambda: realm.states("a") == {"a": "ready"}) < 12
    realm.start("b")
    until(lambda: realm.states("a") == {"a": "ready", "b": "ready"})
    run = mist("nodes", "--url", realm.nodes["b"].urls[1])
    assert [line.split()[:2] for line in run.stdout.splitlines()[1:]] == [
        ["a", "ready"],
        ["b*", "ready"],
    ]


def test_clients_of_all_nodes_are_counted_and_their_tags_listed(realm: Realm) -> None:
    urls = [realm.start(name).urls[0] for name in ("a", "b")]
    with dial(urls[0]) as one, dial(urls[1]) as two:
        first, second = one.makefile("rb"), two.makefile("rb")
        one.sendall(b"subscribe order,eu\nping\n")
        two.sendall(b"subscribe news\nping\n")
        assert first.readline() == second.readline() == b"pong\n"
        one.sendall(b"listall\n")
        assert first.readline() == b"listall eu news order\n"

        def counted() -> bool:
            one.sendall(b"who\n")
            return first.readline() == b"who 2 2\n"

        until(counted)

        def listed_without_b() -> bool:
            one.sendall(b"listall\n")
            return first.readline() == b"listall eu order\n"

        with stopped(realm.nodes["b"]):
            until(listed_without_b, 10)


def test_a_redis_that_stands_still_makes_nodes_unready_until_it_goes_on(
    realm: Realm, redis: RedisServer
) -> None:
    realm.start("a")
    until(lambda: realm.get("a", "/readyz")[0] == 200)
    with redis.frozen():
        until(lambda: realm.get("a", "/readyz")[0] == 503)
        until(lambda: realm.get("a", "/v1/nodes")[0] == 503)
    until(lambda: realm.get("a", "/readyz")[0] == 200)
    until(lambda: realm.states("a") == {"a": "ready"})


# Queue groups


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Worker:
    """A NATS client in a queue group, or one that publishes to it."""

    def __init__(self, node: Process, *, joins: bool) -> None:
        self.got: list[int] = []
        self._socket = dial(node.urls[2])
        self._socket.settimeout(0.05)
        self._held = b""
        self._pongs = 0
        self.send(b'CONNECT {"verbose":false}\r\n' + (b"SUB work q 1\r\n" if joins else b""))

    def close(self) -> None:
        self._socket.close()

    def send(self, commands: bytes) -> None:
        pongs = self._pongs
        self._socket.sendall(commands + b"PING\r\n")

        def answered() -> bool:
            self.take()
            return self._pongs > pongs

        until(answered)

    def take(self) -> None:
        """Take in what has come."""
        with suppress(TimeoutError, ConnectionError):
            while data := self._socket.recv(65_536):
                self._held += data
        *lines, self._held = self._held.split(b"\r\n")
        self._pongs += lines.count(b"PONG")
        self.got += [int(line) for line in lines if line.isdigit()]

    def publish(self, numbers: Iterable[int]) -> None:
        self.send(
            b"".join([b"PUB work %d\r\n%d\r\n" % (len(str(number)), number) for number in numbers])
        )


def test_what_is_for_a_node_that_stands_still_comes_late_and_a_killed_one_is_replaced(
    realm: Realm, stack: ExitStack
) -> None:
    nodes = [realm.start(name) for name in ("a", "b", "c")]
    until(lambda: set(realm.states("a").values()) == {"ready"})
    workers = [stack.enter_context(closing(Worker(node, joins=True))) for node in nodes]
    publisher = stack.enter_context(closing(Worker(nodes[0], joins=False)))

    def taken() -> list[int]:
        for each in workers:
            each.take()
        return sorted(number for each in workers for number in each.got)

    publisher.publish(range(300))
    until(lambda: len(taken()) >= 300)
    with stopped(nodes[1]):
        began = time.monotonic()
        published = 300
        # Until the others know that it doesn't go on: then nothing more is for it.
        while time.monotonic() < began + 4.5:
            publisher.publish(range(published, published + 30))
            published += 30
        before = len(taken())
        publisher.publish(range(published, published + 100))
        published += 100
        until(lambda: len(taken()) >= before + 100)
        assert len(taken()) < published  # some wait for it
    until(lambda: len(taken()) >= published)
    assert taken() == list(range(published))
    # It says that it has not gone, and has its share again.
    mine = len(workers[1].got)

    def has_its_share() -> bool:
        nonlocal published
        publisher.publish(range(published, published + 30))
        published += 30
        taken()
        return len(workers[1].got) > mine

    until(has_its_share)
    until(lambda: len(taken()) >= published)
    nodes[1].popen.kill()
    began = time.monotonic()

    def all_come() -> bool:
        nonlocal published
        before = len(taken())
        publisher.publish(range(published, published + 100))
        published += 100
        time.sleep(0.05)
        return len(taken()) == before + 100

    took = until(all_come)
    print(f"\nafter {took:.1f} s nothing more was for a node that was killed")
    # At most once, whatever happened.
    assert len(taken()) == len(set(taken()))
