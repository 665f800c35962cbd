"""Publishing: encode messages, and track which of them the server refused or never confirmed."""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from mist.audience import Audience
from mist.client.arguments import not_one_string, payload, tag_set
from mist.client.errors import Unconfirmed
from mist.errors import RemoteError
from mist.message import Limits, TagSet

__all__ = ["PublishForm", "Publisher"]

log = logging.getLogger("mist.client")

_CACHED: Final = 4096  # tag lists whose encoded form is cached


class PublishForm(Protocol):
    """How a protocol writes a message to be published: what is the same for all with some tags, and
    the rest."""

    def head(self, tags: TagSet, to: Audience | None) -> bytes:
        """The beginning, for all subscribers or for an audience."""

    def message(self, head: bytes, data: bytes) -> bytes:
        """A whole message. Raises Unframable, DataTooLong."""

    def check_store(self, message: bytes) -> None:
        """Check that a message has room for what a store adds to it. Raises DataTooLong."""


class Publisher:
    """Encodes messages, and keeps what is still to be reported about those written.

    Attributes:
        refused: messages that the server refused so far.
        unconfirmed: messages written to connections that broke, not reported yet.
    """

    def __init__(self, limits: Limits, form: PublishForm) -> None:
        self.refused = 0
        self.unconfirmed = 0
        self._limits = limits
        self._form = form
        self._heads: dict[tuple[str | None, ...], bytes] = {}
        self._refusal: str | None = None  # the first one not reported yet

    @property
    def has_failures(self) -> bool:
        """Whether there is anything to report."""
        return self.unconfirmed > 0 or self._refusal is not None

    def encode(self, tags: Iterable[str], data: bytes | str, to: Audience | None) -> bytes:
        """A message as it is written. Raises as `mist.client.Client.publish`."""
        if not (to is None or isinstance(to, Audience)):
            raise TypeError(f"to must be a mist.audience.Audience, not {type(to).__name__}")
        wanted = tuple(not_one_string(tags))
        key = (None if to is None else to.text, *wanted)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            head = self._form.head(tag_set(wanted, self._limits.message_tags), to)
            self._heads[key] = head
        return self._form.message(head, payload(data, self._limits.data))

    def check_store(self, tags: TagSet, data: bytes) -> None:
        """Check that a message can be stored. Raises as `mist.client.Client.store`."""
        self._form.check_store(self.encode(tags, data, None))

    def add_refusal(self, text: str) -> None:
        """The server refused a message, for this reason."""
        self.refused += 1
        if self._refusal is None:
            self._refusal = text
            log.warning("the server refused a message: %s", text)

    def add_unconfirmed(self, count: int) -> None:
        """A connection broke after `count` messages were written and before their fence."""
        self.unconfirmed += count

    def take_unconfirmed(self) -> Unconfirmed:
        """The error that reports the unconfirmed messages, once."""
        count, self.unconfirmed = self.unconfirmed, 0
        return Unconfirmed(count)

    def raise_failures(self) -> None:
        """Report a refusal first, and unconfirmed messages the next time.

        Raises:
            RemoteError, Unconfirmed: there was something to report.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise RemoteError(refusal)
        if self.unconfirmed:
            raise self.take_unconfirmed()
