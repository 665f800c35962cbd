r"""How deliveries look to a NATS client: `MSG subject sid [reply] size`, then the data.

    MSG foo.bar 7 5\r\nhello\r\n
    HMSG foo.bar 7 _INBOX.a.1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n

A subscription has an id that its client chose, its *sid*, and each delivery says it. Clients
count from 1, so that most of a thousand subscribers to one subject have the same: a form
belongs to a sid, not to a client, and all who have it share their bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from mist.addresses import is_subject
from mist.message import Envelope, TagSet
from mist.wire import Entry, TagList, WireForm

__all__ = [
    "HEADERS",
    "REPLY",
    "SubjectForm",
    "header_block",
    "message",
    "subject_form",
    "subject_of",
]

HEADERS: Final = "nats.headers"
"""The name under which an envelope holds a message's headers: the block as it was sent."""
REPLY: Final = "nats.reply"
"""Where an envelope holds the subject that answers go to."""

_SUBJECT: Final = "subject"  # where a tag list keeps what is made of it here


def subject_of(tags: TagSet) -> str:
    """The subject among published or asked-for tags, as NATS writes it; empty without one."""
    return next((tag[1:] for tag in tags if is_subject(tag)), "")


class SubjectForm(WireForm):
    """Deliveries to the subscriptions with one sid. Made by `subject_form`.

    Carries any data. A message that has no subject is left out.

    Args:
        sid: the client's name for its subscription.
        headers: whether the client understands headers; else it gets messages without.
    """

    name = "subjects"
    shows_envelope = True
    has_columns = True

    def __init__(self, sid: bytes, headers: bool) -> None:
        self._sid = sid
        self._headers = headers

    def count_whole(self, wire: bytes, end: int) -> int:
        found = at = 0
        while (start := wire.find(b"\r\n", at, end)) >= 0:
            size = int(wire[wire.rfind(b" ", at, start) + 1 : start])
            at = start + 2 + size + 2
            if at > end:
                break
            found += 1
        return found

    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        reply = headers = b""
        if envelope is not None and envelope.meta is not None:
            reply = envelope.meta.get(REPLY, b"")
            headers = envelope.meta.get(HEADERS, b"") if self._headers else b""
        found: list[bytes] = []
        for tag_list, wire, count in entries:
            if subject := _subject(tag_list):
                datas = tag_list.split(wire, count)
                found += [message(subject, self._sid, data, reply, headers) for data in datas]
        return found

    def join(
        self,
        entries: Sequence[Entry],
        *,
        framable: bool,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, int]:
        if envelope is not None and envelope.meta is not None:
            return super().join(entries, framable=framable, envelope=envelope)
        sid = self._sid
        found: list[bytes] = []
        total = 0
        for tag_list, wire, count in entries:
            subject = _subject(tag_list)
            if not subject:
                continue
            total += count
            if count == 1:
                data = wire[len(tag_list.head) : -1]
                found.append(b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(data), data))
                continue
            datas = tag_list.split(wire, count)
            start = b"MSG %b %b " % (subject, sid)
            if len(set(map(len, datas))) == 1:
                # What is published in one go is often of one size, and then it is one join.
                start += b"%d\r\n" % len(datas[0])
                found.append(b"%b%b\r\n" % (start, (b"\r\n" + start).join(datas)))
            else:
                found += [b"%b%d\r\n%b\r\n" % (start, len(data), data) for data in datas]
        return (found[0] if len(found) == 1 else b"".join(found)), total

    def join_columns(self, tag_lists: Sequence[bytes], datas: Sequence[bytes]) -> bytes | None:
        lists = b"\n" + b"\n".join(tag_lists)
        if b"," in lists or lists.count(b"\n.") != len(tag_lists):
            return None  # not each is a subject alone, as a client of this protocol publishes it
        subjects = lists[2:].split(b"\n.")
        sid = self._sid
        sizes = set(map(len, datas))
        if len(sizes) == 1:  # as of what is published in one go
            between = b" %b %d\r\n" % (sid, sizes.pop())
            messages = map(between.join, zip(subjects, datas, strict=True))
            return b"MSG %b\r\n" % b"\r\nMSG ".join(messages)
        return b"".join(
            [
                b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(data), data)
                for subject, data in zip(subjects, datas, strict=True)
            ]
        )


def message(subject: bytes, sid: bytes, data: bytes, reply: bytes, headers: bytes) -> bytes:
    """One delivery; `reply` and `headers` are empty where it has none."""
    start = b"%b %b %b " % (subject, sid, reply) if reply else b"%b %b " % (subject, sid)
    if headers:
        size = len(headers)
        return b"HMSG %b%d %d\r\n%b%b\r\n" % (start, size, size + len(data), headers, data)
    return b"MSG %b%d\r\n%b\r\n" % (start, len(data), data)


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as a client sends them; names and values without line breaks, in ASCII."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    return "".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode()


def _subject(tag_list: TagList) -> bytes:
    return tag_list.derive(_SUBJECT, _find_subject)


def _find_subject(tag_list: TagList) -> bytes:
    canonical = tag_list.canonical
    if b"," not in canonical:  # as a client of this protocol publishes it
        return canonical[1:] if canonical.startswith(b".") else b""
    return subject_of(tag_list.tags).encode()


_forms: Final[WeakValueDictionary[tuple[bytes, bool], SubjectForm]] = WeakValueDictionary()


def subject_form(sid: bytes, headers: bool = False) -> SubjectForm:
    """The form of the subscriptions with a sid: the same one for as long as anybody has it.

    So there are never more forms than subscriptions, and no client can push out another's.
    """
    found = _forms.get((sid, headers))
    if found is None:
        found = _forms[sid, headers] = SubjectForm(sid, headers)
    return found
