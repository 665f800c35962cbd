"""A portion of a batch: messages that follow each other and have the same recipients.

They are queued as one. Who wants records as they are gets those, and nothing is made for each
message; entries are made for those who want another form, and only where there are any.
"""

from collections.abc import Callable, Sequence

from mist.broker.matches import Matched
from mist.wire import Batch

__all__ = ["Portion"]


class Portion:
    """See the module.

    Args:
        batch: of which they are.
        count: messages.
        entries: they themselves; or `make`, which makes them.
        wire: their canonical records, joined; None where these have to be written one by one.
        is_whole: whether they are the whole batch, its matches are all cached, and its records
            canonical.
    """

    __slots__ = ("_entries", "_make", "batch", "count", "is_whole", "wire")

    def __init__(
        self,
        batch: Batch,
        count: int,
        entries: Sequence[Matched] | None = None,
        *,
        make: Callable[[], Sequence[Matched]] | None = None,
        wire: bytes | None = None,
        is_whole: bool = False,
    ) -> None:
        self.batch = batch
        self.count = count
        self.wire = wire
        self.is_whole = is_whole
        self._entries = entries
        self._make = make

    @property
    def entries(self) -> Sequence[Matched]:
        """The messages. O(messages) the first time."""
        if self._entries is None:
            assert self._make is not None
            self._entries, self._make = self._make(), None
        return self._entries
