"""An erasure in a lake: what tasks have read before can't get in, and doesn't stay."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mist.pipeline.erasure.exports import delete_uncommitted
from mist.pipeline.ingestion.commit import StaleBatch, commit
from mist.pipeline.ingestion.lake import Lake
from tests.pipeline.ingestion.batches import at, files, reader, run_tasks
from tests.pipeline.source.fake import Fake, faking, rows


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def test_what_nobody_is_at_work_on_goes_at_once(fake: Fake, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.exclusive_writer():
        run_tasks(reader(fake, lake, minPartitions="3"), at(0), at(100))
    assert len(files(tmp_path)) == 3
    assert delete_uncommitted(tmp_path) == []
    assert list(lake.landing.glob("*")) == []


def test_what_a_query_is_at_work_on_is_turned_away_and_told(fake: Fake, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.exclusive_writer():
        parts = run_tasks(reader(fake, lake), at(0), at(100))
        assert delete_uncommitted(tmp_path, timeout=0) == [parts[0].folder]
        with pytest.raises(StaleBatch):
            commit(lake, parts)
        assert delete_uncommitted(tmp_path, timeout=0) == []


def test_what_a_query_deletes_in_time_is_waited_for(fake: Fake, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.exclusive_writer():
        run_tasks(reader(fake, lake), at(0), at(100))
        before = lake.fence_token()
        end = threading.Timer(0.3, shutil.rmtree, [lake.landing])
        end.start()
        try:
            assert delete_uncommitted(tmp_path, timeout=60) == []
            assert not end.is_alive()
        finally:
            end.join()
    assert lake.fence_token() != before


def test_another_archive_is_left_alone(tmp_path: Path) -> None:
    assert delete_uncommitted(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
