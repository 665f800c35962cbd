"""What can go wrong with a history once it is open.

    CommandError
    └── HistoryUnavailable      could not be stored or read now; a later try may succeed
        └── HistoryDamaged      a part of the log can't be read, now or later

What goes wrong while one is opened is a `StartupError`, one line for whoever starts it.
"""

from mist.errors import CommandError

__all__ = ["HistoryDamaged", "HistoryUnavailable"]


class HistoryUnavailable(CommandError):
    """The log could not be written or read: a full disk, say. Nothing was stored."""

    code = "history_unavailable"
    message = "History is unavailable"


class HistoryDamaged(HistoryUnavailable):
    """A block of the log is not what was written.

    Attributes:
        first: the lowest id that may be in it.
        reason: what is wrong, for a person.
    """

    code = "history_damaged"

    def __init__(self, first: int, reason: str) -> None:
        super().__init__(f"History is damaged at {first}: {reason}")
        self.first = first
        self.reason = reason
