"""Local fan-out: received messages go to the subscriptions they match, with backpressure.

On the line protocol nothing marks where a replay begins. What arrives between the reply to
`last` and the first replayed message is live, meant for other subscriptions, and comes again in
the replay. So a message stays pending until it is certain which of the two it is; see
`Fanout._hold`.
"""

from typing import Final

import anyio
import anyio.lowlevel

from mist.client.position import ServerHistory
from mist.client.subscribe_request import SubscribeRequest
from mist.client.subscription import Stage, Subscription
from mist.client.subscription_table import SubscriptionTable
from mist.errors import ProtocolViolation
from mist.message import Message

__all__ = ["Fanout"]

_MAX_PENDING: Final = 100_000  # messages; a server queues as many for a connection by default
_READER_TIMEOUT: Final = 0.5  # seconds that reading from the server waits for a slow reader


class Fanout:
    """Delivers messages to local subscriptions, and slows down reading where they lag.

    Args:
        table: the local subscriptions.
        history: what is known of the server's history.
    """

    def __init__(self, table: SubscriptionTable, history: ServerHistory) -> None:
        self._table = table
        self._history = history
        self._congested: set[Subscription] = set()

    def deliver(self, message: Message) -> None:
        """Deliver a message to every subscription that it matches.

        Raises:
            ProtocolViolation: more messages are pending than a server can mean to send. What a
                subscription was given already is not asked for again, so that the next
                connection has less to replay.
        """
        if message.id is not None:
            self._history.note_id(message.id)
        for subscription in self._table.matching(message.tags):
            if subscription.stage is Stage.INACTIVE:
                continue
            if subscription.stage is Stage.PENDING:
                self._hold(subscription, message)
                continue
            subscription.deliver(message)
            if subscription.congested:
                self._congested.add(subscription)

    def _hold(self, subscription: Subscription, message: Message) -> None:
        """Keep a message while it is not certain that the replay has begun.

        Live messages may come before the replay, with ids above the one that `last` gave; the
        replay brings those again. So the replay has begun where an id is not above that one,
        or not above that of the last pending message; otherwise all pending ones belong to it.
        """
        request, pending = subscription.request, subscription.pending
        assert isinstance(request, SubscribeRequest)
        id_ = message.id or 0
        if id_ > (request.log_end or 0) and (not pending or id_ > (pending[-1].id or 0)):
            if len(pending) >= _MAX_PENDING:
                raise ProtocolViolation("too many messages came before the replay")
            pending.append(message)
            return
        subscription.start_replay()
        subscription.deliver(message)

    async def apply_backpressure(self) -> None:
        """Wait for congested readers: a bounded time, or with a history as long as they read."""
        # Yielding once a message would lose most of a burst to a reading loop that yields once
        # in thousands. Meanwhile the server's outbox holds the rest. The wait is bounded, and
        # not repeated for a reader that doesn't use it, so one stalled subscription delays the
        # others once.
        await anyio.lowlevel.checkpoint()
        congested, self._congested = self._congested, set()
        while congested:
            before = {each: each.taken for each in congested}
            with anyio.move_on_after(_READER_TIMEOUT):
                for each in congested:
                    await each.wait_uncongested()
            congested = {each for each in congested if each.congested}
            waiting = {
                each for each in congested if self._history.available and each.taken > before[each]
            }
            for each in congested - waiting:
                each.mark_stalled()
            congested = waiting
