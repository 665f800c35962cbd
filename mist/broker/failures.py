"""Contained failures: an exception in one delivery or callback costs that one, and no other.

The broker calls code that is not its own: wire forms, a transport's `flush`, callbacks of
sessions and of programs that embed mist. None of it should raise. Where it does all the same,
the one who is concerned pays for it, it is counted, and the others go on.

The log says where it was raised, by functions and lines. It never has the exception's text,
which may quote a token or a message.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Final

__all__ = ["Failures"]

log = logging.getLogger("mist.broker")

_FRAMES: Final = 8  # of a traceback, the innermost


class Failures:
    """The contained failures of one server.

    Attributes:
        counts: by what failed: `delivery`, `flush`, `callback`, and what others give.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # By what failed, the exception's type and the line that raised it, of which a program
        # has only so many.
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def count(self, what: str) -> None:
        """Count a failure that is logged where it was caught."""
        self.counts[what] += 1

    def note(self, what: str, error: Exception) -> None:
        """Count a failure, and log it.

        A failure may repeat for each message. So of the same one the first is logged, the
        tenth, the hundredth and so on.

        Args:
            what: failed; one word, for the count.
            error: as caught.
        """
        self.count(what)
        frames = list(_frames(error.__traceback__))
        kind = type(error).__qualname__
        key = what, kind, frames[-1] if frames else ""
        self._seen[key] += 1
        times = self._seen[key]
        if str(times).strip("0") == "1":  # a power of ten
            log.error(
                "a failure was contained",
                extra={
                    "failed": what,
                    "error": kind,
                    "at": " > ".join(frames[-_FRAMES:]),
                    "times": times,
                },
            )


def _frames(traceback: TracebackType | None) -> Iterator[str]:
    """Each frame as `module.function:line`, the outermost first."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = traceback.tb_frame.f_globals.get("__name__", "?")
        yield f"{module}.{code.co_qualname}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
