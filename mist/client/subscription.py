"""Subscription: a bounded queue of messages for one reader, with gaps marked in place.

A slow consumer, whose queue is full, loses the newest messages; they are counted. Messages are
also lost while the connection is down, unless the server has a history to replay them from.
Both leave a gap. The queue holds a mark at that point, so the reader learns of the gap between
the right two messages.
"""

from collections.abc import Callable
from enum import Enum

import attrs

from mist.client.change import Change
from mist.client.dialect import Request
from mist.client.errors import MessagesLost
from mist.client.feed import Feed
from mist.client.home import Home
from mist.client.places import Places
from mist.client.position import Position
from mist.commands import Since
from mist.errors import MistError
from mist.message import Message, TagSet

__all__ = ["Gap", "Stage", "Subscription"]


@attrs.frozen
class Gap:
    """Messages are missing between two messages of a subscription.

    Attributes:
        lost: messages dropped because the queue was full.
        reconnected: whether the connection was down meanwhile; how many messages were published
            then is not known. A server with a history replays them, so there it is set only
            where the history has lost some of them too.
        forgotten: whether the server's history no longer has all that was asked for.
    """

    lost: int = 0
    reconnected: bool = False
    forgotten: bool = False


class Stage(Enum):
    """State of a subscription on the current connection."""

    INACTIVE = "inactive"
    PENDING = "pending"  # asked for; what arrives may still be for another subscription
    REPLAYING = "replaying"
    LIVE = "live"


class Subscription(Feed[Message | Gap]):
    """Messages that carry all of `tags`, as an async iterator. Made by `Client.subscribe`.

    Iterating ends when the client unsubscribes or is closed, and raises what ended it
    otherwise: `Revoked`, `ConnectionLost`, `AccessDenied`. What is queued comes first.
    Where messages are there already, taking one doesn't yield to other tasks; cancellation
    loses none. One task reads at a time.

    Attributes:
        tags: the tags that a message must carry.
        lost: messages dropped so far because the queue was full.
        reconnects: how often the connection was lost and restored so far.
    """

    def __init__(
        self,
        tags: TagSet,
        *,
        queue: int,
        home: Home,
        raise_on_gap: bool = False,
        on_gap: Callable[[Gap], None] | None = None,
        since: Since | None = None,
    ) -> None:
        super().__init__(home)
        self.tags = tags
        self.lost = 0
        self.reconnects = 0
        # for `mist.client.subscriber` and `mist.client.fanout`
        self.since = since
        self.request: Request | None = None  # in flight
        self.stage = Stage.INACTIVE
        self.pending: list[Message] = []
        self.seen: int | None = None  # highest id given to it; None where there are no ids
        self.epoch: str | None = None  # the log that this id is in; None where that isn't known
        self.log_end: tuple[str, int] | None = None  # as it first asked for the last N, or Latest
        self.caught_up = False  # has been live
        self.taken = 0  # messages that the reader has taken
        self.places = Places()  # of messages, by how many were taken
        self._limit = queue
        self._before: tuple[int | None, str | None] | None = None  # see `move_to`
        self._noted: str | None = None  # the log of which a place was noted last
        self._last_taken: int | None = None  # its id
        self._messages = 0  # in the queue, without gaps
        self._raise_on_gap = raise_on_gap
        self._on_gap = on_gap
        self._uncongested = Change()
        self._stalled = False  # the client doesn't wait for this reader until it caught up

    def __repr__(self) -> str:
        return f"<Subscription {sorted(self.tags)} queued={self._messages} lost={self.lost}>"

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        """The next message, waited for.

        Raises:
            MessagesLost: with `raise_on_gap`, once for each gap; reading may go on after it.
            Revoked, ConnectionLost, ConnectError: why there will be no more.
        """
        self._home.check()
        await self._home.checkpoint_if_cancelled()
        while True:
            if not self._queue:
                await self._until_queued()
            item = self._queue.popleft()
            if isinstance(item, Message):
                self._messages -= 1
                self.taken += 1
                self._last_taken = item.id
                self._update_congestion()
                return item
            self._report(item)

    def take(self) -> list[Message]:
        """All queued messages up to the next gap, without waiting. May be empty."""
        found = []
        while self._queue and isinstance(self._queue[0], Message):
            found.append(self._queue.popleft())
            self._messages -= 1
        self.taken += len(found)
        if found:
            self._last_taken = found[-1].id  # type: ignore[union-attr]
        self._update_congestion()
        return found  # type: ignore[return-value]  # only messages are taken

    @property
    def position(self) -> Position | None:
        """After the last message that was taken: `since` for a program that is started again.

        None where the server has no history, and until it is live or a message was taken.
        """
        return self.places.after(self.taken, self._last_taken)

    def _report(self, gap: Gap) -> None:
        if self._on_gap is not None:
            self._on_gap(gap)
        if self._raise_on_gap:
            raise MessagesLost(gap.lost, reconnected=gap.reconnected, forgotten=gap.forgotten)

    # for the client

    def deliver(self, message: Message) -> None:
        """Queue a message, or drop and count it where the queue is full.

        A message whose id was seen before is ignored.
        """
        if self._ended:
            return
        if message.id is not None:
            if self.seen is not None and message.id <= self.seen:
                return
            self.seen = message.id
            self.keep_place()
            if self.epoch != self._noted:
                self.note_place(message.id - 1)
        if self._messages >= self._limit:
            self.lost += 1
            self._append_gap(Gap(lost=1))
            return
        self._queue.append(message)
        self._messages += 1
        self._arrived.notify()

    def note_place(self, upto: int) -> None:
        """Everything up to this id of the log that it is in is queued, or was taken."""
        if self.epoch is not None:
            position = Position(self.epoch, upto)
            self.places = self.places.note(self.taken + self._messages, position, self.taken)
            self._noted = self.epoch

    def move_to(self, seen: int, epoch: str) -> None:
        """Take what is behind a position, as a server has said that its replay will bring it.

        Until something of the replay has come this can be undone: the server may be gone before it
        tells of a gap, and would not do so if it was asked for what is behind the new position.
        """
        if self._before is None:
            self._before = self.seen, self.epoch
        self.seen, self.epoch = seen, epoch

    def keep_place(self) -> None:
        """Something of the replay has come, be it its end."""
        self._before = None

    def move_back(self) -> None:
        """Nothing of the replay has come, and nothing more will: be where it was."""
        if self._before is not None:
            self.seen, self.epoch = self._before
            self._before = None

    def start_replay(self) -> None:
        """The replay has begun, and will bring the pending messages again."""
        self.pending.clear()
        if self.stage is Stage.PENDING:
            self.stage = Stage.REPLAYING
        self.settled.set()

    @property
    def congested(self) -> bool:
        """Whether the reader should get time before more is read from the server.

        The high-water mark is a quarter of the queue, so that the next read of 64 KiB still
        fits into a queue of the default size.
        """
        return self._messages * 4 > self._limit and not self._stalled and not self._ended

    async def wait_uncongested(self) -> None:
        """Wait until it is no longer congested."""
        while self.congested:
            await self._uncongested.wait()

    def mark_stalled(self) -> None:
        """Don't wait for this reader again before it has caught up."""
        self._stalled = self.congested

    def _update_congestion(self) -> None:
        if self._messages * 4 <= self._limit:
            self._stalled = False
            self._uncongested.notify()

    def mark_reconnected(self, *, complete: bool = False) -> None:
        """The connection was down and is back; `complete` where a replay brings what was missed."""
        self.reconnects += 1
        if not complete:
            self._append_gap(Gap(reconnected=True))

    def mark_history_gap(self, *, reconnected: bool) -> None:
        """The history no longer has some of the messages that would come next."""
        self.keep_place()
        self._append_gap(Gap(reconnected=reconnected, forgotten=True))

    def _append_gap(self, gap: Gap) -> None:
        # Adjacent gaps are merged, so their number is bounded like that of the messages.
        last = self._queue[-1] if self._queue else None
        if isinstance(last, Gap):
            gap = Gap(
                last.lost + gap.lost,
                last.reconnected or gap.reconnected,
                last.forgotten or gap.forgotten,
            )
            self._queue.pop()
        self._queue.append(gap)
        self._arrived.notify()

    def end(self, error: MistError | None = None) -> None:
        """No more messages after those queued. The first reason stays."""
        super().end(error)
        self._uncongested.notify()
