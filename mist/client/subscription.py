"""A local subscription: a bounded queue of messages, and what is missing between them.

A reader that falls behind loses the newest messages, counted. So does everyone while the
connection is down, where the server has no history that brings them later. Both leave a gap,
and a gap has a place: the queue holds a mark there, so that the reader learns of it between
the right two messages.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

import attrs
import trio

from mist.client.dialect import Request
from mist.client.errors import MessagesLost
from mist.commands import Since
from mist.errors import MistError
from mist.message import Message, TagSet

__all__ = ["Gap", "Stage", "Subscription"]


@attrs.frozen
class Gap:
    """Something is missing between two messages of a subscription.

    Attributes:
        lost: messages dropped because the queue was full.
        reconnected: whether the connection was down meanwhile; how many messages passed by
            then is not known. A server with a history brings them, so that this is said only
            where some are gone from there too.
        forgotten: whether the server's history no longer has all that was asked for.
    """

    lost: int = 0
    reconnected: bool = False
    forgotten: bool = False


class Stage(Enum):
    """How a subscription stands on this connection."""

    ABSENT = "absent"
    HELD = "held"  # asked for, and what arrives may still be another's
    REPLAYED = "replayed"
    LIVE = "live"


class Subscription:
    """Messages that carry all of `tags`, as an async iterator. Made by `Client.subscribe`.

    Iterating ends when the client unsubscribes or is closed, and raises what ended it
    otherwise: `Revoked`, `ConnectionLost`, `AccessDenied`. What is queued comes first.
    Where messages are there already, taking one doesn't yield to other tasks; cancellation
    loses none. One task reads at a time.

    Attributes:
        tags: what it asks for.
        lost: messages dropped so far because nobody took them in time.
        reconnects: how often the connection was lost and made again meanwhile.
    """

    def __init__(
        self,
        tags: TagSet,
        *,
        queue: int,
        raise_on_gap: bool = False,
        on_gap: Callable[[Gap], None] | None = None,
        since: Since | None = None,
    ) -> None:
        self.tags = tags
        self.lost = 0
        self.reconnects = 0
        # for `mist.client.subscribing`
        self.since = since
        self.settled = trio.Event()  # confirmed or refused for the first time
        self.request: Request | None = None  # under way
        self.stage = Stage.ABSENT
        self.held: list[Message] = []
        self.seen: int | None = None  # the highest id given; None where there are no ids
        self.caught_up = False  # has been live
        self.taken = 0  # messages that the reader has taken
        self._queue: deque[Message | Gap] = deque()
        self._limit = queue
        self._messages = 0  # in the queue, marks not counted
        self._raise_on_gap = raise_on_gap
        self._on_gap = on_gap
        self._arrived = trio.Event()
        self._relieved = trio.Event()
        self._given_up = False  # nobody waits for this reader until it has caught up
        self._ended = False
        self._error: MistError | None = None

    def __repr__(self) -> str:
        return f"<Subscription {sorted(self.tags)} queued={self._messages} lost={self.lost}>"

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        """The next message, waited for.

        Raises:
            MessagesLost: with `raise_on_gap`, once for each gap; go on reading as you like.
            Revoked, ConnectionLost, ConnectError: why there will be no more.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while not self._queue:
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    raise StopAsyncIteration
                self._arrived = trio.Event()
                await self._arrived.wait()
            item = self._queue.popleft()
            if isinstance(item, Message):
                self._messages -= 1
                self.taken += 1
                self._look_for_relief()
                return item
            self._tell(item)

    def take(self) -> list[Message]:
        """What is queued, up to the next gap, without waiting. May be empty."""
        found = []
        while self._queue and isinstance(self._queue[0], Message):
            found.append(self._queue.popleft())
            self._messages -= 1
        self.taken += len(found)
        self._look_for_relief()
        return found  # type: ignore[return-value]  # only messages are taken

    def _tell(self, gap: Gap) -> None:
        if self._on_gap is not None:
            self._on_gap(gap)
        if self._raise_on_gap:
            raise MessagesLost(gap.lost, reconnected=gap.reconnected, forgotten=gap.forgotten)

    # for the client

    def deliver(self, message: Message) -> None:
        """Queue a message, or drop and count it where the queue is full.

        One that was given before, by its id, is not given again.
        """
        if self._ended:
            return
        if message.id is not None:
            if self.seen is not None and message.id <= self.seen:
                return
            self.seen = message.id
        if self._messages >= self._limit:
            self.lost += 1
            self._mark(Gap(lost=1))
            return
        self._queue.append(message)
        self._messages += 1
        self._arrived.set()

    def release(self) -> None:
        """What is held comes again in the replay, which has surely begun."""
        self.held.clear()
        if self.stage is Stage.HELD:
            self.stage = Stage.REPLAYED
        self.settled.set()

    @property
    def crowded(self) -> bool:
        """Whether the reader should get a moment before more is read for it.

        From a quarter on, so that the next read of 64 KiB still finds room in a queue of the
        usual size.
        """
        return self._messages * 4 > self._limit and not self._given_up and not self._ended

    async def relieved(self) -> None:
        """Wait until it is not crowded any more."""
        while self.crowded:
            self._relieved = trio.Event()
            await self._relieved.wait()

    def give_up(self) -> None:
        """Don't wait for this reader again before it has caught up."""
        self._given_up = self.crowded

    def _look_for_relief(self) -> None:
        if self._messages * 4 <= self._limit:
            self._given_up = False
            self._relieved.set()

    def reconnected(self, *, whole: bool = False) -> None:
        """The connection was down and is back; `whole` where nothing is missing for all we know."""
        self.reconnects += 1
        if not whole:
            self._mark(Gap(reconnected=True))

    def forgotten(self, *, reconnected: bool) -> None:
        """Some of what was to be brought now is not in the history any more."""
        self._mark(Gap(reconnected=reconnected, forgotten=True))

    def _mark(self, gap: Gap) -> None:
        # Gaps without a message between them are one gap, so marks are bounded like messages.
        last = self._queue[-1] if self._queue else None
        if isinstance(last, Gap):
            gap = Gap(
                last.lost + gap.lost,
                last.reconnected or gap.reconnected,
                last.forgotten or gap.forgotten,
            )
            self._queue.pop()
        self._queue.append(gap)
        self._arrived.set()

    def confirmed(self) -> None:
        """Raise why it was refused, where it has ended for a reason."""
        if self._ended and self._error is not None:
            raise self._error

    def end(self, error: MistError | None = None) -> None:
        """No more messages after those queued; the first reason stays."""
        if not self._ended:
            self._ended = True
            self._error = error
            self.settled.set()
            self._arrived.set()
            self._relieved.set()
