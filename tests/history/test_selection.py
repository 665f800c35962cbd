"""Selections: the plain set definition, whatever their size; and cheap to make."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history import Policy, Rule, Selection, selection
from mist.history.opening import open_history
from tests.history.messages import ids, one, replay, select

tag_sets = st.frozensets(st.sampled_from("abcdefgÄ"), min_size=1, max_size=4)


@given(st.frozensets(tag_sets, min_size=1), st.lists(tag_sets), st.sampled_from([1, 2, 64]))
def test_selection_is_the_plain_definition(alternatives, messages, full):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_FULL", full)
        selected = Selection(alternatives)
        for tags in messages:
            expected = any(each <= tags for each in alternatives)
            assert selected.matches(",".join(sorted(tags)).encode()) is expected


@pytest.mark.parametrize("alternatives", [[], [frozenset()], [frozenset("a"), frozenset()]])
def test_selection_needs_tags(alternatives):
    with pytest.raises(ValueError, match="needs"):
        Selection(alternatives)


def test_alternatives_that_are_a_frozenset_are_not_copied():
    alternatives = frozenset(frozenset([str(n)]) for n in range(1000))
    assert Selection(alternatives).alternatives is alternatives


@pytest.mark.parametrize(("count", "is_large"), [(1, False), (32, False), (33, True)])
def test_selection_is_large_where_its_tags_are_not_looked_up(count, is_large):
    chosen = select(*map(str, range(count)))
    assert chosen.is_large is is_large
    assert (chosen.lookups is None) is is_large


async def test_a_large_selection_is_worked_on_beside_the_event_loop(url, monkeypatch):
    threads = []
    build = selection._build

    def watched(alternatives):
        threads.append(threading.current_thread())
        return build(alternatives)

    monkeypatch.setattr(selection, "_build", watched)
    async with await open_history(url) as history:
        await history.append([one("a")])
        await history.append([one("n7,x"), one("x")])
        for attempt in (
            lambda wanted: replay(history, wanted),
            lambda wanted: history.last(wanted, 5),
        ):
            wanted = select(*(f"n{n}" for n in range(100)))
            assert threads == []
            found = await attempt(wanted)
            assert threads.pop() is not threading.main_thread()
            assert found == 0 or ids(found) == [2]


async def test_a_large_selection_is_read_as_it_was_when_it_was_asked_for(url):
    async with await open_history(url) as history:
        for number in range(100):
            await history.append([one(f"n{number},all")])
        wanted = select(*(f"n{n}" for n in range(0, 100, 2)))
        assert ids(await replay(history, wanted, limit=7)) == list(range(1, 101, 2))
        while (await history.trim(Policy(None, None, 10, (Rule("n1*", 5),)), 0.0)).more:
            pass
        assert ids(await replay(history, wanted)) == [11, 13, 15, 17, 19, 91, 93, 95, 97, 99]
        assert not await history.recovered(wanted, 0)
        assert await history.recovered(select(*(f"n1{n}" for n in range(100))), 0)
