r"""Where commands of the NATS protocol begin and end, and what is published in bulk. No I/O.

A command is a line, and behind `PUB` and `HPUB` a payload whose size the line announces. What
hasn't all come is kept from the command's first byte, and is looked at again only when there is
a line end in what came, or as much as was announced. So a byte at a time costs no more than its
copy.
"""

import re
from typing import Final

import attrs

from mist.commands import Invalid
from mist.errors import LineTooLong, ProtocolViolation
from mist.message import MAX_CREDENTIAL
from mist.protocols.subjects.commands import (
    Announced,
    InvalidField,
    parse_announcement,
    remembered_announcement,
)
from mist.wire import Batch, records

__all__ = [
    "MAX_CONNECT_LINE",
    "MAX_CONTROL_LINE",
    "PUBLISHING",
    "Cut",
    "Framing",
    "FramingLost",
    "cut_batch",
]

MAX_CONTROL_LINE: Final = 4096  # bytes, its end not counted
MAX_CONNECT_LINE: Final = MAX_CONTROL_LINE + MAX_CREDENTIAL  # of a CONNECT
PUBLISHING: Final = frozenset({b"PUB", b"HPUB"})  # commands with a payload

_PUB: Final = b"PUB "
# Of letters that no rule is about, and shorter than any subject may be: valid without another look.
_PLAIN_LINE: Final = 200  # bytes
_PLAIN_PUBS: Final = re.compile(rb"(?:PUB (?:[\w$:=-]++\.){0,19}+[\w$:=-]++ [0-9]{1,7}+\n)++")
_BYTES: Final = [bytes((byte,)) for byte in range(256)]
_CONNECT: Final = re.compile(rb"CONNECT\s", re.IGNORECASE)
_FEW: Final = 4  # messages, up to which a chunk is as well read one by one


class FramingLost(ProtocolViolation):
    """From here on nobody can tell what is a command and what is payload.

    Attributes:
        invalid: the command that it began with, and what is wrong.
        line: its beginning.
    """

    def __init__(self, invalid: Invalid, line: bytes = b"") -> None:
        super().__init__()
        self.invalid = invalid
        self.line = line


@attrs.define
class Cut:
    """One command.

    Attributes:
        word: its name in upper case; empty for an empty line.
        line: its line, which may have a CR at its end.
        end: where the next one begins.
        announced: what a line that announces a payload says; `Invalid` where it can't be told
            whether there is any. None for all others.
        payload: as announced.
    """

    word: bytes
    line: bytes
    end: int
    announced: Announced | Invalid | None = None
    payload: bytes = b""


class Framing:
    """Cuts what one peer sends.

    Args:
        limit: bytes of payload.
    """

    __slots__ = ("_held", "_limit", "_wanted")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._wanted = 0  # bytes of a command that is held; 0 where its line has yet to end

    @property
    def held(self) -> int:
        """Bytes kept of a command that has not all come."""
        return len(self._held)

    def take(self, data: bytes) -> bytes:
        """What there is to cut, now that `data` has come; empty where it makes no difference."""
        held = self._held
        if not held:
            return data
        held += data
        if len(held) < self._wanted:
            return b""
        if not self._wanted and b"\n" not in data and len(held) <= MAX_CONTROL_LINE + 1:
            return b""
        data = bytes(held)
        held.clear()
        self._wanted = 0
        return data

    def cut(self, data: bytes, start: int, *, payloads: bool) -> Cut | None:
        """The command at `start`; None where not all of it has come, and it is kept.

        Args:
            payloads: whether payloads are waited for. Else a line that announces one is a line.

        Raises:
            FramingLost: there is nothing to be cut any more.
        """
        end = data.find(b"\n", start, start + MAX_CONTROL_LINE + 2)
        if end < 0:
            most = MAX_CONTROL_LINE
            if _CONNECT.match(data, start):
                most = MAX_CONNECT_LINE
                end = data.find(b"\n", start, start + most + 2)
        if end < 0:
            if len(data) - start > most + 1:
                line = data[start : start + MAX_CONTROL_LINE]
                raise FramingLost(Invalid(LineTooLong()), line)
            self._held += data[start:]
            return None
        line = data[start:end]
        fields = line.split(None, 1)
        word = fields[0].upper() if fields else b""
        if word not in PUBLISHING or not payloads:
            return Cut(word, line, end + 1)
        announced = parse_announcement(line, self._limit)
        if isinstance(announced, Invalid):
            return Cut(word, line, end + 1, announced)
        if announced.size > self._limit:
            assert announced.error is not None
            raise FramingLost(Invalid(announced.error, announced.name))
        stop = end + 1 + announced.size
        ending = data[stop : stop + 2]
        if ending == b"\r\n":
            return Cut(word, line, stop + 2, announced, data[end + 1 : stop])
        if ending.startswith(b"\n"):
            return Cut(word, line, stop + 1, announced, data[end + 1 : stop])
        if ending not in (b"", b"\r"):
            error = InvalidField("message is not as long as announced")
            raise FramingLost(Invalid(error, announced.name))
        self._held += data[start:]
        self._wanted = stop - start + len(ending) + 1
        return None


def cut_batch(data: bytes, limit: int, *, alike: bool) -> tuple[Batch, int] | None:
    """The publishes that a chunk begins with as one batch, and where they end.

    Args:
        limit: bytes of payload.
        alike: whether to stop at another subject.

    Returns:
        None where reading command by command is the way, be there publishes or not.
    """
    if not data.startswith(_PUB):
        return None
    end = data.find(b"\n", 0, MAX_CONTROL_LINE + 1)
    if end < 0:
        return None
    first = parse_announcement(data[:end], limit)
    if not isinstance(first, Announced) or not first.plain:
        return None
    if found := _uniform(data, data[: end + 1], first):
        return found
    if not alike and (found := _plain(data, limit)):
        return found
    return _various(data, limit, alike)


def _uniform(data: bytes, head: bytes, first: Announced) -> tuple[Batch, int] | None:
    """Messages of one subject and size, as far as they fill the chunk.

    Such a chunk is a table, whose columns are looked at one by one and rows not at all: a byte
    of the announcement, the same in all rows; then the payload; and its end. The line feeds in
    those columns are all that there are, so that none is in a payload.
    """
    size, width = first.size, len(head) + first.size + 2
    count = len(data) // width
    if count <= _FEW or not data.startswith(head, (count - 1) * width):
        return None
    end = count * width
    if data.count(b"\n", 0, end) != 2 * count:
        return None
    for column, byte in enumerate(head):
        if data[column:end:width] != _BYTES[byte] * count:
            return None
    if data[width - 2 : end : width] + data[width - 1 : end : width] != (
        b"\r" * count + b"\n" * count
    ):
        return None
    payloads = [data[start : start + size] for start in range(len(head), end, width)]
    wire = b"%b%b\n" % (first.head, (b"\n" + first.head).join(payloads))
    return Batch((first.tag_list,), (wire, count)), end


def _plain(data: bytes, limit: int) -> tuple[Batch, int] | None:
    """The messages that a chunk begins with, if their subjects are plain: one look for all.

    Lines are taken to be announcements and payloads, in turns. Where each announcement is valid
    and each payload of the length announced, that is what they are.
    """
    lines = data.split(b"\r\n")
    some = (len(lines) - 1) // 2
    heads = lines[0 : 2 * some : 2]
    if some <= _FEW or max(map(len, heads)) > _PLAIN_LINE:
        return None
    plain = _PLAIN_PUBS.match(b"\n".join([*heads, b""]))
    if plain is None:
        return None
    fields = plain[0].replace(b"\n", b" ").split(b" ")
    subjects, sizes = fields[1::3], list(map(int, fields[2::3]))
    count = len(sizes)
    if plain.end() != sum(map(len, heads[:count])) + count:
        return None  # a line feed alone ends one of them
    payloads = lines[1 : 2 * count : 2]
    if list(map(len, payloads)) != sizes or max(sizes) > limit:
        return None
    end = plain.end() + sum(sizes) + 3 * count
    if data.count(b"\n", 0, end) != 2 * count:  # data holds others
        return None
    return _batch_of([b"." + subject for subject in subjects], payloads), end


def _batch_of(tag_lists: list[bytes], datas: list[bytes]) -> Batch:
    """A message for each of these tag lists and data."""
    if len(set(tag_lists)) == 1:
        return Batch(tag_lists[:1], (records(tag_lists, datas), len(datas)))
    return Batch.of_columns(tag_lists, datas)


def _various(data: bytes, limit: int, alike: bool) -> tuple[Batch, int] | None:
    """Messages up to the first that isn't what it seems.

    Lines are cut all at once, in turn an announcement and its payload; which can't be told from
    publishes with line feeds in their data, so every line is held against what it should be.
    """
    lines = data.split(b"\n")
    count = (len(lines) - 1) // 2
    if count <= _FEW:
        return None
    tag_lists: list[bytes] = []
    datas: list[bytes] = []
    end = 0
    for head, payload in zip(lines[0 : 2 * count : 2], lines[1 : 2 * count : 2], strict=True):
        if not head.startswith(_PUB) or len(head) > MAX_CONTROL_LINE:
            break
        announced = remembered_announcement(head, limit)
        if type(announced) is not Announced or not announced.plain:
            break
        if len(payload) != announced.size + 1 or not payload.endswith(b"\r"):
            break
        if alike and tag_lists and announced.tag_list != tag_lists[0]:
            break
        tag_lists.append(announced.tag_list)
        datas.append(payload[:-1])
        end += len(head) + len(payload) + 2
    if not tag_lists:
        return None
    return _batch_of(tag_lists, datas), end
