"""Matches: what a tag list matched, cached, and the recipients of its messages.

A `Match` is a tag list as written with the groups whose tag sets it contains. The memo keeps it, so
for most messages matching is one dict lookup. `Resolver.resolve` finds its `Recipients`, the
distinct outboxes behind these groups by the wire form they want, and the match keeps those too,
until one of its groups changes.

Matches with the same recipients share one `Recipients` object. So "the same destination" is an
identity check, and consecutive messages with the same destination are joined and queued once.

Targeted delivery, a message with an audience, resolves for that message alone and keeps nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final
from weakref import WeakValueDictionary

from mist.audience import Audience
from mist.broker.attribute_index import AttributeIndex, is_global, reaches
from mist.broker.groups import Group, collect
from mist.broker.named_subscriptions import NamedSubscription, QueueGroup
from mist.broker.outbox import Outbox
from mist.message import TagSet
from mist.wire import TagList, WireForm, record_head

__all__ = ["Match", "Matched", "Queues", "Recipients", "Resolver", "Subscriber"]

Subscriber = Outbox | NamedSubscription | QueueGroup
"""What is in a group."""

Queues = Mapping[Group, Mapping[str, QueueGroup]]
"""The queue groups of each group that has any, by name."""

# Up to here, two sets of subscribers are told to be equal by comparing them; above, only by the
# groups they come from. Comparing costs a set of that size for each distinct destination.
_SMALL: Final = 64

# A match of more groups than this watches none of them, 7 µs each: what it resolved to holds until
# anything subscribes or unsubscribes. Rare as it is, all of it together takes 60 ns a group.
_WATCHED: Final = 256

# Subscribers that get a message without a pause, 0.2 µs each; and forms, 10 µs each, of which every
# subscription of a NATS client has its own.
WIDE: Final = 2_048
FORMS: Final = 128

# Subscribers in all recipients kept, repeats counted: 8 to 80 bytes each. Without a bound, ten
# thousand tag lists that each reach ten thousand subscribers would keep a hundred million.
_MAX_KEPT: Final = 1_000_000


class Recipients:
    """Who gets a message, each once: outboxes and named subscriptions by form, and queue groups.

    Args:
        subscribers: distinct ones.
        targeted: whether an audience chose them among those that the tags match.

    Attributes:
        wide: all of them, where they are more than `WIDE`, or have more than `FORMS`; then they get
            messages by `parts`.
        by_form: each wire form, and those who want it; not where they are `wide`.
        targeted: as given.
        stale: whether a group behind them has changed since. Matches let go of stale recipients
            at once; the mark keeps another match from being given them.
    """

    __slots__ = (
        "__weakref__",
        "_cuts",
        "_parts",
        "_queues",
        "by_form",
        "stale",
        "targeted",
        "wide",
    )

    def __init__(self, subscribers: Iterable[Subscriber], targeted: bool = False) -> None:
        self.stale = False
        self.targeted = targeted
        self.by_form: Sequence[tuple[WireForm, Sequence[Outbox | NamedSubscription]]] = ()
        self.wide: Sequence[Subscriber] = ()
        self._queues: Sequence[QueueGroup] | None = None  # until they are asked for
        every = tuple(subscribers)
        if len(every) <= WIDE:
            self._queues = _queues(every)
            by_form: dict[WireForm, list[Outbox | NamedSubscription]] = {}
            for each in every:
                if not isinstance(each, QueueGroup):
                    by_form.setdefault(each.form, []).append(each)
            if len(by_form) <= FORMS:
                self.by_form = [(form, tuple(members)) for form, members in by_form.items()]
                return
        self.wide = every
        self._cuts = _cuts(every)
        self._parts: list[Recipients | Sequence[Subscriber]] = []

    @property
    def queues(self) -> Sequence[QueueGroup]:
        """Queue groups, of which one member gets each message. O(subscribers) the first time."""
        if self._queues is None:
            self._queues = _queues(self.wide)
        return self._queues

    @property
    def size(self) -> int:
        """How many they are. O(forms)."""
        if self.wide:
            return len(self.wide)
        return len(self.queues) + sum([len(members) for _, members in self.by_form])

    def __iter__(self) -> Iterator[Subscriber]:
        """All of them, in no order that matters."""
        if self.wide:
            yield from self.wide
            return
        yield from self.queues
        for _, members in self.by_form:
            yield from members

    def parts(self) -> Iterator["Recipients"]:
        """Those that are `wide`, some at a time; made as they are asked for first.

        Parts of many forms are made anew each time: a hundred thousand tuples that were kept
        would be freed all at once, when one of these subscriptions ends.
        """
        for number in count():
            if number == len(self._parts):
                cut = next(self._cuts, None)
                if cut is None:
                    return
                made = Recipients(cut, self.targeted)
                self._parts.append(cut if len(made.by_form) == FORMS else made)
            else:
                kept = self._parts[number]
                made = kept if isinstance(kept, Recipients) else Recipients(kept, self.targeted)
            yield made

    def of_each_form(self) -> Iterator["Recipients"]:
        """Those that aren't `wide`, in parts that want one form each."""
        for _, members in self.by_form:
            yield Recipients(members, self.targeted)
        if self.queues:
            yield Recipients(self.queues, self.targeted)


def _queues(subscribers: Sequence[Subscriber]) -> Sequence[QueueGroup]:
    return tuple([each for each in subscribers if isinstance(each, QueueGroup)])


def _cuts(every: Iterable[Subscriber]) -> Iterator[Sequence[Subscriber]]:
    """Very many subscribers in parts that aren't wide."""
    cut: list[Subscriber] = []
    forms: set[WireForm] = set()
    for each in every:
        cut.append(each)
        if not isinstance(each, QueueGroup):
            forms.add(each.form)
        if len(cut) == WIDE or len(forms) == FORMS:
            yield cut
            cut, forms = [], set()
    if cut:
        yield cut


class Match(TagList):
    """A tag list as a publisher wrote it, and the groups it matches.

    Attributes:
        written: the head of a record that has this tag list as written, where that isn't the
            canonical one; else None, and the publisher's bytes can be passed on as they came.
        groups: the groups it matches.
        recipients: None where they have to be resolved.
        everywhere: whether its messages are for every site; see `mist.broker.attribute_index`.
        kept: of a match of very many groups, when they were resolved (`Resolver.version`), what
            to, and all subscribers of the groups.
        observed: what the broker's observer keeps with it; None at first.
    """

    __slots__ = (
        "__weakref__",
        "everywhere",
        "groups",
        "kept",
        "observed",
        "recipients",
        "written",
    )

    def __init__(self, written: bytes, tags: TagSet, groups: Sequence[Group]) -> None:
        super().__init__(tags)
        self.written: bytes | None = None if written == self.canonical else record_head(written)
        self.groups = groups
        self.everywhere = is_global(tags)
        self.recipients: Recipients | None = None
        self.kept: tuple[int, Recipients, Collection[Subscriber]] | None = None
        self.observed: Any = None

    @classmethod
    def along(cls, route: "Match", canonical: bytes) -> "Match":
        """The match of a canonical tag list of which no more is asked for than of a route's."""
        match = cls.passing(canonical)
        # Here and not in an `__init__`, since it is done for each of many messages.
        match.written = None
        match.groups = route.groups
        match.everywhere = route.everywhere
        match.recipients = match.kept = None
        match.observed = None
        return match

    def forget(self) -> None:
        """Forget the recipients: a group has changed, or there are too many of them."""
        if self.recipients is not None:
            self.recipients.stale = True
            self.recipients = None


Matched = tuple[Match, bytes, int]
"""A `mist.wire.Entry` whose tag list is a match."""


class Resolver:
    """Finds the recipients of matches.

    Args:
        matches: all that are cached. Looked at, never changed.
        attribute_index: whom audiences choose among.
        queues: the queue groups of each group.

    Attributes:
        nobody: the recipients of what nobody is subscribed to.
        version: another number whenever a subscription comes or goes, or one's form, site or
            attributes change.
    """

    def __init__(
        self,
        matches: Callable[[], Iterable[Match]],
        attribute_index: AttributeIndex,
        queues: Queues,
    ) -> None:
        self.nobody = Recipients(())
        self.version = 0
        self._matches = matches
        self._attribute_index = attribute_index
        self._queues = queues
        self._shared: WeakValueDictionary[frozenset[Subscriber] | frozenset[Group], Recipients] = (
            WeakValueDictionary()
        )
        self._kept = 0

    def resolve(self, match: Match) -> Recipients:
        """Find a match's recipients anew; it keeps them until one of its groups changes."""
        groups = match.groups
        if len(groups) > _WATCHED:
            return self._resolve_wide(match)
        distinct = self._without_bound(collect(groups), match)
        recipients = self.nobody
        if distinct:
            few = len(distinct) <= _SMALL or self._attribute_index.bound
            recipients = self._share(frozenset(distinct if few else groups), distinct)
        for group in groups:
            group.watch(match)
        match.recipients = recipients
        return recipients

    def _resolve_wide(self, match: Match) -> Recipients:
        kept = match.kept
        if kept is not None and kept[0] == self.version:
            return kept[1]
        return self.keep(match, collect(match.groups))

    def keep(self, match: Match, subscribers: Mapping[Subscriber, None]) -> Recipients:
        """Have a match of very many groups keep its recipients until anything changes.

        Args:
            subscribers: of its groups, as they are now.
        """
        distinct = self._without_bound(subscribers, match)
        recipients = self.nobody
        if distinct:
            recipients = (
                self._share(frozenset(distinct), distinct)
                if len(distinct) <= _SMALL
                else self._bounded(Recipients(distinct))
            )
        match.kept = self.version, recipients, subscribers
        return recipients

    def is_current(self, match: Match) -> bool:
        """Whether `resolve` has nothing to do for a match."""
        if match.recipients is not None:
            return True
        return match.kept is not None and match.kept[0] == self.version

    def _without_bound(
        self, subscribers: Mapping[Subscriber, None], match: Match
    ) -> Mapping[Subscriber, None]:
        """Those of a match's subscribers who get a message that is not for their site only."""
        if not self._attribute_index.bound or match.everywhere:
            return subscribers
        return {each: None for each in subscribers if not _is_bound(each)}

    def _share(self, key: frozenset[Any], distinct: Iterable[Subscriber]) -> Recipients:
        """The recipients of this key, made where there are none."""
        found = self._shared.get(key)
        if found is None or found.stale:
            found = self._shared[key] = self._bounded(Recipients(distinct))
        return found

    def _bounded(self, recipients: Recipients) -> Recipients:
        self._kept += recipients.size
        if self._kept > _MAX_KEPT:
            self._kept = 0
            for match in self._matches():
                match.forget()
                match.kept = None
        return recipients

    def resolve_targeted(self, match: Match, audience: Audience) -> Recipients:
        """Those of a match's recipients whom an audience admits. Nothing is kept.

        O(those whom the audience names · groups), or O(subscribers of the groups).
        """
        groups, everywhere = match.groups, match.everywhere
        kept = match.kept
        named, among = self._attribute_index.named(audience, everywhere)
        matching = sum(group.subscribers for group in groups)
        found: Iterable[Subscriber]
        if 0 <= named * len(groups) < matching:
            # A queue group has no attributes, so it isn't among them.
            queues = (self._queues[group].values() for group in groups if group in self._queues)
            named_ones = (each for each in among() if any(each in group for group in groups))
            found = chain(named_ones, *queues)
        else:
            current = kept is not None and kept[0] == self.version
            found = kept[2] if kept is not None and current else collect(groups)
        admitted = (
            each
            for each in found
            if isinstance(each, QueueGroup) or reaches(audience, each.attributes, everywhere)
        )
        recipients = Recipients(admitted, True)
        return recipients if recipients.size else self.nobody


def _is_bound(subscriber: Subscriber) -> bool:
    return not isinstance(subscriber, QueueGroup) and bool(subscriber.attributes.site)
