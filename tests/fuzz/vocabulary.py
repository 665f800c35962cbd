"""What inputs are made of, in every protocol: names from small pools, so that they meet."""

from random import Random
from typing import Any, Final

__all__ = ["FULL", "HOSTILE", "json_value", "name", "number", "place", "tag", "tags", "token"]

FULL: Final = "t-full"
"""A token that may do everything that a token may."""

HOSTILE: Final = (
    *("", " ", "a b", "a,b", "\x00", "\x1b[2J", "\x85", "\u2028", "ä", "\U0001f600", "\ufffd"),
    *("*", "**", ">", ">a", "..", "..x", ".", "..0=a", "=", "=/", "/", "//", "/a//b", "a*"),
    *("/" * 40, ".a" * 30, "x" * 255, "x" * 256, "ä" * 128, "a,,b", ",", "%00", "../..", "null"),
)

_TAGS: Final = ("a", "b", "c", "room:1", "room:2", "ä", "eu", "order", "x" * 40)
_TOPICS: Final = ("/foo", "/foo/bar", "/foo/baz", "/rooms/1", "/global/x", "/")
_SUBJECTS: Final = (".foo", ".foo.bar", ".foo.*", ".foo.>", ".*", ".>", ".*.bar", "=/foo", "*")
_TOKENS: Final = ("t1", "t2", "t3", "t4", FULL, "nosuch")


_LATE: Final = (-1, -2, -10, 10**6, 2**31, 2**53, 2**63, 10**25)


def name(rng: Random) -> str:
    """A short word."""
    return rng.choice(("a", "b", "id", "u1", "c1", "x-y", "7"))


def tag(rng: Random) -> str:
    """A tag; now and then one that is none."""
    pool = rng.choices((_TAGS, _TOPICS, _SUBJECTS, HOSTILE), (60, 20, 10, 6))[0]
    return rng.choice(pool)


def tags(rng: Random) -> list[str]:
    """A few tags; now and then none, or far too many."""
    count = rng.choices((1, 2, 3, 5, 0, 17, 65, 1_100), (50, 30, 10, 5, 1, 1, 1, 0.05))[0]
    return [tag(rng) for _ in range(count)]


def token(rng: Random) -> str:
    """A token's text."""
    return rng.choice(HOSTILE) if rng.random() < 0.03 else rng.choice(_TOKENS)


def number(rng: Random) -> int:
    """A number that may mean a place, a size or nothing."""
    return rng.choice((0, 0, 1, 2, 5, 17, 100, -1, -1, -2, -10, 10**6, 2**31, 2**53, 2**63, 10**25))


def place(rng: Random) -> int:
    """A number for a place in the log: seldom at its beginning, whence all of it is replayed."""
    return number(rng) if rng.random() < 0.05 else rng.choice(_LATE)


def json_value(rng: Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = rng.randrange(10 if depth < 4 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return number(rng)
        case 3:
            return rng.choice((0.5, -1.5, 1e300, 5.0))
        case 4 | 5 | 6:
            return tag(rng)
        case 7 | 8:
            return [json_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {tag(rng): json_value(rng, depth + 1) for _ in range(rng.randrange(4))}
