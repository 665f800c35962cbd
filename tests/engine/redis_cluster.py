"""A Redis cluster: three masters with a replica each, in real processes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mist.engine.redis.cluster import slot_of
from tests.engine.redis_group import RedisGroup
from tests.engine.redis_server import HOST, RedisServer

_SLOTS = 16_384
_PART = _SLOTS // 3 + 1


class Cluster(RedisGroup):
    """Masters first. Made by hand: `redis-cli --cluster create` waits in whole seconds.

    Args:
        folder: of its own.
        options: of each server.
        tls: see `RedisServer.use_tls`; None is without.
    """

    def __init__(
        self, folder: Path, *options: str, kind: str = "system", tls: Path | None = None
    ) -> None:
        self.servers: list[RedisServer] = []
        self.scheme = "redis+cluster" if tls is None else "rediss+cluster"
        for number in range(6):
            own = folder / str(number)
            own.mkdir(parents=True)
            clustered = ("--cluster-enabled", "yes", "--cluster-node-timeout", "500")
            # However long it is since a replica has heard of its master, it may take its place.
            quick = ("--repl-ping-replica-period", "1", "--cluster-replica-validity-factor", "0")
            server = RedisServer(own, kind, *clustered, *quick, *options)
            if tls is not None:
                server.use_tls(tls)
                server.options += ["--tls-cluster", "yes"]
            self.servers.append(server)

    def url(self, realm: str = "test", **options: object) -> str:
        hosts = ",".join([f"{HOST}:{each.public_port}" for each in self.servers[:3]])
        query = "".join([f"&{name}={value}" for name, value in options.items()])
        return f"{self.scheme}://{hosts}?realm={realm}{query}"

    def start(self) -> Self:
        for each in self.servers:
            each.start()
        masters = self.servers[:3]
        for number, each in enumerate(masters):
            slots = range(number * _PART, min((number + 1) * _PART, _SLOTS))
            each.ask("CLUSTER", "ADDSLOTS", *map(str, slots))
            each.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for each in self.servers[1:]:
            each.ask("CLUSTER", "MEET", HOST, str(masters[0].public_port))
        _until("they do not meet", self._have_met)
        for master, replica in zip(masters, self.servers[3:], strict=True):
            replica.ask("CLUSTER", "REPLICATE", identity_of(master))
        self.until_whole()
        return self

    def _have_met(self) -> bool:
        known = [each.ask("CLUSTER", "NODES") for each in self.servers]
        all_known = all(each.count(b" connected") >= len(self.servers) for each in known)
        return all_known and not any(b"handshake" in each for each in known)

    def _is_up(self) -> bool:
        return all(b"cluster_state:ok" in each.ask("CLUSTER", "INFO") for each in self.servers)

    def master_of(self, realm: str = "test") -> RedisServer:
        """The server that has a realm with anything in it."""
        slot = str(slot_of(f"mist:{realm}"))
        for each in self.servers:
            try:
                empty = each.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == b":0\r\n"
                if not empty and b"role:master" in each.ask("INFO", "replication"):
                    return each
            except OSError:
                continue
        raise AssertionError("nobody has the realm")

    def until_replaced(self, old: RedisServer, realm: str = "test") -> RedisServer:
        """Wait until another server has a realm; that one."""
        found = old

        def is_another() -> bool:
            nonlocal found
            others = [each for each in self.servers if each is not old]
            slot = str(slot_of(f"mist:{realm}"))
            for each in others:
                empty = each.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == b":0\r\n"
                if not empty and b"role:master" in each.ask("INFO", "replication"):
                    found = each
            return found is not old

        _until("no replica takes its place", is_another)
        return found

    def until_whole(self) -> None:
        """Wait until each master has a replica that follows it, and all say that all is well."""
        _until("a replica does not follow", lambda: self._replicas() == 3)
        _until("the cluster does not come up", self._is_up)

    def _replicas(self) -> int:
        states = [each.ask("INFO", "replication") for each in self.servers]
        return sum([b"master_link_status:up" in each for each in states])

    def move(self, source: RedisServer, target: RedisServer, realm: str = "test") -> None:
        """Move the slot of a realm with all its keys, one by one."""
        slot = str(slot_of(f"mist:{realm}"))
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", identity_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", identity_of(target))
        while len(keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, "1").split()) > 1:
            name = keys[2].decode()
            reply = source.ask("MIGRATE", HOST, str(target.port), name, "0", "10000")
            assert reply == b"+OK\r\n", reply
            time.sleep(0.05)  # for what is asked meanwhile
        for each in (target, source):
            each.ask("CLUSTER", "SETSLOT", slot, "NODE", identity_of(target))

    def kill(self) -> None:
        for each in self.servers:
            each.kill()


def identity_of(server: RedisServer) -> str:
    """By which the members of a cluster know one."""
    return server.ask("CLUSTER", "MYID").split()[1].decode()


def _until(problem: str, condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up, problem
        time.sleep(0.02)
