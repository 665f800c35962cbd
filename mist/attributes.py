"""Attributes: what is known of a session from its token, and changes of that.

    client    the id of one client
    user      whose token it is
    groups    that the user is in
    others    by their names; `site` binds a session to a site

Targeted delivery chooses by them (`mist.audience`). They are stored with a token and travel on the
line as text, `groups=a;b&plan=pro&user=1`; see `mist.fields`.
"""

from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from types import MappingProxyType
from typing import Final, Self

import attrs

from mist.fields import (
    OF_ATTRIBUTES,
    Fields,
    check,
    check_count,
    check_name,
    check_text,
    check_value,
    id_text,
    ids,
    invalid,
    only,
    read,
    refuse_null,
    write,
)

__all__ = ["NO_ATTRIBUTES", "Attributes", "change_of_json", "format_change", "parse_change"]


def _frozen(others: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(sorted(others.items())))


@attrs.frozen
class Attributes:
    """What is known of a session: of its token, and never what it says itself, but `client`.

    Attributes:
        client: the id of one client, empty where it has none.
        user: whose token it is, empty where nobody is known.
        groups: that the user is in.
        others: by their names; read-only. `site` is one.

    Raises:
        InvalidAudience: a name or a value that can't be one, or too many or too much of them.
    """

    client: str = ""
    user: str = ""
    groups: frozenset[str] = frozenset()
    others: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=_frozen,
        hash=False,  # a read-only dict has none; those that are equal still hash alike
    )

    def __attrs_post_init__(self) -> None:
        single = [value for value in (self.client, self.user) if value]
        if not check([*single, *self.groups], self.others.items()):
            check_text(self.text)

    @property
    def site(self) -> str:
        """The site that the token is bound to; empty where it is bound to none."""
        return self.others.get("site", "")

    @cached_property
    def text(self) -> str:
        """As it is stored with a token: `groups=a;b&plan=pro&user=1`. Empty where nothing is known.

        Canonical: equal attributes have equal texts.
        """
        fields: dict[str, Iterable[str]] = {name: (each,) for name, each in self.others.items()}
        fields["client"] = (self.client,) if self.client else ()
        fields["user"] = (self.user,) if self.user else ()
        fields["groups"] = self.groups
        return write(fields)

    @classmethod
    def parse(cls, text: str) -> Self:
        """What a text says, its fields and values in any order. Nothing, where it is empty.

        Raises:
            InvalidAudience: it isn't one, or it is too long.
        """
        return cls.of_fields(read(text)) if text else cls()

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """From a text that has been taken apart. Takes out of `fields` what it takes in."""
        groups = frozenset(fields.pop("groups", ()))
        single = {name: only(values) for name, values in fields.items()}
        return cls(single.pop("client", ""), single.pop("user", ""), groups, single)

    @classmethod
    def of_json(cls, mapping: Mapping[str, object]) -> Self:
        """From `{"user": 1, "groups": ["a", "b"], "plan": "pro"}`; values may be integers.

        Raises:
            InvalidAudience: an empty list, null, or anything that isn't attributes.
        """
        refuse_null(mapping)
        groups = ids(mapping.get("groups"))
        single = {name: id_text(each) for name, each in mapping.items() if name != "groups"}
        for value in single.values():
            check_value(value)
        return cls(single.pop("client", ""), single.pop("user", ""), groups, single)

    def amended(self, given: "Attributes", unset: Set[str] = frozenset()) -> Self:
        """These after a change: what is `given` is set, what is `unset` forgotten, the rest stays.

        Raises:
            InvalidAudience: they are too many now, or too long.
        """
        others = {**self.others, **given.others}
        return type(self)(
            "" if "client" in unset else given.client or self.client,
            "" if "user" in unset else given.user or self.user,
            frozenset() if "groups" in unset else given.groups or self.groups,
            {name: value for name, value in others.items() if name not in unset},
        )

    def as_json(self) -> dict[str, str | list[str]]:
        """What `of_json` reads; what isn't known is left out."""
        found: dict[str, str | list[str]] = {}
        if self.client:
            found["client"] = self.client
        if self.user:
            found["user"] = self.user
        if self.groups:
            found["groups"] = sorted(self.groups)
        return found | dict(self.others)


NO_ATTRIBUTES: Final = Attributes()
"""Of services, and of tokens that say nothing of whom they are for."""


def parse_change(text: str) -> tuple[Attributes, frozenset[str]]:
    """A change of attributes, `user=1&plan=`: what to set, and the names of what to unset.

    Raises:
        InvalidAudience: it isn't one, it is too long, or it says nothing.
    """
    check_text(text)
    fields = text.split("&")
    # A value holds no `=` of its own, so at the end of a field it has nothing behind it.
    gone = [field[:-1] for field in fields if field.endswith("=")]
    rest = [field for field in fields if not field.endswith("=")]
    return _change(Attributes.of_fields(read("&".join(rest))) if rest else NO_ATTRIBUTES, gone)


def change_of_json(mapping: Mapping[str, object]) -> tuple[Attributes, frozenset[str]]:
    """As `parse_change`, from `{"user": 1, "plan": null}`; this may say nothing."""
    gone = [name for name, value in mapping.items() if value is None]
    rest = {name: value for name, value in mapping.items() if value is not None}
    return _change(Attributes.of_json(rest), gone)


def format_change(given: Attributes, unset: Set[str]) -> str:
    """What `parse_change` reads."""
    return "&".join([*filter(None, [given.text]), *(f"{name}=" for name in sorted(unset))])


def _change(given: Attributes, gone: list[str]) -> tuple[Attributes, frozenset[str]]:
    unset = frozenset(gone)
    for name in unset - OF_ATTRIBUTES:
        check_name(name)
    if len(unset) < len(gone) or not unset.isdisjoint(given.as_json()):
        raise invalid("a name is given twice")
    check_count(len(unset))
    check_text(format_change(given, unset))
    return given, unset
