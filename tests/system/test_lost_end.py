"""Nodes whose engine comes back with less than it has acknowledged, as processes."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.redis_server import RedisServer
from tests.processes import mist, serving, token_key
from tests.system.test_nodes import Realm, read_once_ready

HEAD = "{mist:test}:head"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "wheel", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def realm(tmp_path: Path, redis: RedisServer) -> Iterator[Realm]:
    realm = Realm(tmp_path, redis, 3)
    yield realm
    realm.close()


def lose_its_end(realm: Realm, redis: RedisServer) -> tuple[int, float]:
    """Have the engine come back with older files, as after a failover to a replica that was behind.

    Returns:
        Messages that were acknowledged and are lost, and seconds until there was another epoch.
    """
    for number in realm.nodes:
        realm.start(number)
        realm.write(number)
    realm.until_stored(500)
    older = redis.folder.with_name("older")
    shutil.copytree(redis.folder, older)
    realm.until_stored(500)
    epoch = redis.ask("HGET", HEAD, "epoch")
    redis.kill()
    shutil.rmtree(redis.folder)
    shutil.move(older, redis.folder)
    known: set[int] = set()
    while known != set(realm.stored):  # what was acknowledged before has yet to be read
        known = set(realm.stored)
        time.sleep(0.5)
    redis.start()
    began = time.monotonic()
    while redis.ask("HGET", HEAD, "epoch") == epoch:
        assert time.monotonic() - began < 10, "there is no other epoch"
        time.sleep(0.01)
    took = time.monotonic() - began
    realm.until_stored(500)
    for number in realm.nodes:
        realm.kill(number)
    logs = [read_once_ready(realm.start(number)) for number in realm.nodes]
    assert all(log == logs[0] for log in logs)
    found = dict(logs[0])
    assert len(set(found.values())) == len(logs[0])
    assert realm.repeated == []
    lost = {id_ for id_, text in realm.stored.items() if found.get(id_) != text}
    assert not lost & found.keys()  # no id has two contents
    assert lost <= known  # what was acknowledged later is there
    return len(lost), took


def test_an_engine_that_has_lost_its_end_gives_no_id_twice(
    realm: Realm, redis: RedisServer
) -> None:
    lost, took = lose_its_end(realm, redis)
    assert lost > 0
    print(f"\n{lost} acknowledged messages lost by the engine; another epoch after {took:.2f} s")


def test_one_that_comes_back_empty_is_told_and_a_restart_begins_anew(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Its tokens are gone, too, and with them which were revoked: nobody goes on by itself."""
    options = ("--engine", redis.url(), "--token-key-file", str(token_key(tmp_path)))
    with serving(tmp_path / "node", *options) as node:
        assert mist("publish", "--server", node.urls[0], "a", "1").returncode == 0
        redis.ask("FLUSHALL")
        give_up = time.monotonic() + 20
        said = ""
        while "History is unavailable" not in said:  # before, it ends connections: another epoch
            assert time.monotonic() < give_up, said
            refused = mist("publish", "--server", node.urls[0], "a", "2")
            assert refused.returncode == 3
            said = refused.stderr
        node.popen.kill()
        assert node.popen.stderr is not None
        assert "the tokens of the realm test are not there any more" in node.popen.stderr.read()
    with serving(tmp_path / "node", *options) as node:
        assert mist("publish", "--server", node.urls[0], "a", "3").returncode == 0
