"""Addresses: what is derived, what is asked for, and that both agree with what they mean."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.addresses import (
    MAX_LEVELS,
    MAX_TOKENS,
    asked_places,
    asks_well,
    compile_asked,
    covers_subject,
    derived,
    expand,
    grants_well,
    publishes_well,
    subjects_asked,
)


def satisfies(asked: str, published: str) -> bool:
    return compile_asked(frozenset({asked})) <= expand(frozenset({published}))


class TestTopics:
    @pytest.mark.parametrize(
        ("tag", "found"),
        [
            ("/foo/bar", ("../", "../foo", "../foo/bar")),
            ("/foo", ("../", "../foo")),
            ("/", ("../",)),
            ("/foo/", ("../", "../foo", "../foo/")),
            ("//a", ("../", "..//a")),
            ("/a//b", ("../", "../a", "../a/", "../a//b")),
        ],
    )
    def test_derived(self, tag: str, found: tuple[str, ...]) -> None:
        assert derived(tag) == found

    @pytest.mark.parametrize("published", ["/foo", "/foo/bar", "/foo/bar/baz", "/foo/"])
    def test_a_topic_is_itself_and_all_below(self, published: str) -> None:
        assert satisfies("/foo", published)

    @pytest.mark.parametrize("published", ["/", "/foobar", "/bar/foo", "/fo", "foo", ".foo"])
    def test_and_nothing_else(self, published: str) -> None:
        assert not satisfies("/foo", published)

    def test_a_channel_is_itself_alone(self) -> None:
        assert satisfies("=/foo", "/foo")
        assert not satisfies("=/foo", "/foo/bar")
        assert not satisfies("=/foo/bar", "/foo")

    def test_the_root_is_every_topic(self) -> None:
        assert satisfies("/", "/foo/bar")
        assert not satisfies("/", "foo")

    def test_together_with_tags(self) -> None:
        carried = expand(frozenset({"/foo/bar", "urgent", "a"}))
        assert compile_asked(frozenset({"/foo", "urgent"})) <= carried
        assert not compile_asked(frozenset({"/foo", "b"})) <= carried


class TestSubjects:
    def test_derived(self) -> None:
        assert derived(".foo.bar") == ("..#2", "..0=foo", "..1=bar", "..+1", "..+2")

    @pytest.mark.parametrize(
        ("asked", "matches", "misses"),
        [
            (".foo.bar", [".foo.bar"], [".foo", ".foo.bar.baz", ".foo.baz"]),
            (".foo.*", [".foo.bar"], [".foo", ".foo.bar.baz", ".bar.foo"]),
            (".*.bar", [".foo.bar"], [".bar", ".foo.bar.bar"]),
            (".foo.*.baz", [".foo.bar.baz"], [".foo.baz", ".foo.bar.bar"]),
            (".foo.>", [".foo.bar", ".foo.bar.baz"], [".foo", ".bar.foo"]),
            (".>", [".foo", ".foo.bar"], ["foo", "/foo"]),
            (".*.>", [".foo.bar"], [".foo"]),
            (".*", [".foo"], [".foo.bar"]),
            # inside a token a wildcard is a letter
            (".a*b", [".a*b"], [".axb", ".ab", ".a*b.c"]),
            (".foo.>x", [".foo.>x"], [".foo.x", ".foo.bar"]),
            (".foo.*", [".foo.a*", ".foo.*b"], [".foo.a*.b"]),
        ],
    )
    def test_patterns(self, asked: str, matches: list[str], misses: list[str]) -> None:
        assert all(satisfies(asked, each) for each in matches)
        assert not any(satisfies(asked, each) for each in misses)


token = st.sampled_from(["foo", "bar", "a", "=", "0=a", "#1", "a*", "*>"])
subject = st.lists(token, min_size=1, max_size=5).map(lambda parts: "." + ".".join(parts))
pattern = st.builds(
    lambda parts, tail: "." + ".".join([*parts, *tail]),
    st.lists(token | st.just("*"), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
)


def meant(asked: str, published: str) -> bool:
    """The definition of NATS, token by token."""
    want, have = asked[1:].split("."), published[1:].split(".")
    for n, each in enumerate(want):
        if each == ">":
            return len(have) > n
        if n >= len(have) or each not in ("*", have[n]):
            return False
    return len(want) == len(have)


@given(pattern, subject)
def test_a_pattern_gets_what_its_tokens_say(asked: str, published: str) -> None:
    assert asks_well(asked)
    assert publishes_well(published)
    assert satisfies(asked, published) == meant(asked, published)


@given(pattern, pattern, subject)
def test_what_covers_a_pattern_has_all_its_subjects(
    granted: str, asked: str, published: str
) -> None:
    if covers_subject(granted, asked) and meant(asked, published):
        assert meant(granted, published)


@given(pattern, pattern)
def test_what_does_not_cover_a_pattern_lacks_one_of_its_subjects(granted: str, asked: str) -> None:
    # A token that no pattern says, for each wildcard, twice for the open end.
    witnesses = [asked.replace("*", "other").replace(">", end) for end in ("x", "x.y.z.x.y.z")]
    if not covers_subject(granted, asked):
        assert not all(meant(granted, each) for each in witnesses)


levels = st.lists(st.sampled_from(["foo", "bar", "", "a"]), min_size=1, max_size=5)


@given(levels, levels)
def test_a_topic_gets_what_its_levels_say(asked: list[str], published: list[str]) -> None:
    topic, other = "/" + "/".join(asked), "/" + "/".join(published)
    below = topic == "/" or other == topic or fnmatchcase(other, topic + "/*")
    assert satisfies(topic, other) == below
    assert satisfies("=" + topic, other) == (topic == other)


@given(st.sets(pattern | levels.map(lambda parts: "/" + "/".join(parts)), min_size=1))
def test_what_is_asked_for_differently_stays_different(asked: set[str]) -> None:
    compiled = {compile_asked(frozenset({each})) for each in asked}
    assert len(compiled) == len(asked)


class TestRules:
    @pytest.mark.parametrize(
        "tag", ["a", "/", "/a//b", ".foo", ".foo.bar-1", ".a*b", ".foo*", ".a>", "a.b", "a/b", "=a"]
    )
    def test_published(self, tag: str) -> None:
        assert publishes_well(tag)

    @pytest.mark.parametrize(
        "tag", [".", ".foo.", ".foo..bar", "..", ".foo.*", ".>", ".*.a", "=/foo"]
    )
    def test_not_published(self, tag: str) -> None:
        assert not publishes_well(tag)

    @pytest.mark.parametrize(
        "tag", ["a", "/", "=/foo", ".*", ".>", ".foo.*.>", ".a*b", ".foo*", ".f>.a", "=a", ".foo"]
    )
    def test_asked_for(self, tag: str) -> None:
        assert asks_well(tag)

    @pytest.mark.parametrize("tag", [".", ".>.foo", ".foo.", ".foo..>"])
    def test_not_asked_for(self, tag: str) -> None:
        assert not asks_well(tag)

    @pytest.mark.parametrize("tag", ["a", "a*", "/a/*", "=/foo", ".*", ".foo.*.>", ".foo"])
    def test_granted(self, tag: str) -> None:
        assert grants_well(tag)
        assert grants_well(">" + tag)

    @pytest.mark.parametrize("tag", [".", ".>.foo", ".foo.", ".foo*", ".f>.a", ".foo..>"])
    def test_not_granted(self, tag: str) -> None:
        assert not grants_well(tag)
        assert not grants_well(">" + tag)

    def test_bounded(self) -> None:
        for rule in (publishes_well, asks_well):
            assert rule("/a" * MAX_LEVELS)
            assert not rule("/a" * (MAX_LEVELS + 1))
            assert rule(".a" * MAX_TOKENS)
            assert not rule(".a" * (MAX_TOKENS + 1))
        assert not asks_well("=" + "/a" * (MAX_LEVELS + 1))


def test_nothing_is_derived_from_other_tags() -> None:
    tags = frozenset({"a", "room:1", "a/b", "a.b"})
    assert expand(tags) is tags
    assert compile_asked(tags) is tags


subjects = st.lists(st.sampled_from(["a", "b", "ü", "=", "0=a"]), min_size=1, max_size=4)
patterns = st.sampled_from(
    [".a", ".a.b", ".*", ".>", ".a.>", ".a.*", ".*.b.>", ".*.*.ü.*", ".=.*", "./x", "/a", "a"]
)


@given(st.lists(subjects, min_size=1, max_size=5), st.sets(patterns))
def test_of_subjects_what_is_asked_for_is_what_each_has_of_it(
    written: list[list[str]], asked: set[str]
) -> None:
    tags = [f".{'.'.join(tokens)}" for tokens in written]
    known = frozenset().union(*[compile_asked(frozenset([each])) for each in asked])
    places = {place for each in asked for place in asked_places(each)}
    found = subjects_asked(tags, lambda names: filter(known.__contains__, names), places)
    for tag, names in zip(tags, found, strict=True):
        expected = expand(frozenset([tag])) & known
        assert frozenset(names.split(",")[:-1]) == expected
        assert names.count(",") == len(expected)


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        (".a.*.b", [0, 2]),
        (".a.>", [0]),
        (".>", []),
        (".a.b", []),
        ("/a", []),
        ("=/a", []),
        ("a", []),
    ],
)
def test_the_places_that_a_pattern_names(asked: str, places: list[int]) -> None:
    assert list(asked_places(asked)) == places
