"""Places in a message history as peers write them; every dialect takes the same ones.

    5         messages with higher ids
    0         all that is kept
    -3        the last three that match
    ab12:5    as 5, if the log is the one of this epoch

Not a place: `-0`, `05`, `+5`, `5.0`, `ab12:-3`, `:5`, and ids that no history gives.

Where a peer subscribes it may also ask for latest values, of the tags with a prefix, by
`latest=order:*` or `{"latest": "order:*"}`.
"""

import re
from typing import Final

from mist.commands import Since
from mist.errors import InvalidPosition
from mist.message import is_tag_pattern

__all__ = [
    "LATEST",
    "MAX_ALTERNATIVES",
    "MAX_ID",
    "latest",
    "position",
    "position_from_json",
    "position_from_text",
    "start_from_text",
]

MAX_ID: Final = (1 << 53) - 1  # the highest that JavaScript tells from its neighbours
MAX_ALTERNATIVES: Final = 1_000  # tag sets that are resumed at once

LATEST: Final = b"latest="  # before a pattern, in the place of an id

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,15}")  # short: int() of many digits is slow
_EPOCH: Final = re.compile(r"[!-9;-~]{1,255}")  # what can stand on a line, before a colon


def position(number: int, epoch: str | None = None) -> Since:
    """The place after an id, or where `number` is negative the last so many messages.

    Raises:
        InvalidPosition: out of range; or with an epoch, that is none or `number` is no id.
    """
    if not -MAX_ID <= number <= MAX_ID:
        raise InvalidPosition
    if epoch is not None and (number < 0 or not _EPOCH.fullmatch(epoch)):
        raise InvalidPosition
    return Since(last=-number) if number < 0 else Since(after=number, epoch=epoch)


def position_from_text(raw: bytes) -> Since:
    """`ID`, `EPOCH:ID` or `-N`. Raises `InvalidPosition` at anything else."""
    epoch, colon, number = raw.rpartition(b":")
    if not _NUMBER.fullmatch(number):
        raise InvalidPosition
    return position(int(number), epoch.decode("latin-1") if colon else None)


def latest(pattern: str) -> Since:
    """Latest values of the tags that match; see `mist.message.is_tag_pattern`.

    Raises:
        InvalidPosition: it can't be a pattern.
    """
    if not is_tag_pattern(pattern):
        raise InvalidPosition
    return Since(latest=pattern)


def start_from_text(raw: bytes) -> Since:
    """As `position_from_text`, or `latest=PATTERN`. Raises `InvalidPosition` at anything else."""
    if not raw.startswith(LATEST):
        return position_from_text(raw)
    try:
        return latest(raw.removeprefix(LATEST).decode())
    except UnicodeDecodeError:
        raise InvalidPosition from None


def position_from_json(value: object) -> Since:
    """An integer, or an object of `epoch` and `id`, or one of `latest`.

    Raises:
        InvalidPosition: at anything else.
    """
    match value:
        case {"latest": str(pattern), **others} if not others:
            return latest(pattern)
        case bool() | {"id": bool()}:  # which Python takes for integers
            raise InvalidPosition
        case int(number):
            return position(number)
        case {"epoch": str(epoch), "id": int(number), **others} if not others:
            return position(number, epoch)
        case _:
            raise InvalidPosition
