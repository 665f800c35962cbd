"""The tally: how many messages come for each subscription, each counted once."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from mist.addresses import EVERYTHING, compile_asked, expand
from mist.history import Stored
from mist.history.tally import Tally
from mist.wire import TagList


def stored(*messages: tuple[Iterable[str], int]) -> Stored:
    entries = [(TagList(frozenset(tags)), b"", count) for tags, count in messages]
    return Stored(entries, 0.0, firsts=[1 + place for place in range(len(entries))])


def test_a_message_counts_for_the_first_subscription_that_matches_it() -> None:
    a, b, both = frozenset({"/a"}), frozenset({"/a/b"}), frozenset({"x", "y"})
    tally = Tally([b, a, both])
    tally.note(stored((["/a/b"], 2), (["/a"], 3), (["/a", "x", "y"], 1), (["x"], 9)))
    tally.note(stored((["x", "y", "z"], 5)))
    assert tally.counts == [(b, 2), (a, 4), (both, 5)]


def test_what_nothing_comes_for_is_left_out() -> None:
    tally = Tally([frozenset({"a"}), frozenset({"b"})])
    assert tally.counts == []
    tally.note(stored((["b"], 1), (["c"], 1)))
    assert tally.counts == [(frozenset({"b"}), 1)]


def test_everything_takes_what_is_left() -> None:
    tally = Tally([frozenset({"a"}), EVERYTHING])
    tally.note(stored((["b"], 2), (["a", "b"], 1)))
    assert tally.counts == [(frozenset({"a"}), 1), (EVERYTHING, 2)]


tags = st.frozensets(st.sampled_from(["a", "b", "c", "/a", "/a/b", "/c"]), min_size=1)


@given(st.lists(tags, unique=True), st.lists(st.tuples(tags, st.integers(1, 3))))
def test_it_is_what_trying_them_in_turn_finds(
    asked: list[frozenset[str]], messages: list[tuple[frozenset[str], int]]
) -> None:
    found = dict.fromkeys(asked, 0)
    for published, count in messages:
        for each in asked:
            if compile_asked(each) <= expand(published):
                found[each] += count
                break
    tally = Tally(asked)
    if messages:
        tally.note(stored(*messages))
    assert tally.counts == [(each, count) for each, count in found.items() if count]
