"""Queue groups over several nodes: all know alike whom a message is for."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.broker.queue_shares import QueueKey, QueueShare, QueueShares

KEY = QueueKey("q", "a,b", "")
NODES = ("n1", "n2", "n3")

sizes = st.dictionaries(
    st.sampled_from(NODES), st.dictionaries(st.sampled_from(("", "x", "y")), st.integers(0, 4))
)


def opened(node: str) -> tuple[QueueShares, QueueShare]:
    shares = QueueShares(node)
    return shares, shares.open("q", "a,b")


@given(sizes, st.integers(1, 1 << 40), st.sampled_from(["", "x", "z", None]))
def test_a_message_is_for_one_node_that_has_members_and_for_none_without(
    members: dict[str, dict[str, int]], first: int, site: str | None
) -> None:
    counts: Counter[str] = Counter()
    weights = {
        node: sum(n for each, n in by_site.items() if site in (None, each))
        for node, by_site in members.items()
    }
    for node in NODES:
        shares, share = opened(node)
        for other in reversed(NODES) if node == "n2" else NODES:  # heard in whichever order
            keys = {QueueKey("q", "a,b", each): n for each, n in members.get(other, {}).items()}
            shares.apply(other, keys)
        counts[node] += sum(share.is_here(id_, site) for id_ in range(first, first + 400))
    total = sum(weights.values())
    assert counts.total() == (400 if total else 0)
    for node in NODES:
        expected = 400 * weights.get(node, 0) / total if total else 0
        assert abs(counts[node] - expected) < 60  # six deviations


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_messages_are_spread_evenly_whichever_ids_they_have(step: int) -> None:
    shares, share = opened("n1")
    shares.apply("n1", {KEY: 1})
    shares.apply("n2", {KEY: 2})
    here = sum(share.is_here(id_, "") for id_ in range(1, 30_001 * step, step))
    assert 9_700 < here < 10_300


def test_what_other_nodes_have_not_heard_is_told_once() -> None:
    shares, share = opened("n1")
    shares.count(KEY, 1)
    shares.count(KEY, 1)
    shares.count(KEY._replace(site="x"), 1)
    assert sorted(shares.take(10)) == [("q", "a,b", "", 2), ("q", "a,b", "x", 1)]
    assert not shares.take(10)
    shares.count(KEY, -2)
    (taken,) = shares.take(10)
    assert taken == ("q", "a,b", "", 0)
    shares.put_back([taken])
    shares.count(KEY, 1)
    assert shares.take(1) == [("q", "a,b", "", 1)]
    assert not share.is_here(1, "")  # nobody has heard


def test_members_are_counted_from_the_place_on_where_all_have_heard() -> None:
    shares, share = opened("n1")
    left: list[bool] = []
    shares.apply("n1", {KEY: 1})
    assert share.counts_here
    assert share.is_here(1, "")
    share.on_left = lambda: left.append(True)
    shares.apply("n1", {KEY: 2})
    assert not left
    shares.apply("n1", {KEY: 0})
    assert left == [True]
    assert not share.counts_here
    assert not share.is_here(1, "")
    assert not list(shares.nodes)


def test_one_that_is_said_to_have_gone_says_that_it_has_not() -> None:
    shares, share = opened("n1")
    shares.count(KEY, 3)
    told = shares.take(10)
    shares.apply("n1", {KEY: 3})
    shares.apply("n2", {KEY: 1})
    version = shares.version
    shares.apply_left("n2")
    assert shares.version == version
    assert all(share.is_here(id_, "") for id_ in range(50))
    shares.apply_left("n1")
    assert not share.is_here(1, "")
    assert shares.version > version
    assert shares.take(10) == told


def test_a_server_that_stops_has_no_members_whoever_comes() -> None:
    shares, _ = opened("n1")
    shares.count(KEY, 2)
    shares.take(10)
    shares.apply("n1", {KEY: 2})
    shares.leave_all()
    shares.count(KEY, 1)
    assert shares.take(10) == [("q", "a,b", "", 0)]


def test_what_was_said_behind_the_place_where_it_begins_is_said_again() -> None:
    shares, share = opened("n1")
    shares.count(KEY, 2)
    other = QueueKey("r", "c", "")
    shares.take(10)
    shares.apply("n1", {KEY: 2})
    shares.apply("n3", {other: 5})
    shares.load({"n1": {KEY: 1, other: 7}, "n2": {KEY: 1}})
    assert sorted(shares.nodes) == ["n1", "n2"]
    assert sorted(shares.take(10)) == [("q", "a,b", "", 2), ("r", "c", "", 0)]
    assert 40 < sum(share.is_here(id_, "") for id_ in range(100)) < 60


def test_nothing_is_kept_of_queue_groups_that_nobody_is_in() -> None:
    shares, share = opened("n1")
    for n in range(100):
        key = QueueKey(f"q{n}", "a", "")
        own = shares.open(key.queue, key.tags)
        shares.count(key, 1)
        shares.apply("n1", {key: 1})
        shares.apply("n2", {key: 1})
        shares.count(key, -1)
        shares.apply("n1", {key: 0})
        shares.apply("n2", {key: 0})
        shares.close(own)
    shares.take(1_000)
    for id_ in range(100):
        assert not share.is_here(id_, f"site{id_}")
    kept = [shares._shares, shares._counted, shares._here, shares._unsaid, share._ranges]
    assert list(map(len, kept)) == [1, 0, 0, 0, 0]
