"""What the log tells of an outage: each reason once, and its end."""

import logging

import pytest

from mist.outage import Outage


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.message, getattr(record, "reason", "")) for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.INFO)
    return Outage(logging.getLogger("mist.test"), "gone", "back")


def test_each_reason_is_told_once(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("refused", "refused", "empty", "refused", "empty"):
        outage.note(reason)
        assert outage
        assert outage.reason == reason
    assert told(caplog) == [("gone", "refused"), ("gone", "empty")]


def test_its_end_is_told_and_the_next_one_from_its_beginning(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.end()
    assert told(caplog) == []
    outage.note("refused")
    outage.end()
    assert not outage
    assert not outage.reason
    outage.note("refused")
    assert told(caplog) == [("gone", "refused"), ("back", ""), ("gone", "refused")]


def test_reasons_that_always_differ_do_not_fill_the_log(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        outage.note(f"refused at port {number}")
    assert len(told(caplog)) == 8
    assert outage.reason == "refused at port 999"
