"""What has messages delivered: live, from the history; and who else gets them."""

from collections.abc import Sequence

import attrs

from mist.commands.base import BaseCommand
from mist.message import TagSet
from mist.wire import WireForm

__all__ = [
    "Fetch",
    "Ids",
    "Last",
    "ListSubscriptions",
    "ListTags",
    "Resume",
    "Since",
    "Subscribe",
    "SubscribeNamed",
    "Unsubscribe",
    "UnsubscribeNamed",
    "UnwatchPresence",
    "WatchPresence",
]


@attrs.define
class Subscribe(BaseCommand):
    """Receive messages that carry all of `tags`."""

    tags: TagSet


@attrs.frozen
class Since:
    """A place in the history, where a replay begins.

    Attributes:
        after: messages with higher ids; 0 is all that is kept. None where `last` is given.
        last: the last so many messages that match; None where `after` is given.
        epoch: the log that `after` belongs to; None for this one, unchecked.
        literal: whether an id beyond the newest stands for itself, with nothing behind it yet.
        latest: of what is replayed, only the newest message of each tag with this pattern, see
            `mist.history.latest`; empty for all of it.
    """

    after: int | None = None
    last: int | None = None
    epoch: str | None = None
    literal: bool = False
    latest: str = ""

    def start(self, epoch: str, newest: int) -> int:
        """The id after which to read, where `last` isn't given.

        An id of another log, or one beyond the newest, means nothing here: any message may be
        new to the peer, so it is 0. Unless it is `literal`.

        Args:
            epoch, newest: of the log, as it is now.
        """
        after = self.after or 0
        if self.literal:
            after = min(after, newest)
        return after if after <= newest and self.epoch in (None, epoch) else 0


@attrs.define
class Resume(BaseCommand):
    """Subscribe to several tag sets, all or none, with recovery from the history.

    First messages since a place in the history that match any of them, each once and in the
    order of their ids; then live ones, without a gap or a repeat. A subscription that exists
    stays, and is replayed again.

    Attributes:
        alternatives: at least one tag set.
        since: None for no replay.
        counted: whether the reply says how many messages are replayed.
    """

    alternatives: Sequence[TagSet]
    since: Since | None
    counted: bool = False


@attrs.define
class SubscribeNamed(BaseCommand):
    """Receive messages that carry all of `tags`, besides any other subscription to them.

    A named subscription: each of its messages is delivered once more, in a form that tells the
    name. Where the name is in use, nothing changes.

    Attributes:
        name: what the peer calls it.
        form: a `mist.wire.WireForm`: how its deliveries are written.
        queue: a queue group: one of its members with the same `tags` gets each message. Empty
            for none.
    """

    tags: TagSet
    name: bytes
    form: WireForm
    queue: str = ""


@attrs.define
class UnsubscribeNamed(BaseCommand):
    """Undo a `SubscribeNamed`. Where there is none, that is the answer: `NotSubscribed`.

    Attributes:
        most: None for at once; else once it has had so many messages since it was made.
    """

    name: bytes
    most: int | None = None


@attrs.define
class Fetch(BaseCommand):
    """Replay from the history without subscribing; see `Resume`.

    Attributes:
        most: messages, the oldest of them; None for all.
    """

    tags: TagSet
    since: Since
    most: int | None = None


@attrs.define
class Last(BaseCommand):
    """The newest position in the history."""


@attrs.define
class Ids(BaseCommand):
    """Whether deliveries of this session carry their ids."""

    on: bool


@attrs.define
class Unsubscribe(BaseCommand):
    """Undo one `Subscribe` of the same tags; nothing happens where there is none."""

    tags: TagSet


@attrs.define
class ListSubscriptions(BaseCommand):
    """This session's subscriptions."""


@attrs.define
class ListTags(BaseCommand):
    """Every distinct tag that anyone is subscribed to."""


@attrs.define
class WatchPresence(BaseCommand):
    """Who is present at `tags`, and from then on who joins and leaves; see `mist.broker.presence`.

    Where it is watched already, only the first is told again.
    """

    tags: TagSet


@attrs.define
class UnwatchPresence(BaseCommand):
    """Undo a `WatchPresence`; nothing happens where there is none."""

    tags: TagSet
