"""Replies of Redis: what one that is an error means, and what `INFO` says."""

import re
from typing import Final

import hiredis

__all__ = ["closes", "forgotten", "information", "reason", "says"]

# For scripts, Redis 6.2 has the code inside the text: "ERR Error running script …: -OOM command …"
_CODE: Final = re.compile(r"(?:^|: -?)([A-Z]{3,})(?=\s)")

_REASONS: Final = {
    "NOAUTH": "it wants a password",
    "WRONGPASS": "it refuses the user or password",
    "NOPERM": "its user may not do this",
    "READONLY": "it is a replica",
    "LOADING": "it is loading its data",
    "OOM": "its memory is full",
    "MISCONF": "it can't write to its disk",
    "NOREPLICAS": "it has fewer replicas than it wants for writes",
    "MASTERDOWN": "it is a replica that has lost its master",
    "UNBLOCKED": "it has become a replica",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "the realm is elsewhere in its cluster",
    "ASK": "the realm is being moved in its cluster",
    "TRYAGAIN": "the realm is being moved in its cluster",
    "BUSY": "it is busy with a script",
    "WRONGTYPE": "a key of the realm is another program's",
}

# After these the connection is of no use, or the server another than it was.
_CLOSING: Final = frozenset({"NOAUTH", "READONLY", "MASTERDOWN", "UNBLOCKED"})


def _code(error: hiredis.ReplyError) -> str:
    codes: list[str] = _CODE.findall(str(error))
    return next((each for each in reversed(codes) if each in _REASONS), "")


def says(error: hiredis.ReplyError, code: str) -> bool:
    """Whether an error is of this code."""
    return str(error).startswith(code)


def forgotten(reply: object) -> bool:
    """Whether a reply says that a script isn't known, and has to be sent whole."""
    return isinstance(reply, hiredis.ReplyError) and says(reply, "NOSCRIPT")


def closes(error: hiredis.ReplyError) -> bool:
    """Whether connections are to be opened anew after it."""
    return _code(error) in _CLOSING


def reason(error: hiredis.ReplyError) -> str:
    """In one line, without what it was sent, which some errors of Redis repeat."""
    known = _REASONS.get(_code(error))
    return known or str(error).partition("with args")[0].strip(" ,")[:200]


def information(reply: bytes) -> dict[str, str]:
    """What `INFO` says."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in [line.partition(":") for line in lines]}
