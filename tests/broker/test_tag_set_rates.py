"""Tag set rates: which subscriptions most deliveries are for, counted while somebody looks."""

import random

import pytest

from mist.broker.broker import Broker
from mist.broker.meters import Meters
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch, record


class Site:
    """A broker with a clock of the test's own, and its subscribers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.broker = Broker(meters=Meters(lambda: self.now))
        rates = self.broker._tag_set_rates
        assert rates is not None
        self.rates = rates
        rates._chance = random.Random(7)

    def subscribe(self, *tags: str) -> Outbox:
        outbox = Outbox(PLAIN, OutboxLimits(), self.broker.ready)
        outbox.flush = lambda: outbox.sent(outbox.size)
        self.broker.subscribe(outbox, frozenset(tags))
        return outbox

    def publish(self, *tag_lists: bytes) -> None:
        lists = list(tag_lists)
        wire = b"".join(record(each, b"x") for each in lists)
        self.broker.publish(Batch(lists if len(set(lists)) > 1 else lists[:1], (wire, len(lists))))
        self.broker.flush()

    def top(self, most: int = 20) -> dict[str, float]:
        _, found = self.broker.top_tag_sets(most)
        return {group.tag_list.decode(): rate for group, rate in found}


@pytest.fixture
def site() -> Site:
    site = Site()
    for _ in range(3):
        site.subscribe("a")
    site.subscribe("a", "b")
    site.subscribe("never")
    return site


def test_nothing_is_counted_before_somebody_looks_and_after_nobody_does(site: Site) -> None:
    site.publish(b"a,b")
    site.broker.top_tags(5)
    assert not site.rates.watched
    assert site.top() == {}
    assert site.rates.watched
    site.now += 31
    site.publish(b"a,b")
    site.now += 1
    site.broker.top_tags(5)
    assert not site.rates.watched
    assert site.top() == {}


def test_a_message_counts_for_each_tag_set_that_it_matches_by_its_subscribers(site: Site) -> None:
    site.top()
    for _ in range(20):
        site.publish(b"a,b", b"a,b", b"a,c", b"x")
        site.now += 0.5
    assert site.top() == {"a": 3 * 3 * 2, "a,b": 2 * 2}
    assert list(site.top(1)) == ["a"]
    seconds, _ = site.broker.top_tag_sets(20)
    assert seconds == 10


def test_tag_lists_that_never_come_again_count_too(site: Site) -> None:
    site.top()
    for n in range(100):
        site.publish(*(b"a,order:%d" % (10 * n + k) for k in range(10)))
        site.now += 0.1
    assert site.top()["a"] == pytest.approx(3 * 100, rel=0.01)


def test_of_many_tag_lists_some_stand_for_all(site: Site) -> None:
    site.top()
    chance = random.Random(5)
    for _ in range(100):
        lists = [b"a,n:%d" % chance.randrange(10**9) for _ in range(400)]
        site.publish(*(lists + [b"a,b"] * 100))
        site.now += 0.1
    found = site.top()
    assert found["a"] == pytest.approx(3 * 5000, rel=0.15)
    assert found["a,b"] == pytest.approx(1000, rel=0.3)


def test_of_many_tag_sets_that_a_message_matches_some_stand_for_all(site: Site) -> None:
    tags = [f"t{n}" for n in range(60)]
    for tag in tags:
        site.subscribe(tag)
    site.top()
    for _ in range(300):
        site.publish(",".join(tags).encode())
        site.publish(",".join(tags).encode())
        site.now += 0.1
    found = site.top(100)
    assert sum(found.values()) == pytest.approx(60 * 20, rel=0.05)
    assert len(found) == 60


def test_a_tag_set_that_nobody_is_subscribed_to_any_more_is_not_named(site: Site) -> None:
    outbox = site.subscribe("gone")
    site.top()
    site.publish(b"gone")
    site.now += 1
    assert "gone" in site.top()
    group = site.broker._directory.find(frozenset({"gone"}))
    assert group is not None
    site.broker.unsubscribe(outbox, group)
    assert "gone" not in site.top()


def test_what_breaks_the_rules_counts_for_nobody(site: Site) -> None:
    site.top()
    site.publish(b"a,,b", b"a\xff", b",".join(b"t%d" % n for n in range(100)))
    site.now += 1
    assert site.top() == {}


def test_topics_and_everything_are_counted(site: Site) -> None:
    site.subscribe("/rooms/1")
    site.subscribe("*")
    site.top()
    for _ in range(10):
        site.publish(b"/rooms/1/chat")
        site.now += 1
    assert site.top() == {"/rooms/1": 1, "*": 1}
