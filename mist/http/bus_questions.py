"""What a poll asks: channels, where its client is in each, and the poll's number."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import attrs
import msgspec

from mist.bus.inside import check_channel
from mist.errors import CommandError
from mist.http.bodies import FORM
from mist.http.problems import Problem

__all__ = ["MAX_BODY", "MAX_CHANNELS", "NOW", "Question", "read_question"]

MAX_BODY: Final = 512 * 1024  # bytes: the most channels, each letter of their names escaped
MAX_CHANNELS: Final = 1_000
NOW: Final = -1  # a place: from now on

_SEQUENCE: Final = "__seq"
_LARGEST: Final = 2**53 - 1
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}")
_Value = int | str | None
_decode: Final = msgspec.json.Decoder(dict[str, _Value]).decode


@attrs.frozen
class Question:
    """See the module.

    Attributes:
        places: channel to the number up to which its messages are known; -1 is now, and -k
            asks for the last k - 1.
        number: the poll's, among its client's; 0 where it has none.
    """

    places: Mapping[str, int]
    number: int


def read_question(body: bytes, content_type: str) -> Question:
    """A poll's body, a form or JSON.

    Raises:
        Problem: it can't be understood, names what can't be a channel, or too many (400).
    """
    is_form = content_type.partition(";")[0].strip().lower() == FORM
    fields = _read_form(body) if is_form else _read_json(body)
    number = _number(fields.pop(_SEQUENCE, 0), 0)
    if len(fields) > MAX_CHANNELS:
        raise Problem(400, "too_many_channels", f"a poll has at most {MAX_CHANNELS} channels")
    try:
        places = {check_channel(name): _number(fields[name], NOW) for name in fields}
    except CommandError:
        raise Problem(400, "invalid_channel", "a channel is a tag that begins with /") from None
    return Question(places, number)


def _read_json(body: bytes) -> dict[str, _Value]:
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _not_understood() from None


def _read_form(body: bytes) -> dict[str, _Value]:
    try:
        return dict(
            parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(body),
                errors="strict",
                max_num_fields=2 * MAX_CHANNELS,
            )
        )
    except ValueError:  # of which UnicodeError is one
        raise _not_understood() from None


def _number(value: _Value, default: int) -> int:
    """A place as it came; what is empty says nothing."""
    if value is None or value == "":
        return default
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise _not_understood()
        value = int(value)
    return max(-_LARGEST, min(value, _LARGEST))


def _not_understood() -> Problem:
    return Problem(400, "invalid_body", "expected channels, each with a whole number")
