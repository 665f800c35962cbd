"""Whether the file that is written is still the one at its path; see `mist.sqlite.FileIdentity`."""

import time
from typing import Final

import attrs

from mist.errors import HistoryUnavailable
from mist.sqlite import FileIdentity

__all__ = ["Presence"]

_LOOK: Final = 0.1  # seconds; a look is one more wait for the interpreter lock


@attrs.define
class Presence:
    """Looks now and then. So where the file vanishes, a tenth of a second of what is appended
    is lost with it, and no more.
    """

    _identity: FileIdentity
    _next: float = 0.0
    _problem: str = ""

    def require(self) -> None:
        """Make sure of it.

        Raises:
            HistoryUnavailable: the file is not there. It may be back later.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK
            try:
                self._identity.check()
                self._problem = ""
            except OSError as error:
                self._problem = f"its file is gone: {error.strerror}"
        if self._problem:
            raise HistoryUnavailable(f"History is unavailable: {self._problem}")
