"""Lists of tags and tag sets on a line: items between single spaces, `a,b c`.

The older form put braces around every item: `{a,b} {c}`. It is still read. Since a tag may hold
braces, a list whose every item happens to begin with `{` and end with `}` is written with one more
pair around each, so that reading gives back what was written:

    a,b c       a,b c
    {a} b       {a} b
    {a}         {{a}}
"""

from collections.abc import Generator, Sequence
from typing import Final

__all__ = ["format_list", "list_in_steps", "unwrapped"]

_STEP: Final = 5_000  # items, up to 1 ms where all are in braces


def format_list(items: Sequence[bytes]) -> bytes:
    """The items as one field of a line; none are an empty field."""
    if _all_braced(items):
        items = [b"{%b}" % item for item in items]
    return b" ".join(items)


def list_in_steps(items: Sequence[bytes] | Sequence[str]) -> Generator[None, None, bytes]:
    """As `format_list`, in steps: there may be a million."""
    pieces: list[list[bytes]] = []
    braced = True
    for start in range(0, len(items), _STEP):
        if start:
            yield
        some = [
            item if isinstance(item, bytes) else item.encode()
            for item in items[start : start + _STEP]
        ]
        braced = braced and _all_braced(some)
        pieces.append(some)
    fields: list[bytes] = []
    for some in pieces:
        if fields:
            yield
        fields.append(b" ".join([b"{%b}" % item for item in some] if braced else some))
    return b" ".join(fields)


def unwrapped(items: Sequence[bytes]) -> Sequence[bytes]:
    """The items of a list that was cut at its spaces, without the braces of the older form."""
    return [item[1:-1] for item in items] if _all_braced(items) else items


def _all_braced(items: Sequence[bytes]) -> bool:
    return all(item.startswith(b"{") and item.endswith(b"}") for item in items)
