"""Audiences: what they mean; and the texts of audiences and attributes, which share their rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.audience import Audience
from mist.errors import CommandError, InvalidAudience
from mist.fields import MAX_AUDIENCE, MAX_IDS

# audience, attributes of a session, whether it is admitted
MEANING = [
    # clients
    ("clients=a", "client=a", True),
    ("clients=a;b", "client=b", True),
    ("clients=a", "client=b", False),
    ("clients=a", "", False),
    ("clients=a", "user=a", False),
    # users or groups
    ("users=1;2", "user=2", True),
    ("users=1;2", "user=3", False),
    ("users=1", "", False),
    ("groups=3", "groups=2;3", True),
    ("groups=3;4", "groups=4", True),
    ("groups=3", "groups=2", False),
    ("groups=3", "user=3", False),
    ("groups=3", "", False),
    ("users=1&groups=3", "user=1", True),
    ("users=1&groups=3", "user=2&groups=3", True),
    ("users=1&groups=3", "groups=3", True),
    ("users=1&groups=3", "user=2&groups=4", False),
    # clients and (users or groups)
    ("clients=a&users=1", "client=a&user=1", True),
    ("clients=a&users=1", "client=a&user=2", False),
    ("clients=a&users=1", "client=b&user=1", False),
    ("clients=a&users=1&groups=3", "client=a&user=2&groups=3", True),
    ("clients=a&users=1&groups=3", "client=b&user=1&groups=3", False),
    # but not
    ("except=a", "client=b", True),
    ("except=a", "", True),
    ("except=a", "user=a&groups=a", True),
    ("except=a;b", "client=b", False),
    ("groups=3&except=a", "client=a&groups=3", False),
    ("groups=3&except=a", "client=b&groups=3", True),
    ("groups=3&except=a", "groups=3", True),
    ("clients=a;b&except=a", "client=b", True),
    ("clients=a&except=a", "client=a", False),
    # each other attribute
    ("plan=pro", "plan=pro", True),
    ("plan=pro", "plan=basic", False),
    ("plan=pro", "", False),
    ("plan=pro", "user=pro&groups=pro&client=pro", False),
    ("plan=pro&site=x", "plan=pro&site=x&more=1", True),
    ("plan=pro&site=x", "plan=pro", False),
    ("users=1&plan=pro", "user=1&plan=pro", True),
    ("users=1&plan=pro", "user=1", False),
    ("users=1&plan=pro", "user=2&plan=pro", False),
    # ids are texts, compared whole
    ("users=1", "user=01", False),
    ("users=1", "user=1.0", False),
    ("users=1", "user=12", False),
    ("users=a", "user=A", False),
    ("users=%C3%A9", "user=e%CC%81", False),
    ("users=*", "user=1", False),
    ("users=a%3Bb", "user=a", False),
    ("users=a%3Bb", "user=a%3bb", True),
    ("users=ü", "user=%C3%BC", True),
    ("users=a%20b", "user=a%20b", True),
    # decoded once
    ("users=%2541", "user=A", False),
    ("users=%2541", "user=%2541", True),
]


@pytest.mark.parametrize(("audience", "attributes", "admitted"), MEANING)
def test_audience_admits_whom_it_means(audience, attributes, admitted):
    assert Audience.parse(audience).admits(Attributes.parse(attributes)) is admitted


ids = st.text("ab;=&,%+ ü1\u2028", min_size=1, max_size=3)
id_sets = st.frozensets(ids, max_size=3)
names = st.sampled_from(["plan", "site", "a.b-c_d", "0", "x" * 64])
others = st.dictionaries(names, ids, max_size=3)
some_attributes = st.builds(Attributes, st.just("") | ids, st.just("") | ids, id_sets, others)


@st.composite
def audiences(draw):
    lists = [draw(id_sets) for _ in range(4)]
    pairs = tuple(sorted(draw(others).items()))
    if not any(lists) and not pairs:
        lists[0] = frozenset(["a"])
    return Audience(*lists, pairs)


def plainly(audience, attributes):
    """The rule, word for word."""
    return (
        (not audience.clients or attributes.client in audience.clients)
        and (
            (not audience.users and not audience.groups)
            or attributes.user in audience.users
            or any(group in audience.groups for group in attributes.groups)
        )
        and attributes.client not in audience.excepted
        and all(
            name in attributes.others and attributes.others[name] == value
            for name, value in audience.others
        )
    )


@given(audiences(), some_attributes)
def test_admits_agrees_with_the_plain_rule(audience, attributes):
    assert audience.admits(attributes) is plainly(audience, attributes)


@given(audiences())
def test_audience_is_what_its_text_and_its_json_say(audience):
    for read in [Audience.parse(audience.text), Audience.of_json(audience.as_json())]:
        assert read == audience
        assert read.text == audience.text
        assert hash(read) == hash(audience)
    assert not set(audience.text) - set(TEXT_LETTERS)


@given(some_attributes)
def test_attributes_are_what_their_text_and_their_json_say(attributes):
    for read in [Attributes.parse(attributes.text), Attributes.of_json(attributes.as_json())]:
        assert read == attributes
        assert read.text == attributes.text
        assert hash(read) == hash(attributes)
    assert not set(attributes.text) - set(TEXT_LETTERS)


# What can stand on a line, in a URL and in a log as it is.
TEXT_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~%;&="


@given(st.text("ab=&;%23BC,+ \x00ü", max_size=12) | st.text(max_size=12))
def test_any_text_is_read_or_refused_and_what_is_read_is_read_again(text):
    for kind in (Audience, Attributes):
        try:
            read = kind.parse(text)
        except InvalidAudience:
            continue
        assert kind.parse(read.text) == read


def test_canonical_text_is_sorted_without_repeats_and_encoded():
    audience = Audience.parse("users=2;1;2&plan=p%72o&groups=3&except=b&clients=x&a=ü")
    assert audience.text == "a=%C3%BC&clients=x&except=b&groups=3&plan=pro&users=1;2"
    attributes = Attributes.parse("user=a@b.c&groups=b;a;a&site=x&client=q")
    assert attributes.text == "client=q&groups=a;b&site=x&user=a%40b.c"


def test_json_forms():
    audience = Audience.of_json(
        {"clients": ["q"], "users": [2, "1", 2], "groups": [3], "except": ["x"], "plan": "pro"}
    )
    assert audience.text == "clients=q&except=x&groups=3&plan=pro&users=1;2"
    assert audience.as_json() == {
        "clients": ["q"],
        "users": ["1", "2"],
        "groups": ["3"],
        "except": ["x"],
        "plan": "pro",
    }
    attributes = Attributes.of_json({"client": "q", "user": 7, "groups": [3, "b"], "level": 5})
    assert attributes.as_json() == {"client": "q", "user": "7", "groups": ["3", "b"], "level": "5"}
    assert Attributes.of_json({}) == NO_ATTRIBUTES
    assert NO_ATTRIBUTES.as_json() == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1, "-1"),
        (7.0, "7"),
        (-0.0, "0"),
        (1e18, "1" + "0" * 18),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_whole_number_is_a_text(value, text):
    assert Audience.of_json({"users": [value]}) == Audience.of_json({"users": [text]})
    assert Attributes.of_json({"user": value}).user == text


def test_of_takes_texts_and_integers():
    assert Audience.of(users=[1, "2"], others={"plan": "pro"}).text == "plan=pro&users=1;2"
    assert Audience.of(excepted={"a"}).text == "except=a"
    assert Audience.of(clients=(each for each in "ab"), groups=frozenset("g")).text == (
        "clients=a;b&groups=g"
    )


# what is refused


class Ids(list[int]):
    """Ids that are not to be looked at."""

    def __iter__(self):
        raise AssertionError("they are looked at")


@pytest.mark.parametrize(
    "read",
    [
        lambda ids: Audience.of_json({"users": ids}),
        lambda ids: Audience.of_json({"plan": "pro", "except": ids}),
        lambda ids: Attributes.of_json({"groups": ids}),
    ],
)
def test_too_many_ids_are_refused_unseen(read):
    with pytest.raises(InvalidAudience, match="more than 1000 values"):
        read(Ids(range(MAX_IDS + 1)))


BOTH = [
    "user",
    "plan",
    "plan=",
    "=pro",
    "&",
    "plan=pro&",
    "&plan=pro",
    "plan=pro&&site=x",
    "groups=",
    "groups=a;",
    "groups=;a",
    "groups=a;;b",
    # a name given twice, however it is written
    "groups=a&groups=b",
    "plan=pro&plan=pro",
    # values that could be meant in two ways
    "groups=a,b",
    "groups=a b",
    "groups=a+b",
    "groups=a;plan=pro",
    "plan=a=b",
    "plan=a;b",
    # escapes
    "groups=%",
    "groups=%4",
    "groups=%zz",
    "groups=a%",
    "groups=%u0041",
    "groups=%00",
    "groups=%0A",
    "groups=%7F",
    "groups=%C2%85",
    "groups=%C0%AF",
    "groups=%ED%A0%80",
    "groups=%FF",
    "groups=a\x00",
    "groups=a\n",
    "groups=a\x85",
    "groups=\ud800",
    # names
    "Plan=pro",
    "pl%61n=pro",
    "%67roups=a",
    "plän=pro",
    "pl an=pro",
    "plan\n=pro",
    "x" * 65 + "=pro",
    # sizes
    "plan=" + "x" * 256,
    "plan=" + "ü" * 128,
    "groups=" + ";".join(map(str, range(MAX_IDS + 1))),
    "groups=" + ";".join(f"{n:0100}" for n in range(200)),
    "groups=" + "%61" * 6000,
    "groups=" + ";".join("ü" * 100 + str(n) for n in range(40)),  # too long once it is encoded
]


@pytest.mark.parametrize("text", BOTH, ids=ascii)
def test_text_that_means_nothing_is_neither_audience_nor_attributes(text):
    for kind in (Audience, Attributes):
        with pytest.raises(InvalidAudience) as caught:
            kind.parse(text)
        assert caught.value.code == "invalid_audience"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "user=1", "client=a", "users=1&user=1"])
def test_text_that_is_no_audience(text):
    with pytest.raises(InvalidAudience):
        Audience.parse(text)


@pytest.mark.parametrize(
    "text", ["users=1", "clients=a", "except=a", "user=1;2", "client=a;b", "user=", "client="]
)
def test_text_that_is_no_attributes(text):
    with pytest.raises(InvalidAudience):
        Attributes.parse(text)


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"users": []},
        {"users": [1], "groups": []},
        {"except": []},
        {"users": None},
        {"users": None, "groups": [1]},
        {"users": "1"},
        {"users": 1},
        {"users": {"1": 1}},
        {"users": [True]},
        {"users": [1.5]},
        {"users": [1e300]},
        {"users": [float("inf")]},
        {"users": [float("nan")]},
        {"users": [-(2**63) - 1]},
        {"users": [None]},
        {"users": [[1]]},
        {"users": [""]},
        {"users": ["\x00"]},
        {"users": ["\ud800"]},
        {"users": [2**64]},
        {"users": list(range(MAX_IDS + 1))},
        {"users": ["x" * 256]},
        {"user": 1},
        {"client": "a"},
        {"plan": None},
        {"plan": ["pro"]},
        {"plan": True},
        {"plan": ""},
        {"Plan": "pro"},
        {"": "pro"},
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_json_that_is_no_audience(mapping):
    with pytest.raises(InvalidAudience):
        Audience.of_json(mapping)


@pytest.mark.parametrize(
    "mapping",
    [
        {"user": ""},
        {"user": None},
        {"user": ["1"]},
        {"user": True},
        {"users": ["1"]},
        {"client": ""},
        {"client": 1.5},
        {"except": ["a"]},
        {"groups": []},
        {"groups": "a"},
        {"groups": None},
        {"groups": [""]},
        {"groups": list(range(MAX_IDS + 1))},
        {"plan": ""},
        {"plan": ["pro"]},
        {"plan": "a\nb"},
        {"pl=an": "pro"},
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_json_that_is_no_attributes(mapping):
    with pytest.raises(InvalidAudience):
        Attributes.of_json(mapping)


@pytest.mark.parametrize("lists", [{}, {"users": []}, {"users": [1], "excepted": ()}])
def test_empty_list_is_an_error_and_so_is_nothing_at_all(lists):
    with pytest.raises(InvalidAudience):
        Audience.of(**lists)


@pytest.mark.parametrize(
    "others",
    [
        (("b", "1"), ("a", "1")),
        (("a", "1"), ("a", "2")),
        (("a", "1"), ("a", "1")),
        (("users", "1"),),
        (("a", ""),),
    ],
)
def test_audience_made_by_hand_keeps_the_rules(others):
    with pytest.raises(InvalidAudience):
        Audience(others=others)


def test_as_many_and_as_much_as_is_allowed():
    audience = Audience.of(users=range(MAX_IDS - 1), others={"plan": "x" * 255})
    assert Audience.parse(audience.text) == audience
    assert Attributes(others={"x" * 64: "ü" * 127}).text
    text = "&".join(f"{n}={'x' * 250}" for n in range(64))
    text += "&y=" + "y" * (MAX_AUDIENCE - len(text) - 3)
    assert len(text) == MAX_AUDIENCE
    assert len(Audience.parse(text).text) == len(Attributes.parse(text).text) == MAX_AUDIENCE
    for kind in (Audience, Attributes):
        with pytest.raises(InvalidAudience):
            kind.parse(text + "y")


@given(st.text(min_size=1, max_size=300))
def test_errors_quote_nothing(value):
    for text in [f"plan=secret&plan={value}", f"secret {value}"]:
        with pytest.raises(InvalidAudience) as caught:
            Audience.parse(text)
        assert "secret" not in str(caught.value)


def test_parsed_audiences_are_remembered_but_errors_are_not():
    assert Audience.parse("users=1") is Audience.parse("users=1")
    long = "users=" + ";".join(map(str, range(900)))
    assert Audience.parse(long) is Audience.parse(long)
    for _ in range(2):
        with pytest.raises(CommandError):
            Audience.parse("users=")
