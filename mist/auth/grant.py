"""What a token allows, worked out from its tags.

    room:1      the tag `room:1`
    room:*      every tag that begins with `room:`
    *           every tag
    >room:1     publishing with the tag `room:1`; `>room:*` and `>*` likewise

The right to subscribe and the right to publish are two lists that never help each other:
a mark in front tells which one a tag is on.
"""

from collections.abc import Iterable

import attrs

from mist.message import TagSet

__all__ = ["Grant"]

_ALL = "*"
_PUBLISH = ">"

# Never granted, neither as they are nor by a prefix: `*` or `.*` would otherwise grant what
# the server derives for itself, and a right to publish would be one to listen.
_RESERVED = ("..", _PUBLISH)


@attrs.frozen
class _Cover:
    """The tags that some of a token's tags stand for. One lookup and one `startswith`."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, tags: Iterable[str]) -> "_Cover":
        whole, marked = set[str](), set[str]()
        for tag in tags:
            if tag.startswith(_RESERVED):
                continue
            (marked if tag.endswith(_ALL) else whole).add(tag)
        prefixes: list[str] = []
        for prefix in sorted(tag[: -len(_ALL)] for tag in marked):
            # Sorted, a prefix stands directly before all that it includes, so a look at the
            # last one is enough to leave out what adds nothing.
            if not prefixes or not prefix.startswith(prefixes[-1]):
                prefixes.append(prefix)
        return cls(frozenset(whole), tuple(prefixes))

    def covers(self, tag: str) -> bool:
        return tag in self.exact or (
            tag.startswith(self.prefixes) and not tag.startswith(_RESERVED)
        )


def _publishing(tags: TagSet) -> Iterable[str]:
    return (tag[len(_PUBLISH) :] for tag in tags if tag.startswith(_PUBLISH))


@attrs.frozen
class Grant:
    """The rights that a token's tags stand for.

    A `*` is a mark only at the end of a tag; elsewhere it is a letter like others.

    Attributes:
        tags: the token's tags, as registered.
    """

    tags: TagSet
    _subscribe: _Cover = attrs.field(init=False, repr=False, eq=False)
    _publish: _Cover = attrs.field(init=False, repr=False, eq=False)

    @_subscribe.default
    def _cover_subscribing(self) -> _Cover:
        return _Cover.of(self.tags)

    @_publish.default
    def _cover_publishing(self) -> _Cover:
        return _Cover.of(_publishing(self.tags))

    def covers(self, tag: str) -> bool:
        """Whether the token carries `tag`, itself or by a prefix. O(prefixes), in C.

        granted `room:1`    covers `room:1`, not `room:2`
        granted `room:*`    covers `room:1`, `room:a:b` and `room:`, not `lobby`
        granted `*`         covers everything

        Looks as if it should, but does not:

        granted `room:1`    `room:12`: a prefix needs its mark
        granted `room:*`    `room`: the colon is part of the prefix
        granted `a*b`       `axb`: that `*` is a letter; `a*b` itself is covered
        granted `>room:1`   `room:1`: whoever may publish may not therefore listen
        granted `.*`        `..x`: tags that the server derives are never granted
        """
        return self._subscribe.covers(tag)

    def permits(self, subscription: TagSet, *, strict: bool = False) -> bool:
        """Whether the token allows a subscription.

        One covered tag is enough: a subscription matches only what carries all its tags, so
        the covered one confines what can be seen and the others only narrow it.

        Args:
            subscription: its tags. Without any it would match everything: never allowed.
            strict: demand that every tag is covered.

        granted `room:1`   {room:1} and {room:1, urgent}: yes; {urgent}: no
        strict             {room:1}: yes; {room:1, urgent}: no
        """
        if not subscription:
            return False
        judge = all if strict else any
        return judge(map(self._subscribe.covers, subscription))

    def may_publish(self, tags: TagSet) -> bool:
        """Whether the token allows a message with these tags: each needs the right to publish.

        granted `>room:*`          {room:1}, {room:1, room:2}: yes
        granted `>*`               any message: yes

        Looks as if it should, but does not:

        granted `>room:*`          {room:1, urgent}: one right for one tag is not enough
        granted `room:1`, `*`      {room:1}: whoever may listen may not therefore publish
        """
        return bool(tags) and all(map(self._publish.covers, tags))
