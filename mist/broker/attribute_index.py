"""The attribute index, for targeted delivery: which sessions have which attributes.

The live index finds subscriptions by tags; this one finds sessions by an attribute, `user=1` or
`groups=a`. A message for one user among a million subscribers looks at that user's sessions, not
at all subscribers: of those whom the audience names and those whom the tags match, the smaller
set is walked, and each in it is looked up in the other.

A posting is one session where there is one, and a dict where there are more. Sessions without
attributes are in none, and nothing here is touched for messages that have no audience.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

import attrs

from mist.attributes import Attributes
from mist.audience import Audience
from mist.message import TagSet

__all__ = ["Addressee", "AttributeIndex", "for_site", "is_global", "reaches", "site_of"]

_GLOBAL: Final = "/global/"
_SITE: Final = "site"


class Addressee(Protocol):
    """What a message can be targeted at: it has attributes."""

    @property
    def attributes(self) -> Attributes:
        """Those of its session."""


def is_global(tags: TagSet) -> bool:
    """Whether a message with these tags is for every site, whatever site it comes from."""
    return any(tag.startswith(_GLOBAL) for tag in tags)


def reaches(audience: Audience | None, attributes: Attributes, everywhere: bool) -> bool:
    """Whether a session with these attributes may get a message.

    A session that is bound to a site gets what is for that site, and what is for every site.

    Args:
        audience: None is everyone.
        everywhere: whether the message is for every site, see `is_global`.
    """
    if everywhere:
        audience = None if audience is None else _of_any_site(audience)
    elif (site := attributes.site) and (audience is None or (_SITE, site) not in audience.others):
        return False
    return audience is None or audience.admits(attributes)


def site_of(audience: Audience | None) -> str:
    """The site that an audience is restricted to; empty where it is to none."""
    return "" if audience is None else dict(audience.others).get(_SITE, "")


def for_site(audience: Audience | None, site: str) -> Audience:
    """An audience, or everyone, restricted to one site; a site that it had is replaced."""
    if audience is None:
        return Audience(others=((_SITE, site),))
    others = {**dict(audience.others), _SITE: site}
    return attrs.evolve(audience, others=tuple(sorted(others.items())))


@lru_cache(256)
def _of_any_site(audience: Audience) -> Audience | None:
    others = tuple(each for each in audience.others if each[0] != _SITE)
    if len(others) == len(audience.others):
        return audience
    rest = audience.clients or audience.users or audience.groups or audience.excepted or others
    return attrs.evolve(audience, others=others) if rest else None


class AttributeIndex:
    """See the module.

    Attributes:
        bound: how many of those in it are bound to a site.
    """

    def __init__(self) -> None:
        self.bound = 0
        self._postings: dict[str, Addressee | dict[Addressee, None]] = {}

    def enter(self, addressee: Addressee) -> None:
        """Add a session's outbox, or a named subscription; its attributes stay until `leave`."""
        attributes = addressee.attributes
        self.bound += bool(attributes.site)
        for key in _keys(attributes):
            posting = self._postings.get(key)
            if posting is None:
                self._postings[key] = addressee
            elif isinstance(posting, dict):
                posting[addressee] = None
            elif posting is not addressee:
                self._postings[key] = {posting: None, addressee: None}

    def leave(self, addressee: Addressee) -> None:
        """Undo `enter`."""
        attributes = addressee.attributes
        self.bound -= bool(attributes.site)
        for key in _keys(attributes):
            posting = self._postings.get(key)
            if isinstance(posting, dict):
                posting.pop(addressee, None)
                if not posting:
                    del self._postings[key]
            elif posting is addressee:
                del self._postings[key]

    def __len__(self) -> int:
        """Distinct attributes."""
        return len(self._postings)

    def named(
        self, audience: Audience, everywhere: bool
    ) -> tuple[int, Callable[[], Iterator[Any]]]:
        """Candidates: all whom an audience admits, and perhaps some more.

        Args:
            everywhere: as for `reaches`.

        Returns:
            How many they are at most, and what yields them, each once. -1 for an audience that
            only excludes: it could be anybody.
        """
        clauses: list[Sequence[str]] = [
            [f"{name}={value}"]
            for name, value in audience.others
            if not (everywhere and name == _SITE)
        ]
        if audience.clients:
            clauses.append([f"client={each}" for each in audience.clients])
        if audience.users or audience.groups:
            clauses.append(
                [
                    *(f"user={each}" for each in audience.users),
                    *(f"groups={each}" for each in audience.groups),
                ]
            )
        if not clauses:
            return -1, lambda: iter(())
        size, keys = min(((self._size(each), each) for each in clauses), key=lambda pair: pair[0])
        return size, lambda: iter(dict.fromkeys(chain.from_iterable(map(self._posting, keys))))

    def _size(self, keys: Iterable[str]) -> int:
        sizes = map(self._postings.get, keys)
        return sum(len(each) if isinstance(each, dict) else each is not None for each in sizes)

    def _posting(self, key: str) -> Iterable[Addressee]:
        posting = self._postings.get(key)
        if posting is None:
            return ()
        return posting if isinstance(posting, dict) else (posting,)


def _keys(attributes: Attributes) -> Iterator[str]:
    # An attribute's own name can be neither of these three: see `mist.fields`.
    if attributes.client:
        yield f"client={attributes.client}"
    if attributes.user:
        yield f"user={attributes.user}"
    for each in attributes.groups:
        yield f"groups={each}"
    for name, value in attributes.others.items():
        yield f"{name}={value}"
