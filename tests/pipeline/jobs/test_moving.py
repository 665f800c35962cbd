"""Export, replay, stream and erasure against a real server that keeps an archive."""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from mist.archive import Archive
from mist.history.erasure import Erasure
from mist.pipeline.erasure.hot import erase_by_server
from mist.pipeline.errors import BadInput
from mist.pipeline.jobs import erase, export, replay, stream
from mist.pipeline.origin import Origin
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client
from tests.processes import Process, mist, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
MESSAGES = 300
# Random, so that no compression hides it.
SECRETS = {n: os.urandom(48).hex().encode() for n in range(0, MESSAGES, 50)}


class Place:
    """A server, its folder, and what has been published there."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        self.url = process.urls[1]
        self._tcp = urlsplit(process.urls[0]).port
        self.archive = Archive(folder / "data" / "archive")

    def ask(self, method: str, path: str) -> Any:
        with Client(Address.parse(self.url, None, None)) as client:
            posting = method == "POST"
            body, kind = (b"{}", "application/json") if posting else (None, None)
            return client.request(method, path, body=body, content_type=kind).json()

    @property
    def newest(self) -> int:
        return int(self.ask("GET", "/v1/log/position")["newest"])

    def publish(self, lines: list[bytes]) -> None:
        before = self.newest
        with socket.create_connection(("127.0.0.1", self._tcp)) as peer:
            peer.sendall(b"".join(lines))
            deadline = time.monotonic() + 60
            while self.newest < before + len(lines):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def fill(self) -> None:
        lines = []
        for n in range(MESSAGES):
            who = b"user:1" if n in SECRETS else b"user:2"
            lines.append(b"publish in,%b %d %b\n" % (who, n, SECRETS.get(n, b"plain")))
        self.publish(lines[: MESSAGES // 2])
        self.ask("POST", "/v1/log/seal")  # half of it is in the archive, half is not
        self.publish(lines[MESSAGES // 2 :])

    def numbers(self, spark: Any, subscribe: str, start: str | None = None) -> list[int]:
        rows = Origin(url=self.url, subscribe=subscribe, start=start).frame(spark).collect()
        return [int(row["data"].split()[0]) for row in sorted(rows, key=lambda row: row["id"])]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    data = tmp_path / "data"
    with serving(data, "--archive", str(data / "archive"), listen=LISTEN) as process:
        place = Place(tmp_path, process)
        place.fill()
        yield place


def holding(folder: Path) -> list[str]:
    """Files below a folder that hold a secret, in their bytes or in a column of Parquet."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            column = pq.read_table(path, partitioning=None)
            if "data" in column.column_names:
                content += b"\n".join(column.column("data").to_pylist())
        if any(secret in content for secret in SECRETS.values()):
            found.append(str(path.relative_to(folder)))
    return sorted(found)


def test_a_replay_publishes_all_in_order_and_once_under_a_name(spark: Any, place: Place) -> None:
    before = place.newest
    target = replay.Target(place.url)
    origin = Origin(url=place.url, subscribe="in", end=str(before + 1))
    for _ in range(2):
        result = replay.run(spark, origin, target, txn="once")
        assert result.messages == MESSAGES
    assert place.numbers(spark, "in", str(before + 1)) == list(range(MESSAGES))


def test_a_replay_at_a_rate_is_no_faster_and_goes_on_where_it_was(spark: Any, place: Place) -> None:
    before = place.newest
    target = replay.Target(place.url)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def run(end: int) -> replay.Result:
        origin = Origin(url=place.url, subscribe="in", end=str(end))
        clock = lambda: now  # noqa: E731
        return replay.run(spark, origin, target, rate=1000.0, txn="slow", clock=clock, sleep=sleep)

    first = run(201)  # as if it had been interrupted there: two parts of a hundred
    assert (first.messages, first.repeated) == (200, 0)
    assert now == pytest.approx(0.2)
    rest = run(before + 1)
    assert (rest.messages, rest.repeated) == (100, 200)
    assert now == pytest.approx(0.3)
    assert place.numbers(spark, "in", str(before + 1)) == list(range(MESSAGES))


def test_a_replay_that_was_interrupted_goes_on_though_its_source_was_trimmed_and_grew(
    spark: Any, place: Place
) -> None:
    before = place.newest
    target = replay.Target(place.url)
    data = place.folder / "source"
    lines = [b"publish in,trimmed %d x\n" % n for n in range(330)]

    def run(source: Place, rate: float, end: int | None = None) -> replay.Result:
        origin = Origin(url=source.url, subscribe="trimmed", end=end and str(end))
        return replay.run(
            spark, origin, target, rate=rate, txn="trimmed", sleep=lambda seconds: None
        )

    with serving(data, listen=LISTEN) as process:
        source = Place(place.folder, process)
        for start in range(0, 300, 30):  # small blocks, since retention takes whole ones
            source.publish(lines[start : start + 30])
        first = run(source, 1000.0, end=171)
        assert (first.messages, first.repeated) == (170, 0)
        process.stop()
    url = f"sqlite:///{data / 'history.db'}"
    trimmed = mist("history", "trim", "--history", url, "--keep-count", "250")
    assert trimmed.returncode == 0, trimmed.stderr
    with serving(data, listen=LISTEN) as process:
        source = Place(place.folder, process)
        kept = source.numbers(spark, "trimmed")
        assert 170 < len(kept) < 300
        assert kept[-1] == 299
        source.publish(lines[300:])
        rest = run(source, 700.0)
        assert (rest.messages, rest.repeated) == (160, len(kept) - 130)
        again = run(source, 700.0)
        assert (again.messages, again.repeated) == (0, len(kept) + 30)
    assert place.numbers(spark, "trimmed", str(before + 1)) == list(range(330))


def test_a_replay_keeps_what_a_message_says(spark: Any, place: Place) -> None:
    before = place.newest
    replay.run(spark, Origin(url=place.url, subscribe="user:1"), replay.Target(place.url))
    again = Origin(url=place.url, start=str(before + 1)).frame(spark).collect()
    assert Counter(row["data"].split()[1] for row in again) == Counter(SECRETS.values())
    assert all(row["tags"] == ["in", "user:1"] for row in again)


def test_nothing_selected_publishes_and_writes_nothing(spark: Any, place: Place) -> None:
    nobody = Origin(url=place.url, subscribe="nobody")
    with pytest.raises(BadInput, match="no message is selected"):
        replay.run(spark, nobody, replay.Target(place.url))
    out = place.folder / "out"
    with pytest.raises(BadInput, match="no message is selected"):
        export.run(spark, nobody, out, format="parquet", now=1.0)
    assert [path.name for path in place.folder.iterdir()] == ["data"]


def test_lines_of_an_export_are_those_of_mist_history(spark: Any, place: Place) -> None:
    out = place.folder / "out"
    origin = Origin(url=place.url, subscribe="user:1", end="120")
    result = export.run(spark, origin, out, format="jsonl", now=1.0)
    assert result.messages == 3
    lines = [line for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    assert [each["id"] for each in found] == [1, 51, 101]
    assert found[0]["tags"] == ["in", "user:1"]
    assert found[0]["data"] == f"0 {SECRETS[0].decode()}"
    assert abs(found[0]["time"] - time.time()) < 3600


def test_an_export_replaces_another_only_when_told(spark: Any, place: Place) -> None:
    out = place.folder / "out"
    origin = Origin(url=place.url, subscribe="user:1")
    export.run(spark, origin, out, format="parquet", now=1.0)
    with pytest.raises(BadInput, match="--overwrite"):
        export.run(spark, origin, out, format="parquet", now=1.0)
    export.run(spark, Origin(url=place.url), out, format="jsonl", now=1.0, overwrite=True)
    assert {path.suffix for path in out.glob("[!._]*")} == {".jsonl"}
    assert sorted(path.name for path in place.folder.iterdir()) == ["data", "out"]


def test_erasure_leaves_no_byte_in_any_file(spark: Any, place: Place) -> None:
    lake, copy = place.folder / "lake", place.folder / "copy"
    options = {"now": 1.0, "once": True, "known_to": place.archive}
    first = stream.run(spark, Origin(url=place.url, subscribe="in"), lake, **options)
    assert first.messages == MESSAGES
    export.run(
        spark, Origin(url=place.url), copy, format="parquet", now=1.0, known_to=place.archive
    )
    assert len(holding(place.folder)) >= 4  # log, archive, lake, copy
    erasure = Erasure(tags=frozenset({"user:1"}))
    hot = erase_by_server(Address.parse(place.url, None, None), erasure)
    result = erase.run(spark, place.archive, erasure, hot=hot, began=time.time(), now=time.time)
    assert holding(place.folder) == []
    assert result.complete
    assert hot["messages"] in (len(SECRETS), len(SECRETS) // 2)  # the log, sealed or not
    assert [(copy.state, copy.rows) for copy in result.exports] == [("done", 6), ("done", 6)]
    # Everything else is there, everywhere, and all goes on.
    left = [n for n in range(MESSAGES) if n not in SECRETS]
    assert place.numbers(spark, "in") == left
    assert spark.read.parquet(str(lake)).count() == len(left)
    assert spark.read.parquet(str(copy)).count() == len(left)
    place.publish([b"publish in,user:2 300 plain\n"])
    more = stream.run(spark, Origin(url=place.url, subscribe="in"), lake, **options)
    assert more.messages == 1
    assert spark.read.parquet(str(lake)).count() == len(left) + 1


def test_a_stream_stops_when_told_and_goes_on_later(spark: Any, place: Place) -> None:
    lake = place.folder / "lake"
    origin = Origin(url=place.url, subscribe="in")
    looks = iter(range(1000))

    def proceed() -> bool:
        assert next(looks) < 300
        return not list(lake.glob("date=*/*.parquet"))

    stream.run(spark, origin, lake, now=1.0, every=0.1, most=100, proceed=proceed)
    stream.run(spark, origin, lake, now=1.0, once=True)
    found = [int(row["data"].split()[0]) for row in spark.read.parquet(str(lake)).collect()]
    assert sorted(found) == list(range(MESSAGES))


def test_a_stream_needs_a_server_and_has_no_end(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--server"):
        stream.run(spark, Origin(archive=tmp_path), tmp_path / "lake", now=1.0)
    with pytest.raises(BadInput, match="no end"):
        stream.run(spark, Origin(url="http://x", end="5"), tmp_path / "lake", now=1.0)
