"""Columns: lists of integers as bytes, each as narrow as its largest value allows.

    values            as bytes
    [0, 0, 0]         '0', nothing
    [1, 2, 200]       'B', a byte each
    [1, 2, 70000]     'I', four bytes each, little-endian

Packing and unpacking is one call into C, whatever the length: a block has ten columns, and
a loop in Python over the values would be most of the cost of an append.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence

__all__ = [
    "INDEXES",
    "MASKS",
    "fixed",
    "is_one",
    "is_zero",
    "pack",
    "places",
    "unpack",
    "unpack_all",
]

INDEXES = "I"  # 32 bits
MASKS = "Q"  # 64 bits
_CODES = (("B", 1 << 8), ("H", 1 << 16), ("I", 1 << 32), ("Q", 1 << 64))
_WIDTHS = {"B": 1, "H": 2, "I": 4, "Q": 8}
_SWAP = sys.byteorder == "big"


def pack(values: Sequence[int]) -> tuple[str, bytes]:
    """The code and the bytes of `values`, each at least 0 and below 2^64."""
    try:
        raw = bytes(values)  # a fifth of what the other way takes
    except ValueError:
        pass
    else:
        return ("B", raw) if raw.strip(b"\0") else ("0", b"")
    largest = max(values, default=0)
    if not largest:
        return "0", b""
    code = next(code for code, bound in _CODES if largest < bound)
    return code, fixed(code, values)


def unpack(code: str, raw: bytes | memoryview, length: int) -> Sequence[int]:
    """What `pack` packed: `length` values.

    Raises:
        ValueError: it is not a column of that length.
    """
    if code == "0":
        return bytes(length)
    if code not in _WIDTHS or len(raw) != length * _WIDTHS[code]:
        raise ValueError("a column of another length")
    values = array(code, bytes(raw))
    if _SWAP:
        values.byteswap()
    return values


def unpack_all(code: str, raw: bytes) -> Sequence[int]:
    """What `fixed` packed, of any length. Raises as `unpack`.

    Args:
        raw: as a database returned it; of another type where it is damaged.
    """
    try:
        length = len(raw) // _WIDTHS[code]
    except TypeError:
        raise ValueError("a column of another type") from None
    return unpack(code, raw, length)


def fixed(code: str, values: Sequence[int]) -> bytes:
    """`values` in the width that `code` names."""
    column = array(code, values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def places(column: Sequence[int], wanted: int) -> Iterator[int]:
    """Where a value stands in a column that was unpacked. O(n), in C."""
    width = column.itemsize if isinstance(column, array) else 1
    if wanted >> 8 * width:
        return
    raw = column.tobytes() if isinstance(column, array) else bytes(column)
    needle = wanted.to_bytes(width, sys.byteorder)
    at = raw.find(needle)
    while at >= 0:
        if at % width == 0:
            yield at // width
        at = raw.find(needle, at + 1)


def is_one(column: Sequence[int]) -> bool:
    """Whether each value of a column that was unpacked is 1. O(n), at the speed of memory."""
    ones = b"\1" * len(column)
    return isinstance(column, array) and column.itemsize == 1 and column.tobytes() == ones


def is_zero(column: Sequence[int]) -> bool:
    """Whether `pack` found nothing but 0 in a column that was unpacked."""
    return isinstance(column, bytes)
