"""Tag lists in JSON: of messages, and of subscriptions, in steps, since there may be a million."""

from collections.abc import Generator, Sequence
from typing import Final, TypeVar

import msgspec

from mist.wire import TagList

__all__ = ["finished", "tag_lists_as_json", "tags_as_json"]

T = TypeVar("T")

_STEP: Final = 1_000  # tag lists, some 1 ms


def tags_as_json(tag_list: TagList) -> bytes:
    """The tags of a message as an array, sorted."""
    canonical = tag_list.canonical
    if b'"' in canonical or b"\\" in canonical:
        return msgspec.json.encode(canonical.decode().split(","))
    # Nothing else that may stand in a tag is escaped in JSON.
    return b'["%b"]' % canonical.replace(b",", b'","')


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


def finished(steps: Generator[object, None, T]) -> T:
    """What steps come to, all of them done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
