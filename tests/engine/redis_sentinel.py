"""A Redis with replicas, and the Sentinels that put one of them in its place; real processes."""

import secrets
import time
from pathlib import Path
from typing import Self

from tests.engine.redis_group import RedisGroup
from tests.engine.redis_server import HOST, RedisServer

MASTER = "mymaster"

# What makes them decide in about a second, where they are of version 7. A replica of which they
# have not heard for five pings is none to promote; while its master is away they ask it once a
# second.
_QUICK = (
    *("info-period", "200"),
    *("ping-period", "300"),
    *("ask-period", "100"),
    *("publish-period", "200"),
)


class Sentinel(RedisServer):
    """One that knows the others, and all servers, from the beginning."""

    def __init__(self, folder: Path, kind: str, *options: str) -> None:
        super().__init__(folder, kind, *options)
        self.identity = secrets.token_hex(20)
        self.lines: list[str] = []

    def command(self) -> list[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():  # it writes its own state into it
            file.write_text("\n".join([f"port {self.port}", *self.lines, ""]))
        return [self.program, str(file), "--sentinel", "--dir", str(self.folder), *self.options]


class Watched(RedisGroup):
    """A master, two replicas and three Sentinels. The one that was the master comes first.

    Args:
        folder: of their own.
        options: of each server.
        down_after: seconds without an answer after which a master is taken for dead.
        sentinel_options: lines of the Sentinels' files.
        tls: see `RedisServer.use_tls`; None is without.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        kind: str = "system",
        down_after: float = 0.5,
        sentinel_options: tuple[str, ...] = (),
        tls: Path | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.servers = [RedisServer(_made(folder / f"{n}"), kind, *options) for n in range(3)]
        # Those of 6.2 can't be made as quick.
        self.sentinels = [Sentinel(_made(folder / f"sentinel{n}"), "system") for n in range(3)]
        self.scheme = "redis+sentinel" if tls is None else "rediss+sentinel"
        if tls is not None:
            for each in (*self.servers, *self.sentinels):
                each.use_tls(tls)
        master, *replicas = self.servers
        for number, each in enumerate(self.sentinels):
            # One of them needs fewer that agree: else each may have itself elected, for a while.
            agreed = 3 if number else 2
            each.lines = [
                f"sentinel myid {each.identity}",
                f"sentinel monitor {MASTER} {HOST} {master.public_port} {agreed}",
                f"sentinel down-after-milliseconds {MASTER} {down_after * 1000:.0f}",
                f"sentinel failover-timeout {MASTER} 1500",
                *[f"sentinel known-replica {MASTER} {HOST} {one.public_port}" for one in replicas],
                *[
                    f"sentinel known-sentinel {MASTER} {HOST} {other.public_port} {other.identity}"
                    for other in self.sentinels
                    if other is not each
                ],
                *sentinel_options,
            ]

    def url(self, realm: str = "test", **options: object) -> str:
        hosts = ",".join([f"{HOST}:{each.public_port}" for each in self.sentinels])
        query = "".join([f"&{name}={value}" for name, value in options.items()])
        return f"{self.scheme}://{hosts}/{MASTER}?realm={realm}{query}"

    def start(self) -> Self:
        for each in self.servers:
            each.start()
        master, *replicas = self.servers
        for each in replicas:
            each.follow(master.public_port)
        for each in self.sentinels:
            each.start()
            each.ask("SENTINEL", "DEBUG", *_QUICK)
        for each in self.sentinels:
            self._until_known(each)
        master.until_followed(len(replicas))
        return self

    def _until_known(self, sentinel: Sentinel) -> None:
        """Wait until a Sentinel has heard of each replica that it may be promoted."""
        give_up = time.monotonic() + 20
        while sentinel.ask("SENTINEL", "replicas", MASTER).count(b"\r\n$2\r\nok\r\n") < 2:
            assert time.monotonic() < give_up, "Sentinel does not find the replicas"
            time.sleep(0.02)

    def master(self) -> RedisServer:
        """As the first Sentinel that answers has it."""
        for each in self.sentinels:
            try:
                reply = each.ask("SENTINEL", "get-master-addr-by-name", MASTER)
            except OSError:
                continue
            port = int(reply.split()[-1])
            return next(one for one in self.servers if one.public_port == port)
        raise AssertionError("no Sentinel answers")

    def until_replaced(self, old: RedisServer, seconds: float = 20.0) -> RedisServer:
        """Wait until another one is the master; that one."""
        give_up = time.monotonic() + seconds
        while (found := self.master()) is old or b"role:master" not in found.ask(
            "INFO", "replication"
        ):
            assert time.monotonic() < give_up, "no other master was chosen"
            time.sleep(0.02)
        return found

    def kill(self) -> None:
        for each in (*self.sentinels, *self.servers):
            each.kill()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
