"""What one subscriber got: whether it is what was sent, in order, once.

While all is well this is one comparison a chunk (of one publisher) or a run (of several). Only
where bytes differ from the script are messages looked at one by one, to say what happened:

lost       a number was skipped and never came
reordered  it came after a later one of the same publisher
repeated   it came again
"""

import re
from collections.abc import Sequence
from typing import Final

from mist.bench.dialect import Dialect
from mist.bench.errors import UnexpectedBytes
from mist.bench.script import DIGITS, LETTERS, Script

__all__ = ["Receiver"]

_RUNS: Final = re.compile(rb"(.)\1*", re.DOTALL)
_AHEAD: Final = 7 / 8  # of a cycle: a number up to that far ahead was skipped to, else went back
_INDEX: Final = {ord(letter): n for n, letter in enumerate(LETTERS)}


class Receiver:
    """Checks and counts one subscriber's deliveries.

    Args:
        scripts: of every publisher, in the order of their numbers; deliveries of one size.
        dialect: how the subscriber is spoken to.

    Attributes:
        received: different messages, of all publishers.
        repeated: messages that had come before.
        reordered: messages that came after a later one.
        fences: proofs that came, one for each fence.
    """

    def __init__(self, scripts: Sequence[Script], dialect: Dialect) -> None:
        self.received = 0
        self.repeated = 0
        self.reordered = 0
        self.fences = 0
        self._scripts = scripts
        self._dialect = dialect
        self._size = scripts[0].delivery_size
        self._mark = scripts[0].mark
        self._next = [0] * len(scripts)  # number expected of each publisher, over all cycles
        self._gaps: list[list[tuple[int, int]]] = [[] for _ in scripts]  # [from, to) skipped
        self._partial = 0  # bytes of the next message that came and were right: one publisher
        self._rest = b""  # bytes of the next message, or of something else: not compared yet

    def begin(self, publisher: int, number: int) -> None:
        """Expect a publisher's message `number` first, since those before went to others."""
        self._next[publisher] = number

    @property
    def unread(self) -> bytes:
        """What came and is no whole delivery: perhaps an error message."""
        return self._rest

    def feed(self, data: memoryview) -> bytes:
        """Take what arrived, at most a chunk; what to answer is returned, mostly nothing.

        O(bytes) at the speed of memcmp; some 2 µs a message where something is wrong.

        Raises:
            UnexpectedBytes: something that is neither a delivery nor known otherwise.
        """
        if self._rest:
            return self._runs(self._rest + data)
        if len(self._scripts) > 1:
            return self._runs(bytes(data))
        script = self._scripts[0]
        size, number = self._size, self._next[0]
        start = number % script.cycle * size + self._partial
        if script.delivery.startswith(data, start):
            whole, self._partial = divmod(self._partial + len(data), size)
            self._next[0] = number + whole
            self.received += whole
            return b""
        before = script.delivery[start - self._partial : start]
        self._partial = 0
        return self._walk(before + data)

    def _runs(self, data: bytes) -> bytes:
        """Take whole messages in runs of one publisher; of anything else, one by one."""
        size = self._size
        self._rest = b""
        whole = len(data) // size * size
        view = memoryview(data)
        for run in _RUNS.finditer(data[self._mark : whole : size]):
            first, end = run.span()
            publisher = _INDEX.get(run[0][0], len(self._scripts))
            if publisher >= len(self._scripts):
                return self._walk(data[first * size :])
            script, number = self._scripts[publisher], self._next[publisher]
            start = number % script.cycle * size
            if not script.delivery.startswith(view[first * size : end * size], start):
                return self._walk(data[first * size :])
            self._next[publisher] = number + end - first
            self.received += end - first
        if whole < len(data):
            return self._walk(data[whole:])
        return b""

    def _walk(self, data: bytes) -> bytes:
        """Take one thing after the other; keep what isn't whole."""
        dialect, size = self._dialect, self._size
        answers = b""
        position = 0
        while position < len(data):
            if data.startswith(dialect.fenced, position):
                self.fences += 1
                position += len(dialect.fenced)
            elif (control := dialect.control(data, position)) is not None:
                position += control[0]
                answers += control[1]
            elif len(data) - position < size:
                break
            else:
                self._take(data[position : position + size])
                position += size
                if self._agrees(data, position):
                    break
        self._rest = data[position:]
        if self._rest and self._agrees(data, position):
            rest = memoryview(self._rest)
            self._rest = b""
            self.feed(rest)
        return answers

    def _agrees(self, data: bytes, position: int) -> bool:
        """Whether all that is left is what one publisher's script has next."""
        if len(self._scripts) > 1:
            return False
        script = self._scripts[0]
        start = self._next[0] % script.cycle * self._size
        return script.delivery.startswith(memoryview(data)[position:], start)

    def _take(self, delivery: bytes) -> None:
        """Take one message, whichever it is."""
        mark = self._mark
        publisher = _INDEX.get(delivery[mark], len(self._scripts))
        digits = delivery[mark + 1 : mark + 1 + DIGITS]
        if publisher >= len(self._scripts) or not digits.isdigit():
            raise UnexpectedBytes(delivery)
        script, expected = self._scripts[publisher], self._next[publisher]
        if not script.delivery.startswith(delivery, int(digits) % script.cycle * self._size):
            raise UnexpectedBytes(delivery)
        ahead = (int(digits) - expected) % script.cycle
        number = expected + ahead
        if ahead > _AHEAD * script.cycle and number >= script.cycle:
            self._take_late(publisher, number - script.cycle)
            return
        if ahead:
            self._gaps[publisher].append((expected, number))
        self._next[publisher] = number + 1
        self.received += 1

    def _take_late(self, publisher: int, number: int) -> None:
        gaps = self._gaps[publisher]
        for index, (first, end) in enumerate(gaps):
            if first <= number < end:
                parts = [(first, number), (number + 1, end)]
                gaps[index : index + 1] = [part for part in parts if part[0] < part[1]]
                self.reordered += 1
                self.received += 1
                return
        self.repeated += 1
