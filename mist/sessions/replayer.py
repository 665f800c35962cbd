"""Replays: messages of the history into one session's outbox, in turns, as there is room.

Live messages come first. A replay is work without an end for the event loop, and all of it could
be done at once. So it is done in steps of some hundred messages, in turns (see `mist.turns`): a
thread reads the blocks of a page, which stay packed, and here they are unpacked a step at a time.
Refused: to unpack them in that thread, too. It can't go on while the event loop does, and the loop
has to wait for it after each of its system calls.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain

import trio

from mist.broker.outbox import Outbox
from mist.change import Change
from mist.commands import Since
from mist.history import Page, Selection, Stored
from mist.history.cursor import Cursor
from mist.history.record import joined
from mist.history.visibility import envelope_of, visible_to
from mist.message import TagSet
from mist.replies import Fetched
from mist.sessions.page_turns import Replay
from mist.sessions.sequencer import Sequencer
from mist.turns import Account, Turns
from mist.wire import Entry

__all__ = ["Replayer"]


class Replayer:
    """See the module. For one session; what a `Recovery` is derived from.

    Args:
        sequencer: of the history.
        outbox: where messages go.
        turns: of the event loop.
        account: returns whom they are charged to.
    """

    __slots__ = ("_account", "_current", "_outbox", "_sequencer", "_turn", "_turns", "_written")

    def __init__(
        self,
        sequencer: Sequencer,
        outbox: Outbox,
        turns: Turns,
        account: Callable[[], Account],
    ) -> None:
        self._sequencer = sequencer
        self._outbox = outbox
        self._turns = turns
        self._account = account
        self._turn = trio.Lock()  # one replay at a time
        self._current: Replay | None = None  # the one that has it
        self._written = Change()

    async def fetch(
        self,
        since: Since,
        most: int | None,
        tags: TagSet,
        allowed: Callable[[], bool],
        answer: Callable[[Fetched], None],
    ) -> None:
        """Replay earlier messages, without subscribing. What is live comes in between.

        Args:
            since: where to begin.
            most: messages.
            tags: that they carry.
            allowed: asked before each piece; where it says no, nothing more is replayed.
            answer: called before the first message.

        Raises:
            HistoryUnavailable: it can't be read. Some may have been replayed.
        """
        async with self._replaying():
            selection = Selection.asked([tags])
            await self._sequencer.reach(since)
            upto = self._sequencer.newest
            cursor = Cursor(self._sequencer.history)
            recovered = await cursor.begin(since, selection, upto, lambda: self._outbox.attributes)
            position = await self._sequencer.history.position()
            left = await self._count(cursor.place, selection, upto, most)
            answer(Fetched(self._sequencer.epoch, recovered, position.first, left))
            while left and cursor.place < upto:
                await self._room()
                queued = await self._fetch_page(cursor, selection, upto, left, allowed)
                if queued is None:
                    return
                left -= queued

    async def _fetch_page(
        self,
        cursor: Cursor,
        selection: Selection | None,
        upto: int,
        most: int,
        allowed: Callable[[], bool],
    ) -> int | None:
        """Queue the next page, and say how many messages that were; None to stop."""
        queued = 0

        def take(step: Sequence[Stored]) -> bool:
            nonlocal queued
            if self._outbox.closed or not allowed():
                return False
            queued += self._queue(step, owed=False)
            return True

        async with self._page(cursor, selection, upto):
            piece = await cursor.read(
                selection, upto, limit=most, max_bytes=self._outbox.replay_bytes, packed=True
            )
            if not take([]) or not await self._unpack(piece.page, take):
                return None
        cursor.take(piece)
        return queued

    async def _count(
        self, after: int, selection: Selection | None, upto: int, most: int | None = None
    ) -> int:
        """How many messages come from `(after, upto]`; no more than `most`."""
        count = 0

        def note(stored: Stored) -> None:
            nonlocal count
            count += stored.count

        await self._look_through(
            after, selection, upto, note, lambda: most is not None and count >= most
        )
        return count if most is None else min(count, most)

    async def _look_through(
        self,
        after: int,
        selection: Selection | None,
        upto: int,
        note: Callable[[Stored], None],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Have all noted that comes from `(after, upto]`, or as much as was enough."""

        def take(step: Sequence[Stored]) -> bool:
            for stored in step:
                may = visible_to(stored, self._outbox.attributes)
                if may is not None:
                    note(may)
            return not enough()

        cursor = Cursor(self._sequencer.history, after)
        while cursor.place < upto and not enough():
            async with self._page(cursor, selection, upto):
                piece = await cursor.read(selection, upto, packed=True)
                await self._unpack(piece.page, take)
            cursor.take(piece)
            await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def _replaying(self) -> AsyncIterator[None]:
        """Wait until no other replay of the session goes on; then one does."""
        async with self._turn:
            self._current = self._sequencer.pages.begin()
            try:
                yield
            finally:
                self._current = None

    @asynccontextmanager
    async def _page(
        self, cursor: Cursor, selection: Selection | None, upto: int
    ) -> AsyncIterator[None]:
        """Wait until a page may be read and kept; who has theirs before reads for others, too."""
        assert self._current is not None
        expecting = partial(cursor.expecting, selection, upto)
        async with self._sequencer.pages.turn(self._current, expecting):
            yield

    async def _unpack(self, page: Page, take: Callable[[Sequence[Stored]], bool]) -> bool:
        """Have a page's messages taken, a step at a time, in turns.

        Args:
            take: returns False where it took nothing, and nothing more is wanted.

        Returns:
            Whether all were taken.
        """
        for step in page.unpack():
            if self._turns.over:
                self._sequencer.delivery.flush()  # the peer can read on meanwhile
                await self._turns.wait(self._account(), late=True)
            if not take(step):
                return False
        self._sequencer.delivery.flush()
        return True

    def _queue(self, step: Sequence[Stored], *, owed: bool) -> int:
        """Queue messages, and say how many that were."""
        outbox, broker = self._outbox, self._sequencer.broker
        if outbox.ended:
            return sum(stored.count for stored in step)
        every = [may for each in step if (may := visible_to(each, outbox.attributes))]
        total = 0
        replayed: list[tuple[Sequence[Entry], Sequence[int] | None, int]] = []
        for stored, wire, count in self._write(every, owed=owed):
            whole = stored.count
            outbox.note_replayed(whole, owed=owed)
            run = stored.entries, stored.firsts, count
            outbox.replay(wire, broker.queued(outbox, run))
            total += whole
            replayed.append(run)
            missing = whole - count
            if missing:
                outbox.dropped_unframable += missing
                broker.dropped["unframable"] += missing
        broker.note_replayed(outbox, replayed)
        assert self._current is not None
        self._current.messages += total
        return total

    def _write(self, every: Sequence[Stored], *, owed: bool) -> Sequence[tuple[Stored, bytes, int]]:
        """Publications in the peer's form, each with how many messages of it are there.

        Those that follow each other are written as one, where that makes no difference: where few
        share a room, a page has one message of each.
        """
        outbox, broker = self._outbox, self._sequencer.broker
        if not outbox.form.shows_envelope:
            with suppress(Exception):  # by themselves, as many are written as can be
                return list(map(self._in_form, joined(every)))
        found = []
        for stored in chain.from_iterable(map(Stored.by_time, every)):
            try:
                found.append(self._in_form(stored))
            except Exception as error:  # a session that ended for it would resume here for ever
                outbox.note_replayed(stored.count, owed=owed)
                broker.failures.note("delivery", error)
                broker.dropped["error"] += stored.count
        return found

    def _in_form(self, stored: Stored) -> tuple[Stored, bytes, int]:
        form = self._outbox.form
        wire, count = form.join(
            stored.entries,
            framable=stored.framable,
            firsts=stored.firsts,
            envelope=envelope_of(stored) if form.shows_envelope else None,
        )
        return stored, wire, count

    async def _room(self) -> None:
        """Wait until the peer has taken most of what is queued, or is gone."""
        outbox = self._outbox
        await trio.lowlevel.checkpoint()
        if outbox.has_room_to_replay:
            return
        outbox.on_room = self._written.notify
        try:
            while not outbox.has_room_to_replay:
                await self._written.wait()
        finally:
            outbox.on_room = None
