"""Tag lists and data in JSON: of messages, and lists of subscriptions, of which there may be a
million, in steps."""

from collections.abc import Generator, Sequence
from typing import Final, TypeVar

import msgspec

from mist.long_list import pieces
from mist.wire import TagList

__all__ = [
    "columns_as_json",
    "finished",
    "has_escapes",
    "tag_lists_and_text",
    "tag_lists_as_json",
    "tags_as_json",
    "text_as_json",
]

T = TypeVar("T")

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
_encode_lines: Final = msgspec.json.Encoder().encode_lines

_STEP: Final = 1_000  # tag lists, some 1 ms


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

    Args:
        tag_lists: taken, if it is a `LongList`.

    Returns:
        For `msgspec.json.encode`, in the place of the lists.
    """
    return (yield from _tag_lists_as_json(tag_lists, None))


def tag_lists_and_text(
    tag_lists: Sequence[bytes],
) -> Generator[None, None, tuple[msgspec.Raw, msgspec.Raw]]:
    """As `tag_lists_as_json`, and the same as a string with spaces between them."""
    texts: list[bytes] = []
    arrays = yield from _tag_lists_as_json(tag_lists, texts)
    if len(texts) > 1:
        yield
    return arrays, _string_of(texts)


def text_as_json(items: Sequence[str]) -> Generator[None, None, msgspec.Raw]:
    """A string: the items, with spaces between them. In steps; see `tag_lists_as_json`."""
    texts: list[bytes] = []
    for some in pieces(items, _STEP):
        if texts:
            yield
        texts.append(msgspec.json.encode(" ".join(some))[1:-1])
    return _string_of(texts)


def _tag_lists_as_json(
    tag_lists: Sequence[bytes], texts: list[bytes] | None
) -> Generator[None, None, msgspec.Raw]:
    """As `tag_lists_as_json`.

    Args:
        texts: where given, gets the lists of each step as well, as what stands between
            quotation marks.
    """
    arrays: list[bytes] = []
    for some in pieces(tag_lists, _STEP):
        if arrays:
            yield
        text = b" ".join(some).decode()
        if texts is not None:
            texts.append(msgspec.json.encode(text)[1:-1])
        arrays.append(msgspec.json.encode([each.split(",") for each in text.split(" ")])[1:-1])
    return msgspec.Raw(b"[%b]" % b",".join(arrays))


def _string_of(texts: Sequence[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b'"%b"' % b" ".join(texts))


def finished(steps: Generator[object, None, T]) -> T:
    """What steps come to, all of them done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
