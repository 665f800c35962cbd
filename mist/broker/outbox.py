"""The outbox: the send queue of one session, bounded and in order; what a slow consumer costs.

Everything a peer is sent goes through its one outbox: deliveries, replies to commands, and
below a WebSocket also pongs and close frames. So nothing overtakes anything, and one number
says how far behind a peer is.

Publishing never waits for a subscriber: `put` appends or refuses, and does nothing else. So a slow
consumer exerts no backpressure on publishers: when its outbox is full it loses messages, or its
session (`SlowConsumer`), or is moved back to the history (`on_behind`).

An outbox that goes from empty to queued enters itself into a `ready` list, which the publisher's
side flushes once, at the end of a chunk. What the flush can't write stays queued for the
transport's drain task. Queued bytes are shared between outboxes: a message has one bytes
object for a wire form, however many get it.

    put     deliveries; refused when full, and then the policy decides
    reply   answers; never dropped, may use RESERVE more; if even that is full the peer has
            stopped reading what it asked for, and its session ends
    peek    the next bytes to write, joined
    sent    so many of them were written

Every message that comes here is accounted for. It is *delivered* once it was wholly handed to the
kernel, *dropped* where it is refused for good, and *gone* where the session ended first: what was
still queued or held then, what was only written in part, and what was left to the history to be
replayed; see `pausing`.

An outbox knows no socket and no task.
"""

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from itertools import repeat
from typing import Final

import attrs

from mist.attributes import NO_ATTRIBUTES
from mist.broker.backlog import BURST, Written
from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.broker.pausing import PausableBacklog
from mist.broker.queued import Queued
from mist.wire import WireForm

__all__ = ["BURST", "ONES", "RESERVE", "Outbox", "OutboxStatistics"]

RESERVE: Final = 65_536  # bytes that replies may use beyond the bound
ONES: Final = repeat(1)

_PINNED: Final = Queued(0)  # behind which everything is pinned
_PINNED.accounts = ()


@attrs.frozen
class OutboxStatistics:
    """One outbox's counts since it was made; messages unless named otherwise.

    Attributes:
        queued: waiting now.
        queued_bytes: waiting now, replies included.
        sent: wholly handed to the kernel.
        sent_bytes: likewise, replies included.
        dropped_full: dropped because the outbox was full.
        dropped_unframable: dropped because the peer's protocol can't carry the data.
        gone: not delivered before the session ended; see the module.
    """

    queued: int
    queued_bytes: int
    sent: int
    sent_bytes: int
    dropped_full: int
    dropped_unframable: int
    gone: int


def _nothing(*about: object) -> None:
    pass


class Outbox(PausableBacklog):
    """The queue of one peer.

    Args:
        form: how deliveries to this peer are written.
        limits: bounds and policy.
        ready: the list this outbox enters when it has something to flush.
        on_dropping: called, at most once between two calls of `noted_drops`, when a message
            was dropped because the outbox is full.
        on_overrun: called when the session must end: the text says why. May be called more
            than once.
        written: see `Backlog`.

    Attributes:
        flush: set by the transport: write what is queued as far as that goes without
            waiting. Must not raise.
        owner: whose account deliveries go to; see `mist.broker.usage`. `Broker.assign` sets it.
        attributes: what an audience chooses by; `Broker.describe` sets it.
        echo: whether the peer receives what it publishes itself.
        on_behind: where set, called instead of dropping when a delivery doesn't fit, with the
            id of the last message before it: deliveries are then paused, and what is missing
            is to be replayed from the history by who set this.
        on_room: where set, called also when nothing more will be written.
    """

    __slots__ = (
        "_left",
        "_new_drops",
        "_on_dropping",
        "_on_overrun",
        "attributes",
        "dropped_full",
        "dropped_unframable",
        "echo",
        "flush",
        "form",
        "on_behind",
        "owner",
    )

    def __init__(
        self,
        form: WireForm,
        limits: OutboxLimits,
        ready: "MutableSequence[Outbox]",
        *,
        on_dropping: "Callable[[Outbox], None]" = _nothing,
        on_overrun: Callable[[str], None] = _nothing,
        written: Written | None = None,
    ) -> None:
        super().__init__(limits, ready, written)
        self.form = form
        self.owner = ""
        self.attributes = NO_ATTRIBUTES
        self.echo = True
        self.flush: Callable[[], None] = _nothing
        self.dropped_full = 0
        self.dropped_unframable = 0
        self._left: list[Queued] = []
        self._on_dropping = on_dropping
        self._on_overrun = on_overrun
        self._new_drops = False
        self.on_behind: Callable[[int], None] | None = None

    @property
    def outbox(self) -> "Outbox":
        """Itself; of a `NamedSubscription`, that of its session."""
        return self

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._max_bytes < 0

    def due(self, count: int) -> int:
        """How many of `count` messages it is to get: all; see `NamedSubscription.due`."""
        return count

    def put_each(self, pieces: Iterable[bytes], counts: Iterable[int] = ONES) -> list[bool]:
        """Queue messages one by one; those that don't fit are dropped and counted.

        What a refused `put` is followed by, so that which messages are lost does not depend
        on how they happened to be joined.

        Args:
            counts: 1 for each, or a `Queued` that is 1.

        Returns:
            Of each in turn, whether it was queued. Shorter than `pieces` where deliveries ended:
            what comes behind is neither queued nor counted; see `defer`.
        """
        taken: list[bool] = []
        for piece, count in zip(pieces, counts, strict=False):
            fits = self.put(piece, count)
            if not fits and self.muted:
                break
            taken.append(fits)
            if fits:
                continue
            self.dropped_full += 1
            if not self._new_drops:
                self._new_drops = True
                self._on_dropping(self)
            if self._limits.slow_consumer is SlowConsumer.DISCONNECT:
                self._on_overrun("slow consumer")
                break
        return taken

    def reply(self, wire: bytes) -> None:
        """Queue an answer behind everything queued before it. Never dropped."""
        if self.closed or not wire:
            return
        if self.size + len(wire) > self._max_bytes + RESERVE:
            self._on_overrun("outbox can't take a reply")
            return
        self.append(wire, 0)

    def has_room_for_reply(self, size: int) -> bool:
        """Whether a reply of `size` bytes fits; ask before building a large one."""
        return self.size + size <= self._max_bytes + RESERVE

    def withdraw(self) -> None:
        """Forget what is queued and not begun to be written: the peer may have it no longer."""
        counts = self.cut()
        self.gone += sum(counts)
        self._leave(counts)

    def close(self) -> None:
        """Take nothing more. What is queued stays, for the transport to write if it can."""
        self._max_bytes = -1
        self.mute()

    def discard(self) -> None:
        """Forget what is queued: it is gone, but for messages that were written as a whole."""
        self.close()
        wire, written, count = self.partial
        if written and count:
            whole = min(self.form.count_whole(wire, written), count)
            self.note_sent(whole, 0)
            self.queued -= whole
            first = self._counts[0]
            if type(first) is Queued:
                self._counts[0] = first.behind(whole)
        self.gone += self.queued
        self._leave(self._counts)
        self.empty()

    def _leave(self, counts: Iterable[int]) -> None:
        self._left.extend([count for count in counts if type(count) is Queued and count])

    def take_left(self) -> Sequence[Queued]:
        """What was queued and is gone, since the last call, as far as an observer is told of it."""
        left = self._left
        if left:
            self._left = []
        return left

    def pin(self, accounts: Callable[[Queued], Sequence[object]]) -> None:
        """Note where what is queued was booked, before it would be booked elsewhere.

        O(what was queued since the last call).
        """
        counts = self._counts
        for n in range(len(counts) - 1, -1, -1):
            count = counts[n]
            if type(count) is Queued:
                if count.accounts is not None:
                    break
                counts[n] = count.copy(accounts=accounts(count))
        if counts and not counts[-1]:  # a reply; of thousands, only the next ones are to be passed
            counts[-1] = _PINNED

    def release(self) -> None:
        """Let go of what this outbox calls: its session and connection, which hold it.

        They would be a cycle for the collector otherwise, twenty objects for each connection.
        """
        self.discard()
        self.flush = _nothing
        self._on_dropping = self._on_overrun = _nothing
        self.on_behind = self.on_room = None

    def fail(self) -> None:
        """Have the session end, since what it should be sent can't be told any more."""
        self._on_overrun("internal error")

    def noted_drops(self) -> None:
        """Allow the next drop to be reported through `on_dropping` again."""
        self._new_drops = False

    def statistics(self) -> OutboxStatistics:
        """A frozen copy of the counts."""
        return OutboxStatistics(
            queued=self.queued,
            queued_bytes=self.size,
            sent=self.sent_messages,
            sent_bytes=self.sent_bytes,
            dropped_full=self.dropped_full,
            dropped_unframable=self.dropped_unframable,
            gone=self.gone,
        )
