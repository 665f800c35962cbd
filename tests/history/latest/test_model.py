"""Latest values against their definition, whatever is done to the log in whatever order."""

import tempfile

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.attributes import Attributes
from mist.history import Erasure, LatestQuery, Policy, Rule, run_index
from mist.history.latest import index, pages, query, tables
from mist.history.opening import open_history
from tests.history.latest.values import latest, newest_of_all
from tests.history.messages import publication, run, select

KEYS = ["k:1", "k:2", "k:3", "k", "/k/1"]
OTHERS = ["new", "paid", "k2"]
KEPT = ["k*", "/k/*", "*"]
PEOPLE = [None, Attributes(), Attributes.parse("user=ann"), Attributes.parse("site=s")]

tag_lists = st.builds(
    lambda keys, others: ",".join(sorted(keys | others)),
    st.frozensets(st.sampled_from(KEYS), max_size=2),
    st.frozensets(st.sampled_from(OTHERS), max_size=2),
).filter(bool)
publications = st.builds(
    lambda runs, time, publisher, audience: publication(
        *[run(tags, *map(str, range(count))) for tags, count in runs],
        time=time,
        publisher=publisher,
        audience=audience,
    ),
    st.lists(st.tuples(tag_lists, st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(1000, 1030).map(float),
    st.sampled_from(["", "p"]),
    st.sampled_from([None, None, "users=ann", "site=s", "groups=g"]),
)
groups = st.lists(publications, min_size=1, max_size=3)
policies = st.builds(
    Policy,
    max_age=st.none() | st.integers(0, 30),
    max_bytes=st.none(),
    max_messages=st.none() | st.integers(0, 20),
    rules=st.lists(
        st.builds(Rule, st.sampled_from(["k:*", "paid", "*"]), count=st.integers(0, 2)), max_size=2
    ).map(tuple),
)
erasures = st.sampled_from(
    [Erasure(frozenset(["k:1"])), Erasure(frozenset(["paid"])), Erasure(publisher="p")]
)
steps = st.one_of(
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("trim"), policies),
    st.tuples(st.just("erase"), erasures),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("ask"), st.none()),
    st.tuples(st.just("reopen"), st.sampled_from(["alike", "with others", "without"])),
)
selections = st.sampled_from(
    [
        *(None, select("new"), select("paid"), select("new", "paid"), select("k:1"), select("k2")),
        *(select("k:1,paid", "k:2,new"), select("/k/1"), select("none"), select("k,paid")),
    ]
)
patterns = st.sampled_from(["k:*", "k:1", "k*", "*", "/k/*", "k"])


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Bounds so small that a few messages reach them."""
    monkeypatch.setattr(query, "_FIRST", 2)
    monkeypatch.setattr(query, "_MOST", 3)
    monkeypatch.setattr(query, "_COMPARED", 4)
    monkeypatch.setattr(query, "_KNOWN", 2)
    monkeypatch.setattr(pages, "_MANY", 2)
    monkeypatch.setattr(pages, "_BLOCKS", 2)
    monkeypatch.setattr(tables, "_ROWS", 3)
    monkeypatch.setattr(tables, "_KINDS", 2)
    monkeypatch.setattr(tables, "_COMMITTED", 3)
    monkeypatch.setattr(index, "_REMOVALS", 2)
    monkeypatch.setattr(index, "_FORGOTTEN", 2)
    monkeypatch.setattr(run_index, "_FEW_LISTS", 1)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=50)
@given(st.lists(steps, min_size=1, max_size=12), selections, patterns, st.sampled_from(PEOPLE))
def test_the_newest_of_each_key_among_those_selected(kind, done, selection, pattern, attributes):
    async def work(url):
        history = await open_history(url)
        await history.keep_latest(KEPT)
        try:
            for what, argument in done:
                match what:
                    case "append":
                        await history.append(argument)
                    case "trim":
                        while (await history.trim(argument, 1040.0)).more:
                            pass
                    case "erase":
                        await history.erase(argument)
                    case "compact":
                        while await history.compact():
                            pass
                    case "ask" if history.latest_patterns:
                        await latest(history, LatestQuery("k:*", lambda: None))
                    case "reopen" if kind == "sqlite":
                        await history.close()
                        history = await open_history(url)
                        if argument != "without":  # as a command that maintains the log
                            await history.keep_latest(KEPT if argument == "alike" else ["*"])
            if not history.latest_patterns:
                await history.keep_latest(KEPT)
            expected = await newest_of_all(history, selection, pattern, attributes)
            found = await latest(history, LatestQuery(pattern, lambda: attributes), selection)
            assert found == expected
        finally:
            await history.close()

    with tempfile.TemporaryDirectory() as folder:
        url = "memory://" if kind == "memory" else f"sqlite:///{folder}/history.db"
        trio.run(work, url)
