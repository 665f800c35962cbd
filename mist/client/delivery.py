"""What arrives, given to the subscriptions it is for, as fast as their readers can bear.

On the line protocol nothing marks the beginning of a replay: what arrives between the answer
to `last` and its first message is live, belongs to others, and comes again in the replay. So
a message is held until it is certain to which it belongs; see `Delivery._hold`.
"""

from typing import Final

import trio

from mist.client.asking import Asking
from mist.client.position import Known
from mist.client.subscription import Stage, Subscription
from mist.client.topics import Topics
from mist.errors import ProtocolViolation
from mist.message import Message

__all__ = ["Delivery"]

_MOST_HELD: Final = 100_000  # messages, as many as a server queues for a connection by default
_PATIENCE: Final = 0.5  # seconds that reading waits for a reader that has yet to catch up


class Delivery:
    """See the module.

    Args:
        topics: who listens to what.
        known: the server's history, as far as it is known.
    """

    def __init__(self, topics: Topics, known: Known) -> None:
        self._topics = topics
        self._known = known
        self._crowded: set[Subscription] = set()

    def deliver(self, message: Message) -> None:
        """A message arrived.

        Raises:
            ProtocolViolation: more would have to be held than a server can mean. What a
                subscription has been given already is not asked for again, so that the next
                connection has less to bring.
        """
        if message.id is not None:
            self._known.numbered(message.id)
        for subscription in self._topics.listeners(message.tags):
            if subscription.stage is Stage.ABSENT:
                continue
            if subscription.stage is Stage.HELD:
                self._hold(subscription, message)
                continue
            subscription.deliver(message)
            if subscription.crowded:
                self._crowded.add(subscription)

    def _hold(self, subscription: Subscription, message: Message) -> None:
        """Take a message where it is not certain yet that the replay has begun.

        Live messages may stand before the replay, with ids above the one that `last` told;
        the replay brings those again. So it has surely begun where an id is not above that
        one, or not above the last that was held; else all that is held belongs to it.
        """
        request, held = subscription.request, subscription.held
        assert isinstance(request, Asking)
        id_ = message.id or 0
        if id_ > (request.begun or 0) and (not held or id_ > (held[-1].id or 0)):
            if len(held) >= _MOST_HELD:
                raise ProtocolViolation("too much came before what was asked for")
            held.append(message)
            return
        subscription.release()
        subscription.deliver(message)

    async def relieve(self) -> None:
        """Let readers catch up, for a bounded while; with a history, as long as they read."""
        # Whoever yields once a message would lose most of a burst to a reading loop that
        # yields once in thousands. Meanwhile the server's outbox holds the rest. The wait is
        # bounded, and not repeated for a reader that doesn't use it, so that one stalled
        # subscription costs the others a moment, once.
        await trio.lowlevel.checkpoint()
        crowded, self._crowded = self._crowded, set()
        while crowded:
            before = {each: each.taken for each in crowded}
            with trio.move_on_after(_PATIENCE):
                for each in crowded:
                    await each.relieved()
            crowded = {each for each in crowded if each.crowded}
            waiting = {
                each for each in crowded if self._known.history and each.taken > before[each]
            }
            for each in crowded - waiting:
                each.give_up()
            crowded = waiting
