"""Lists of tags and tag sets on a line: items between single spaces, `a,b c`.

The older form put braces around every item: `{a,b} {c}`. It is still read. Since a tag may hold
braces, a list whose every item happens to begin with `{` and end with `}` is written with one more
pair around each, so that reading gives back what was written:

    a,b c       a,b c
    {a} b       {a} b
    {a}         {{a}}
"""

from collections.abc import Generator, Sequence
from typing import AnyStr, Final

from mist.long_list import pieces

__all__ = ["format_list", "list_in_steps", "unwrapped"]

_STEP: Final = 5_000  # items, up to 1 ms where all are in braces


def format_list(items: Sequence[bytes]) -> bytes:
    """The items as one field of a line; none are an empty field."""
    if _all_braced(items):
        items = [b"{%b}" % item for item in items]
    return b" ".join(items)


def list_in_steps(separator: AnyStr, items: Sequence[AnyStr]) -> Generator[None, None, bytes]:
    """As `format_list`, in steps: there may be a million.

    Args:
        separator: a space, of the items' type.
        items: taken, if it is a `LongList`.
    """
    texts: list[bytes] = []
    braced = True
    for some in pieces(items, _STEP):
        if texts:
            yield
        joined = separator.join(some)
        text = joined if isinstance(joined, bytes) else joined.encode()
        braced = braced and text.startswith(b"{") and _all_braced(text.split(b" "))
        texts.append(text)
    if braced:
        for number, text in enumerate(texts):
            if number:
                yield
            texts[number] = b"{%b}" % text.replace(b" ", b"} {")
    return b" ".join(texts)


def unwrapped(items: Sequence[bytes]) -> Sequence[bytes]:
    """The items of a list that was cut at its spaces, without the braces of the older form."""
    return [item[1:-1] for item in items] if _all_braced(items) else items


def _all_braced(items: Sequence[bytes]) -> bool:
    return all(item.startswith(b"{") and item.endswith(b"}") for item in items)
