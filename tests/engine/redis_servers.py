"""Redis servers that tests share."""

import tempfile
from pathlib import Path

from tests.engine.redis_cluster import Cluster
from tests.engine.redis_server import RedisServer


class RedisServers:
    """What tests share: a server of each kind, and a cluster, started once it is asked for."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._running: dict[str, RedisServer | Cluster] = {}

    def get(self, kind: str) -> RedisServer | Cluster:
        if kind not in self._running:
            folder = Path(self._folder.name) / kind
            folder.mkdir()
            made = Cluster(folder) if kind == "cluster" else RedisServer(folder, kind)
            self._running[kind] = made.start()
        return self._running[kind]

    def close(self) -> None:
        for each in self._running.values():
            each.kill()
        self._folder.cleanup()
