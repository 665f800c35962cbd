"""What JSON objects ask for, read many at once; and publishes gathered to batches.

Most objects are publishes, and most publishes in a row have the same tags. There are three ways
to read them, each tried where the one before it can't be gone:

* *Alike* (`read_alike`): they differ in nothing but their data, and that needs no decoding. A few
  counts prove it, and then lines are made of all of them in one go.
* *Many* (`read_many`): one call of msgspec for all of them.
* *One by one*: `mist.protocols.json.objects`, and `json_commands.read_one`.
"""

from typing import Final

import attrs
import msgspec

from mist.wire import RECORD_START, Batch

__all__ = ["Alike", "Gathering", "Request", "read_alike", "read_many"]

_START: Final = RECORD_START.decode()
_DATA: Final = b'"data":"'
_BLANK: Final = b" \t\r\n"
_ESCAPED: Final = bytes(range(0x20)) + b'"\\'  # in strings, always


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
    if not first or first[0].command != "publish":
        return None
    tag_list = _tag_list(first[0].tags)
    # Parted by as little as will do: searching for something long again and again is slow, but
    # counting it is not. Behind each of these there is the rest of a head.
    divider = objects[end : second + 1]
    try:
        parts = objects[:-2].decode().split(divider.decode())
        skipped = len(head.decode()) - 1
    except UnicodeDecodeError:
        return None
    if objects.count(divider + head[1:]) != len(parts) - 1:
        return None
    messages = [part[skipped:] for part in parts]
    messages[0] = messages[0][1:]
    data = "".join(messages).encode()
    if tag_list is None or len(data.translate(None, _ESCAPED)) != len(data):
        return None
    line = f"{_START}{tag_list} "
    return Alike(tag_list, line + f"\n{line}".join(messages) + "\n", len(messages))


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

    __slots__ = ("_alike", "_count", "_head", "_runs", "_tag_list", "_tags")

    def __init__(self) -> None:
        self._tags: list[str] | None = None  # of the newest one, and what is made of them
        self._tag_list = b""
        self._head = ""
        self._runs: list[tuple[bytes, str, int]] = []  # as in a batch, but for the text
        self._count = 0
        self._alike = True  # whether all have the same tags

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, request: Request) -> bool:
        """Add a publish; whether it could be: `parse_request` says what is wrong with it."""
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
        self._turn_to(alike.tag_list)
        self._runs.append((self._tag_list, alike.lines, alike.count))
        self._count += alike.count

    def _turn_to(self, tag_list: str) -> None:
        encoded = tag_list.encode()
        self._alike = self._alike and (not self._runs or encoded == self._tag_list)
        self._tags = None
        self._tag_list = encoded
        self._head = f"{_START}{tag_list} "

    def batch(self) -> Batch:
        """All that was added, at least one."""
        wire = "".join([text for _, text, _ in self._runs]).encode()
        if wire.count(b"\n") == self._count:
            whole = wire, self._count
            if self._alike:
                return Batch((self._tag_list,), whole)
            return Batch([tags for tags, _, count in self._runs for _ in range(count)], whole)
        runs = [(tags, text.encode(), count) for tags, text, count in self._runs]
        return Batch.of_runs(runs, framable=False)
