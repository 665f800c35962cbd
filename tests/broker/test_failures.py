"""What raises in a delivery costs that delivery, or that subscriber's session, and no other."""

import logging
from collections.abc import Callable, Sequence

import pytest

from mist.broker.broker import Broker
from mist.broker.failures import Failures
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.usage import UsageAccounting
from mist.message import Envelope
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch, Entry, WireForm

A = frozenset("a")


class Faulty(WireForm):
    """Writes lines, but not those that say `bad`."""

    name = "faulty"

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        if any(b"bad" in wire for _, wire, _ in entries):
            raise LookupError("token-and-data")
        return PLAIN.pieces(entries, firsts=firsts, envelope=envelope)


FAULTY = Faulty()


def batch(*data: str) -> Batch:
    return Batch.of_runs([(b"a", f"publish a {each}\n".encode(), 1) for each in data])


def take(outbox: Outbox) -> bytes:
    data = bytes(outbox.peek())
    outbox.sent(len(data))
    return data


def fail(*_: object) -> None:
    raise ZeroDivisionError


class Subscriber:
    """An outbox in a broker, and why its session was to end."""

    def __init__(self, broker: Broker, form: WireForm = PLAIN, messages: int = 100) -> None:
        self.ended: list[str] = []
        self.outbox = Outbox(
            form, OutboxLimits(messages=messages), broker.ready, on_overrun=self.ended.append
        )
        broker.subscribe(self.outbox, A)

    def take(self) -> bytes:
        return take(self.outbox)


def test_a_form_that_raises_costs_its_own_subscribers_that_delivery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    first, faulty, twin, last = (
        Subscriber(broker),
        Subscriber(broker, FAULTY),
        Subscriber(broker, FAULTY),
        Subscriber(broker),
    )
    for data in ("1", "bad", "3"):
        assert broker.publish(batch(data)) == 1
    for each in (first, last):
        assert each.take() == b"publish a 1\npublish a bad\npublish a 3\n"
    for each in (faulty, twin):
        assert each.take() == b"publish a 1\npublish a 3\n"
        assert each.ended == []
    assert broker.statistics().dropped == {"error": 2}
    assert broker.statistics().failures == {"delivery": 1}
    (record,) = caplog.records
    assert "Faulty.pieces" in record.at  # type: ignore[attr-defined]
    assert record.error == "LookupError"  # type: ignore[attr-defined]
    assert "token-and-data" not in str(vars(record))


def test_what_a_publisher_does_not_hear_itself_is_not_counted_as_lost() -> None:
    broker = Broker()
    publisher = Subscriber(broker, FAULTY)
    publisher.outbox.echo = False
    broker.publish(batch("bad"), publisher.outbox)
    assert broker.statistics().dropped == {}
    assert broker.statistics().failures == {"delivery": 1}


def test_a_form_that_raises_where_an_outbox_is_full_loses_what_did_not_fit() -> None:
    broker = Broker()

    class Late(Faulty):
        def join(
            self,
            entries: Sequence[Entry],
            *,
            framable: bool,
            firsts: Sequence[int] | None = None,
            envelope: Envelope | None = None,
        ) -> tuple[bytes, int]:
            return b"".join(wire for _, wire, _ in entries), len(entries)

    full, other = Subscriber(broker, Late(), messages=1), Subscriber(broker)
    broker.publish(batch("bad", "2"))
    assert full.take() == b""
    assert other.take().count(b"\n") == 2
    assert broker.statistics().dropped == {"error": 2, "full": 0}


def test_a_callback_that_raises_half_way_loses_what_came_behind() -> None:
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(messages=1), broker.ready, on_dropping=fail)
    other = Subscriber(broker)
    broker.subscribe(outbox, A)
    broker.publish(batch("1", "2", "3"))
    assert take(outbox) == b"publish a 1\n"
    assert other.take().count(b"\n") == 3
    assert broker.statistics().dropped == {"full": 1, "error": 1}  # 3 in all, 1 delivered


def test_where_on_behind_raises_its_session_ends_since_nobody_replays() -> None:
    broker = Broker()
    behind, other = Subscriber(broker, messages=1), Subscriber(broker)
    behind.outbox.on_behind = fail
    broker.publish(batch("1", "2"), first=1)
    assert behind.ended == ["internal error"]
    assert other.take().count(b"\n") == 2
    assert broker.statistics().failures == {"callback": 1}


def test_a_flush_that_raises_ends_its_session_and_others_are_flushed() -> None:
    broker = Broker()
    flushed: list[int] = []
    subscribers = [Subscriber(broker) for _ in range(3)]
    for number, each in enumerate(subscribers):
        each.outbox.flush = fail if number == 1 else lambda number=number: flushed.append(number)
    broker.publish(batch("1"))
    broker.flush()
    assert sorted(flushed) == [0, 2]
    assert [each.ended for each in subscribers] == [[], ["internal error"], []]
    assert broker.statistics().failures == {"flush": 1}


def test_an_end_that_raises_too_is_one_more_failure() -> None:
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready, on_overrun=fail)
    outbox.flush = fail
    broker.subscribe(outbox, A)
    broker.publish(batch("1"))
    broker.flush()
    assert broker.statistics().failures == {"flush": 1, "callback": 1}


@pytest.mark.parametrize("most", [1, 2])
def test_where_on_done_raises_the_last_message_is_queued_and_others_get_theirs(most: int) -> None:
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
    named = NamedSubscription(outbox, PLAIN, b"1")
    broker.add_named(named, A)
    named.end_after(most, fail)
    other = Subscriber(broker)
    broker.publish(batch("1", "2"))
    assert take(outbox).count(b"\n") == most
    assert other.take().count(b"\n") == 2
    assert broker.statistics().failures == {"callback": 1}
    assert not broker.statistics().dropped.get("error")


def test_a_queue_group_whose_form_raises_loses_that_message() -> None:
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
    broker.add_named(NamedSubscription(outbox, FAULTY, b"1"), A, "queue")
    broker.publish(batch("1", "bad", "3"))
    assert take(outbox) == b"publish a 1\npublish a 3\n"
    assert broker.statistics().dropped == {"error": 1}


def test_what_a_form_lost_is_on_the_account() -> None:
    broker = Broker()
    usage = UsageAccounting()
    broker.observe(usage)
    faulty = Subscriber(broker, FAULTY)
    broker.assign(faulty.outbox, "someone", ())
    broker.publish(batch("1", "bad"))
    broker.publish(batch("3"))
    delivered = [row for rows, _ in usage.close() for row in rows]
    assert [(row.sent, row.dropped) for row in delivered] == [(1, 2)]


class Broken(UsageAccounting):
    """Raises whatever it is told."""

    joined = left = changing = published = published_whole = fail  # type: ignore[assignment]
    delivered = dropped = missed = held = replayed = fail  # type: ignore[assignment]


def test_an_observer_that_raises_costs_nobody_a_message() -> None:
    broker = Broker()
    broker.observe(Broken())
    plain, faulty, full = (
        Subscriber(broker),
        Subscriber(broker, FAULTY),
        Subscriber(broker, messages=1),
    )
    behind = Subscriber(broker, messages=1)
    behind.outbox.on_behind = lambda after: behind.outbox.hold()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
    broker.add_named(NamedSubscription(outbox, PLAIN, b"1"), A, "queue")
    broker.publish(batch("1", "bad"), first=1)
    broker.publish(batch("3"), first=3)
    assert plain.take().count(b"\n") == 3
    assert faulty.take() == b"publish a 3\n"
    assert full.take() == b"publish a 1\n"
    assert take(outbox).count(b"\n") == 3
    behind.outbox.resume_live()
    assert behind.take() == b"publish a 3\n"
    broker.note_replayed(behind.outbox, [])
    broker.unsubscribe(plain.outbox, broker.find(A))  # type: ignore[arg-type]
    failures = broker.statistics().failures
    assert failures.pop("delivery") == 1
    assert list(failures) == ["observer"]


def test_what_an_observer_does_later_is_contained_too() -> None:
    broker = Broker()

    class Late(UsageAccounting):
        def held(self, *_: object) -> Callable[[], None]:
            return fail

    broker.observe(Late())
    behind = Subscriber(broker)
    behind.outbox.pause()
    behind.outbox.hold()
    broker.publish(batch("1"), first=1)
    behind.outbox.resume_live()
    assert behind.take() == b"publish a 1\n"
    assert broker.statistics().failures == {"observer": 1}


def test_the_same_failure_is_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    for _ in range(250):
        try:
            fail()
        except ZeroDivisionError as error:
            failures.note("delivery", error)
    assert failures.counts == {"delivery": 250}
    assert [record.times for record in caplog.records] == [1, 10, 100]  # type: ignore[attr-defined]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_failures_at_other_places_are_logged_each(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    failures.note("delivery", ZeroDivisionError())  # which was never raised
    failures.note("flush", ZeroDivisionError())
    failures.note("flush", LookupError())
    assert len(caplog.records) == 3
