"""Origins without Spark: what a task does, in this process."""

from collections.abc import Iterator

import pytest

from mist.pipeline.selection import parse_alternatives
from mist.pipeline.source.address import Address
from mist.pipeline.source.errors import DataLoss, SourceError
from mist.pipeline.source.origins import LogPosition, Losses
from mist.pipeline.source.origins.server import ServerOrigin
from mist.pipeline.source.splitting import OffsetRange
from tests.pipeline.source.fake import Fake, Handler, faking, rows

STRICT, LAX = Losses(fatal=True), Losses(fatal=False)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 100)
        yield fake


def origin(fake: Fake) -> ServerOrigin:
    return ServerOrigin(Address.parse(fake.url, None, None))


def ids(
    fake: Fake, offsets: OffsetRange, subscribe: str = "", losses: Losses = STRICT, size: int = 1000
) -> list[int]:
    alternatives = parse_alternatives(subscribe)
    batches = list(origin(fake).read(offsets, alternatives, ["id", "tags"], size, losses))
    assert all(len(batch) <= size for batch in batches)
    return [n for batch in batches for n in batch.column("id").to_pylist()]


def test_a_stretch_is_read_page_by_page_and_no_further(fake: Fake) -> None:
    fake.page = 7
    assert ids(fake, OffsetRange("e1", 10, 60)) == list(range(11, 61))
    assert ids(fake, OffsetRange("e1", 10, 60), size=3) == list(range(11, 61))
    assert ids(fake, OffsetRange("e1", 10, 60), "odd,n11; n20; n80") == [11, 20]


def test_pages_without_a_match_are_passed(fake: Fake) -> None:
    fake.page = 3
    assert ids(fake, OffsetRange("e1", 0, 100), "n1;n99") == [1, 99]


def test_where_a_server_stands_and_where_a_moment_lies(fake: Fake) -> None:
    assert origin(fake).position() == LogPosition("e1", 1, 100)
    assert origin(fake).position(moment=50_000_000).after == 49
    assert origin(fake).position(moment=50_000_001).after == 50


def test_a_lost_range_is_an_error_or_a_word(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    fake.lost = [(40, 49)]
    fake.page = 10
    with pytest.raises(DataLoss, match="messages 40 to 49 are no longer available"):
        ids(fake, OffsetRange("e1", 0, 100))
    assert ids(fake, OffsetRange("e1", 50, 100)) == list(range(51, 101))
    assert ids(fake, OffsetRange("e1", 0, 100), losses=LAX) == list(range(1, 101))
    assert "messages 40 to 49 are no longer available; going on without it" in caplog.text


def test_another_log_is_an_error_or_nothing(fake: Fake) -> None:
    with pytest.raises(DataLoss, match="has a new log: messages 1 to 100"):
        ids(fake, OffsetRange("e0", 0, 100))
    assert ids(fake, OffsetRange("e0", 0, 100), losses=LAX) == []


def test_a_server_that_stands_still_is_not_asked_for_ever(fake: Fake) -> None:
    fake.page = 0
    with pytest.raises(SourceError, match="does not go on behind 0"):
        ids(fake, OffsetRange("e1", 0, 100))


def test_a_page_that_broke_off_is_asked_for_again(fake: Fake) -> None:
    fake.page = 10
    broken = []

    def break_each_once(handler: Handler) -> bool:
        if handler.path in broken:
            return False
        broken.append(handler.path)
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"\xff" * 10)
        handler.close_connection = True
        return True

    fake.faults.append(break_each_once)
    assert ids(fake, OffsetRange("e1", 0, 30)) == list(range(1, 31))
    assert len(broken) == 3
