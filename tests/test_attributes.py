"""Attributes as values, and changes of them."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    change_of_json,
    format_change,
    parse_change,
)
from mist.errors import InvalidAudience
from mist.fields import MAX_IDS

ids = st.text("ab;=&,%+ ü1\u2028", min_size=1, max_size=3)
names = st.sampled_from(["plan", "site", "a.b-c_d", "0", "x" * 64])
others = st.dictionaries(names, ids, max_size=3)
some_attributes = st.builds(
    Attributes, st.just("") | ids, st.just("") | ids, st.frozensets(ids, max_size=3), others
)


@pytest.mark.parametrize(
    ("text", "given", "unset"),
    [
        ("user=1", "user=1", ""),
        ("user=", "", "user"),
        ("plan=&user=1&groups=b;a&site=", "groups=a;b&user=1", "plan site"),
        ("client=&groups=", "", "client groups"),
        ("plan=%3D", "plan=%3D", ""),
    ],
)
def test_change_says_what_to_set_and_what_to_unset(text, given, unset):
    change = Attributes.parse(given), frozenset(unset.split())
    assert parse_change(text) == change
    assert parse_change(format_change(*change)) == change


@pytest.mark.parametrize(
    "text",
    [
        "user",
        "",
        "=",
        "user=&",
        "&user=",
        "user=&&plan=",
        "user=1&user=",
        "user=&user=",
        "groups=&groups=a",
        "users=",
        "except=",
        "Plan=",
        "pl%61n=",
        "pl an=",
        "plan==",
        "plan=a=",
        "plan=;",
        "plan=%00",
        "a=b=",
        "plan=\ud800",
        "x" * 65 + "=",
        "&".join(f"{n}=" for n in range(MAX_IDS + 1)),
        "&".join(f"{n:064}=" for n in range(300)),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_text_that_is_no_change(text):
    with pytest.raises(InvalidAudience):
        parse_change(text)


def test_change_in_json():
    given, unset = change_of_json({"user": 1, "plan": None, "groups": ["a"], "site": None})
    assert (given.text, unset) == ("groups=a&user=1", {"plan", "site"})
    assert change_of_json({}) == (NO_ATTRIBUTES, frozenset())
    long = dict.fromkeys(f"{n:064}" for n in range(300))
    for mapping in [
        long,
        {"users": None},
        {"Plan": None},
        {"": None},
        {"groups": []},
        {"user": ""},
    ]:
        with pytest.raises(InvalidAudience):
            change_of_json(mapping)


attribute_names = st.sampled_from(["client", "user", "groups", "plan", "site", "a.b-c_d", "0"])


@given(some_attributes, some_attributes, st.frozensets(attribute_names))
def test_change_is_a_dict_updated(before, given, names):
    unset = names - given.as_json().keys()
    after = before.amended(given, unset).as_json()
    updated = {**before.as_json(), **given.as_json()}
    assert after == {name: updated[name] for name in updated.keys() - unset}
    if given.text or unset:
        assert parse_change(format_change(given, unset)) == (given, unset)
    patch = given.as_json() | dict.fromkeys(unset)
    assert change_of_json(patch) == (given, unset)


def test_attributes_that_become_too_many_are_refused():
    full = Attributes(groups=frozenset(map(str, range(MAX_IDS))))
    with pytest.raises(InvalidAudience):
        full.amended(Attributes(others={"plan": "pro"}))
    assert full.amended(Attributes(groups=frozenset("g"))).groups == {"g"}


# as values


def test_attributes_are_read_only():
    given = {"plan": "pro"}
    attributes = Attributes(others=given)
    given["plan"] = "basic"
    assert attributes.others == {"plan": "pro"}
    with pytest.raises(TypeError):
        attributes.others["plan"] = "basic"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        attributes.user = "1"
    assert attrs.evolve(attributes, user="1").text == "plan=pro&user=1"


def test_site_is_one_of_the_others():
    assert Attributes.parse("site=x").site == "x"
    assert NO_ATTRIBUTES.site == ""


def test_order_of_names_is_no_difference():
    one, two = Attributes(others={"a": "1", "b": "2"}), Attributes(others={"b": "2", "a": "1"})
    assert (one, hash(one), list(one.others)) == (two, hash(two), ["a", "b"])
    assert one != Attributes(others={"a": "1"})
