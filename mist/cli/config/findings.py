"""What a check says: fine, worth knowing, or that a server could not do its work."""

import enum

import attrs

__all__ = ["Finding", "Status", "bad", "good", "warn"]


class Status(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Finding:
    """The result of one check.

    Attributes:
        check: what was looked at, in a word or two.
        text: one line, without any secret.
    """

    check: str
    status: Status
    text: str


def good(check: str, text: str) -> Finding:
    """Nothing to be done."""
    return Finding(check, Status.OK, text)


def warn(check: str, text: str) -> Finding:
    """A server starts, and the operator should know."""
    return Finding(check, Status.WARNING, text)


def bad(check: str, text: str) -> Finding:
    """A server does not start, or can't do its work."""
    return Finding(check, Status.ERROR, text)
