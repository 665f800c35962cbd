"""What publishes messages."""

import attrs

from mist.audience import Audience
from mist.commands.base import BaseCommand
from mist.errors import CommandError
from mist.message import TagSet
from mist.wire import Batch

__all__ = ["Publish", "PublishOnce", "Store"]


@attrs.define
class Publish(BaseCommand):
    """Publish a batch of messages, in order."""

    batch: Batch


@attrs.define
class Store(Publish):
    """Publish one message, and say its id once it is durable."""


@attrs.define
class PublishOnce(BaseCommand):
    """Publish one message, and say what came of it. With a key, a repeat publishes nothing.

    Attributes:
        tags, data: of the message.
        audience: None is everyone.
        key: an idempotency key; empty for none.
        digest: of what the peer wrote, which tells a repeat from another message.
        error: why it can't be published. A peer that may publish nothing is told only that.
    """

    tags: TagSet = frozenset()
    data: bytes = b""
    audience: Audience | None = None
    key: str = ""
    digest: bytes = b""
    error: CommandError | None = None
