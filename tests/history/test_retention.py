"""Retention rules: how they are written, and which messages they are about."""

import pytest

from mist.history import Policy, Rule, tracker
from mist.history.block_store import State
from mist.history.retention import parse_age


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("room:*=100", Rule("room:*", count=100)),
        ("room:*=7d", Rule("room:*", age=7 * 86_400)),
        ("a=100,90s", Rule("a", count=100, age=90)),
        ("a=12h,5", Rule("a", count=5, age=12 * 3600)),
        ("k=v=3", Rule("k=v", count=3)),
        ("*=0", Rule("*", count=0)),
    ],
)
def test_rule_is_what_was_written(text, rule):
    assert Rule.parse(text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "=1", "a=-1", "a=1.5", "a=1,2", "a=1d,2d", "a=1,1d,", "a=1w", "a=٣", "a,b=1"],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match=r".") as caught:
        Rule.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "a b", "a,b", "a\n", "a\0"])
def test_pattern_that_no_tag_can_match_is_refused(pattern):
    with pytest.raises(ValueError, match="no tag"):
        Rule(pattern, count=1)


@pytest.mark.parametrize("limits", [{}, {"count": -1}, {"age": -1.0}])
def test_rule_needs_a_limit_that_can_be(limits):
    with pytest.raises(ValueError, match="rule"):
        Rule("a", **limits)


@pytest.mark.parametrize(
    ("pattern", "tag", "expected"),
    [
        ("room", "room", True),
        ("room", "room:1", False),
        ("room:*", "room:1", True),
        ("room:*", "room:", True),
        ("room:*", "rooms", False),
        ("*", "anything", True),
        ("a*b", "axb", False),
        ("a*b", "a*b", True),
    ],
)
def test_pattern_matches(pattern, tag, expected):
    assert Rule(pattern, count=1).matches(tag) is expected


def test_policy_gives_the_rules_about_a_tag():
    rules = (Rule("a", count=1), Rule("*", age=1.0), Rule("b", count=1))
    assert Policy(rules=rules).for_tag("a") == [rules[0], rules[1]]
    assert Policy(rules=rules).patterns == ("*", "a", "b")


@pytest.mark.parametrize("text", ["", "7", "7w", "d", "-1d", "1 d"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(ValueError, match="no age"):
        parse_age(text)


def test_too_many_tags_are_forgotten_oldest_first_and_never_claimed_to_be_known(monkeypatch):
    monkeypatch.setattr(tracker, "_MAX_TAGS", 4)
    state = State("e", trimmed=50, patterns=("*",))
    tracked = {"a": 10, "b": 20, "c": 30, "d": 40}
    assert tracker.shrink(state, tracked) is None
    state, kept = tracker.shrink(state, tracked | {"e": 50})
    assert kept == {"e": 50, "d": 40}
    assert not tracker.recovered(state, kept, [frozenset("a")], 20)
    assert tracker.recovered(state, kept, [frozenset("a")], 30)
    assert not tracker.recovered(state, kept, [frozenset("d")], 30)
