"""Nodes on one engine, as processes: killed in turns, the engine too, and started again.

pytest tests/system/test_nodes.py --slow -s -k sixty     kills one of them sixty times; prints its
                                                         figures
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

import pytest
import trio

from mist.engine.contract import Standing
from mist.engine.opening import open_engine
from tests.engine.postgres_server import PostgresServer
from tests.engine.redis_server import RedisServer
from tests.processes import Process, dial, mist, serving, token_key
from tests.system.test_durability import Unavailable, read_back, store_until_the_end

EngineServer: TypeAlias = RedisServer | PostgresServer


class HasUrl(Protocol):
    """What nodes may have as their engine."""

    def url(self) -> str: ...


@pytest.fixture(params=["redis", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineServer]:
    """The server that has the log; it acknowledges what is on its disk."""
    if request.param == "postgres":
        with PostgresServer("system") as server:
            yield server
    else:
        folder = tmp_path / "redis"
        folder.mkdir()
        with RedisServer(folder, "wheel", "--appendfsync", "always") as server:
            yield server


class Realm:
    """Nodes of one realm, and what was acknowledged to those who publish at them.

    Args:
        folder: where they have their data.
        engine: of theirs.
        nodes: how many they are; numbered from 0 on.
        options: of each of them.
    """

    def __init__(self, folder: Path, engine: HasUrl, nodes: int, *options: str) -> None:
        self.nodes = range(nodes)
        self.stored: dict[int, str] = {}
        self.repeated: list[int] = []
        self.refused: list[str] = []
        self._folder = folder
        self._key = token_key(folder)
        self._engine = engine
        self._options = options
        self._running: dict[int, tuple[ExitStack, Process]] = {}
        self._writers: list[threading.Thread] = []
        self._runs = 0

    def start(self, number: int) -> str:
        """Start a node; the URL of its line protocol."""
        stack = ExitStack()
        options = [*("--engine", self._engine.url(), "--token-key-file", str(self._key))]
        options += ("--checkpoint-bytes", "64KiB")  # so that there are some in a short time
        options += self._options
        node = stack.enter_context(serving(self._folder / f"node{number}", *options))
        self._running[number] = stack, node
        return node.urls[0]

    def write(self, number: int) -> None:
        """Have somebody publish at a node until it ends."""
        self._runs += 1
        _, node = self._running[number]
        name = f"r{self._runs}n{number}"
        # Where a node died with the engine, nobody knows what it had of the log: another epoch
        # begins, and what is under way is refused.
        arguments = node.urls[0], name, self.stored, self.repeated, self.refused
        self._writers.append(threading.Thread(target=store_until_the_end, args=arguments))
        self._writers[-1].start()

    def kill(self, number: int) -> None:
        """As a crash does it."""
        stack, node = self._running.pop(number)
        node.popen.kill()
        stack.close()

    def forget(self, number: int) -> None:
        """Remove the mirror of a node that doesn't run."""
        for path in (self._folder / f"node{number}").glob("mirror.db*"):
            path.unlink()

    def until_stored(self, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        goal, give_up = len(self.stored) + more, time.monotonic() + 60
        while len(self.stored) < goal:
            assert time.monotonic() < give_up, f"{len(self.stored)} of {goal} are stored"
            time.sleep(0.005)

    def close(self) -> None:
        for number in list(self._running):
            self.kill(number)
        for writer in self._writers:
            writer.join(30)


@pytest.fixture
def realm(tmp_path: Path, engine: EngineServer, request: pytest.FixtureRequest) -> Iterator[Realm]:
    realm = Realm(tmp_path, engine, getattr(request, "param", 2))
    yield realm
    realm.close()


def kill_in_turns(realm: Realm, engine: EngineServer, kills: int) -> None:
    """Kill nodes, and the engine each third time, while others publish."""
    random = Random(kills)
    for number in realm.nodes:
        realm.start(number)
        realm.write(number)
    for kill in range(1, kills + 1):
        realm.until_stored(random.randrange(200, 1_500))
        if kill % 3 == 0:
            engine.kill()
            time.sleep(random.random() / 2)
            engine.start()
            continue
        number = random.choice(realm.nodes)
        realm.kill(number)
        if kill % 5 == 0:
            realm.forget(number)
        realm.start(number)
        realm.write(number)
    realm.until_stored(1_000)


def read_once_ready(url: str) -> list[tuple[int, str]]:
    """What a node has, once it has caught up: until then it refuses to tell."""
    give_up = time.monotonic() + 30
    while True:
        try:
            return read_back(url)
        except Unavailable:
            assert time.monotonic() < give_up, "the node does not catch up"
            time.sleep(0.1)


def check(realm: Realm) -> None:
    """All have the same, each message once, and whatever was acknowledged, under its id."""
    for number in realm.nodes:
        realm.kill(number)
    logs = [read_once_ready(realm.start(number)) for number in realm.nodes]
    shortest = min(map(len, logs))
    assert all(log[:shortest] == logs[0][:shortest] for log in logs)
    longest = max(logs, key=len)
    texts = [text for _, text in longest]
    assert len(set(texts)) == len(texts)
    assert realm.repeated == []
    assert realm.stored.items() <= dict(longest).items()


def test_nodes_and_their_engine_are_killed_and_nothing_is_lost_or_twice(
    realm: Realm, engine: EngineServer
) -> None:
    kill_in_turns(realm, engine, 3)
    check(realm)


@pytest.mark.slow
@pytest.mark.parametrize("realm", [3], indirect=True)
def test_sixty_kills_lose_nothing(realm: Realm, engine: EngineServer) -> None:
    kill_in_turns(realm, engine, 60)
    give_up = time.monotonic() + 60
    while (standing := trio.run(standing_of, engine.url())).oldest == 1:
        assert time.monotonic() < give_up, "the log of the last epoch is not trimmed"
        realm.until_stored(1_000)
    check(realm)
    print(
        f"\n60 kills, 20 of them of the engine; {len(realm.stored)} messages acknowledged, "
        f"none lost; of {standing.offset} records {standing.oldest - 1} were trimmed"
    )


async def standing_of(url: str) -> Standing:
    async with await open_engine(url) as engine:
        return await engine.standing()


def test_what_is_published_at_one_is_heard_at_the_others(realm: Realm) -> None:
    urls = [realm.start(number) for number in realm.nodes]
    with dial(urls[0]) as publisher, dial(urls[1]) as subscriber:
        heard = subscriber.makefile("rb")
        subscriber.sendall(b"ids on\nsubscribe order\nping\n")
        assert heard.readline() == b"pong\n"
        publisher.sendall(b"publish order,eu hello\nstore order 2\n")
        assert [heard.readline(), heard.readline()] == [
            b"message 1 eu,order hello\n",
            b"message 2 order 2\n",
        ]
        assert publisher.makefile("rb").readline() == b"stored 2\n"


def test_an_engine_that_is_not_there_is_told_in_one_line(
    tmp_path: Path, engine: EngineServer
) -> None:
    engine.kill()
    scheme, _, location = engine.url().partition("://")
    url = f"{scheme}://user:correct-horse@{location.rpartition('@')[2]}"
    options = ("--engine", url, "--token-key-file", str(token_key(tmp_path)))
    run = mist("serve", "--data", str(tmp_path / "d"), *options)
    assert run.returncode == 2
    assert re.fullmatch(r"mist serve: engine: can't connect to \w+ at [^\n]*\n", run.stderr)
    assert "correct-horse" not in run.stderr + run.stdout


def test_a_redis_that_keeps_less_than_is_asked_for_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "wheel", "--appendfsync", "everysec") as redis:
        options = ("--engine", redis.url(), "--token-key-file", str(token_key(tmp_path)))
        run = mist("serve", "--data", str(tmp_path / "d"), *options)
    assert run.returncode == 2
    assert "appendfsync everysec" in run.stderr
    assert run.stderr.count("\n") == 1
