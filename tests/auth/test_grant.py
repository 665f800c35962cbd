import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.auth import Grant


def grant(*tags):
    return Grant(frozenset(tags))


# token's tags, tag asked for, whether it is covered
COVERS = [
    # itself
    (["room:1"], "room:1", True),
    (["a", "b"], "b", True),
    (["room:1"], "room:2", False),
    (["room:1"], "room:12", False),
    (["room:12"], "room:1", False),
    (["Room:1"], "room:1", False),
    ([], "a", False),
    # prefixes
    (["room:*"], "room:1", True),
    (["room:*"], "room:a:b", True),
    (["room:*"], "room:", True),
    (["room:*"], "room", False),
    (["room:*"], "lobby", False),
    (["room:*"], "a room:1", False),
    (["a*", "ab*", "b*"], "abc", True),
    (["a*", "ab*", "b*"], "ba", True),
    (["a*", "ab*", "b*"], "ca", False),
    (["a*", "ba*"], "bac", True),
    (["a!b*", "a*"], "ac", True),
    (["Ä*"], "Äpfel", True),
    # a star alone
    (["*"], "a", True),
    (["*"], "*", False),  # which is everything, and for services
    (["*"], "ü", True),
    # a star elsewhere is a letter
    (["a*b"], "a*b", True),
    (["a*b"], "axb", False),
    (["*a"], "*a", True),
    (["*a"], "ba", False),
    (["a**"], "a*", True),
    (["a**"], "a*x", True),
    (["a**"], "ax", False),
    # rights to publish are no rights to listen
    ([">room:1"], "room:1", False),
    ([">room:*"], "room:1", False),
    ([">*"], "room:1", False),
    ([">*"], ">room:1", False),
    ([">room:1", "room:1"], "room:1", True),
    # what no prefix reaches
    (["*"], "..derived", False),
    ([".*"], "..derived", False),
    ([".*"], ".x", True),
    (["*"], ">room:1", False),
    (["..derived"], "..derived", False),
    (["*"], "../foo", False),
    # topics, and channels
    (["/rooms"], "/rooms", True),
    (["/rooms"], "/rooms/1", True),
    (["/rooms"], "=/rooms", True),
    (["/rooms"], "=/rooms/1", True),
    (["/rooms"], "/roomservice", False),
    (["/rooms"], "/", False),
    (["/"], "/rooms/1", True),
    (["/rooms/*"], "/rooms/1", True),
    (["/rooms/*"], "=/rooms/1/2", True),
    (["/rooms/*"], "/rooms", False),
    (["=/rooms"], "=/rooms", True),
    (["=/rooms"], "/rooms", False),
    (["=/rooms"], "=/rooms/1", False),
    (["=/rooms/*"], "=/rooms/1", True),
    (["=/rooms/*"], "/rooms/1", False),
    (["*"], "=/rooms/1", True),
    # subjects
    ([".foo.>"], ".foo.bar", True),
    ([".foo.>"], ".foo.*.>", True),
    ([".foo.>"], ".foo", False),
    ([".foo.>"], ".>", False),
    ([".foo.*"], ".foo.bar", True),
    ([".foo.*"], ".foo.bar.baz", False),
    ([".foo.*"], ".foo.>", False),
    ([".foo"], ".foo", True),
    ([".foo"], ".*", False),
    (["*"], ".foo.>", True),
]


@pytest.mark.parametrize(("tags", "tag", "expected"), COVERS)
def test_covers(tags, tag, expected):
    assert grant(*tags).covers(tag) is expected


# token's tags, subscription, allowed, allowed where strict
PERMITS = [
    (["room:1"], ["room:1"], True, True),
    (["room:1"], ["room:1", "urgent"], True, False),
    (["room:1", "urgent"], ["room:1", "urgent"], True, True),
    (["room:1"], ["urgent"], False, False),
    (["room:*"], ["room:1", "room:2"], True, True),
    (["room:*"], ["room:1", "urgent"], True, False),
    (["*"], ["anything", "at", "all"], True, True),
    ([">*"], ["a"], False, False),
    ([], ["a"], False, False),
    # would match every message
    (["*"], [], False, False),
]


@pytest.mark.parametrize(("tags", "subscription", "expected", "strict"), PERMITS)
def test_permits(tags, subscription, expected, strict):
    assert grant(*tags).permits(frozenset(subscription)) is expected
    assert grant(*tags).permits(frozenset(subscription), strict=False) is expected
    assert grant(*tags).permits(frozenset(subscription), strict=True) is strict


# token's tags, message's tags, whether it may be published
MAY_PUBLISH = [
    ([">/rooms"], ["/rooms", "/rooms/1"], True),
    ([">=/rooms"], ["/rooms"], True),
    ([">=/rooms"], ["/rooms/1"], False),
    ([">.foo.>"], [".foo.bar"], True),
    ([">.foo.>"], [".foo"], False),
    ([">.foo.>"], [".foo.bar", "urgent"], False),
    (["/rooms", ".foo.>"], ["/rooms"], False),
    ([">room:1"], ["room:1"], True),
    ([">room:1"], ["room:12"], False),
    ([">room:*"], ["room:1", "room:2"], True),
    ([">room:*"], ["room:1", "urgent"], False),
    ([">room:*", ">urgent"], ["room:1", "urgent"], True),
    ([">*"], ["a", "b"], True),
    ([">*"], ["..derived"], False),
    ([">"], ["a"], False),
    ([">a*b"], ["axb"], False),
    ([">>a"], ["a"], False),
    (["room:1"], ["room:1"], False),
    (["*"], ["room:1"], False),
    ([], ["a"], False),
    ([">*"], [], False),
]


@pytest.mark.parametrize(("tags", "message", "expected"), MAY_PUBLISH)
def test_may_publish(tags, message, expected):
    assert grant(*tags).may_publish(frozenset(message)) is expected


def plainly(rights, tag):
    """The rule, word for word."""
    return not tag.startswith((">", "..")) and any(
        tag.startswith(right[:-1]) if right.endswith("*") else tag == right
        for right in rights
        if not right.startswith((">", ".."))
    )


texts = st.text("ab.*>", min_size=1, max_size=4).filter(
    lambda tag: not tag.lstrip(">").startswith(".")
)


@given(st.frozensets(texts, max_size=8), st.frozensets(texts.filter("*".__ne__), max_size=4))
def test_grant_agrees_with_the_plain_rule(tags, asked):
    grant = Grant(tags)
    covered = {tag: plainly(tags, tag) for tag in asked}
    assert {tag: grant.covers(tag) for tag in asked} == covered
    assert grant.permits(asked) is any(covered.values())
    assert grant.permits(asked, strict=True) is (bool(asked) and all(covered.values()))

    rights = {tag[1:] for tag in tags if tag.startswith(">")}
    publishable = {tag: plainly(rights, tag) for tag in asked}
    assert {tag: grant.may_publish(frozenset([tag])) for tag in asked} == publishable
    assert grant.may_publish(asked) is (bool(asked) and all(publishable.values()))


def test_grants_of_the_same_tags_are_equal():
    assert grant("a", "b*") == grant("b*", "a")
    assert grant("a") != grant("a*")
