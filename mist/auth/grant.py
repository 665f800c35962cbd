"""Grants: what a token may subscribe to and publish, worked out from its tags.

    room:1      the tag `room:1`
    room:*      every tag that begins with `room:`
    *           every tag
    /rooms      the topic, and all below it; `/rooms/*` what is below it
    =/rooms     the channel alone
    .foo.>      every subject, and pattern of subjects, that the pattern covers
    >room:1     publishing with the tag `room:1`; `>room:*`, `>/rooms`, `>.foo.>`, `>*` likewise
    @room:1     asking who is present at the tag `room:1`; `@room:*`, `@*` likewise

Addresses are checked as requested, before tags are derived from them. The right to subscribe
and the right to publish are separate: a tag with `>` in front counts only for publishing, one
without only for subscribing. One with `@` in front is, besides, the right to ask for presence.
"""

from collections.abc import Iterable

import attrs

from mist.addresses import EVERYTHING, covers_subject, is_subject, is_topic
from mist.message import EVENTS, TagSet

__all__ = ["Grant"]

_ALL = "*"
_PUBLISH = ">"
_PRESENCE = "@"

# Never granted, neither as they are nor by a prefix: `*` or `.*` would otherwise grant what
# the server derives for itself, or its events, and a right to publish would be one to subscribe.
_RESERVED = ("..", _PUBLISH, EVENTS)


@attrs.frozen
class _Cover:
    """The tags that some of a token's tags stand for. One lookup and one `startswith`, and for
    addresses one for each level, or each pattern granted."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]
    subjects: tuple[str, ...]

    @classmethod
    def of(cls, tags: Iterable[str]) -> "_Cover":
        whole, marked, subjects = set[str](), set[str](), set[str]()
        for tag in tags:
            if tag.startswith(_RESERVED):
                continue
            if is_subject(tag):
                subjects.add(tag)  # where a star is one token, and no mark
                continue
            (marked if tag.endswith(_ALL) else whole).add(tag)
        prefixes: list[str] = []
        for prefix in sorted(tag[: -len(_ALL)] for tag in marked):
            # Sorted, a prefix stands directly before all that it includes, so a look at the
            # last one is enough to leave out what adds nothing.
            if not prefixes or not prefix.startswith(prefixes[-1]):
                prefixes.append(prefix)
        return cls(frozenset(whole), tuple(prefixes), tuple(sorted(subjects)))

    def covers(self, tag: str) -> bool:
        if tag.startswith(_RESERVED) or tag in EVERYTHING:
            return False
        if tag in self.exact or tag.startswith(self.prefixes):
            return True
        if is_subject(tag):
            return any(covers_subject(granted, tag) for granted in self.subjects)
        topic = tag.removeprefix("=")
        return is_topic(topic) and self._covers_topic(topic)

    def _covers_topic(self, topic: str) -> bool:
        """Whether a topic, or one that it is below, is granted with all that is below it."""
        if topic.startswith(self.prefixes) or "/" in self.exact:
            return True
        while topic:
            if topic in self.exact:
                return True
            topic = topic.rpartition("/")[0]
        return False


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
        granted `/rooms`    covers `/rooms`, `/rooms/1`, and `=/rooms/1`
        granted `.foo.>`    covers `.foo.bar`, `.foo.*` and `.foo.>`

        Looks as if it should, but does not:

        granted `room:1`    `room:12`: a prefix needs its mark
        granted `room:*`    `room`: the colon is part of the prefix
        granted `a*b`       `axb`: that `*` is a letter; `a*b` itself is covered
        granted `>room:1`   `room:1`: the right to publish is no right to subscribe
        granted `=/rooms`   `/rooms`: which is all below it, too
        granted `.foo.*`    `.foo.>`: which is more
        granted `*`         `*` asked for: everything is for services
        granted `.*`        `..x`: tags that the server derives are never granted
        granted `*`         `mist:connected`: nor are those of its events
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

    def may_see(self, tags: TagSet) -> bool:
        """Whether the token allows asking who is present at a tag set: at each of its tags.

        Asked rarely, so nothing is kept for it. O(tags of the token).

        granted `@room:*`          {room:1}, {room:1, room:2}: yes
        granted `@room:1`, `*`     {room:1, room:2}: the right to subscribe is none to ask
        """
        marked = (tag[len(_PRESENCE) :] for tag in self.tags if tag.startswith(_PRESENCE))
        return bool(tags) and all(map(_Cover.of(filter(None, marked)).covers, tags))

    @property
    def publishes(self) -> bool:
        """Whether the token allows publishing at all."""
        cover = self._publish
        return bool(cover.exact or cover.prefixes or cover.subjects)

    def may_publish(self, tags: TagSet) -> bool:
        """Whether the token allows a message with these tags: each needs the right to publish.

        granted `>room:*`          {room:1}, {room:1, room:2}: yes
        granted `>*`               any message: yes
        granted `>/rooms`          {/rooms}, {/rooms/1}: yes; `>=/rooms`: {/rooms} alone

        Looks as if it should, but does not:

        granted `>room:*`          {room:1, urgent}: one right for one tag is not enough
        granted `room:1`, `*`      {room:1}: the right to subscribe is no right to publish
        """
        # Published is a channel, and never all that is below it.
        exact = [f"={tag}" if is_topic(tag) else tag for tag in tags]
        return bool(exact) and all(map(self._publish.covers, exact))
