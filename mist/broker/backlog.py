"""The backlog of a send queue: bytes and messages for one peer, bounded, first in, first out.

    put     deliveries; refused where they don't fit
    append  what has to go out in any case; the caller minds the bounds
    peek    the next bytes to write, joined
    sent    so many of them were written

Queued bytes are shared between peers: a message has one bytes object for a wire form, however
many get it. What happens to a delivery that doesn't fit, and who may queue more than that, is up to
`outbox`; an outbox is a backlog rather than having one: `put` is called for each delivery, and
a call in between would cost as much again.
"""

from collections.abc import Callable, MutableSequence
from typing import Any, Final

__all__ = ["BURST", "Backlog", "Written"]

BURST: Final = (
    262_144  # bytes that one peek joins, so that a long queue isn't copied for each write
)


class Written:
    """What many backlogs have handed to the kernel together, those that are gone included.

    So that rates are known without a walk over all sessions.

    Attributes:
        messages, bytes: as `sent_messages` and `sent_bytes` of a backlog.
    """

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class Backlog:
    """See the module.

    Args:
        max_bytes, max_messages: bounds of what `put` takes. Negative ones have it take nothing.
        ready: the list that this enters when it has something to flush.
        written: counts what this sends, with others; None where nobody wants to know.

    Attributes:
        is_ready: whether it is in there.
        size, queued: bytes and messages waiting.
        on_room: where set, called when something was written.
        writing: bytes that were peeked, and are being written by somebody who waits for that.
        sent_bytes, sent_messages: wholly handed to the kernel, ever since.
    """

    __slots__ = (
        "_counts",
        "_max_bytes",
        "_max_messages",
        "_offset",
        "_ready",
        "_wires",
        "_written",
        "is_ready",
        "on_room",
        "queued",
        "sent_bytes",
        "sent_messages",
        "size",
        "writing",
    )

    def __init__(
        self,
        max_bytes: int,
        max_messages: int,
        ready: MutableSequence[Any],
        written: Written | None = None,
    ) -> None:
        self.is_ready = False
        self.size = 0  # bytes queued
        self.queued = 0  # messages queued
        self.writing = 0
        self.sent_bytes = 0
        self.sent_messages = 0
        self.on_room: Callable[[], None] | None = None
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._ready = ready
        self._written = written or Written()
        # Lists rather than deques: an empty deque holds 600 bytes, and most outboxes are
        # empty. They are emptied from the front a burst at a time, which a list does well.
        self._wires: list[bytes] = []
        self._counts: list[int] = []  # some of them `Queued`, see there
        self._offset = 0  # bytes of _wires[0] that are written already

    def __len__(self) -> int:
        """Bytes queued."""
        return self.size

    def put(self, wire: bytes, count: int) -> bool:
        """Queue `count` messages, joined in `wire`, or refuse them all. O(1), never waits."""
        size = self.size + len(wire)
        queued = self.queued + count
        if size > self._max_bytes or queued > self._max_messages:
            return False
        self.size = size
        self.queued = queued
        self._wires.append(wire)
        self._counts.append(count)
        if not self.is_ready:
            self.is_ready = True
            self._ready.append(self)
        return True

    def append(self, wire: bytes, count: int) -> None:
        """Queue `count` messages, joined in `wire`, however much is queued."""
        self.size += len(wire)
        self.queued += count
        self._wires.append(wire)
        self._counts.append(count)
        if not self.is_ready:
            self.is_ready = True
            self._ready.append(self)

    def peek(self) -> bytes | memoryview:
        """The next bytes to write: all that is queued, or its first `BURST` bytes or so.

        A message larger than that comes whole. Empty when nothing is queued.
        """
        wires = self._wires
        if not wires:
            return b""
        if self._offset:
            return memoryview(wires[0])[self._offset :]
        if len(wires) == 1:
            return wires[0]
        if self.size <= BURST:
            return b"".join(wires)
        total = 0
        for n, wire in enumerate(wires):
            total += len(wire)
            if total > BURST:
                return b"".join(wires[: n or 1])
        return b"".join(wires)

    def sent(self, written: int) -> None:
        """Forget the first `written` bytes queued; the peer has them as far as we can know.

        A joined run counts as queued until all of it is written.
        """
        self.sent_bytes += written
        together = self._written
        together.bytes += written
        if written == self.size:
            self.sent_messages += self.queued
            together.messages += self.queued
            self.size = self.queued = self._offset = 0
            self._wires.clear()
            self._counts.clear()
            if self.on_room is not None:
                self.on_room()
            return
        self.size -= written
        left = written + self._offset
        done = 0
        for wire in self._wires:
            if len(wire) > left:
                break
            left -= len(wire)
            done += 1
        messages = sum(self._counts[:done])
        self.sent_messages += messages
        together.messages += messages
        self.queued -= messages
        self._offset = left
        del self._wires[:done]
        del self._counts[:done]
        if self.on_room is not None:
            self.on_room()

    def note_sent(self, messages: int, size: int) -> None:
        """Count what went another way than through this backlog; `size` is bytes."""
        self.sent_messages += messages
        self.sent_bytes += size
        self._written.messages += messages
        self._written.bytes += size

    @property
    def partial(self) -> tuple[bytes, int, int]:
        """What is queued first: its bytes, how many of them are written, and its messages."""
        return (self._wires[0], self._offset, self._counts[0]) if self._wires else (b"", 0, 0)

    def cut(self) -> list[int]:
        """Forget what is queued and not begun to be written; the counts of its messages."""
        staying = 0
        begun = self._offset + self.writing
        for wire in self._wires:
            if begun <= 0:
                break
            begun -= len(wire)
            staying += 1
        counts = self._counts[staying:]
        self.size -= sum(map(len, self._wires[staying:]))
        self.queued -= sum(counts)
        del self._wires[staying:]
        del self._counts[staying:]
        return counts

    def empty(self) -> None:
        """Forget what is queued, without counting it as sent."""
        self.size = self.queued = self._offset = 0
        self._wires.clear()
        self._counts.clear()
