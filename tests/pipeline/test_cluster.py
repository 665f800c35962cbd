"""Every job on a standalone cluster, whose executors import mist from what they are sent; and
`kill -9` of an executor in the middle of one changes no result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.dataset import dataset

from mist.archive import Archive
from mist.archive.segments import read_segment
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client
from tests.pipeline.archives import Told, add_accounts, make_archive
from tests.pipeline.cluster import SEGMENT, SEGMENTS, cluster
from tests.processes import environment, serving


def messages() -> list[Told]:
    return [
        Told("order,user:1" if n % 5 == 0 else "news", b"%d" % n) for n in range(SEGMENTS * SEGMENT)
    ]


def test_every_job_passes_and_a_killed_executor_changes_nothing(java: None, tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "archive", messages(), segment=SEGMENT)
    account = {"token": "t", "subscription": "news", "sent": 3, "dropped": 1, "bytes": 9}
    add_accounts(archive, "deliveries", [{"minute": 0, **account}])
    listen = ("--listen", "http://127.0.0.1:0")
    with cluster(tmp_path) as spark, serving(tmp_path / "data", listen=listen) as server:
        (url,) = server.urls
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.cluster", spark.master, str(tmp_path), url,
             *map(str, spark.workers)],
            capture_output=True,
            text=True,
            timeout=900,  # a machine that others use, too, took 500
            # Executors are not to find the package in the folder where this runs.
            env=environment(PYTHONPATH=os.getcwd()),
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        published = log_of(url)
    found = json.loads(done.stdout)
    whole, ones = SEGMENTS * SEGMENT, SEGMENTS * SEGMENT // 5
    assert found["match"] == [
        {"subscription": "order,user:1", "messages": ones},
        {"subscription": "news", "messages": whole - ones},
        {"subscription": "never", "messages": 0},
    ]
    assert found["volume"]["messages"] == whole
    assert [(row["tag"], row["messages"]) for row in found["tags"]] == [
        ("news", whole - ones),
        ("order", ones),
        ("user:1", ones),
    ]
    (pair,) = found["cooccurrence"]
    assert (pair["tag"], pair["other"], pair["messages"]) == ("order", "user:1", ones)
    assert found["coverage"]["never_matched"] == 1
    assert found["billing"]["sent"] == 3
    assert found["drops"]["dropped"] == 1
    assert found["tokens"]["subscriptions"] == 0
    assert found["export"]["messages"] == whole
    assert found["killed"], done.stderr
    completed, tasks = found["killed"]
    assert 0 < completed < tasks
    assert found["erase"] == {"complete": True, "rows": ones}
    # What was replayed is in the server's log as it was in the archive, once and in its order,
    # and what was streamed is in the lake as it is in the log.
    assert found["replay"]["messages"] == whole
    assert [(row["tags"], row["data"]) for row in published] == [
        (sorted(told.tags.split(",")), told.data) for told in messages()
    ]
    assert found["stream"]["messages"] == whole
    lake = dataset(tmp_path / "lake", partitioning="hive").to_table(list(published[0]))
    assert lake.sort_by("id").to_pylist() == published
    left = [n + 1 for n in range(whole) if n % 5]
    assert ids(archive) == left
    lines = [
        json.loads(line)
        for path in (tmp_path / "export").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["id"] for line in lines) == left


def log_of(url: str) -> list[dict[str, Any]]:
    """All rows of a server's log."""
    with Client(Address.parse(url, None, None)) as client:
        answer = client.request("GET", "/v1/log", {"limit": 200_000})
    assert answer.headers["mist-complete"] == "true"
    rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return rows


def ids(archive: Archive) -> list[int]:
    table = archive.messages
    return [
        each
        for segment in table.current().segments
        for each in read_segment(table, segment, ["id"]).column("id").to_pylist()
    ]
