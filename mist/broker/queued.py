"""What a send queue holds, for those who account for it: which messages a count counts.

A queue knows bytes and counts, which is enough to deliver. What is left in it when its session ends
was not delivered, and accounts have to be told which messages those are. So where a broker has an
observer, what is queued as the count is a `Queued`: a number that knows its messages. One is made
for each delivery and wire form, and shared by all queues that take it.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["Queued"]


class Queued(int):
    """So many messages, and which.

    Attributes:
        entries: the messages, with what they matched; see `mist.broker.matches.Matched`.
        receiver: the named subscription they are for; None where that is the session itself.
        accounts: for each entry, where it was booked; None where that is as `receiver` is now.
    """

    entries: Sequence[Any] = ()
    receiver: Any = None
    accounts: Sequence[Any] | None = None

    @classmethod
    def of(cls, entries: Sequence[Any]) -> "Queued":
        """These, which a form can carry."""
        made = cls(sum([entry[2] for entry in entries]))
        made.entries = entries
        return made

    def copy(self, receiver: Any = None, accounts: Sequence[Any] | None = None) -> "Queued":
        """The same in one queue only."""
        made = Queued(self)
        made.entries = self.entries
        made.receiver = receiver or self.receiver
        made.accounts = accounts
        return made

    def behind(self, skip: int) -> "Queued":
        """Without the first `skip` messages."""
        entries, accounts = [], []
        for n, (match, wire, count) in enumerate(self.entries):
            left = max(count - skip, 0)
            if left:
                if left < count:
                    lines = match.split(wire, count)[-left:]
                    wire = b"".join([b"%b%b\n" % (match.head, data) for data in lines])
                entries.append((match, wire, left))
                accounts.append(None if self.accounts is None else self.accounts[n])
            skip = max(skip - count, 0)
        made = Queued.of(entries)
        made.receiver = self.receiver
        made.accounts = None if self.accounts is None else accounts
        return made
