"""Where messages lead: a tag set's subscribers, a tag list's match, a destination's outboxes.

A `Group` is all subscribers of one tag set, a `Match` what a tag list as written leads to, and
`Recipients` the distinct outboxes behind a match's groups. A group that changes has the matches
through it forget their recipients; who makes all of them and keeps them is `mist.broker.broker`.
"""

from collections.abc import Iterable, Sequence
from weakref import WeakSet

from mist.broker.attribute_index import is_global
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.outbox import Outbox
from mist.message import TagSet
from mist.wire import TagList, WireForm, record_head

__all__ = ["Group", "Match", "Matched", "Recipients", "Subscriber"]


Subscriber = Outbox | NamedSubscription | QueueGroup
"""What is in a group."""


class Group:
    """The subscribers of one tag set, in the order they came.

    Attributes:
        tag_list: the canonical wire form of the tag set.
    """

    # A million subscriptions may be a million groups of one subscriber, so a lone subscriber
    # is held without a dict, and matches only once there is one.
    __slots__ = ("_matches", "_members", "tag_list")

    def __init__(self, tag_list: bytes) -> None:
        self.tag_list = tag_list
        self._members: Subscriber | dict[Subscriber, None] | None = None
        self._matches: WeakSet[Match] | None = None

    @property
    def tags(self) -> TagSet:
        """The tag set."""
        return frozenset(self.tag_list.decode().split(","))

    @property
    def members(self) -> Iterable[Subscriber]:
        """The subscribers."""
        members = self._members
        if members is None:
            return ()
        return members if isinstance(members, dict) else (members,)

    @property
    def subscribers(self) -> int:
        """How many they are. O(1)."""
        members = self._members
        return len(members) if isinstance(members, dict) else int(members is not None)

    def __contains__(self, outbox: object) -> bool:
        members = self._members
        return outbox in members if isinstance(members, dict) else outbox is members

    def add(self, outbox: Subscriber) -> None:
        """Take a subscriber in; one who is in already stays where it is."""
        members = self._members
        if members is None:
            self._members = outbox
        elif isinstance(members, dict):
            members[outbox] = None
        elif members is not outbox:
            self._members = {members: None, outbox: None}
        self.changed()

    def discard(self, outbox: Subscriber) -> None:
        """Let a subscriber go; nothing happens where it isn't in."""
        members = self._members
        if members is outbox:
            self._members = None
        elif isinstance(members, dict):
            members.pop(outbox, None)
            if not members:
                self._members = None
        self.changed()

    def __bool__(self) -> bool:
        return self._members is not None

    def watch(self, match: "Match") -> None:
        """Have `match` forget its recipients at the next change."""
        if self._matches is None:
            self._matches = WeakSet()
        self._matches.add(match)

    def changed(self) -> None:
        """Forget every target that was computed from these members."""
        # A match enters again when somebody asks for its recipients, so a change costs what the
        # matches used since the last one cost to compute, and no more.
        if self._matches:
            for match in self._matches:
                if match.recipients is not None:
                    match.recipients.stale = True
                    match.recipients = None
            self._matches.clear()


class Recipients:
    """The outboxes of a destination, by the form they want, and the queues.

    Attributes:
        by_form: each form, and those who want it.
        queues: which deal what they get.
        stale: whether a group behind them has changed since. Routes let go of stale recipients
            at once; the mark keeps a new match from being handed them.
    """

    __slots__ = ("__weakref__", "by_form", "queues", "stale")

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        self.stale = False
        by_form: dict[WireForm, list[Outbox | NamedSubscription]] = {}
        queues: list[QueueGroup] = []
        for each in subscribers:
            if isinstance(each, QueueGroup):
                queues.append(each)
            else:
                by_form.setdefault(each.form, []).append(each)
        self.queues = tuple(queues)
        self.by_form = [(form, tuple(members)) for form, members in by_form.items()]


class Match(TagList):
    """A tag list as somebody wrote it, and where it leads.

    Attributes:
        written: the prefix of a line that carries this tag list as written, where that isn't
            the canonical one; else None, and a line can be passed on as it came.
        groups: the groups it matches.
        recipients: None where it has to be computed.
        everywhere: whether its messages are for every site; see `mist.broker.attribute_index`.
        overhead: bytes of a canonical line beside the data.
        messages, bytes: that went along it as lines and are in no ledger yet; see
            `mist.broker.usage`.
        repeats: found with the recipients, where there are accounts: a group, and how many
            subscribers an owner has in it who are in a group before it, too, or get nothing.
    """

    __slots__ = (
        "__weakref__",
        "bytes",
        "everywhere",
        "groups",
        "messages",
        "overhead",
        "recipients",
        "repeats",
        "written",
    )

    def __init__(self, written: bytes, tags: TagSet, groups: Sequence[Group]) -> None:
        super().__init__(tags)
        prefix = record_head(written)
        self.written = None if prefix == self.head else prefix
        self.groups = groups
        self.everywhere = is_global(tags)
        self.recipients: Recipients | None = None
        self.overhead = len(self.head) + 1
        self.messages = 0
        self.bytes = 0
        self.repeats: Sequence[tuple[Group, str, int]] = ()


Matched = tuple[Match, bytes, int]
"""A `mist.wire.Entry` whose tag list is a match."""
