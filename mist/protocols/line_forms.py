"""How deliveries look on the line protocol, plainly and with escapes."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mist.message import Entry, Message
from mist.protocols import WireForm

__all__ = ["ESCAPED", "PLAIN", "EscapedLines", "PlainLines", "read_escaped"]

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES: Final = (
    (b"\\", b"\\\\"),  # first, so that it doesn't escape the others' escapes
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
)


class PlainLines(WireForm):
    """`publish TAGS DATA`, the data untouched; a message whose data holds LF is left out."""

    name = "line"
    passes_lines = True

    def pieces(self, entries: Sequence[Entry]) -> list[bytes]:
        found = []
        for tag_list, wire, count in entries:
            if count == 1:
                if wire.find(b"\n") == len(wire) - 1:
                    found.append(wire)
            else:
                head = tag_list.head
                found += [b"%b%b\n" % (head, data) for data in tag_list.split(wire, count)]
        return found

    def join(self, entries: Sequence[Entry], *, framable: bool) -> tuple[bytes, int]:
        if not framable:
            return super().join(entries, framable=framable)
        if len(entries) == 1:
            return entries[0][1], entries[0][2]
        return b"".join([entry[1] for entry in entries]), sum([entry[2] for entry in entries])


class EscapedLines(WireForm):
    r"""`publish TAGS DATA` with `\\`, `\n`, `\r` for backslash, LF and CR in the data."""

    name = "line-escaped"

    def pieces(self, entries: Sequence[Entry]) -> list[bytes]:
        found = []
        for tag_list, wire, count in entries:
            for data in tag_list.split(wire, count):
                for plain, escaped in _ESCAPES:
                    data = data.replace(plain, escaped)
                found.append(b"%b%b\n" % (tag_list.head, data))
        return found


def read_escaped(wire: bytes) -> Iterator[Message]:
    """The messages in whole lines of `EscapedLines`."""
    for line in wire[:-1].split(b"\n"):
        _, tags, data = line.split(b" ", 2)
        yield Message(frozenset(tags.decode().split(",")), _ESCAPED.sub(_unescape, data))


def _unescape(match: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b"r": b"\r"}.get(match[1], match[1])


PLAIN: Final = PlainLines()
ESCAPED: Final = EscapedLines()
