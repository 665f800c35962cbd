"""Recovery: a session replays the history until it has caught up with live messages.

There are two reasons for it: the session asked for earlier messages (`resume`), or it fell behind,
having asked before, and would rather be late than miss something (`catch_up`). Meanwhile its
deliveries are paused, all of them, for all of its subscriptions: each message is in the history
too, and so it comes from there, once and in order.

The hand-over needs no lock. Messages are delivered in the order of their ids, and the sequencer
knows the highest that has been (`newest`). A session reads up to there, and what is delivered
from that moment on is held for it, as far as that is little. If all of it could be held, it
follows what was read, and the session has missed nothing and is given nothing twice: live it
is. Else it reads on; each stretch is shorter than the one before, or the session is too slow.
Where thousands resume at once beside a publisher, most of them read once and not twice.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mist.broker.outbox import Outbox
from mist.change import Change
from mist.commands import Since
from mist.errors import HistoryUnavailable
from mist.history import Selection, Stored
from mist.history.cursor import Cursor, check_latest
from mist.history.tally import Tally
from mist.message import TagSet
from mist.replies import Behind, CaughtUp, Resumed
from mist.sessions.replayer import Replayer
from mist.sessions.sequencer import Sequencer
from mist.sessions.subscriptions import SubscriptionSet
from mist.turns import Account, Turns

__all__ = ["Recovery"]

# Bytes read at a time; with a quarter of the outbox, what is held. A block is mostly smaller, and
# read once for one page.
_PAGE: Final = 2 << 20


def _nothing() -> None:
    pass


class Recovery(Replayer):
    """One session's way through the history.

    Args:
        sequencer, outbox, turns, account: as for a `Replayer`.
        subscriptions: the session's; looked at again for each step, since a token can lose
            tags at any moment.
        on_gap: called where something wanted is missing, ahead of what comes next.

    Attributes:
        announce: where set, called around each stretch that comes because the session is behind,
            and behind the first one of a `resume`. Each is read once more for that, to count.
    """

    __slots__ = ("_live", "_missed_after", "_on_gap", "_owed", "_subscriptions", "announce")

    def __init__(
        self,
        sequencer: Sequencer,
        outbox: Outbox,
        subscriptions: SubscriptionSet,
        on_gap: Callable[[Resumed], None],
        turns: Turns,
        account: Callable[[], Account],
    ) -> None:
        super().__init__(sequencer, outbox, turns, account)
        self._subscriptions = subscriptions
        self._on_gap = on_gap
        self._owed: list[Callable[[], None]] = []
        self._missed_after: int | None = None  # since the session fell behind, until it is replayed
        self._live = Change()
        self.announce: Callable[[Behind | CaughtUp], None] | None = None

    @property
    def behind(self) -> bool:
        """Whether the session's deliveries are paused, and come from the history for now."""
        return self._outbox.paused

    async def caught_up(self) -> None:
        """Wait until the session is live. One that ends on the way stays here: cancel it."""
        while self._outbox.paused:
            await self._live.wait()

    @property
    def owes(self) -> bool:
        """Whether something has been put off with `in_turn`."""
        return bool(self._owed)

    def in_turn(self, act: Callable[[], None]) -> None:
        """Queue a reply where it belongs: behind all that was delivered to others before.

        Now, or where the session is behind, once it has caught up. Mind `owes`.
        """
        if self._outbox.paused:
            self._owed.append(act)
        else:
            act()

    def _resume_live(self) -> None:
        self._outbox.resume_live()
        self._sequencer.broker.settle(self._outbox)
        owed, self._owed = self._owed, []
        for act in owed:
            act()
        self._live.notify()
        self._sequencer.delivery.flush()  # or what was held would wait for what comes next

    async def resume(
        self,
        since: Since,
        subscribe: Callable[[], Iterable[TagSet]],
        answer: Callable[[Resumed], None],
        caught_up: Callable[[], None],
        *,
        counted: bool = False,
    ) -> None:
        """Subscribe, replay what was published since then, and go live.

        Args:
            since: where to begin.
            subscribe: makes the subscriptions and returns their tag sets, at least one. What
                it raises is passed on, with nothing changed.
            answer: called before the first message.
            caught_up: called behind all that was, before what is live.
            counted: whether the answer is to say how many there are.

        Raises:
            LatestOff: nothing was changed; see `check_latest`.
            HistoryUnavailable: it can't be read. Where deliveries are still paused then, the
                session has missed some and has to end.
        """
        check_latest(self._sequencer.history, since)
        async with self._replaying():
            await self._sequencer.reach(since)
            await self._sequencer.delivery.between()
            while self._missed_after is not None:  # it fell behind on the way here
                await self._replay_missed()
                await self._sequencer.delivery.between()
            wanted = frozenset(subscribe())
            # From here on without an await: what is held and what is replayed meet at one id.
            self._outbox.pause()
            self._outbox.hold()
            start = self._sequencer.newest
            cursor = Cursor(self._sequencer.history)
            try:
                answered = await self._begin(
                    cursor, since, Selection.asked(wanted), start, counted=counted
                )
            except HistoryUnavailable:
                if self._sequencer.newest == start:
                    self._resume_live()
                raise
            answer(answered)
            await self._replay(
                cursor,
                start,
                lambda: frozenset(filter(self._subscriptions.__contains__, wanted)),
                owed=False,
            )
            cursor.place, cursor.latest = start, None  # what came meanwhile comes all
            if self.announce is not None:
                self.announce(CaughtUp())
            await self._go_live(cursor, caught_up)

    def fell_behind(self, after: int) -> None:
        """Everything above an id is missing, and deliveries are paused: mind to `catch_up`."""
        self._missed_after = after

    async def catch_up(self) -> None:
        """Replay what is missing since the session fell behind, and go live.

        Raises:
            HistoryUnavailable: it can't be read; the session has to end.
        """
        async with self._replaying():
            await self._replay_missed()

    async def _replay_missed(self) -> None:
        after, self._missed_after = self._missed_after, None
        if after is not None:  # else a `resume` was there first
            await self._go_live(Cursor(self._sequencer.history, after))

    async def _begin(
        self,
        cursor: Cursor,
        since: Since,
        selection: Selection | None,
        start: int,
        *,
        counted: bool,
    ) -> Resumed:
        """Find the place, and what to say about it."""
        recovered = await cursor.begin(since, selection, start, lambda: self._outbox.attributes)
        position = await self._sequencer.history.position()
        count = await self._count(cursor.place, selection, start) if counted else None
        return Resumed(self._sequencer.epoch, start, recovered, position.first, count)

    async def _announce(self, after: int, upto: int) -> bool:
        """Say how much comes from `(after, upto]`, if anybody is to be told and anything does."""
        tag_sets = list(self._subscriptions.tag_sets())
        if self.announce is None or not tag_sets:
            return False
        tally = Tally(tag_sets)
        await self._look_through(after, Selection.asked(tag_sets), upto, tally.note)
        if tally.counts:
            # It is full, or it wouldn't be behind; and of many subscriptions there is much to say.
            await self._room()
            self.announce(Behind(tally.counts))
        return bool(tally.counts)

    async def _go_live(self, cursor: Cursor, caught_up: Callable[[], None] = _nothing) -> None:
        """Bring what was delivered meanwhile, until that is little; then have deliveries again.

        Args:
            caught_up: called ahead of these.
        """
        while not self._outbox.holding:
            await self._sequencer.delivery.between()
            newest = self._sequencer.newest
            if cursor.place >= newest:
                break
            # Without an await in between. Under load there is always something new by the time
            # that all before it has been read, so what comes on this last stretch is held.
            self._outbox.hold()
            announced = await self._announce(cursor.place, newest)
            await self._replay(
                cursor, newest, lambda: frozenset(self._subscriptions.tag_sets()), owed=True
            )
            cursor.place = newest
            if announced and self.announce is not None:
                self.announce(CaughtUp())
        caught_up()
        self._resume_live()

    async def _replay(
        self,
        cursor: Cursor,
        upto: int,
        wanted: Callable[[], frozenset[TagSet]],
        *,
        owed: bool,
    ) -> None:
        """Queue what is wanted of the messages behind the cursor up to `upto`, as there is room.

        Args:
            owed: whether they were published while deliveries were paused.
        """
        subscriptions = self._subscriptions
        selection: Selection | None = None
        version = -1
        while cursor.place < upto:
            await self._room()
            if self._outbox.closed:
                return
            if subscriptions.version != version:
                version = subscriptions.version
                tag_sets = wanted()
                if not tag_sets:
                    return
                selection = Selection.asked(tag_sets)
            if await self._replay_page(cursor, selection, upto, owed=owed):
                return

    async def _replay_page(
        self, cursor: Cursor, selection: Selection | None, upto: int, *, owed: bool
    ) -> bool:
        """Queue the next page, or as much of it as was still wanted when its turn came.

        Returns:
            Whether it was the last one.
        """
        subscriptions, outbox = self._subscriptions, self._outbox
        version = subscriptions.version
        after = cursor.place

        def take(step: Sequence[Stored]) -> bool:
            nonlocal after
            if outbox.closed or subscriptions.version != version:
                return False  # a token has lost tags meanwhile; nothing for them may be queued
            self._queue(step, owed=owed)
            after = step[-1].firsts[-1] + step[-1].entries[-1][2] - 1
            return True

        async with self._page(cursor, selection, upto):
            most = min(_PAGE, outbox.replay_bytes)
            piece = await cursor.read(selection, upto, max_bytes=most, packed=True)
            if subscriptions.version != version:
                return False
            if piece.missing is not None:
                sequencer = self._sequencer
                self._on_gap(Resumed(sequencer.epoch, sequencer.newest, False, piece.missing))
            if not await self._unpack(piece.page, take):
                cursor.take(piece, after)
                return False
        cursor.take(piece)
        return piece.page.complete
