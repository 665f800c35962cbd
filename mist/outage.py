"""An outage, as the log tells of it: why something doesn't work, and that it works again.

What fails is tried again, twice a second or more, and most often for the same reason. So each
reason is told once. But another one is told, too: who has mended the first, such as a server that
was away, would else never hear of the second, such as that it came back empty.
"""

import logging
from typing import Final

__all__ = ["Outage"]

_MOST: Final = 8  # reasons told of one outage: some differ each time, such as by an address


class Outage:
    """See the module.

    Args:
        log: to which it is told.
        began, ended: what is told then.

    Attributes:
        reason: the last one; empty while it works.
    """

    def __init__(self, log: logging.Logger, began: str, ended: str) -> None:
        self.reason = ""
        self._log = log
        self._began = began
        self._ended = ended
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        """Whether it lasts."""
        return bool(self.reason)

    def note(self, reason: str) -> None:
        """It doesn't work, for a reason that isn't empty."""
        self.reason = reason
        if reason not in self._told and len(self._told) < _MOST:
            self._told.add(reason)
            self._log.warning(self._began, extra={"reason": reason})

    def end(self) -> None:
        """It works. Nothing happens where it did."""
        if self.reason:
            self.reason = ""
            self._told.clear()
            self._log.info(self._ended)
