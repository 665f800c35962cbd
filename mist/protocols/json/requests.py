"""What JSON objects ask for, read many at once; and publishes gathered to batches.

Most objects are publishes, and most publishes in a row have the same tags. There are four ways
to read them, each tried where the one before it can't be gone:

* *Alike* (`read_alike`): they differ in nothing but their data, and that needs no decoding. A few
  counts prove it, and then lines are made of all of them in one go.
* *Similar* (`read_similar`): they differ in tags and data, and these need no decoding.
* *Many* (`read_many`): one call of msgspec for all of them.
* *One by one*: `mist.protocols.json.objects`, and `json_commands.read_one`.
"""

import re
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from mist.protocols.listing import has_escapes
from mist.wire import RECORD_START, Batch

__all__ = [
    "Alike",
    "Gathering",
    "Request",
    "Similar",
    "read_alike",
    "read_many",
    "read_similar",
]

_START: Final = RECORD_START.decode()
_DATA: Final = b'"data":"'
_BLANK: Final = b" \t\r\n"
# A publish: up to its first tag, between the last one and its data, and behind that.
_SHAPE: Final = re.compile(
    rb'(\{[^\[\]\\]{0,64}+\[[ \t]*")[^"\\]*+(?:"[ \t]*,[ \t]*"[^"\\]*+)*+'
    rb'("[ \t]*\][^\[\]\\]{0,64}?"data"[ \t]*:[ \t]*")[^"\\]*+'
    rb'("[^\[\]{}\\]{0,64}+\}[ \t\r\n]*+)'
)


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """What an object asks for. Null is as good as nothing.

    Attributes:
        command: what is to be done.
        tags: of the message, the subscription, the token.
        data: the message's data, the token, the secret.
    """

    command: str | None = None
    tags: list[str] | None = None
    data: str | None = None

    def __repr__(self) -> str:
        # `data` may be a secret or a token, which no log line shall hold.
        return f"Request(command={self.command!r})"


@attrs.frozen
class Similar:
    """Publishes of various tags.

    Attributes:
        tag_lists: of each, as written, tags joined by commas.
        datas: of each; none holds LF.
    """

    tag_lists: Sequence[bytes]
    datas: Sequence[bytes]


@attrs.frozen
class Alike:
    """Publishes with the same tags.

    Attributes:
        tag_list: as written, tags joined by commas.
        lines: the records of all of them.
        count: how many they are.
    """

    tag_list: str
    lines: str
    count: int


def read_alike(objects: bytes) -> Alike | None:
    """Publishes that differ in nothing but data which is written as it is.

    Each begins with the same bytes, up to its data, and ends with the same behind it. What stands
    between holds no quote, no backslash and nothing that JSON writes as an escape, so it is one
    string, and what that string says.

    Returns:
        None where they are others, or only one: then nothing has been proven.
    """
    objects = objects.strip(_BLANK)
    start = objects.find(_DATA) + len(_DATA)
    head = objects[:start]
    end = objects.find(b'"', start)
    second = objects.find(head, end)
    if start < len(_DATA) or second < 0 or not objects.endswith(b'"}'):
        return None
    if objects[end:second].rstrip(_BLANK) != b'"}':
        return None
    first = read_many(head + b'"}')
    if first is None or len(first) != 1 or first[0].command != "publish":
        return None  # several: what has data begins only behind others that have none
    tag_list = _tag_list(first[0].tags)
    # Parted by as little as will do: searching for something long again and again is slow, but
    # counting it is not. Behind each of these there is the rest of a head.
    divider = objects[end : second + 1]
    try:
        parts = objects[:-2].decode().split(divider.decode())
        skipped = len(head.decode()) - 1
    except UnicodeDecodeError:
        return None
    # The last quote ends data, and doesn't begin it: of `"data":"}` the rest has yet to come.
    if objects.count(divider + head[1:], 0, len(objects) - 2) != len(parts) - 1:
        return None
    messages = [part[skipped:] for part in parts]
    messages[0] = messages[0][1:]
    data = "".join(messages).encode()
    if tag_list is None or has_escapes(data):
        return None
    line = f"{_START}{tag_list} "
    return Alike(tag_list, line + f"\n{line}".join(messages) + "\n", len(messages))


def read_similar(objects: bytes) -> Similar | None:
    """Publishes that differ in nothing but tags and data which are written as they are.

    All are the same up to the first tag, between the last one and the data, and behind that, and
    that makes a publish of any tags and data. What stands in between holds no quote but those
    between tags, no backslash and nothing else that JSON writes as an escape.

    Returns:
        None where they are others, or only one: then nothing has been proven.
    """
    objects = objects.strip(_BLANK)
    shape = _SHAPE.match(objects)
    if shape is None:
        return None
    head, between, end = shape.groups()
    tail = end.rstrip(_BLANK)
    comma = b'", "' if b'", "' in objects else b'","'
    publish = read_many(b"%ba%bb%bc%b" % (head, comma, between, tail))
    if publish != [Request("publish", ["a", "b"], "c")] or not objects.endswith(tail):
        return None
    parts = objects[len(head) : -len(tail)].split(end + head)
    try:
        lists, datas = zip(*[part.split(between) for part in parts], strict=True)
        objects.decode()
    except (ValueError, UnicodeDecodeError):  # one is another object, or no text
        return None
    arrays = b"\n".join(lists)
    text = arrays.replace(comma, b",")
    if len(parts) == 1 or text.count(b",") != arrays.count(comma):  # a tag holds a comma
        return None
    if has_escapes(text.replace(b"\n", b"")) or has_escapes(b"".join(datas)):
        return None
    tag_lists = text.split(b"\n")
    return Similar(tag_lists, datas) if len(tag_lists) == len(datas) else None


def _tag_list(tags: list[str] | None) -> str | None:
    """Tags joined by commas; None where there are none, or where that would not be the same."""
    if not tags:
        return None
    tag_list = ",".join(tags)
    # A tag that holds one of these would be two, or end the line that stands for the message.
    # Whether tags keep the other rules is seen where they are resolved.
    return None if "\n" in tag_list or tag_list.count(",") != len(tags) - 1 else tag_list


_decode_many: Final = msgspec.json.Decoder(Request).decode_lines


def read_many(objects: bytes) -> list[Request] | None:
    """What whole objects ask for, white space between them or not; the way to read many fast.

    Returns:
        None where they aren't all whole, or where one of them has to be looked at alone
        (`read_one`): it has a field of another name or type, or is no object.
    """
    try:
        return _decode_many(objects)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Gathering:
    """Publishes in a row, on their way to be one batch."""

    __slots__ = ("_alike", "_count", "_head", "_runs", "_similar", "_tag_list", "_tags")

    def __init__(self) -> None:
        self._similar: Similar | None = None  # while there is nothing but these
        self._tags: list[str] | None = None  # of the newest one, and what is made of them
        self._tag_list = b""
        self._head = ""
        self._runs: list[tuple[bytes, str, int]] = []  # as in a batch, but for the text
        self._count = 0
        self._alike = True  # whether all have the same tags

    def __bool__(self) -> bool:
        return bool(self._runs) or self._similar is not None

    def add(self, request: Request) -> bool:
        """Add a publish; whether it could be: `parse_request` says what is wrong with it."""
        self._spell_out()
        if request.tags != self._tags or not self._tags:
            tag_list = _tag_list(request.tags)
            if tag_list is None:
                return False
            self._turn_to(tag_list)
            self._tags = request.tags
        self._runs.append((self._tag_list, f"{self._head}{request.data or ''}\n", 1))
        self._count += 1
        return True

    def add_all(self, alike: Alike) -> None:
        """Add publishes that have the same tags."""
        self._spell_out()
        self._turn_to(alike.tag_list)
        self._runs.append((self._tag_list, alike.lines, alike.count))
        self._count += alike.count

    def add_similar(self, similar: Similar) -> None:
        """Add publishes of various tags."""
        before = self._as_similar()
        if before is None:
            self._spell_out()
            self._spell(similar)
            return
        tag_lists = [*before.tag_lists, *similar.tag_lists]
        self._similar = Similar(tag_lists, [*before.datas, *similar.datas])
        self._runs.clear()
        self._count = 0

    def _as_similar(self) -> Similar | None:
        """What was added so far, mostly the one object that a read completes; None for runs."""
        if self._similar is not None:
            return self._similar
        if any(count > 1 for _, _, count in self._runs):
            return None
        wire = [text.encode() for _, text, _ in self._runs]
        datas = [
            line[len(RECORD_START) + len(tags) + 1 : -1]
            for (tags, _, _), line in zip(self._runs, wire, strict=True)
        ]
        if any(b"\n" in data for data in datas):
            return None
        return Similar([tags for tags, _, _ in self._runs], datas)

    def _spell_out(self) -> None:
        """Have what was added so far in runs, to add others to it."""
        similar, self._similar = self._similar, None
        if similar is not None:
            self._spell(similar)

    def _spell(self, similar: Similar) -> None:
        for tag_list, data in zip(similar.tag_lists, similar.datas, strict=True):
            self._turn_to(tag_list.decode())
            self._runs.append((tag_list, f"{self._head}{data.decode()}\n", 1))
        self._count += len(similar.datas)

    def _turn_to(self, tag_list: str) -> None:
        encoded = tag_list.encode()
        self._alike = self._alike and (not self._runs or encoded == self._tag_list)
        self._tags = None
        self._tag_list = encoded
        self._head = f"{_START}{tag_list} "

    def batch(self) -> Batch:
        """All that was added, at least one."""
        if self._similar is not None:
            return Batch.of_columns(self._similar.tag_lists, self._similar.datas)
        wire = "".join([text for _, text, _ in self._runs]).encode()
        if wire.count(b"\n") == self._count:
            whole = wire, self._count
            if self._alike:
                return Batch((self._tag_list,), whole)
            return Batch([tags for tags, _, count in self._runs for _ in range(count)], whole)
        runs = [(tags, text.encode(), count) for tags, text, count in self._runs]
        return Batch.of_runs(runs, framable=False)
