"""Pages of the history as JSON."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from mist.audience import Audience
from mist.commands import Since
from mist.history import Page, Selection, StoredMessage
from mist.history.cursor import Cursor
from mist.history.visibility import visible_to
from mist.http.access import Caller
from mist.http.openapi import component
from mist.sessions.sequencer import Sequencer

__all__ = ["EXAMPLE", "Message", "MessagePage", "WrittenMessage", "read_page"]

_PAGE: Final = 1 << 20  # bytes of messages as JSON, with which a page ends
_MOST_LOST: Final = 100  # ranges, after which a page ends

EXAMPLE: Final = {"keys": ["news"], "id": 17, "data": "hello", "time": 1767225600.0}
"""A message, as the OpenAPI page shows one."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message: `data64` instead of `data` where it isn't UTF-8; `time` in Unix seconds."""

    keys: list[str]
    data: str | UnsetType = UNSET
    data64: bytes | UnsetType = UNSET
    id: int
    time: float | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    to: dict[str, str | list[str]] | UnsetType = UNSET


WrittenMessage = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": component(Message)})
]
"""A `Message` as JSON."""


class LostRange(msgspec.Struct, frozen=True):
    """Ids from `first` to `last` that can't be read: the log is damaged there."""

    first: int
    last: int


class MessagePage(msgspec.Struct, frozen=True):
    """A page of the history.

    Attributes:
        first, newest: ids kept.
        id: where the next page begins.
        recovered: False where part of what was requested was removed or is damaged.
        complete: whether there is no more.
        lost: damaged ranges of ids.
    """

    epoch: str
    first: int
    newest: int
    id: int
    recovered: bool
    complete: bool
    lost: list[LostRange]
    messages: list[WrittenMessage]


async def read_page(
    sequencer: Sequencer, selection: Selection | None, since: Since, limit: int, caller: Caller
) -> MessagePage:
    """The messages selected that the caller may get, up to `limit` of them or a MiB.

    One that is larger is a page of its own.

    Args:
        since: which `sequencer` has reached.

    Raises:
        HistoryUnavailable, LatestOff: as `Cursor.begin`.
    """
    cursor, newest = Cursor(sequencer.history), sequencer.newest
    attributes = None if caller.record is None else caller.record.attributes
    recovered = await cursor.begin(since, selection, newest, lambda: attributes)
    messages: list[msgspec.Raw] = []
    size = 0  # of them, in bytes
    is_full = False
    site = "" if caller.record is None else caller.record.attributes.site
    while not is_full and cursor.place < newest and len(cursor.lost) < _MOST_LOST:
        # For one that is bound to a site, messages of others take no room in a page: from what is
        # missing in it one could tell how many there are.
        if messages and (not site or len(messages) >= limit or size >= _PAGE):
            break
        piece = await cursor.read(
            selection, newest, limit=limit - len(messages), max_bytes=_PAGE - size
        )
        recovered = recovered and piece.missing is None
        last = cursor.place
        for message in _visible(piece.page, caller):
            # As JSON data may be six times as long, and is held until the caller has read it.
            written = msgspec.json.encode(_message_of(message, caller))
            size += len(written)
            is_full = bool(messages) and size > _PAGE
            if is_full:
                break
            messages.append(msgspec.Raw(written))
            last = message.id
        cursor.take(piece, last if is_full else None)
    position = await sequencer.history.position()
    return MessagePage(
        epoch=sequencer.epoch,
        first=position.first,
        newest=newest,
        id=cursor.place,
        recovered=recovered,
        complete=cursor.place >= newest,
        lost=[LostRange(each.first, each.last) for each in cursor.lost],
        messages=messages,
    )


def _visible(page: Page, caller: Caller) -> Iterator[StoredMessage]:
    """What the caller may get of a page of the log."""
    for stored in page.stored:
        may = stored if caller.record is None else visible_to(stored, caller.record.attributes)
        if may is not None:
            yield from may.messages()


def _message_of(message: StoredMessage, caller: Caller) -> Message:
    """A message as JSON; only services learn its publisher and audience."""
    data: str | UnsetType = UNSET
    data64: bytes | UnsetType = UNSET
    try:
        data = message.data.decode()
    except UnicodeDecodeError:
        data64 = message.data  # which is written in Base64
    return Message(
        keys=sorted(message.tags),
        data=data,
        data64=data64,
        id=message.id,
        time=message.time,
        publisher=(message.publisher if caller.is_service else "") or UNSET,
        to=(
            Audience.parse(message.audience).as_json()
            if caller.is_service and message.audience
            else UNSET
        ),
    )
