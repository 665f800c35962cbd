"""Audiences: which sessions a message is for, chosen by their attributes. Targeted delivery.

An audience is an AND of ORs over attributes; None in its place is everyone:

    clients AND (users OR groups) AND not except AND each other attribute

    what it says                    admits                          doesn't
    users=1;2                       user 1, user 2                  user 3, nobody known
    users=1&groups=3                user 1, anyone in 3             user 2 in group 4
    clients=a&groups=3              client a in group 3             client b in 3, client a in 4
    groups=3&except=a               client b in 3, 3 with no id     client a, though it is in 3
    users=1&plan=pro                user 1 with plan pro            user 1 of whom no plan is known

It has one text form, in which it is stored, travels on the line and is compared; see
`mist.fields`. An audience that says nothing is an error: a list of receivers that came out empty
shall not reach everyone.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Final, Self

import attrs

from mist.attributes import Attributes
from mist.fields import check, check_text, id_text, ids, invalid, only, read, refuse_null, write

__all__ = ["Audience"]


@attrs.frozen
class Audience:
    """Which sessions a message is for; see the module.

    Attributes:
        clients: one of these; any client where it is empty.
        users, groups: one of these users, or in one of these groups; where both are empty,
            any user.
        excepted: none of these clients. A session without a client id is none of them.
        others: attributes that a session must have, each with that value; sorted by name.

    Raises:
        InvalidAudience: it says nothing, too much, or something that can't be.
    """

    clients: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()
    others: tuple[tuple[str, str], ...] = ()

    def __attrs_post_init__(self) -> None:
        values = [*self.clients, *self.users, *self.groups, *self.excepted]
        if not values and not self.others:
            raise invalid("it says nothing; leave it out for everyone")
        if not check(values, self.others):
            check_text(self.text)
        if list(self.others) != sorted(dict(self.others).items()):
            raise invalid("names are sorted, each given once")

    def _lists(self) -> dict[str, frozenset[str]]:
        return {
            "clients": self.clients,
            "users": self.users,
            "groups": self.groups,
            "except": self.excepted,
        }

    def admits(self, attributes: Attributes) -> bool:
        """Whether a session with these attributes may get the message. O(groups + others).

        What isn't known of a session satisfies nothing.
        """
        client = attributes.client
        if (self.clients and client not in self.clients) or client in self.excepted:
            return False
        if self.users or self.groups:
            is_one = attributes.user in self.users  # empty, it is in no list: no id is empty
            if not is_one and self.groups.isdisjoint(attributes.groups):
                return False
        if not self.others:
            return True
        known = attributes.others
        return all(known.get(name) == value for name, value in self.others)

    @cached_property
    def text(self) -> str:
        """`clients=a&except=b&groups=3&plan=pro&users=1;2`: equal audiences have equal texts."""
        fields: dict[str, Iterable[str]] = {name: (each,) for name, each in self.others}
        return write(fields | self._lists())

    @classmethod
    def parse(cls, text: str) -> "Audience":
        """What a text says, its fields and values in any order. Remembered for texts seen lately.

        Raises:
            InvalidAudience: it isn't one, says nothing, or is too long.
        """
        return _parse_short(text) if len(text) <= _SHORT else _parse_long(text)

    @classmethod
    def of(
        cls,
        clients: Iterable[str | int] | None = None,
        users: Iterable[str | int] | None = None,
        groups: Iterable[str | int] | None = None,
        excepted: Iterable[str | int] | None = None,
        others: Mapping[str, str | int] | None = None,
    ) -> Self:
        """Of ids that are texts or integers; a list that is None isn't there.

        Raises:
            InvalidAudience: an empty list, nothing at all, or see the class.
        """
        pairs = sorted((name, id_text(value)) for name, value in (others or {}).items())
        return cls(ids(clients), ids(users), ids(groups), ids(excepted), tuple(pairs))

    @classmethod
    def of_json(cls, mapping: Mapping[str, object]) -> Self:
        """From `{"users": [1, 2], "except": ["a"], "plan": "pro"}`; values may be integers.

        Raises:
            InvalidAudience: an empty list, null, or anything that isn't an audience.
        """
        refuse_null(mapping)
        clients, users, groups, excepted = (ids(mapping.get(name)) for name in _LISTS)
        pairs = sorted(
            (name, id_text(each)) for name, each in mapping.items() if name not in _LISTS
        )
        return cls(clients, users, groups, excepted, tuple(pairs))

    def as_json(self) -> dict[str, str | list[str]]:
        """What `of_json` reads; ids are texts, sorted, and empty lists are left out."""
        lists = {name: sorted(values) for name, values in self._lists().items() if values}
        return lists | dict(self.others)


_LISTS: Final = ("clients", "users", "groups", "except")


def _parse(text: str) -> Audience:
    fields = read(text)
    clients, users, groups, excepted = (frozenset(fields.pop(name, ())) for name in _LISTS)
    pairs = sorted((name, only(values)) for name, values in fields.items())
    return Audience(clients, users, groups, excepted, tuple(pairs))


# What an audience holds is many times its text, so long ones get few places: some 30 MB in the
# first and 4 MB in the second is the worst that peers can bring about.
_SHORT: Final = 512  # characters
_parse_short = lru_cache(maxsize=1024)(_parse)
_parse_long = lru_cache(maxsize=16)(_parse)
