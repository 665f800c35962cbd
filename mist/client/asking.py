"""A subscribe or resume on its way to the server, and for whom it goes."""

from collections.abc import Iterable
from typing import Final

import attrs

from mist.client.dialect import Request
from mist.client.subscription import Subscription
from mist.commands import Resume, Since, Subscribe
from mist.message import TagSet, format_tags

__all__ = ["LIVE_ONLY", "Asking", "in_chunks"]

_MOST: Final = 1_000  # tag sets resumed at once, as many as a server takes
_MOST_BYTES: Final = 65_536  # of their tag lists; a server's frame is 128 KiB at most

LIVE_ONLY: Final = Since(last=1)  # this very object: somebody may want the last one, too


@attrs.define(eq=False)
class Asking(Request):
    """A subscribe or resume, and whom it is for.

    Attributes:
        begun: the newest id when it began; None before that, and where there is no history.
    """

    subscriptions: list[Subscription] = attrs.field(factory=list)
    begun: int | None = None

    @property
    def live_only(self) -> bool:
        """Whether it brings nothing that was, so that anybody can join it."""
        return isinstance(self.command, Subscribe) or (
            isinstance(self.command, Resume) and self.command.since is LIVE_ONLY
        )


def in_chunks(subscriptions: list[Subscription]) -> Iterable[list[Subscription]]:
    """As few groups as a server takes, each tag set whole in one of them."""
    chunk: list[Subscription] = []
    known: set[TagSet] = set()
    size = 0
    for each in sorted(subscriptions, key=lambda it: format_tags(it.tags)):
        if each.tags not in known:
            size += len(format_tags(each.tags).encode())
            if chunk and (len(known) >= _MOST or size > _MOST_BYTES):
                yield chunk
                chunk, known, size = [], set(), 0
            known.add(each.tags)
        chunk.append(each)
    if chunk:
        yield chunk
