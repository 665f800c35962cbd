"""Nodes whose Redis fails over to a replica, by Sentinel, as processes.

pytest tests/system/test_failover.py --slow -s -k ten     fails over ten times; prints its figures
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.redis_sentinel import MASTER, Watched
from tests.engine.redis_server import HOST, RedisServer
from tests.ports import free_port
from tests.processes import mist, token_key
from tests.system.test_nodes import Realm, check, read_once_ready

HEAD = "{mist:test}:head"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path / "watched", "--appendfsync", "always") as watched:
        yield watched


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Watched]:
    """One whose replicas may have been cut off for 15 s, which is ten times `down_after`: after
    that Sentinel promotes none of them.
    """
    with Watched(tmp_path / "watched", "--appendfsync", "always", down_after=1.5) as watched:
        yield watched


@contextmanager
def published(folder: Path, watched: Watched, *options: str) -> Iterator[Realm]:
    """Two nodes at which somebody publishes."""
    realm = Realm(folder, watched, 2, *options)
    try:
        for number in realm.nodes:
            realm.start(number)
            realm.write(number)
        realm.until_stored(500)
        yield realm
    finally:
        realm.close()


def fail_over(realm: Realm, watched: Watched, how: signal.Signals) -> float:
    """Have the master end; seconds until what came later is acknowledged."""
    old = watched.master()
    old.signal(how)
    began = time.monotonic()
    new = watched.until_replaced(old)
    if how is signal.SIGSTOP:
        old.signal(signal.SIGCONT)  # a master still, until it learns that it is none
        time.sleep(1.0)
        old.follow(new.port)  # Sentinels see to that, too, in their own time
    else:
        old.kill()
        new.until_followed(1)  # else one might go on with the old one, as above
        old.start()
    realm.until_stored(500)  # of which 400 may have been under way
    took = time.monotonic() - began
    realm.until_stored(500)
    return took


# A master that goes on later has a replica for a moment that has not heard of the other one yet:
# only where all replicas have what was acknowledged, the one that has taken its place does. One
# that was killed may be started again as early as that, too; here it is not.
SAFE = [(signal.SIGKILL, "1"), (signal.SIGSTOP, "2")]


@pytest.mark.parametrize(("how", "replicas"), SAFE)
def test_with_replicas_a_failover_loses_nothing(
    tmp_path: Path, watched: Watched, how: signal.Signals, replicas: str
) -> None:
    with published(tmp_path, watched, "--engine-replicas", replicas) as realm:
        fail_over(realm, watched, how)
        check(realm)


def test_without_one_what_was_lost_is_another_epoch(tmp_path: Path, patient: Watched) -> None:
    with published(tmp_path, patient) as realm:
        epoch = patient.master().ask("HGET", HEAD, "epoch")
        patient.master().without_replicas()
        realm.until_stored(1_000)
        known = set(realm.stored)
        fail_over(realm, patient, signal.SIGKILL)
        until_another_epoch(patient, epoch)
        for number in realm.nodes:
            realm.kill(number)
        logs = [read_once_ready(realm.start(number)) for number in realm.nodes]
        assert all(log == logs[0] for log in logs)
        found = dict(logs[0])
        assert len(set(found.values())) == len(logs[0])
        assert realm.repeated == []
        lost = {id_ for id_, text in realm.stored.items() if found.get(id_) != text}
        assert len(lost & known) > 500
        assert not lost & found.keys()  # no id has two contents


def until_another_epoch(watched: Watched, epoch: bytes) -> None:
    """Wait until the master has another epoch.

    A Sentinel that has not heard of the failover may lead nodes back to the old master, which is
    started again: they go on there until it learns that it is a replica.
    """
    give_up = time.monotonic() + 20
    while watched.master().ask("HGET", HEAD, "epoch") == epoch:
        assert time.monotonic() < give_up, "nobody begins another epoch"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "replicas"), SAFE)
def test_ten_failovers_lose_nothing(
    tmp_path: Path, watched: Watched, how: signal.Signals, replicas: str
) -> None:
    with published(tmp_path, watched, "--engine-replicas", replicas) as realm:
        took = []
        for _ in range(10):
            took.append(fail_over(realm, watched, how))
            watched.master().until_followed(2)
        check(realm)
        print(
            f"\n10 failovers ({how.name}, {replicas} replicas), {len(realm.stored)} acknowledged, "
            f"none lost; acknowledged again after {min(took):.1f} to {max(took):.1f} s"
        )


@pytest.mark.parametrize("replicas", ["", "1"])
def test_a_wrong_start_is_told_in_one_line(tmp_path: Path, replicas: str) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    key = ("--token-key-file", str(token_key(tmp_path)))
    with RedisServer(folder, "wheel", "--appendfsync", "always") as redis:
        engine, why = redis.url(), "has 0 of the 1 replicas that engine_replicas asks for"
        if not replicas:
            query = "sentinel_password=hush-hush"
            engine = f"redis+sentinel://me:hush@{HOST}:{free_port()}/{MASTER}?{query}"
            why = "connection refused"
        options = ("--engine", engine, "--engine-replicas", replicas or "0", *key)
        run = mist("serve", "--data", str(tmp_path / "d"), *options)
    assert run.returncode == 2
    assert run.stderr.startswith("mist serve: engine: ")
    assert why in run.stderr
    assert run.stderr.count("\n") == 1
    assert "hush" not in run.stderr + run.stdout
