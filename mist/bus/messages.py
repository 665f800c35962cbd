"""A message of a channel, and its data as JSON.

Data is bytes in mist and any JSON value in MessageBus. A text is stored as it is, anything else
as JSON; so a line client sees what it would expect to. On the way out, what is an object or an
array is one, and everything else is a text:

    published here      stored          shown
    "hello"             hello           "hello"
    {"a": 1}            {"a":1}         {"a":1}
    7                   7, marked       7
    "[draft]"           [draft]         "[draft]", since it isn't JSON
    "[1]"               [1], marked     "[1]"

The mark stands in the message's meta, where data by itself would be taken for the other thing.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import attrs
import msgspec

from mist.audience import Audience

__all__ = ["MARK", "BusMessage", "json_of", "mark_of", "written"]

MARK: Final = "bus.data"
"""A name in a publication's meta: its data is `json`, or `text`, whatever it looks like."""

_JSON: Final = b"json"
_TEXT: Final = b"text"
_OPENING: Final = (b"{", b"[")


def written(value: object) -> tuple[bytes, bytes | None]:
    """A value as it is stored, and its mark where it needs one. Bytes are data as it is.

    Raises:
        TypeError, ValueError: it can't be said in JSON.
    """
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, str):
        data = value.encode()
        return data, _TEXT if data.startswith(_OPENING) and _is_json(data) else None
    data = msgspec.json.encode(value)
    # What is an object to msgspec may come out as a text or a number: dates, for one.
    return data, None if data.startswith(_OPENING) and _is_json(data) else _JSON


def json_of(data: bytes, mark: bytes | None) -> bytes:
    """Data as JSON; bytes that are no text become U+FFFD."""
    looks = mark == _JSON or (mark != _TEXT and data.startswith(_OPENING))
    if looks and _is_json(data):
        return data
    return msgspec.json.encode(data.decode("utf-8", "replace"))


def _is_json(data: bytes) -> bool:
    try:
        data.decode()  # msgspec passes over strings without a look at their bytes
        msgspec.json.decode(data, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    return True


@attrs.frozen(slots=False)
class BusMessage:
    """A message of a channel.

    Attributes:
        global_id: its id in the history.
        message_id: its number in the channel, from 1.
        channel: where it was found; it may have been published to others as well.
        raw: its data as JSON.
        time: when it was published, Unix seconds.
        audience: whom it was published for; None is everyone.
    """

    global_id: int
    message_id: int
    channel: str
    raw: bytes
    time: float
    audience: Audience | None = None

    @cached_property
    def data(self) -> Any:
        """Its data. Numbers beyond what Python's JSON can hold are refused with a ValueError."""
        try:
            return msgspec.json.decode(self.raw)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None

    @property
    def json(self) -> bytes:
        """As it is sent to a browser."""
        return b'{"global_id":%d,"message_id":%d,"channel":%b,"data":%b}' % (
            self.global_id,
            self.message_id,
            msgspec.json.encode(self.channel),
            self.raw,
        )


def mark_of(meta: Mapping[str, bytes] | None) -> bytes | None:
    """What a publication says of its data."""
    return None if meta is None else meta.get(MARK)
