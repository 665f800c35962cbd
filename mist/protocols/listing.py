"""Tag lists and data in JSON: of messages, and lists of subscriptions, of which there may be a
million, in steps."""

from collections.abc import Generator, Sequence
from typing import AnyStr, Final, TypeVar

import msgspec

from mist.wire import TagList

__all__ = [
    "columns_as_json",
    "finished",
    "has_escapes",
    "joined",
    "tag_lists_as_json",
    "tags_as_json",
]

T = TypeVar("T")

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
_encode_lines: Final = msgspec.json.Encoder().encode_lines

_STEP: Final = 1_000  # tag lists, some 1 ms
_JOINED: Final = 10_000  # that are joined in a step


def tags_as_json(tag_list: TagList) -> bytes:
    """The tags of a message as an array, sorted."""
    canonical = tag_list.canonical
    if b'"' in canonical or b"\\" in canonical:
        return msgspec.json.encode(canonical.decode().split(","))
    # Nothing else that may stand in a tag is escaped in JSON.
    return b'["%b"]' % canonical.replace(b",", b'","')


def has_escapes(text: bytes) -> bool:
    """Whether something stands in a text that JSON writes as an escape, and always so."""
    return len(text.translate(None, _ESCAPED)) != len(text)


def columns_as_json(
    tag_lists: Sequence[bytes], datas: Sequence[bytes]
) -> tuple[Sequence[bytes], Sequence[bytes]] | None:
    """The tags of some messages as arrays, and their data as strings; a few calls for all.

    Args:
        tag_lists: canonical, of each message; at least one.
        datas: of each.

    Returns:
        Both without what they begin and end with, `["` and `"]`, `"` and `"`. None where a tag
        has to be escaped, or data isn't UTF-8.
    """
    lists = b"\n".join(tag_lists)
    if b'"' in lists or b"\\" in lists:
        return None
    text = b"".join(datas)
    if has_escapes(text) or not text.isascii():
        try:
            # JSON writes LF as an escape, so lines are told apart surely.
            encoded = _encode_lines([data.decode() for data in datas])
        except UnicodeDecodeError:
            return None
        datas = encoded[1:-2].split(b'"\n"')
    return lists.replace(b",", b'","').split(b"\n"), datas


def tag_lists_as_json(tag_lists: Sequence[bytes]) -> Generator[None, None, msgspec.Raw]:
    """Tag lists as an array of arrays of tags.

    Returns:
        For `msgspec.json.encode`, in the place of the lists.
    """
    pieces: list[bytes] = []
    for start in range(0, len(tag_lists), _STEP):
        if start:
            yield
        lists = [each.decode().split(",") for each in tag_lists[start : start + _STEP]]
        pieces.append(msgspec.json.encode(lists)[1:-1])
    return msgspec.Raw(b"[%b]" % b",".join(pieces))


def joined(separator: AnyStr, items: Sequence[AnyStr]) -> Generator[None, None, AnyStr]:
    """`separator.join(items)`, in steps."""
    pieces = []
    for start in range(0, len(items), _JOINED):
        if start:
            yield
        pieces.append(separator.join(items[start : start + _JOINED]))
    return separator.join(pieces)


def finished(steps: Generator[object, None, T]) -> T:
    """What steps come to, all of them done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
