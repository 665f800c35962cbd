"""Tag rates: exact while there is not much, nearly so above, and never expensive."""

import random
from collections.abc import Callable, Iterable

import pytest

from mist.broker.tag_rates import TagRates
from mist.message import parse_tag_list
from mist.wire import Batch, TagList, record


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Matches(dict[bytes, TagList]):
    """A memo that says how often it was asked: once for each tag list that is folded."""

    asked = 0

    def get(self, key: bytes, default: object = None) -> TagList | None:  # type: ignore[override]
        self.asked += 1
        return super().get(key)


class Feed:
    """A clock, and rates of what is published at its times."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.matches = Matches()
        self.rates = TagRates(self.clock, self.matches, 64, random.Random(5))

    def publish(self, tag_lists: Iterable[bytes], size: int) -> None:
        """Messages with these tag lists, so many in a batch."""
        lists = list(tag_lists)
        for start in range(0, len(lists), size):
            part = lists[start : start + size]
            wire = b"".join(record(each, b"x") for each in part)
            self.rates.count(Batch(part if len(set(part)) > 1 else part[:1], (wire, len(part))))

    def top(self, most: int = 20) -> dict[str, float]:
        return dict(self.rates.top(most))


def mixed(chance: random.Random, number: int) -> list[bytes]:
    return chance.choices([b"a", b"a,b", b"c,d,e"], [6, 3, 1], k=number)


@pytest.mark.parametrize("size", [1, 7, 200])
@pytest.mark.parametrize("burst", [20, 200, 450])
def test_bursts_are_counted_exactly(burst: int, size: int) -> None:
    feed, chance = Feed(), random.Random(3)
    published: list[bytes] = []
    for _ in range(60):
        feed.top()  # the dashboard looks
        messages = mixed(chance, burst - 3) + [b"last"] * 3
        published += messages[: burst // 2] + messages[burst // 2 :]
        feed.publish(messages, size)
        feed.clock.now += 1.0
    # The clock began at a full slot, so the last 30 seconds are six of five.
    recent = published[-30 * burst :]
    for tag, rate in feed.top().items():
        assert rate == sum(tag in each.decode().split(",") for each in recent) / 30
    assert set(feed.top()) == {"a", "b", "c", "d", "e", "last"}


@pytest.mark.parametrize("size", [1, 30, 1000])
@pytest.mark.parametrize("per_second", [20_000, 200_000])
def test_many_messages_are_counted_about_right(per_second: int, size: int) -> None:
    feed, chance = Feed(), random.Random(3)
    for _ in range(10):
        feed.publish(mixed(chance, per_second // 10), size)
        feed.clock.now += 0.1
    found = feed.top()
    assert found["a"] == pytest.approx(0.9 * per_second, rel=0.05)
    assert found["b"] == pytest.approx(0.3 * per_second, rel=0.1)
    assert found["c"] == pytest.approx(0.1 * per_second, rel=0.15)


def test_a_burst_after_a_pause_counts_in_its_own_time() -> None:
    feed = Feed()
    feed.publish([b"a"] * 100, 1)
    feed.clock.now += 20.0
    feed.publish([b"b"], 1)
    assert feed.top() == {"a": 5.0, "b": 0.05}
    feed.clock.now += 20.0  # the first burst is over for more than 35 seconds
    assert feed.top() == {"b": 1 / 30}


def test_what_comes_in_turns_is_not_mistaken_for_one_of_them() -> None:
    feed = Feed()
    for _ in range(50):
        feed.publish([b"t%d" % (n % 15) for n in range(3_000)], 500)
        feed.clock.now += 0.1
    found = feed.top()
    for n in range(15):
        assert found[f"t{n}"] == pytest.approx(2_000, rel=0.35)


def test_rates_are_gone_when_nothing_comes_any_more() -> None:
    feed = Feed()
    feed.publish([b"a"] * 100, 10)
    feed.clock.now += 36
    assert feed.top() == {}
    feed.clock.now += 86_400.0 * 365 + 3
    feed.publish([b"a"] * 30, 10)
    feed.clock.now += 1.0
    assert feed.top() == {"a": 1.0}  # over the last 30 seconds


def test_a_frequent_tag_is_found_among_tags_that_never_come_back() -> None:
    feed = Feed()
    numbers = iter(range(1 << 30))
    for _ in range(300):
        feed.publish([b"often,r%d" % next(numbers) for _ in range(100)], 20)
        feed.clock.now += 0.1
    (tag, rate), *others = feed.rates.top(20)
    assert tag == "often"
    assert rate == pytest.approx(1000)
    assert all(rate < 0.04 for _, rate in others)
    assert all(len(slot) <= 2048 for slot in feed.rates._tags._slots.values())


def test_what_the_rarest_tags_leave_room_for_is_still_the_most_frequent() -> None:
    feed, chance = Feed(), random.Random(1)
    lists = [b"t%d" % n for n in range(5000)]
    weights = [1 / (n + 1) for n in range(5000)]
    published = chance.choices(lists, weights, k=40_000)
    for n in range(100):
        feed.publish(published[400 * n : 400 * n + 400], 100)
        feed.clock.now += 0.1
    found = feed.top(10)
    for n in range(8):
        assert found[f"t{n}"] == pytest.approx(published.count(b"t%d" % n) / 10)


def folded(publish: Callable[[Feed], None]) -> int:
    feed = Feed()
    publish(feed)
    feed.top()
    return feed.matches.asked


def test_of_many_messages_few_are_looked_at() -> None:
    def storm(feed: Feed) -> None:
        for n in range(100):
            feed.publish([b"r%d" % (1000 * n + m) for m in range(1000)], 1000)

    assert folded(storm) <= 100_000 / 15 + 2_000
    # A batch of any size costs no more than 500 messages.
    assert folded(lambda feed: feed.publish([b"r%d" % n for n in range(50_000)], 50_000)) <= 500
    # Of messages that come one by one no more than of others.
    assert folded(lambda feed: feed.publish([b"r%d" % n for n in range(50_000)], 1)) <= 5_500


def test_long_runs_count_exactly_however_many_there_are() -> None:
    feed = Feed()
    for _ in range(100):
        runs = [(b"long", b"", 500), *((b"r%d" % n, b"", 1) for n in range(300))]
        feed.rates.count(Batch.of_runs(runs))
    feed.clock.now += 1.0
    assert feed.rates.top(1) == [("long", 50_000.0)]


def test_short_runs_count_about_right() -> None:
    feed = Feed()
    for _ in range(2_000):
        feed.rates.count(Batch.of_runs([(b"b,a", b"", 2), (b"a", b"", 1)]))
        feed.rates.count(Batch.of_runs([(b"c", b"", 2)]))
    feed.clock.now += 1.0
    found = feed.top()
    assert found["a"] == pytest.approx(6_000, rel=0.15)
    assert found["b"] == pytest.approx(4_000, rel=0.15)
    assert found["c"] == pytest.approx(4_000, rel=0.15)


def test_cached_tag_lists_are_not_parsed_again() -> None:
    feed = Feed()
    feed.matches[b"whatever it is"] = TagList(parse_tag_list(b"b,a", 64))
    feed.publish([b"whatever it is"] * 7, 7)
    feed.clock.now += 1.0
    assert feed.top() == {"a": 7.0, "b": 7.0}


@pytest.mark.parametrize(
    "tag_list",
    [b"", b",", b"a b", b"\xff", b"a*", b"x" * 300, b"x," * 20_000, b",".join([b"x"] * 65)],
)
def test_tag_lists_that_break_the_rules_are_passed_over(tag_list: bytes) -> None:
    feed = Feed()
    feed.publish([tag_list], 1)
    feed.publish([tag_list, b"good"], 2)
    feed.rates.count(Batch.of_runs([(tag_list, b"", 2), (b"good", b"", 1)]))
    feed.clock.now += 1.0
    assert feed.top() == {"good": 2.0}


def test_blocks_that_nobody_asks_for_are_counted_exactly_while_they_are_few() -> None:
    feed = Feed()
    for _ in range(10):
        feed.rates.count_some(lambda: {b"a": 3, b"a,b": 2})
        feed.clock.now += 0.1
    assert feed.top() == {"a": pytest.approx(50), "b": pytest.approx(20)}


def test_of_many_such_blocks_few_are_made_and_stand_for_all() -> None:
    feed = Feed()
    made = 0

    def lists() -> dict[bytes, int]:
        nonlocal made
        made += 1
        return {b"a": 700, b"b": 300, **{b"c,%d" % n: 1 for n in range(24)}}

    blocks = 25_000  # of 10 s
    for n in range(blocks):
        feed.clock.now = 100 + n / 2_500
        feed.rates.count_some(lists)
    top = feed.top()
    assert made < blocks / 6
    assert top["a"] == pytest.approx(700 * blocks / 10, rel=0.1)
    assert top["b"] == pytest.approx(300 * blocks / 10, rel=0.1)


def test_a_block_of_very_many_lists_is_counted_in_part() -> None:
    feed = Feed()
    feed.rates.count_some(lambda: {b"a,t%d" % n: 1 for n in range(5_000)})
    assert feed.matches.asked <= 500
    assert feed.top(1) == {"a": pytest.approx(5_000, rel=0.02)}
