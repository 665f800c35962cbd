"""The memo forgets exactly what changed, and stays within its bounds."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mist.index import Memo


def key_of(tags: frozenset[str]) -> bytes:
    return ",".join(sorted(tags)).encode()


def admit(memo: Memo[bytes, int], tags: str | frozenset[str], value: int = 0) -> None:
    found = frozenset(tags)
    for _ in range(2):
        memo.admit(key_of(found), found, value)


def test_it_keeps_what_it_sees_for_the_second_time() -> None:
    memo: Memo[bytes, int] = Memo()
    assert not memo.admit(b"a", frozenset("a"), 1)
    assert memo.entries.get(b"a") is None
    assert memo.admit(b"a", frozenset("a"), 2)
    assert memo.entries.get(b"a") == 2


def test_tag_lists_that_are_all_different_leave_nothing_behind() -> None:
    memo: Memo[bytes, int] = Memo(max_first_sights=100)
    tracemalloc.start()
    try:
        for n in range(10_000):
            assert not memo.admit(b"a,%d" % n, frozenset({"a", str(n)}), n)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not memo.entries
    assert held < 10_000  # bytes more than before the first: a set of each would take 4 million


def test_most_first_sights_outlast_a_few_others() -> None:
    memo: Memo[bytes, int] = Memo(max_first_sights=1_000)
    keys = [b"a,%d" % n for n in range(300)]
    seen = [[memo.admit(key, frozenset({"a"}), 0) for key in keys] for _ in range(2)]
    assert not any(seen[0])
    assert sum(seen[1]) > 150


def test_lists_that_come_in_turns_do_not_push_each_other_out() -> None:
    memo: Memo[bytes, int] = Memo()
    keys = [b"a,%d" % n for n in range(10_000)]
    for _ in range(4):
        for key in keys:
            memo.admit(key, frozenset({"a"}), 0)
    assert len(memo.entries) > 9_900


def test_two_spellings_of_one_set_are_two_entries_and_go_together() -> None:
    memo: Memo[bytes, int] = Memo()
    for key in (b"a,b", b"b,a", b"a,b", b"b,a"):
        memo.admit(key, frozenset("ab"), 1)
    assert set(memo.entries) == {b"a,b", b"b,a"}
    memo.invalidate(frozenset("a"))
    assert not memo.entries


def test_it_is_bounded_in_entries_and_drops_the_oldest() -> None:
    memo: Memo[bytes, int] = Memo(max_entries=2)
    for tags in ("a", "b", "c"):
        admit(memo, tags)
    assert list(memo.entries) == [b"b", b"c"]


def test_it_is_bounded_in_bytes() -> None:
    memo: Memo[bytes, int] = Memo(max_bytes=100_000)
    for n in range(200):
        admit(memo, frozenset({"x" * 5_000, str(n)}))
    assert sum(map(len, memo.entries)) < 100_000
    admit(memo, frozenset({"y" * 200_000}))
    assert all(len(key) < 100_000 for key in memo.entries)


def test_cleared_it_is_as_new() -> None:
    memo: Memo[bytes, int] = Memo()
    admit(memo, "ab")
    memo.clear()
    assert not memo.entries
    memo.invalidate(frozenset("a"))
    assert not memo.admit(b"a,b", frozenset("ab"), 1)


def test_what_was_forgotten_for_a_subscription_comes_back_at_its_next_sight() -> None:
    memo: Memo[bytes, int] = Memo()
    admit(memo, "ab", 7)
    assert memo.invalidate(frozenset("b")) == [7]
    assert memo.invalidate(frozenset("b")) == []
    assert memo.admit(b"a,b", frozenset("ab"), 8)
    assert memo.entries[b"a,b"] == 8


sets = st.frozensets(st.sampled_from("abcde"), min_size=1)


@given(st.lists(st.tuples(st.booleans(), sets), max_size=60))
def test_exactly_the_supersets_are_forgotten(steps: list[tuple[bool, frozenset[str]]]) -> None:
    memo: Memo[bytes, int] = Memo()
    model: dict[bytes, frozenset[str]] = {}
    for forget, tags in steps:
        if forget:
            memo.invalidate(tags)
            model = {key: kept for key, kept in model.items() if not tags <= kept}
        else:
            admit(memo, tags)
            model[key_of(tags)] = tags
        assert set(memo.entries) == set(model)
    for tags in list(model.values()):
        memo.invalidate(tags)
    assert not memo._keys
    assert not memo._tags
    assert memo.statistics().size == 0
