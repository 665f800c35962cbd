"""What goes wrong at a PostgreSQL: errors of the server, by SQLSTATE, and lost connections."""

import re
from typing import Final

__all__ = ["ConnectionLost", "ServerError", "connection_error"]

_REASONS: Final = {
    "25006": "it is a standby, or read-only",
    "40001": "its isolation level is not read committed",
    "42501": "its user may not do this",
    "53100": "its disk is full",
    "53200": "its memory is full",
    "53300": "it has too many connections",
    "55P03": "another transaction holds a lock of the realm",
    "57014": "it has canceled the query",
}

# The server ends the connection, or already has: shutdown, crash of another process, restart. Or it
# only reads: it may have been the primary, and another connection leads to the one that is now.
_LOST: Final = frozenset({"25006", "57P01", "57P02", "57P03", "57P05"})

_SEVERITY: Final = re.compile(r"[^\W\d_]+:\s+")  # "FATAL:  ", in whichever language


class ConnectionLost(Exception):
    """The connection is of no use any more. What was asked last may have been done or not."""


class ServerError(Exception):
    """The server has refused a statement, and done nothing of it.

    Attributes:
        code: SQLSTATE; see appendix A of PostgreSQL's documentation.
    """

    def __init__(self, code: str, text: str) -> None:
        # Its primary message only, one line: details repeat what was sent.
        super().__init__(_REASONS.get(code) or text.partition("\n")[0].strip()[:200])
        self.code = code

    @property
    def ends_connection(self) -> bool:
        """Whether the connection ends with it."""
        return self.code in _LOST or self.code.startswith("08")

    @property
    def is_missing(self) -> bool:
        """Whether a schema, a table or a function is not there."""
        return self.code in ("3F000", "42P01", "42883")


def connection_error(text: str) -> str:
    """What libpq says of a connection that was not made, in one line.

    `connection to server at "host" (addr), port 5432 failed: FATAL:  why` and what else it tried.
    """
    why = text.partition(" failed: ")[2] or text
    why = why.partition("\n")[0].strip()
    found = _SEVERITY.match(why)
    why = why[found.end() :] if found else why
    return (why[:1].lower() + why[1:])[:200] or "it can't be reached"
