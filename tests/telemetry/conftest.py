from collections.abc import Iterator

import pytest

from tests.telemetry.collector import Collector, collecting


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as it:
        yield it
