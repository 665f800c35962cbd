"""Messages, subscriptions and receivers of every kind of address, and the plain rule for them.

The rule is written from how addresses read, and knows nothing of the tags that stand for them.
"""

from collections.abc import Iterable

from hypothesis import strategies as st

from mist.addresses import EVERYTHING
from mist.attributes import Attributes
from mist.audience import Audience
from mist.message import ASK, TagSet, parse_tags

TOKENS = st.sampled_from(["a", "b", "=", "0=a", "ä"])
LEVELS = st.lists(st.sampled_from(["a", "b", "", "global"]), min_size=1, max_size=4)
TOPICS = LEVELS.map(lambda levels: "/" + "/".join(levels))
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(lambda tokens: "." + ".".join(tokens))
PATTERNS = st.builds(
    lambda tokens, end: "." + ".".join([*tokens, *end]),
    st.lists(TOKENS | st.just("*"), max_size=4),
    st.sampled_from([[], [">"]]),
).filter(lambda text: text != ".")
PLAIN = st.sampled_from(["a", "b", "c", "ä"])

published = st.builds(
    lambda plain, topics, subject: frozenset().union(plain, topics, subject),
    st.frozensets(PLAIN, max_size=3),
    st.frozensets(TOPICS, max_size=2),
    st.frozensets(SUBJECTS, max_size=1),
).filter(bool)
"""Tags of a message."""

asked = st.one_of(
    st.builds(
        lambda plain, topics, subject: frozenset().union(plain, topics, subject),
        st.frozensets(PLAIN, max_size=2),
        st.frozensets(TOPICS | TOPICS.map(lambda topic: f"={topic}"), max_size=2),
        st.frozensets(SUBJECTS | PATTERNS, max_size=1),
    ).filter(bool),
    st.just(EVERYTHING),
).filter(lambda tags: parse_tags(tags, 16, ASK) == tags)
"""A subscription, as asked for."""

_VALUES = st.frozensets(st.sampled_from("12"), max_size=2)
_ONE = st.sampled_from(["", "1", "2"])


def _others(site: str) -> dict[str, str]:
    return {"site": site} if site else {}


attributes = st.builds(
    lambda client, user, groups, site: Attributes(client, user, groups, _others(site)),
    _ONE,
    _ONE,
    _VALUES,
    _ONE,
)
audiences = st.none() | st.tuples(_VALUES, _VALUES, _VALUES, _VALUES, _ONE).filter(any).map(
    lambda parts: Audience(*parts[:4], tuple(_others(parts[4]).items()))
)


def wants(subscription: TagSet, tags: Iterable[str]) -> bool:
    """Whether a message with these tags is what a subscription asks for."""
    return all(any(_is_meant(each, tag) for tag in tags) for each in subscription)


def _is_meant(asked: str, tag: str) -> bool:
    if asked == "*":
        return True
    if asked.startswith("=/"):
        return tag == asked[1:]
    if asked == "/":
        return tag.startswith("/")
    if asked.startswith("/"):
        return tag == asked or tag.startswith(f"{asked}/")
    if asked.startswith(".") and tag.startswith("."):
        want, have = asked[1:].split("."), tag[1:].split(".")
        if want[-1] == ">":
            want.pop()
            if len(have) <= len(want):
                return False
            have = have[: len(want)]
        pairs = zip(want, have, strict=False)
        return len(want) == len(have) and all(one in ("*", other) for one, other in pairs)
    return tag == asked
