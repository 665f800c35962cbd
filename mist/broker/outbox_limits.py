"""Bounds of an outbox, and what happens at them."""

from enum import Enum

import attrs

__all__ = ["OutboxLimits", "SlowConsumer"]


class SlowConsumer(Enum):
    """What happens to a peer whose outbox is full.

    DROP: the newest message is dropped and counted; the session lives on.
    DISCONNECT: the session ends, so that the peer learns that it missed something.
    """

    DROP = "drop"
    DISCONNECT = "disconnect"


@attrs.frozen
class OutboxLimits:
    """Bounds of one outbox.

    Attributes:
        bytes: queued bytes of deliveries.
        messages: queued messages.
        slow_consumer: the policy when either is reached.
    """

    bytes: int = 8 * 1024 * 1024
    messages: int = 100_000
    slow_consumer: SlowConsumer = SlowConsumer.DROP
