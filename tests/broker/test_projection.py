"""Projection: what is asked of some hundred tag lists at once is what is asked of each."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist.addresses import compile_asked, expand
from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.broker.outbox import Outbox
from mist.broker.projection import Projected, plain_tags, project, tags_of
from mist.errors import CommandError
from mist.index import BOUNDARY, Index
from mist.message import PUBLISH, format_tags, parse_tag_list
from tests.broker.test_broker import batch, line, make_outbox, take_all
from tests.garbage import alive

KNOWN = frozenset({"a", "b", "user:7", "Ä", "z" * 63})
INDEX: Index[int] = Index()
for number, tag in enumerate(KNOWN):
    INDEX.add(frozenset([tag]), number)


def projected(*lists: str, most: int = 64) -> Projected | None:
    return project([each.encode() for each in lists], INDEX, most)


# Tags that keep the rules, and pieces of which some don't.
tags = st.sampled_from(
    ["a", "b", "c", "user:7", "order:18", "Ä", "中", "z" * 63, "0", "a.b", "a/b"]
)
marked = ["*", "a*", "*a", "/a", ".a.b", "=a", "=/a", ">a", "..x"]
broken = ["", "a b", "\x00", "a\x7f", "\x85", "\n", "a\nb", "\r", "\u2028", "\t"]
long = ["x" * 64, "x" * 255, "x" * 256, "é" * 64, "é" * 128]
odd = st.sampled_from([*marked, *broken, *long])
lists = st.lists(st.one_of(tags, tags, tags, odd), min_size=1, max_size=6).map(",".join)


@given(st.lists(lists, min_size=1, max_size=8))
@example(["a\nb"])
@example(["a", "a,\n,b"])
@example(["b,a,b"])
def test_lists_are_projected_as_each_is_by_the_rules(written: list[str]) -> None:
    found = projected(*written)
    if found is None:
        return
    assert len(found.projections) == len(written)
    for n, each in enumerate(written):
        parsed = parse_tag_list(each.encode(), 64, PUBLISH)
        assert tags_of(found.projections[n]) == parsed & KNOWN
        canonical = each.encode() if found.canonical is None else found.canonical[n]
        assert canonical == format_tags(parsed).encode()


@given(st.lists(st.lists(tags, min_size=1, max_size=6), min_size=1, max_size=8))
def test_plain_tags_are_always_projected(written: list[list[str]]) -> None:
    assert projected(*map(",".join, written)) is not None


def test_the_same_tags_have_the_same_projection_in_whatever_order_they_stand() -> None:
    found = projected("b,order:1,a", "a,b", "order:2,b,a,a", "order:3", "c")
    assert found is not None
    assert found.projections == [",a,b,", ",a,b,", ",a,b,", ",", ","]
    assert found.canonical == [b"a,b,order:1", b"a,b", b"a,b,order:2", b"order:3", b"c"]
    in_order = projected("a,b,order:1", "a,b")
    assert in_order is not None
    assert in_order.canonical is None


tokens = st.sampled_from(["a", "b", "c0", "Ä", "/x", "=y", ">z", "*"])
subjects = st.lists(tokens, min_size=1, max_size=5).map(lambda some: "." + ".".join(some))
asked = st.sets(
    st.sampled_from([".a", ".a.b", ".a.*", ".*.b", ".>", ".a.>", ".*.*.>", ".b.a.c0", "/a", "a"])
)


@given(st.lists(subjects, min_size=1, max_size=6), asked)
@example([".a.b", ".b.b", ".a"], {".a.*"})
def test_subjects_are_projected_with_what_is_derived_of_them(
    written: list[str], patterns: set[str]
) -> None:
    index: Index[int] = Index()
    for number, pattern in enumerate(patterns):
        index.add(compile_asked(frozenset([pattern])), number)
    found = project([each.encode() for each in written], index, 64)
    if any("*" in each or ">" in each for each in written):
        assert found is None
        return
    assert found is not None
    for each, projection in zip(written, found.projections, strict=True):
        expanded = expand(frozenset([each]))
        assert tags_of(projection) <= expanded
        assert sorted(index.match(tags_of(projection))) == sorted(index.match(expanded))


def test_what_is_too_long_or_no_subject_is_no_plain_subject() -> None:
    assert projected("." + ".".join("a" * 20)) is not None
    for written in ("." + ".".join("a" * 21), "." + "x" * 255, ".a..b", ".a.", ".", ".a,b", ".a b"):
        assert projected(".a", written) is None
        assert projected(written, ".a") is None


@pytest.mark.parametrize(
    "written",
    ["/a", "a,.b.c", ".b,a", "=a", ">a", "a*", "b,*", "", "a,,b", "a,", "a b", "x" * 256, "\x01"],
)
def test_what_is_not_plain_is_looked_at_by_itself(written: str) -> None:
    for some in ([written], ["a", written], [written, "a"], ["a", written, "b"]):
        assert projected(*some) is None


def test_bytes_that_are_no_text_and_too_many_tags_are_looked_at_by_themselves() -> None:
    assert project([b"a", b"\xff"], INDEX, 64) is None
    assert projected("a,b,c", most=3) is not None
    many = ",".join(f"tag-{n}" for n in range(65))
    assert projected("a", many) is None
    assert projected("a", many, most=65) is not None


@given(st.lists(lists, min_size=1, max_size=8))
def test_plain_tags_are_those_of_each_list(written: list[str]) -> None:
    found = plain_tags([each.encode() for each in written], 64)
    if found is not None:
        parsed = [parse_tag_list(each.encode(), 64, PUBLISH) for each in written]
        assert Counter(found) == Counter(chain(*parsed))


# In an index


def test_an_index_knows_the_tags_of_its_entries() -> None:
    index: Index[int] = Index()
    index.add(frozenset("ab"), 1)
    index.add(frozenset("bc"), 2)
    names = ["x", "a", BOUNDARY, "c", "b", BOUNDARY]
    assert list(index.known(names)) == ["a", BOUNDARY, "c", "b", BOUNDARY]
    index.remove(frozenset("ab"))
    assert list(index.known(names)) == [BOUNDARY, "c", "b", BOUNDARY]


def test_an_index_of_very_many_tags_knows_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.index.intern._FLAT", 10)
    index: Index[int] = Index()
    there: list[int] = []
    for n in [*range(30), *range(30, 0, -1)]:  # up above the bound, and below half of it again
        if n in there:
            there.remove(n)
            index.remove(frozenset([f"t{n}"]))
        else:
            there.append(n)
            index.add(frozenset([f"t{n}"]), n)
        asked = [f"t{number}" for number in range(31)]
        expected = [f"t{number}" for number in range(31) if number in there]
        assert list(index.known([*asked, BOUNDARY])) == [*expected, BOUNDARY]


# In a broker


def count(outbox: Outbox) -> int:
    return take_all(outbox).count(b"\n")


def published(broker: Broker, *lists: str) -> int:
    return broker.publish(batch(*[(tags, str(n)) for n, tags in enumerate(lists)]))


def test_lists_that_never_come_again_take_one_match() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset({"a"}))
    for n in range(100):
        assert published(broker, f"a,order:{n}", f"order:{n},user:{n}") == 2
    assert len(list(broker._directory.cached())) <= 4
    assert count(outbox) == 100
    assert broker.statistics().unmatched == 100


def test_tags_that_nobody_asks_for_together_cost_no_match_and_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each projection is another one here."""
    broker = Broker()
    outbox, others = make_outbox(broker), make_outbox(broker)
    broker.subscribe(outbox, frozenset({"a"}))
    for n in range(30):
        broker.subscribe(others, frozenset({f"room:{n}", f"user:{n}"}))
    monkeypatch.delattr(Index, "match")
    for n in range(30):
        pairs = [(n, m) for m in range(30) if m != n]
        published(broker, *[f"a,room:{n},user:{m}" for n, m in pairs], f"user:{n}")
    assert count(outbox) == 30 * 29
    assert count(others) == 0
    assert broker.statistics().unmatched == 30
    assert not broker._directory.routes
    assert len(list(broker._directory.cached())) <= 2


def test_projections_that_come_again_are_cached() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker) for _ in range(40)]
    for n, outbox in enumerate(outboxes):
        broker.subscribe(outbox, frozenset({f"user:{n}"}))
    for number in range(40):
        published(broker, *[f"order:{number}-{n},user:{n}" for n in range(40)])
    assert len(broker._directory.routes) == 40
    assert [count(outbox) for outbox in outboxes] == [40] * 40


def test_a_subscription_counts_from_the_next_message() -> None:
    broker = Broker()
    first, second, third = (make_outbox(broker) for _ in range(3))
    group = broker.subscribe(first, frozenset({"a"}))
    for n in range(3):
        published(broker, f"a,order:{n}")
    broker.subscribe(second, frozenset({"a", "user:1"}))
    broker.subscribe(third, frozenset({"user:1"}))
    for n in range(3):
        published(broker, f"a,order:1{n},user:1", f"order:2{n},user:1", f"order:3{n}")
    broker.unsubscribe(first, group)
    for n in range(3):
        published(broker, f"a,order:4{n},user:1", f"a,order:5{n}")
    assert count(first) == 6
    assert count(second) == 6
    assert count(third) == 9


def test_nothing_is_kept_of_a_subscription_that_ended() -> None:
    broker = Broker()
    outbox, stays = make_outbox(broker), make_outbox(broker)
    before = alive(Group)
    broker.subscribe(stays, frozenset({"a"}))
    groups = [broker.subscribe(outbox, frozenset({"a", f"user:{n}"})) for n in range(50)]
    for number in range(3):
        published(broker, *[f"a,order:{number}-{n},user:{n}" for n in range(50)])
    while groups:
        broker.unsubscribe(outbox, groups.pop())
    published(broker, "a,order:1")
    assert alive(Group) == before + 1


def test_somebody_who_asks_for_everything_gets_what_nobody_else_asks_for() -> None:
    broker = Broker()
    everything, some = make_outbox(broker), make_outbox(broker)
    broker.subscribe(some, frozenset({"a"}))
    published(broker, "order:1", "a,order:2")
    group = broker.subscribe(everything, frozenset({"*"}))
    published(broker, "order:3", "a,order:4")
    broker.unsubscribe(everything, group)
    published(broker, "order:5", "a,order:6")
    assert take_all(everything) == line("order:3", "0") + line("a,order:4", "1")
    assert count(some) == 3


def test_records_are_written_back_in_order_and_messages_keep_theirs() -> None:
    broker = Broker()
    outbox, other = make_outbox(broker), make_outbox(broker)
    broker.subscribe(outbox, frozenset({"a"}))
    broker.subscribe(other, frozenset({"b"}))
    lists = ["order:1,a", "a,order:2", "b,order:3,a", "order:4", "order:5,b,b"]
    assert published(broker, *lists) == 5
    both = line("a,b,order:3", "2")
    assert take_all(outbox) == line("a,order:1", "0") + line("a,order:2", "1") + both
    assert take_all(other) == both + line("b,order:5", "4")


def test_a_list_that_breaks_a_rule_costs_itself_only() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset({"a"}))
    errors: list[CommandError] = []
    sent = batch(*[(tags, "x") for tags in ("a,order:1", "a,..b", "a,order:2", "a*", "a,/t/1")])
    assert broker.publish(sent, None, errors.append) == 3
    assert [str(error) for error in errors] == ["Invalid tag", "Invalid tag"]
    assert count(outbox) == 3


def test_lists_that_come_again_are_all_found_by_themselves_in_the_end() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset({"a"}))
    # Of two whose sights take the same place each would forget the other, for ever.
    places = {hash(f"a,room:{n}".encode()) % 65_536: f"a,room:{n}" for n in range(80)}
    lists = list(places.values())[:64] * 5  # a multiple of any stride
    for _ in range(200):
        published(broker, *lists)
    assert len(broker._directory.matches) == 64
    assert count(outbox) == 200 * len(lists)
