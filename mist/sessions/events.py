"""Events: occasions as durable messages for services, and as calls of hooks.

What happens is only queued. A task publishes what has come together as one batch, so a storm of
connections costs few appends; each hook has a task of its own, so a slow one keeps nobody waiting.
Where they come faster than they can be stored or called, the newest are dropped and counted: in
memory there is a bounded number. While the history refuses, a batch is tried again under the same
idempotency key, so it is not stored twice.
"""

import hashlib
import itertools
import logging
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final

import trio

from mist.change import Change
from mist.errors import HistoryUnavailable
from mist.history import Key
from mist.history.idempotency import KeyUsed, key_name
from mist.sessions.inside import InsidePublisher
from mist.sessions.occasions import Hook, Kind, Occasion
from mist.sessions.session_table import ConnectedSession
from mist.telemetry import Tracing

__all__ = ["EventService"]

log = logging.getLogger("mist.events")

_QUEUED: Final = 10_000  # occasions that wait, for messages and for each hook
_BATCH: Final = 500  # messages in an append
_RETRY: Final = 1.0  # seconds
_OWNER: Final = "mist events"  # of idempotency keys; no credential's
_UNTRACED: Final = nullcontext()
_POLLS: Final = frozenset({"poll", "bus"})  # whose sessions are requests, one after the other


class _Queue:
    """Occasions that wait for one task."""

    def __init__(self, name: str, dropped: Counter[str]) -> None:
        self.name = name
        self.busy = False
        self._waiting: deque[Occasion] = deque()
        self._dropped = dropped
        self._changed = Change()

    def put(self, occasion: Occasion) -> None:
        if len(self._waiting) >= _QUEUED:
            self._dropped[self.name] += 1
            return
        self._waiting.append(occasion)
        self._changed.notify()

    async def take(self, most: int) -> list[Occasion]:
        """At least one, waited for. Until the next call the task is `busy` with them."""
        self.busy = False
        self._changed.notify()
        while not self._waiting:
            await self._changed.wait()
        self.busy = True
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    async def settled(self) -> None:
        while self._waiting or self.busy:
            await self._changed.wait()


class EventService:
    """See the module.

    Args:
        publisher: of the server.
        node: the server's name.
        clock: Unix seconds.
        publishes: whether occasions become messages.
        hooks: called with each occasion.
        tracing: begins a span for each call of a hook; None for none.

    Attributes:
        published: messages that are stored, or delivered where there is no history.
        dropped: occasions for which there was no room, by `message` and `hook`.
        refused: attempts to store that the history refused.
        failed: calls of hooks that raised.
    """

    def __init__(
        self,
        publisher: InsidePublisher,
        node: str,
        clock: Callable[[], float],
        *,
        publishes: bool,
        hooks: Sequence[Hook] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self.published = 0
        self.dropped: Counter[str] = Counter()
        self.refused = 0
        self.failed = 0
        self.node = node
        self.now = clock
        self._publisher = publisher
        self._tracing = tracing
        self._messages = _Queue("message", self.dropped) if publishes else None
        self._hooks = [(hook, _Queue("hook", self.dropped)) for hook in hooks]
        self._queues = [queue for _, queue in self._hooks]
        if self._messages is not None:
            self._queues.append(self._messages)
        self._own = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    # what happens

    def note(self, occasion: Occasion) -> None:
        """Tell of an occasion, soon. O(hooks)."""
        for queue in self._queues:
            queue.put(occasion)

    def connected(self, session: ConnectedSession) -> None:
        """A session has begun."""
        if session.transport not in _POLLS:
            self.note(self._of(session, Kind.CONNECTED))

    def disconnected(self, session: ConnectedSession) -> None:
        """A session has ended."""
        if session.transport not in _POLLS:
            self.note(self._of(session, Kind.DISCONNECTED))

    def _of(self, session: ConnectedSession, kind: Kind) -> Occasion:
        ended = session.ended if kind is Kind.DISCONNECTED else None
        attributes = session.attributes
        return Occasion(
            kind,
            self.now(),
            self.node,
            session.name,
            "" if session.record is None else session.record.id,
            attributes.user,
            attributes.client,
            session.transport,
            "" if ended is None else ended.reason,
            0 if ended is None else ended.code,
        )

    @property
    def publishes(self) -> bool:
        """Whether they are messages, and not calls of hooks alone."""
        return self._messages is not None

    async def publish_once(self, occasion: Occasion, name: str) -> None:
        """Publish what other nodes may publish as well: one of them does.

        Args:
            name: the same at all of them.

        Raises:
            HistoryUnavailable: it may not have been stored.
        """
        whole = f"{occasion.kind.value} {name}"
        if self._messages is not None:
            await self._store([occasion], Key(key_name(_OWNER, whole), _digest(whole)))
        for _, queue in self._hooks:
            queue.put(occasion)

    # the tasks

    async def run(self) -> None:
        """Tell, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._messages is not None:
                nursery.start_soon(self._publish_on, self._messages)
            for hook, queue in self._hooks:
                nursery.start_soon(self._call_on, hook, queue)
            await trio.sleep_forever()

    async def settled(self) -> None:
        """Wait until all that has happened is told."""
        for queue in self._queues:
            await queue.settled()

    async def _publish_on(self, queue: _Queue) -> None:
        while True:
            batch = await queue.take(_BATCH)
            name = f"{self._own} {next(self._numbers)}"
            key = Key(key_name(_OWNER, name), _digest(name))
            while True:
                if await self._publish(batch, key):
                    break
                await trio.sleep(_RETRY)

    async def _publish(self, batch: Sequence[Occasion], key: Key) -> bool:
        """Publish a batch; whether that is done with."""
        try:
            await self._store(batch, key)
        except HistoryUnavailable:
            self.refused += 1
            return False
        except Exception:
            # A mistake costs these events, and not the server its life.
            log.exception("events can't be published")
            self.dropped["message"] += len(batch)
        return True

    async def _store(self, batch: Sequence[Occasion], key: Key) -> None:
        messages = [(each.tags, each.data) for each in batch]
        if self._publisher.sequencer is None:
            await trio.lowlevel.checkpoint()
            self._publisher.publish_all(messages)
        else:
            try:
                await self._publisher.store_all(messages, key=key)
            except KeyUsed:  # an attempt before, of which the answer was lost
                return
        self.published += len(batch)

    async def _call_on(self, hook: Hook, queue: _Queue) -> None:
        while True:
            for occasion in await queue.take(_BATCH):
                try:
                    await self._call(hook, occasion)
                except Exception as error:
                    self.failed += 1
                    # Without its text, which may be of people.
                    log.error(  # noqa: TRY400
                        "a hook failed",
                        extra={"error": type(error).__qualname__, "event": occasion.kind.value},
                    )
            await trio.lowlevel.checkpoint()

    async def _call(self, hook: Hook, occasion: Occasion) -> None:
        with self._tracing.task(f"hook {occasion.kind.value}", {}) if self._tracing else _UNTRACED:
            result = hook(occasion)
            if isinstance(result, Awaitable):
                await result


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
