"""Published messages: their bytes, and what became of them after they were written."""

import logging
from collections.abc import Iterable
from typing import Final

from mist.audience import Audience
from mist.client.arguments import payload, several
from mist.client.errors import Unconfirmed
from mist.client.words import publish_head, publish_line
from mist.errors import RemoteError
from mist.message import Limits, parse_tags

__all__ = ["Publishing"]

log = logging.getLogger("mist.client")

_CACHED: Final = 4096  # tag lists whose beginning of a line is remembered


class Publishing:
    """See the module.

    Attributes:
        refused: messages that the server refused so far.
        doubtful: messages written whose connection broke, not told yet.
    """

    def __init__(self, limits: Limits) -> None:
        self.refused = 0
        self.doubtful = 0
        self._limits = limits
        self._heads: dict[tuple[str | None, ...], bytes] = {}
        self._refusal: str | None = None  # the first one that has not been told yet

    @property
    def troubled(self) -> bool:
        """Whether there is anything to tell."""
        return self.doubtful > 0 or self._refusal is not None

    def line(self, tags: Iterable[str], data: bytes | str, to: Audience | None) -> bytes:
        """A message as it is written. Raises as `mist.client.Client.publish`."""
        wanted = tuple(several(tags))
        key = (None if to is None else to.text, *wanted)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            head = publish_head(parse_tags(wanted, self._limits.message_tags), to)
            self._heads[key] = head
        return publish_line(head, payload(data, self._limits.data))

    def refuse(self, text: str) -> None:
        """The server refused one, with these words."""
        self.refused += 1
        if self._refusal is None:
            self._refusal = text
            log.warning("the server refused a message: %s", text)

    def doubt(self, count: int) -> None:
        """So many were written to a connection that broke before a fence came back."""
        self.doubtful += count

    def take_doubt(self) -> Unconfirmed:
        """What is to be said of those in doubt, once."""
        count, self.doubtful = self.doubtful, 0
        return Unconfirmed(count)

    def tell(self) -> None:
        """Say what has not been said yet: a refusal first, and what is in doubt the next time.

        Raises:
            RemoteError, Unconfirmed: there is something to say.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise RemoteError(refusal)
        if self.doubtful:
            raise self.take_doubt()
