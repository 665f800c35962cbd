"""Nodes on an engine: what is measured, on real servers, and how it is said."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from mist.bench.cell import Cell
from mist.bench.errors import BenchError
from mist.bench.nodes import cells, engines
from mist.bench.nodes.cells import nodes_cells
from mist.bench.nodes.engines import HOST, EngineServer
from mist.bench.nodes.figure import Measured, NodesFigure
from mist.bench.nodes.postgres import PostgresServer
from mist.bench.nodes.realm import Realm
from mist.bench.nodes.redis import RedisServer
from mist.bench.report import row_of
from mist.bench.site import Site
from tests.engine.postgres_server import find_postgres
from tests.engine.redis_server import find_redis

NOWHERE = Site(None, None, None)
FIGURES = [
    "idle node",
    "latency, p50",
    "latency, p99",
    "revocation, p50",
    "revocation, p99",
    "revocation, longest",
    "publish",
    "publish, node CPU",
    "publish, other node CPU",
    "publish, engine CPU",
    "nobody asks, other node CPU",
    "publish new tags",
    "publish new tags, node CPU",
    "publish new tags, other node CPU",
    "publish new tags, engine CPU",
    "engine back, until a store",
    "new node with 1 MiB, until it is ready",
    "new node, rate",
    "node killed, until the next message",
]


def measure(cell: Cell) -> list[NodesFigure]:
    found = cell.measure(NOWHERE)
    figures = [found] if isinstance(found, NodesFigure) else found
    assert isinstance(figures, list)
    assert all(isinstance(each, NodesFigure) for each in figures)
    return figures  # type: ignore[return-value]


def test_every_figure_is_measured_on_a_redis(tmp_path: Path) -> None:
    find_redis("system")
    told: list[str] = []
    everysec, always = nodes_cells(
        ["redis"], seconds=0.1, mebibytes=1, folder=tmp_path, quick=True, progress=told.append
    )
    assert always.label == "nodes on redis always"
    figures = measure(everysec)
    assert {(each.engine, each.setting) for each in figures} == {("redis", "everysec")}
    assert [each.measured.name for each in figures] == FIGURES
    for each in figures:
        assert len(each.measured.values) == 1, each
        assert each.measured.values[0] >= 0
        assert "lost" not in each.measured.note
        assert "repeated" not in each.measured.note
    assert told[0] == "redis everysec: idle node"
    assert not list(tmp_path.iterdir())


def test_a_redis_that_was_killed_has_what_it_had(tmp_path: Path) -> None:
    find_redis("system")
    with RedisServer(tmp_path, "always") as server:
        server.start()
        assert ask(server, "SET a 17").endswith(b"+OK\r\n")
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(server, "GET a")
        server.start()
        assert ask(server, "GET a").endswith(b"17\r\n")
        assert server.cpu() is not None
    with pytest.raises(ConnectionRefusedError):
        ask(server, "GET a")
    assert not list(tmp_path.iterdir())


def ask(server: RedisServer, command: str) -> bytes:
    """What it answers to a command, behind the password's."""
    password = server.url().partition(":")[2].partition("@")[0].rpartition(":")[2]
    with socket.create_connection((HOST, server.port), timeout=10) as sock:
        sock.sendall(f"AUTH {password}\r\n{command}\r\nQUIT\r\n".encode())
        with sock.makefile("rb") as answers:
            return answers.read().removesuffix(b"+OK\r\n")


def test_a_postgres_that_was_killed_has_what_it_had() -> None:
    find_postgres("system")
    with PostgresServer(None) as server:
        server.start()
        with psycopg.connect(server.url().partition("?")[0], autocommit=True) as connection:
            connection.execute("CREATE TABLE a AS SELECT 17 AS n")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url().partition("?")[0])
        server.start()
        with psycopg.connect(server.url().partition("?")[0]) as connection:
            assert connection.execute("SELECT n FROM a").fetchall() == [(17,)]
        assert server.cpu() is not None


def test_a_process_that_ends_while_cpu_is_counted_does_not_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_redis("system")
    with RedisServer(None, "always") as server:
        server.start()
        found = engines._with_children
        gone = [True, True, False]
        with subprocess.Popen(["true"]) as ended:
            pass

        def with_children(pid: int) -> list[int]:
            return [*found(pid), *([ended.pid] if gone and gone.pop(0) else [])]

        monkeypatch.setattr(engines, "_with_children", with_children)
        assert server.cpu() is not None
        assert gone == []


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cells._MISSING, "redis", lambda: None)
    monkeypatch.setitem(cells._MISSING, "postgres", lambda: "no postgres here")
    everysec, always, missing = nodes_cells()
    assert [each.label for each in (everysec, always)] == [
        "nodes on redis everysec",
        "nodes on redis always",
    ]
    (figure,) = measure(missing)
    row = row_of(figure)
    assert (row["engine"], row["median"]) == ("postgres", None)
    assert row["note"] == "not installed: no postgres here"
    with pytest.raises(BenchError, match="postgres: no postgres here"):
        nodes_cells(["postgres"])
    monkeypatch.setitem(cells._MISSING, "redis", lambda: "no redis here")
    with pytest.raises(BenchError, match="redis: no redis here; postgres: no postgres here"):
        nodes_cells()


class Nothing(EngineServer):
    """An engine that is not there."""

    engine = "redis"

    def start(self) -> None:
        pass

    def url(self) -> str:
        raise NotImplementedError

    def _command(self) -> list[str | Path]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


def test_what_fails_is_said_in_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(realm: Realm) -> list[Measured]:
        raise BenchError("the node went away")

    @contextmanager
    def realm(engine: EngineServer, folder: Path | None) -> Iterator[None]:
        yield

    monkeypatch.setitem(cells._MISSING, "redis", lambda: None)
    monkeypatch.setattr(
        cells, "_engines", lambda name, folder: {"always": lambda: Nothing(None, "always", "power")}
    )
    monkeypatch.setattr(cells, "open_realm", realm)
    works = Measured("publish", "messages/s", [1.0])
    monkeypatch.setattr(
        cells, "_measures", lambda sizes: {"latency": fail, "publish": lambda realm: [works]}
    )
    (cell,) = nodes_cells(["redis"])
    failed, measured = measure(cell)
    assert failed.measured == Measured("latency", "", (), "not measured: the node went away")
    assert measured == NodesFigure("redis", "always", works)


def test_a_figure_is_a_median_beside_what_is_asked() -> None:
    rates = Measured("publish", "messages/s", [300_000.0, 100_000.0, 200_000.0])
    row = row_of(NodesFigure("redis", "everysec", rates))
    assert (row["median"], row["lowest"], row["highest"]) == (200_000, 100_000, 300_000)
    assert (row["rounds"], row["asked_at_least"], row["asked_at_most"]) == (3, 250_000, None)
    always = row_of(NodesFigure("redis", "always", rates))
    assert (always["asked_at_least"], always["asked_at_most"]) == (None, None)
    assert row_of(NodesFigure("postgres", "on", rates))["asked_at_least"] == 120_000
    latency = Measured("latency, p99", "ms", [3.0])
    for setting in ("everysec", "always"):
        assert row_of(NodesFigure("redis", setting, latency))["asked_at_most"] == 8
