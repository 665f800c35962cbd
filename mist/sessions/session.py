"""One connected peer's session: it subscribes, with recovery or without, and reads the history.

Peers that send commands have a `mist.sessions.receiving.CommandSession`, which is a session and
handles them.
"""

from collections.abc import Callable, Sequence

from mist.commands import Since
from mist.errors import HistoryOff, HistoryUnavailable, NotGranted, TooManySubscriptions
from mist.message import TagSet
from mist.replies import Fetched, Resumed
from mist.sessions.base_session import BaseSession, Notice
from mist.sessions.close_reason import HISTORY_LOST, INTERNAL_ERROR
from mist.wire import WireForm

__all__ = ["Notice", "Session"]


def _nothing() -> None:
    pass


class Session(BaseSession):
    """See the module; for its arguments and attributes, `BaseSession`."""

    __slots__ = ()

    @property
    def _room(self) -> int:
        """How many subscriptions more it may have: of a token, what all its sessions leave."""
        limits = self.hub.hub_limits
        if self.record is not None:
            return limits.token_subscriptions - self.subscriptions.quota.used
        return limits.subscriptions - len(self.subscriptions) - len(self.named_subscriptions)

    @property
    def _most(self) -> int:
        return len(self.subscriptions) + self._room

    def subscribe(self, tags: TagSet) -> None:
        """Receive what carries all of `tags`, from now on.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not self.is_granted(tags):
            raise NotGranted
        self.subscriptions.add(tags, self._most)

    def subscribe_named(self, tags: TagSet, name: bytes, form: WireForm, queue: str) -> None:
        """Make a named subscription; see `mist.commands.SubscribeNamed`.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not self.is_granted(tags):
            raise NotGranted
        named, limits = self.named_subscriptions, self.hub.hub_limits
        if name in named:
            return
        if (
            self._room <= 0
            or len(named) >= limits.named_subscriptions
            or self.subscriptions.list_bytes + named.list_bytes >= limits.subscription_bytes
        ):
            raise TooManySubscriptions
        named.add(tags, name, form, queue)

    def subscribe_all(self, tag_sets: Sequence[TagSet]) -> list[TagSet]:
        """Subscribe to all of these or to none, from now on.

        Returns:
            Those that there is something to undo of.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not all(map(self.is_granted, tag_sets)):
            raise NotGranted
        return self.subscriptions.add_all(tag_sets, self._most)

    async def resume(
        self,
        tag_sets: Sequence[TagSet],
        since: Since,
        answer: Callable[[Resumed], None],
        caught_up: Callable[[], None] = _nothing,
        *,
        counted: bool = False,
    ) -> None:
        """Subscribe to all of these or to none, with recovery: a replay, then live messages.

        Returns when the session is live. From then on it is moved back to the history when it
        falls behind: a peer that asks for recovery would rather be late than miss something.

        Args:
            answer: called before the first message.
            caught_up: called behind the last replayed message, before the live ones.
            counted: whether the answer says how many messages are replayed.

        Raises:
            NotGranted, TooManySubscriptions, HistoryOff, LatestOff, HistoryUnavailable: nothing
                has changed; or, where the history was lost on the way, the session has ended.
        """
        if self.recovery is None:
            raise HistoryOff
        await self.hub.turns.begin(self.account, late=True)
        made: list[TagSet] = []

        def subscribe() -> Sequence[TagSet]:
            made.extend(self.subscribe_all(tag_sets))
            return tag_sets

        def tell(resumed: Resumed) -> None:
            self.hub.recoveries["recovered" if resumed.recovered else "lost"] += 1
            answer(resumed)

        try:
            await self.recovery.resume(since, subscribe, tell, caught_up, counted=counted)
        except HistoryUnavailable:
            self.hub.recoveries["failed"] += 1
            if self.outbox.muted:
                self.end(HISTORY_LOST)
            else:
                self.subscriptions.remove_all(made)
            raise
        self.outbox.on_behind = self._fell_behind

    async def fetch(
        self, tags: TagSet, since: Since, most: int | None, answer: Callable[[Fetched], None]
    ) -> None:
        """Replay without subscribing; see `mist.commands.Fetch`.

        Raises:
            NotGranted, HistoryOff, HistoryUnavailable: nothing more is replayed.
        """
        if self.recovery is None:
            raise HistoryOff
        if not self.is_granted(tags):
            raise NotGranted
        await self.recovery.fetch(since, most, tags, lambda: self.is_granted(tags), answer)

    def _fell_behind(self, after: int) -> None:
        recovery = self.recovery
        assert recovery is not None
        assert self.hub.sequencer is not None
        recovery.fell_behind(after)

        async def catch_up() -> None:
            try:
                await recovery.catch_up()
            except HistoryUnavailable:
                self.end(HISTORY_LOST)
            except Exception:
                self.end(INTERNAL_ERROR)  # it would miss what it should be replayed
                raise  # for the sequencer to count

        self.hub.sequencer.start_soon(catch_up)
