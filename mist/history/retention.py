"""Retention: the policy for how long messages are kept.

The global limits keep a message while it is young enough and the log small enough. A rule keeps
the newest messages of each tag it matches beyond that. A message is removed when neither the
global limits nor any rule keeps it:

    7 days or 1 GiB, room:*=100     everything younger than 7 days within 1 GiB, and of each
                                    tag that begins with room: the last 100, however old
"""

import re
from collections.abc import Iterable
from typing import Final

import attrs

__all__ = ["Policy", "Rule", "any_match", "parse_age"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_COUNT: Final = re.compile("[0-9]{1,15}")
_AGE: Final = re.compile("([0-9]{1,9})([smhd])")


def parse_age(text: str) -> int:
    """Seconds from `90s`, `30m`, `12h`, `7d`.

    Raises:
        ValueError: one line that says how it is written.
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no age; expected 90s, 30m, 12h or 7d")
    return int(found[1]) * _UNITS[found[2]]


@attrs.frozen
class Rule:
    """Keeps the newest messages of each tag that it matches.

    Attributes:
        pattern: a tag, or the beginning of tags and `*`: `room:*`. `*` alone is every tag.
        count: messages of each tag that are kept.
        age: seconds that they are kept. With both, a message is kept within both.

    Raises:
        ValueError: no limit, a negative one, or a pattern that no tag can match.
    """

    pattern: str
    count: int | None = None
    age: float | None = None

    def __attrs_post_init__(self) -> None:
        if not self.pattern.isprintable() or not self.pattern or set(" ,") & set(self.pattern):
            raise ValueError(f"{self.pattern!r} is no tag, nor the beginning of one and *")
        if self.count is None and self.age is None:
            raise ValueError("a rule needs a count or an age")
        if (self.count or 0) < 0 or (self.age or 0) < 0:
            raise ValueError("a rule's limits can't be negative")

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """A rule from `room:*=100`, `room:*=7d`, `room:*=100,7d`.

        Raises:
            ValueError: one line that says how it is written.
        """
        pattern, _, limits = text.rpartition("=")
        parts = limits.split(",")
        counts = [int(part) for part in parts if _COUNT.fullmatch(part)]
        ages = [parse_age(part) for part in parts if _AGE.fullmatch(part)]
        if not pattern or len(counts) + len(ages) < len(parts) or max(len(counts), len(ages)) > 1:
            raise ValueError(
                f"{text!r} is no rule; expected room:*=100, room:*=7d or room:*=100,7d"
            )
        return cls(pattern, counts[0] if counts else None, ages[0] if ages else None)

    def matches(self, tag: str) -> bool:
        """Whether the rule applies to `tag`."""
        return matches(self.pattern, tag)


def matches(pattern: str, tag: str) -> bool:
    """`room:*` matches room:1 and `room:`; `room` matches only itself; `*` in the middle
    stands for itself."""
    if pattern.endswith("*"):
        return tag.startswith(pattern[:-1])
    return tag == pattern


@attrs.frozen
class Policy:
    """A retention policy. Blocks are removed whole, so up to a block more than this is kept.

    Attributes:
        max_age: seconds; None is forever.
        max_bytes: of stored blocks; None is unbounded. What rules keep is not counted.
        max_messages: in total, counted in the same way.
        rules: what is kept beyond that.
        sealed: the highest id in the archive; messages above it are removed for `max_bytes` only.
            None where there is no archive.
    """

    max_age: float | None = 7 * 86_400
    max_bytes: int | None = 1 << 30
    max_messages: int | None = None
    rules: tuple[Rule, ...] = ()
    sealed: int | None = None

    def for_tag(self, tag: str) -> list[Rule]:
        """The rules that apply to a tag."""
        return [rule for rule in self.rules if rule.matches(tag)]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the rules, sorted."""
        return tuple(sorted({rule.pattern for rule in self.rules}))


def any_match(patterns: Iterable[str], tag: str) -> bool:
    """Whether one of the patterns matches."""
    return any(matches(pattern, tag) for pattern in patterns)
