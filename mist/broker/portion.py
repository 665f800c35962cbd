"""A portion of a batch: messages that follow each other and have the same recipients.

They are queued as one. Who wants records as they are gets those, and nothing is made for each
message. Other forms write most messages from their columns. Entries, an object or two a message,
are made only for forms that need them, and where somebody observes deliveries.
"""

from collections.abc import Sequence

from mist.broker.matches import Matched
from mist.wire import Batch

__all__ = ["Columns", "Portion"]

Columns = tuple[Sequence[bytes], Sequence[bytes]]
"""The tag list of each message, and the data of each."""


class Portion:
    """See the module.

    Args:
        batch: of which they are.
        count: messages.
        entries: they themselves; those who derive from this find them when they are asked for.

    Attributes:
        is_whole: whether they are the whole batch, its matches are all cached, and its records
            canonical.
        wire: their canonical records, joined; None where these have to be written one by one.
        columns: the canonical tag list and the data of each; None where some share a tag list.
    """

    __slots__ = ("_entries", "batch", "count")

    is_whole = False

    def __init__(self, batch: Batch, count: int, entries: Sequence[Matched] | None = None) -> None:
        self.batch = batch
        self.count = count
        self._entries = entries

    @property
    def entries(self) -> Sequence[Matched]:
        """The messages. O(messages) the first time."""
        if self._entries is None:
            self._entries = self._find_entries()
        return self._entries

    def _find_entries(self) -> Sequence[Matched]:
        raise NotImplementedError

    @property
    def wire(self) -> bytes | None:
        return None

    @property
    def columns(self) -> Columns | None:
        return None
