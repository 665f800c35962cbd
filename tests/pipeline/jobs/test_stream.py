"""`stream`: a lake that everybody can read, and what happens to it when its driver is killed."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from mist.archive import Archive
from mist.archive.schema import MESSAGES
from mist.history.erasure import Erasure
from mist.pipeline.errors import BadInput, JobFailed
from mist.pipeline.exports import exports
from mist.pipeline.ingestion.lake import Lake
from mist.pipeline.jobs import compact, erase, stream
from mist.pipeline.origin import Origin
from mist.pipeline.reading import read_log
from mist.pipeline.source.address import Address
from mist.pipeline.source.origins import Losses
from mist.pipeline.source.origins.server import ServerOrigin
from mist.pipeline.source.splitting import OffsetRange
from tests.pipeline.archives import make_archive
from tests.pipeline.ingestion.batches import files, rows_of
from tests.pipeline.jobs.streaming import BATCH
from tests.pipeline.source.fake import Fake, Handler, faking, rows
from tests.processes import environment, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
MESSAGES_SENT = 3000
WAIT = 240  # seconds


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def fill(spark: Any, url: str, lake: Path, **options: Any) -> stream.Result:
    subscribe = options.pop("subscribe", None)
    origin = Origin(url=url, subscribe=subscribe, skip_lost=options.pop("skip_lost", False))
    return stream.run(spark, origin, lake, now=1.0, once=True, **options)


def published(folder: Path) -> Iterator[tuple[str, pa.Table]]:
    """A real server, and its log."""
    with serving(folder, listen=LISTEN) as process:
        tcp, url = urlsplit(process.urls[0]).port, process.urls[1]
        lines = [
            b"publish in,n%d,user:%d %d %b\n" % (n % 7, n % 50, n, b"x" * (n % 90))
            for n in range(MESSAGES_SENT)
        ]
        with socket.create_connection(("127.0.0.1", tcp)) as peer:
            peer.sendall(b"".join(lines) + b"ping\n")
            peer.recv(100)
        origin = ServerOrigin(Address.parse(url, None, None))
        deadline = time.monotonic() + WAIT
        while (position := origin.position()).newest < MESSAGES_SENT:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        whole = OffsetRange(position.epoch, 0, position.newest)
        found = origin.read(whole, (), MESSAGES.names, 1000, Losses(fatal=True))
        yield url, pa.Table.from_batches(found)


@pytest.fixture(scope="module")
def published_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, pa.Table]]:
    yield from published(tmp_path_factory.mktemp("server"))


def test_what_others_read_in_the_lake_is_the_servers_log(
    spark: Any, published_log: tuple[str, pa.Table], tmp_path: Path
) -> None:
    url, log = published_log
    lake = tmp_path / "lake"
    result = fill(spark, url, lake, most=700)
    assert (result.messages, result.batches) == (MESSAGES_SENT, 5)

    by_arrow = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    assert by_arrow.select(MESSAGES.names).sort_by("id").cast(MESSAGES) == log

    by_pandas = pd.read_parquet(lake).sort_values("id", ignore_index=True)
    assert by_pandas["data"].tolist() == log.column("data").to_pylist()
    assert by_pandas["time"].tolist() == log.column("time").to_pandas().tolist()
    days = log.column("time").to_pandas().dt.date.astype(str).tolist()
    assert by_pandas["date"].astype(str).tolist() == days

    by_spark = spark.read.parquet(str(lake)).select(*MESSAGES.names).toArrow().sort_by("id")
    assert by_spark.cast(MESSAGES) == log


def test_other_commands_take_the_lake_for_an_archive(
    spark: Any, published_log: tuple[str, pa.Table], tmp_path: Path
) -> None:
    url, log = published_log
    lake = tmp_path / "lake"
    fill(spark, url, lake, most=1000)
    archive = Archive.open(lake)
    assert compact.run(spark, archive).summary["segments_after"] == 1
    assert read_log(spark, lake).toArrow().sort_by("id").cast(MESSAGES) == log
    assert fill(spark, url, lake).messages == 0  # and it goes on from there
    done = erase.run(
        spark,
        archive,
        Erasure(tags=frozenset({"user:7"})),
        hot=None,
        began=1.0,
        now=time.time,
    )
    assert done.complete
    assert done.tables[0].rows == MESSAGES_SENT // 50
    assert read_log(spark, lake).count() == MESSAGES_SENT - MESSAGES_SENT // 50


def test_a_lake_goes_on_without_its_checkpoint(spark: Any, fake: Fake, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(spark, fake.url, lake, checkpoint=tmp_path / "one")
    fake.log = rows(1, 150)
    assert fill(spark, fake.url, lake, checkpoint=tmp_path / "two").messages == 50
    assert rows_of(Lake(lake)).column("id").to_pylist() == list(range(1, 151))
    # The first one lags behind then: what it asks for is there, but for what comes next.
    fake.log = rows(1, 160)
    with pytest.raises(JobFailed, match="without a checkpoint it goes on where the folder is"):
        fill(spark, fake.url, lake, checkpoint=tmp_path / "one")
    assert rows_of(Lake(lake)).column("id").to_pylist() == list(range(1, 151))


def test_what_matches_nothing_is_not_looked_at_again(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    result = fill(spark, fake.url, lake, subscribe="nobody")
    assert (result.messages, result.batches) == (0, 0)
    assert Archive(lake).messages.current().sealed == 100


def test_another_log_is_one_clear_error(spark: Any, fake: Fake, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(spark, fake.url, lake)
    fake.epoch, fake.log = "e2", rows(1, 20)
    with pytest.raises(JobFailed, match="the log was started anew"):
        fill(spark, fake.url, lake)
    with pytest.raises(JobFailed, match="--to another folder takes it"):
        fill(spark, fake.url, lake, skip_lost=True)
    assert rows_of(Lake(lake)) == pa.Table.from_batches([rows(1, 100)])


def test_an_erasure_in_the_middle_of_a_batch_has_it_read_again(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    """The server forgets a message when the tasks have read it; the lake never gets it."""
    lake = Lake(tmp_path / "lake")
    archive = make_archive(tmp_path / "archive", [])
    fake.page = 50
    erased = []

    def forget(handler: Handler) -> bool:
        # When it is asked for the second page, and has given the first.
        if "after=50" in handler.path and not erased:
            fake.log = fake.log.filter(pa.array([n != 3 for n in range(1, 101)]))
            lake.fence()
            erased.append(3)
        return False

    fake.faults.append(forget)
    assert fill(spark, fake.url, lake.folder, known_to=archive).messages == 99
    assert erased
    assert rows_of(lake).column("id").to_pylist() == [1, 2, *range(4, 101)]
    assert [(each.path, each.format) for each in exports(archive)] == [(str(lake.folder), "lake")]


def test_a_folder_of_something_else_is_refused_before_anything_is_done(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    (lake / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(BadInput, match="Spark's own sink"):
        fill(spark, fake.url, lake, known_to=make_archive(tmp_path / "archive", []))
    assert [path.name for path in lake.iterdir()] == ["_spark_metadata"]
    assert exports(Archive(tmp_path / "archive")) == []
    assert fake.requests == []


def victim(fake: Fake, folder: Path, *names: str) -> int:
    """Fill lakes in a process of their own; how it ended."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.jobs.streaming", fake.url, str(folder), *names],
        env=environment(),
        stdout=subprocess.DEVNULL,
        timeout=WAIT,
        check=False,
    )
    return done.returncode


def holds_each_once(lake: Path) -> None:
    assert rows_of(Lake(lake)) == pa.Table.from_batches([rows(1, 100)])
    listed = [each.file for each in Archive(lake).messages.current().segments]
    assert files(lake) == listed


def test_a_task_that_failed_is_tried_again_and_a_driver_may_die_before_it_enters(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    failed = []

    def fail_once(handler: Handler) -> bool:
        # In the middle of the range: what was written of it has to go.
        if failed or "after=20" not in handler.path:
            return False
        failed.append(handler.path)
        handler.answer(500, {"code": "broken"})
        return True

    fake.faults.append(fail_once)
    fake.page = 20
    assert victim(fake, tmp_path, "retried", "landed") == -signal.SIGKILL
    assert failed
    holds_each_once(tmp_path / "retried")
    lake = tmp_path / "landed"
    assert Archive(lake).messages.current().sealed == BATCH
    assert len(files(lake / "_lake")) == 1  # what the second batch wrote
    assert fill(spark, fake.url, lake).messages == 100 - BATCH
    holds_each_once(lake)


def test_a_driver_may_die_between_the_manifest_and_the_checkpoint(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    assert victim(fake, tmp_path, "entered") == -signal.SIGKILL
    lake = tmp_path / "entered"
    assert Archive(lake).messages.current().sealed == 2 * BATCH
    assert not (lake / "_checkpoint" / "commits" / "1").exists()
    # Spark does the second batch once more; it is there, and is not added again.
    assert fill(spark, fake.url, lake).messages == 100 - 2 * BATCH
    holds_each_once(lake)


def test_a_driver_may_die_while_it_writes_its_first_offsets(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    left = offsets / ".0.38c4d7b2-6a59-4f0a-9ad1-0123456789ab.tmp"
    left.write_text("v1")  # half of it
    lake = tmp_path / "lake"
    assert fill(spark, fake.url, lake, checkpoint=tmp_path / "checkpoint").messages == 100
    assert not left.exists()
    holds_each_once(lake)


def test_a_first_batch_may_be_in_the_lake_and_not_in_the_checkpoint(
    spark: Any, fake: Fake, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    fake.log = rows(1, 60)
    assert fill(spark, fake.url, lake).messages == 60
    shutil.rmtree(lake / "_checkpoint" / "commits")  # as a driver that died leaves it
    fake.log = rows(1, 100)
    assert fill(spark, fake.url, lake).messages == 40
    holds_each_once(lake)
