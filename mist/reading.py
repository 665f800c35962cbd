"""A session reads from the history until it has caught up with what is live.

There are two reasons to: it asked for what was (`resume`), or it fell behind, having asked
before, and would rather be late than miss something (`catch_up`). Meanwhile its deliveries
are withheld, all of them, whichever subscription they are for: each is in the history too, and
so it comes from there, once and in order.

The hand-over needs no lock. Messages are delivered in the order of their ids, and the sequencer
knows the highest that has been (`newest`). A session reads up to there, and what is delivered
from that moment on is held for it, as far as that is little. If all of it could be held, it
follows what was read, and the session has missed nothing and is given nothing twice: live it
is. Else it reads on; each stretch is shorter than the one before, or the session is too slow.
"""

from collections.abc import Callable, Iterable
from typing import Final

import trio

from mist.commands import Resumed, Since
from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import Page, Selection
from mist.message import TagSet
from mist.outbox import Outbox
from mist.sequencer import Sequencer
from mist.subscriptions import SubscriptionSet

__all__ = ["Reading"]

_TRIES: Final = 3  # readings of a page that is being trimmed, before a gap is told to be safe
_PAGE: Final = 1 << 20  # bytes read at a time; with a quarter of the outbox, what is held


class Reading:
    """One session's way through the history.

    Args:
        sequencer: of the history.
        outbox: where messages go.
        subscriptions: the session's; looked at again for each page, since a token can lose
            tags at any moment.
        on_gap: called where retention has taken something wanted before it was read, ahead of
            what comes next.
    """

    __slots__ = (
        "_live",
        "_on_gap",
        "_outbox",
        "_owed",
        "_sequencer",
        "_subscriptions",
        "_trimmed",
        "_turn",
    )

    def __init__(
        self,
        sequencer: Sequencer,
        outbox: Outbox,
        subscriptions: SubscriptionSet,
        on_gap: Callable[[Resumed], None],
    ) -> None:
        self._sequencer = sequencer
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._on_gap = on_gap
        self._trimmed = 0  # up to which id the session knows of what retention has taken
        self._turn = trio.Lock()
        self._owed: list[Callable[[], None]] = []
        self._live: trio.Event | None = None

    @property
    def behind(self) -> bool:
        """Whether the session's deliveries are withheld, and come from the history for now."""
        return self._outbox.withheld

    async def caught_up(self) -> None:
        """Wait until the session is live. One that ends on the way stays here: cancel it."""
        while self._outbox.withheld:
            self._live = trio.Event()
            await self._live.wait()

    @property
    def owes(self) -> bool:
        """Whether something has been put off with `in_turn`."""
        return bool(self._owed)

    def in_turn(self, act: Callable[[], None]) -> None:
        """Queue a reply where it belongs: behind all that was delivered to others before.

        Now, or where the session is behind, once it has caught up. Mind `owes`.
        """
        if self._outbox.withheld:
            self._owed.append(act)
        else:
            act()

    def _admit(self) -> None:
        self._outbox.admit()
        owed, self._owed = self._owed, []
        for act in owed:
            act()
        if self._live is not None:
            self._live.set()

    async def resume(
        self,
        since: Since,
        subscribe: Callable[[], Iterable[TagSet]],
        answer: Callable[[Resumed], None],
    ) -> None:
        """Subscribe, bring what was since then, and go live.

        Args:
            since: where to begin.
            subscribe: makes the subscriptions and returns their tag sets, at least one. What
                it raises is passed on, with nothing changed.
            answer: called before the first message.

        Raises:
            HistoryUnavailable: it can't be read. Where deliveries are still withheld then, the
                session has missed some and has to end.
        """
        async with self._turn:
            wanted = frozenset(subscribe())
            # From here on without an await: what is delivered live and what is brought meet
            # at one id.
            self._outbox.withhold()
            start = self._sequencer.newest
            try:
                after, answered = await self._locate(since, Selection(wanted), start)
            except HistoryUnavailable:
                if self._sequencer.newest == start:
                    self._admit()
                raise
            answer(answered)
            await self._bring(
                after, start, lambda: frozenset(filter(self._subscriptions.__contains__, wanted))
            )
            await self._go_live(start)

    async def catch_up(self, after: int) -> None:
        """Bring everything above an id, and go live. Deliveries are withheld already.

        Raises:
            HistoryUnavailable: it can't be read; the session has to end.
        """
        async with self._turn:
            await self._go_live(after)

    async def _locate(self, since: Since, selection: Selection, start: int) -> tuple[int, Resumed]:
        """The id after which to read, and what to say about it."""
        history, epoch = self._sequencer.history, self._sequencer.epoch
        recovered = True
        trimmed: int | None = None  # of what is asked for, as known with the answer
        if since.last is not None:
            try:
                after = await history.last(selection, since.last, upto=start)
            except HistoryDamaged as error:
                if not error.last:
                    raise
                after, recovered = error.last, False  # the last of those behind it
        else:
            after = since.after or 0
            if after or since.epoch is not None:
                trimmed = (await history.position()).trimmed  # first, so that nothing slips through
                recovered = await history.recovered(selection, after, since.epoch)
            after = since.start(epoch, start)
        position = await history.position()
        self._trimmed = position.trimmed if trimmed is None else trimmed
        return after, Resumed(epoch, start, recovered, position.first)

    async def _go_live(self, after: int) -> None:
        """Bring what was delivered meanwhile, until that is little; then have deliveries again."""
        while after < self._sequencer.newest:
            newest = self._sequencer.newest
            # Without an await in between. Under load there is always something new by the time
            # that all before it has been read, so what comes on this last stretch is held.
            self._outbox.hold()
            await self._bring(after, newest, lambda: frozenset(self._subscriptions.tag_sets()))
            after = newest
            if self._outbox.holding:
                break
        self._admit()

    async def _bring(self, after: int, upto: int, wanted: Callable[[], frozenset[TagSet]]) -> None:
        """Queue what is wanted of the messages above `after` up to `upto`, as there is room."""
        subscriptions = self._subscriptions
        selection: Selection | None = None
        version = -1
        while after < upto:
            await self._room()
            if self._outbox.closed:
                return
            if selection is None or subscriptions.version != version:
                version = subscriptions.version
                tag_sets = wanted()
                if not tag_sets:
                    return
                selection = Selection(tag_sets)
            try:
                page, trimmed = await self._read(selection, after, upto)
            except HistoryDamaged as error:
                if error.last <= after:
                    raise
                # What may have been in there is gone, and the rest is worth having.
                self._on_gap(self._gap(min(error.last, upto) + 1))
                after = error.last
                continue
            gap = await self._find_gap(selection, after, trimmed)
            if subscriptions.version != version:
                continue  # a token has lost tags meanwhile; nothing for them may be queued
            if gap is not None:
                self._on_gap(gap)
            # What has been trimmed beyond this page is said where it would have come.
            self._trimmed = min(trimmed, page.after)
            self._queue(page)
            after = page.after
            if page.complete:
                return

    async def _read(self, selection: Selection, after: int, upto: int) -> tuple[Page, int]:
        """The next page, and up to which id messages had been trimmed when it was read."""
        history = self._sequencer.history
        most = min(_PAGE, self._outbox.most_to_bring)
        trimmed = (await history.position()).trimmed
        for _ in range(_TRIES):
            page = await history.read(selection, after=after, upto=upto, max_bytes=most)
            before, trimmed = trimmed, (await history.position()).trimmed
            if trimmed == before:
                break
            # Trimmed while it was read, before or after, nobody knows: so once more.
        return page, trimmed

    async def _find_gap(self, selection: Selection, after: int, trimmed: int) -> Resumed | None:
        """What to say before a page where something wanted in it has been trimmed.

        Args:
            trimmed: up to which id messages had been trimmed when it was read.
        """
        history = self._sequencer.history
        known = max(after, self._trimmed)
        if trimmed <= known or await history.recovered(selection, known):
            return None
        return self._gap((await history.position()).first)

    def _gap(self, first: int) -> Resumed:
        """Something is missing before `first`."""
        return Resumed(self._sequencer.epoch, self._sequencer.newest, False, first)

    def _queue(self, page: Page) -> None:
        outbox = self._outbox
        for stored in page.stored:
            wire, count = outbox.form.join(
                stored.entries, framable=stored.framable, firsts=stored.firsts
            )
            outbox.bring(wire, count)
            missing = stored.count - count
            if missing:
                outbox.dropped_unframable += missing
                self._sequencer.broker.dropped["unframable"] += missing
        self._sequencer.broker.flush()

    async def _room(self) -> None:
        """Wait until the peer has taken most of what is queued, or is gone."""
        outbox = self._outbox
        await trio.lowlevel.checkpoint()
        while not outbox.has_room_to_bring:
            changed = trio.Event()
            outbox.on_room = changed.set
            try:
                await changed.wait()
            finally:
                outbox.on_room = None
