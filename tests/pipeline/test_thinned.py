"""Reading a log of which rules (`--keep`) have kept some and retention has taken the rest."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.dataset as ds
import pytest

from mist.pipeline.errors import JobFailed
from mist.pipeline.jobs import stream
from mist.pipeline.origin import Origin
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client
from tests.processes import Process, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
KEEP = ("--keep", "room:*=2", "--keep-age", "1s")


def position(url: str) -> Any:
    with Client(Address.parse(url, None, None)) as client:
        return json.loads(client.request("GET", "/v1/log/position").body)


def publish(process: Process, *tags: str) -> None:
    """A message each, and wait until retention has gone over them."""
    tcp, http = process.urls
    newest = position(http)["newest"] + len(tags)
    with socket.create_connection(("127.0.0.1", urlsplit(tcp).port)) as peer:
        peer.sendall(b"".join(b"publish %b x\n" % each.encode() for each in tags))
        until = time.monotonic() + 120
        while (where := position(http))["newest"] < newest or where["gone"] < newest:
            assert time.monotonic() < until, where
            time.sleep(0.05)


@pytest.fixture
def thinned(java: None, tmp_path: Path) -> Iterator[Process]:
    with serving(tmp_path / "data", *KEEP, listen=LISTEN) as process:
        publish(process, *["b"] * 30, "room:1", "room:1", *["b"] * 30, "room:2", "b")
        yield process


KEPT = [31, 32, 63]


def test_what_was_gone_at_the_beginning_is_not_lost(spark: Any, thinned: Process) -> None:
    url = thinned.urls[1]
    rows = Origin(url=url).frame(spark).collect()
    assert sorted(row["id"] for row in rows) == KEPT
    rows = Origin(url=url, start="2026-01-01").frame(spark).collect()
    assert sorted(row["id"] for row in rows) == KEPT


def test_who_names_an_id_is_told_what_is_gone_behind_it(spark: Any, thinned: Process) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="messages 33 to 64 are no longer available"):
        Origin(url=thinned.urls[1], start="33").frame(spark).collect()
    rows = Origin(url=thinned.urls[1], start="33", skip_lost=True).frame(spark).collect()
    assert [row["id"] for row in rows] == [63]


def test_a_stream_begins_with_what_there_is_and_misses_nothing_later(
    spark: Any, thinned: Process, tmp_path: Path
) -> None:
    origin, lake = Origin(url=thinned.urls[1]), tmp_path / "lake"
    # Several batches among what is gone.
    assert stream.run(spark, origin, lake, now=1.0, once=True, most=10).messages == len(KEPT)
    assert sorted(ds.dataset(lake).to_table(["id"]).column("id").to_pylist()) == KEPT
    # What came since, and was taken before it was read, is lost to it.
    publish(thinned, "b", "room:2", "b")
    with pytest.raises(JobFailed, match="messages 65 to 67 are no longer available"):
        stream.run(spark, origin, lake, now=1.0, once=True)
