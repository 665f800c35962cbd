"""Subscribe and resume requests in flight, and the subscriptions that wait for them."""

from collections.abc import Iterable
from typing import Final

import attrs

from mist.client.dialect import Request
from mist.client.subscription import Subscription
from mist.commands import Resume, Since, Subscribe
from mist.message import TagSet, format_tags

__all__ = ["LIVE_ONLY", "SubscribeRequest", "chunked"]

_MAX_TAG_SETS: Final = 1_000  # of one resume; the server takes no more
_MAX_BYTES: Final = 65_536  # of their tag lists; a server's frame is 128 KiB at most

# "From now on": the last message is asked for and dropped. Compared by identity, because a
# program may ask for the last message too.
LIVE_ONLY: Final = Since(last=1)


@attrs.define(eq=False)
class SubscribeRequest(Request):
    """A subscribe or resume in flight.

    Attributes:
        subscriptions: the subscriptions it is for.
        log_end: newest id in the log when the replay started; None before that, and on a server
            without a history.
        unplaced: why the server did not say that; empty where it did, or was not asked.
    """

    subscriptions: list[Subscription] = attrs.field(factory=list)
    log_end: int | None = None
    unplaced: str = ""

    @property
    def live_only(self) -> bool:
        """Whether it replays nothing, so that any live subscription can join it."""
        return isinstance(self.command, Subscribe) or (
            isinstance(self.command, Resume) and self.command.since is LIVE_ONLY
        )


def chunked(subscriptions: list[Subscription]) -> Iterable[list[Subscription]]:
    """Split subscriptions into as few requests as a server's limits allow.

    Subscriptions with equal tag sets stay in one chunk.
    """
    chunk: list[Subscription] = []
    known: set[TagSet] = set()
    size = 0
    for each in sorted(subscriptions, key=lambda it: format_tags(it.tags)):
        if each.tags not in known:
            size += len(format_tags(each.tags).encode())
            if chunk and (len(known) >= _MAX_TAG_SETS or size > _MAX_BYTES):
                yield chunk
                chunk, known, size = [], set(), 0
            known.add(each.tags)
        chunk.append(each)
    if chunk:
        yield chunk
