"""Nodes that share an archive: its holder is killed and stopped in turns, and all is there once.

pytest tests/system/test_nodes_archive.py --slow -s -k twenty     ends twenty tenures of three
                                                                  nodes; prints its figures
"""

import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mist.archive import Archive, Manifest
from tests.engine.redis_server import RedisServer
from tests.processes import Process, mist, serving, token_key
from tests.system.test_archiving import archived
from tests.system.test_durability import assert_all_there_once, store_until_the_end

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "wheel", "--appendfsync", "always") as server:
        yield server


class Realm:
    """Nodes with one archive, and what was acknowledged to those who publish at them.

    Args:
        nodes: how many they are; numbered from 0 on.
    """

    def __init__(self, folder: Path, redis: RedisServer, nodes: int) -> None:
        self.nodes = range(nodes)
        self.archive = Archive(folder / "archive")
        self.stored: dict[int, str] = {}
        self.repeated: list[int] = []
        self.refused: list[str] = []
        self._folder = folder
        self._options = ("--engine", redis.url(), "--token-key-file", str(token_key(folder)))
        self._running: dict[int, tuple[ExitStack, Process]] = {}
        self._writers: list[threading.Thread] = []
        self._runs = 0

    def start(self, number: int, *, write: bool = True) -> Process:
        stack = ExitStack()
        # So short that segments are made, and their messages trimmed, all the time.
        options = (*self._options, "--keep-age", "4s", "--checkpoint-bytes", "64KiB")
        node = stack.enter_context(
            serving(
                self._folder / f"node{number}",
                *("--archive", str(self.archive.folder), "--node", f"n{number}"),
                *options,
                listen=LISTEN,
            )
        )
        self._running[number] = stack, node
        if write:
            self._runs += 1
            name = f"r{self._runs}n{number}"
            arguments = node.urls[0], name, self.stored, self.repeated, self.refused
            self._writers.append(threading.Thread(target=store_until_the_end, args=arguments))
            self._writers[-1].start()
        return node

    def kill(self, number: int) -> None:
        """As a crash does it."""
        stack, node = self._running.pop(number)
        node.popen.kill()
        stack.close()

    def send(self, number: int, signal_number: int) -> None:
        self._running[number][1].popen.send_signal(signal_number)

    def stop(self, number: int) -> None:
        """As an operator does it."""
        stack, node = self._running.pop(number)
        assert node.stop() == 0
        stack.close()

    def sealing(self) -> list[int]:
        """The nodes that take themselves for the holder, as one that runs knows them."""
        found = get(self._running[min(self._running)][1], "/v1/nodes")
        return [int(each["name"][1:]) for each in found["nodes"] if each["sealing"]]

    def holder(self) -> int:
        """The node that seals, once there is one."""
        give_up = time.monotonic() + 20
        while len(holders := self.sealing()) != 1:
            assert time.monotonic() < give_up, holders
            time.sleep(0.1)
        return holders[0]

    def first(self, number: int) -> int:
        """The lowest id in a node's mirror."""
        return int(get(self._running[number][1], "/v1/stats")["history"]["first"])

    def manifest(self) -> Manifest:
        return self.archive.messages.current()

    def until_sealed(self, above: int, seconds: float = 20) -> Manifest:
        """Wait until the archive has more than that id."""
        give_up = time.monotonic() + seconds
        while (manifest := self.manifest()).sealed <= above:
            assert time.monotonic() < give_up, f"nothing above {above} is sealed"
            time.sleep(0.05)
        return manifest

    def until_stored(self, more: int) -> None:
        goal, give_up = len(self.stored) + more, time.monotonic() + 60
        while len(self.stored) < goal:
            assert time.monotonic() < give_up, f"{len(self.stored)} of {goal} are stored"
            time.sleep(0.005)

    def stop_all(self) -> None:
        for number in list(self._running):
            self.stop(number)
        for writer in self._writers:
            writer.join(30)

    def close(self) -> None:
        for number in list(self._running):
            self.kill(number)
        for writer in self._writers:
            writer.join(30)


def get(node: Process, path: str) -> Any:
    url = node.urls[1].rstrip("/") + path
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


@pytest.fixture
def realm(tmp_path: Path, redis: RedisServer, request: pytest.FixtureRequest) -> Iterator[Realm]:
    realm = Realm(tmp_path, redis, getattr(request, "param", 2))
    yield realm
    realm.close()


def check(realm: Realm) -> None:
    """All that was acknowledged is in the archive, once, and nothing else was listed as lost."""
    realm.stop_all()
    assert realm.repeated == []
    found = archived(realm.archive.folder)
    assert_all_there_once(found, realm.stored)
    texts = [text for _, text in found]
    assert len(set(texts)) == len(texts)
    manifest = realm.manifest()
    assert manifest.lost == ()
    assert max(realm.stored) <= manifest.sealed
    # And what lies about is only what a killed node was writing.
    listed = {each.file for each in manifest.segments}
    lying = {
        str(path.relative_to(realm.archive.folder))
        for path in realm.archive.folder.glob("date=*/[!.]*")
    }
    assert listed <= lying


def end_tenures(realm: Realm, times: int) -> list[float]:
    """End the holder's tenure again and again; the seconds until another node had sealed more."""
    random, taken = Random(times), []
    for number in realm.nodes:
        realm.start(number)
    for time_ in range(times):
        realm.until_stored(random.randrange(500, 3_000))
        realm.until_sealed(realm.manifest().sealed)
        holder = realm.holder()
        time.sleep(random.random())
        is_killed = time_ % 2 == 0
        if is_killed:
            realm.kill(holder)
        else:
            realm.send(holder, signal.SIGSTOP)
        before, began = realm.manifest(), time.monotonic()
        while (after := realm.manifest()).fence == before.fence:
            assert time.monotonic() < began + 10, "no other node goes on"
            time.sleep(0.02)
        taken.append(time.monotonic() - began)
        realm.until_sealed(after.sealed)
        if is_killed:
            realm.start(holder)
        else:
            realm.send(holder, signal.SIGCONT)
    realm.until_stored(1_000)
    return taken


def test_the_archive_goes_on_where_its_holder_is_killed_or_stopped(realm: Realm) -> None:
    end_tenures(realm, 2)
    check(realm)


@pytest.mark.slow
@pytest.mark.parametrize("realm", [3], indirect=True)
def test_twenty_tenures_end_and_all_is_archived_once(realm: Realm) -> None:
    taken = sorted(end_tenures(realm, 20))
    trimmed = [realm.first(number) - 1 for number in realm.nodes]
    assert min(trimmed) > 0
    check(realm)
    manifest = realm.manifest()
    print(
        f"\n20 tenures ended, half by SIGKILL and half by SIGSTOP; {len(realm.stored):,} messages "
        f"acknowledged, all archived once, in {len(manifest.segments)} segments; {min(trimmed):,} "
        f"trimmed from each mirror meanwhile; another node took over after {taken[0]:.1f} to "
        f"{taken[-1]:.1f} s, median {taken[10]:.1f}"
    )


def test_a_node_that_stops_hands_the_archive_over(realm: Realm) -> None:
    for number in realm.nodes:
        realm.start(number)
    realm.until_sealed(0)
    first = realm.holder()
    realm.stop(first)
    before, began = realm.manifest(), time.monotonic()
    other = 1 - first
    while realm.sealing() != [other]:
        assert time.monotonic() < began + 2.9, "it waits until the lease has ended"
        time.sleep(0.05)
    realm.until_sealed(before.sealed)
    check(realm)


def test_nodes_of_another_log_are_refused_in_one_line(tmp_path: Path, realm: Realm) -> None:
    realm.start(0)
    realm.until_sealed(0)
    options = ("--archive", str(realm.archive.folder), "--token-key-file", str(token_key(tmp_path)))
    folder = tmp_path / "other-redis"
    folder.mkdir()
    with RedisServer(folder, "wheel", "--appendfsync", "always") as other:
        run = mist("serve", "--data", str(tmp_path / "d"), "--engine", other.url(), *options)
    assert run.returncode == 2
    assert re.fullmatch(
        r"mist serve: archive \S+: of another log; restore that one, or use another directory for "
        r"this one\n",
        run.stderr,
    )
    run = mist("serve", "--data", str(tmp_path / "e"), *options[:2])
    assert run.returncode == 2
    assert run.stderr.endswith(": another server uses it\n")
