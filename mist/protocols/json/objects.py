r"""Where JSON objects end in a stream of bytes (RFC 8259), whatever pieces they come in.

Decoding is msgspec's business; it wants an object whole. This finds the end of each, and finds
out as early as a person at `nc` would wish that no object will come of it:

* *Every byte is looked at once.* What has begun and not ended is kept in one buffer, and a scan
  goes on where the last one stopped. So an object that comes byte by byte costs no more than
  its length, and one without end no more memory than the limit: then it is skipped.
* *What it says doesn't depend on the pieces.* It follows the grammar, but for what is in
  strings, and never looks beyond the limit; so each error has one place in the stream.
* *Nesting is a list of small numbers*, with a bound, and not a recursion.
"""

import re
from typing import Final

from mist.errors import CommandError, LineTooLong

__all__ = ["MAX_DEPTH", "MAX_WORD", "InvalidJson", "ObjectReader"]

MAX_DEPTH: Final = 64  # objects and arrays inside each other; a command needs two
_STEP: Final = 4_096  # marks and words that are read at a time
MAX_WORD: Final = 512  # bytes of a number; one that long is a mistake, if not worse

_BRACE: Final = ord("{")
_BACKSLASH: Final = ord("\\")
_BLANK: Final = re.compile(rb"[ \t\r\n]*+")
_TOKEN: Final = re.compile(rb'[ \t\r\n]*+(?:([{}\[\]:,"])|([^ \t\r\n{}\[\]:,"]++))?')
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_WORD: Final = re.compile(
    rb"true|false|null|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
)
_BEGINNING_OF_WORD: Final = re.compile(
    rb"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|-"
    rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]*+|(?:\.[0-9]++)?[eE][-+]?[0-9]*+)?"
)
# A whole object that is flat but for arrays, as commands are. Grammar is left to who decodes it;
# what the scan would refuse in it without breaking the grammar, a long number, is not let by.
_FLAT: Final = re.compile(
    rb'\{(?:[^"{}\[\]]{1,512}+(?=["{}\[\]])|"(?:[^"\\\x00-\x1f]++|\\.)*+"'
    rb'|\[(?:[^"{}\[\]]{1,512}+(?=["{}\[\]])|"(?:[^"\\\x00-\x1f]++|\\.)*+")*+\])*+\}',
    re.DOTALL,
)

# What may come next.
_NOTHING: Final = 0  # between objects
_FIRST_KEY: Final = 1  # or the end of an object
_KEY: Final = 2
_COLON: Final = 3
_VALUE: Final = 4
_AFTER_VALUE: Final = 5
_FIRST_ITEM: Final = 6  # or the end of an array
_ITEM: Final = 7
_AFTER_ITEM: Final = 8

_AFTER: Final = {_VALUE: _AFTER_VALUE, _FIRST_ITEM: _AFTER_ITEM, _ITEM: _AFTER_ITEM}
_STEPS: Final = {
    (_FIRST_KEY, b'"'): _COLON,
    (_KEY, b'"'): _COLON,
    (_COLON, b":"): _VALUE,
    (_AFTER_VALUE, b","): _KEY,
    (_AFTER_ITEM, b","): _ITEM,
}
_ENDS: Final = frozenset(
    {(_FIRST_KEY, b"}"), (_AFTER_VALUE, b"}"), (_FIRST_ITEM, b"]"), (_AFTER_ITEM, b"]")}
)


class InvalidJson(CommandError):
    """What came is not a JSON object, nor the beginning of one. Nothing after it can be read."""

    code = "invalid_json"
    message = "Invalid json"


class ObjectReader:
    """Cuts a stream into objects, white space between them or not.

    Args:
        limit: bytes of one object; may be changed between two of them.

    Attributes:
        busy: whether `next` has stopped in the middle of what has come, having read for some
            milliseconds. Call it again.
    """

    __slots__ = (
        "_buffer",
        "_expected",
        "_in_string",
        "_outer",
        "_place",
        "_skipping",
        "_start",
        "busy",
        "limit",
    )

    def __init__(self, limit: int) -> None:
        self.busy = False
        self.limit = limit
        self._buffer: bytes | bytearray = b""
        self._start = 0  # of the object that has begun
        self._place = 0  # where to go on
        self._expected = _NOTHING
        self._outer: list[int] = []  # what is expected behind each object or array that is open
        self._in_string = False
        self._skipping = False  # inside an object that was too long

    @property
    def idle(self) -> bool:
        """Whether no object has begun."""
        return self._expected == _NOTHING

    @property
    def held(self) -> int:
        """Bytes kept."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take what has come. Call `next` until it has nothing more."""
        if self._buffer:
            self._buffer += data
        else:
            self._buffer = data
            self._start = self._place = 0

    def take(self) -> bytes:
        """All that has come, where no object has begun."""
        rest = bytes(self._buffer[self._place :])
        self._buffer = b""
        return rest

    def next(self) -> bytes | None:
        """The next object, or None where it has not come whole, or the reader is `busy`.

        Raises:
            LineTooLong: it is longer than the limit; said once, and it will be skipped.
            InvalidJson: there is none to come; nothing more can be read.
        """
        while True:
            if self._expected == _NOTHING:
                if not self._begin():
                    return None
                if flat := _FLAT.match(self._buffer, self._start, self._start + self.limit):
                    self._place = flat.end()
                    self._expected = self._outer.pop()
                    return bytes(flat[0])
            size = len(self._buffer)
            self.busy = False
            stop = size if self._skipping else min(size, self._start + self.limit)
            if self._scan(stop):
                if not self._skipping:
                    return bytes(self._buffer[self._start : self._place])
                self._skipping = False
            elif self.busy:
                return None
            elif stop < size:
                self._skipping = True
                raise LineTooLong
            else:
                self._trim()
                return None

    def _begin(self) -> bool:
        blank = _BLANK.match(self._buffer, self._place)
        assert blank is not None
        start = blank.end()
        if start == len(self._buffer):
            self._buffer = b""
            return False
        if self._buffer[start] != _BRACE:
            raise InvalidJson
        self._start = start
        self._place = start + 1
        self._expected = _FIRST_KEY
        self._outer.append(_NOTHING)
        return True

    def _trim(self) -> None:
        """Keep no more than what has begun; of what is skipped, no more than is still needed."""
        done = self._place if self._skipping else self._start
        if isinstance(self._buffer, bytearray):
            del self._buffer[:done]
        else:
            self._buffer = bytearray(self._buffer[done:])
        self._place -= done
        self._start = 0

    def _scan(self, stop: int) -> bool:
        """Go on up to `stop`, or to the object's end: whether that was found.

        Stops in between after some milliseconds, and is `busy` then.
        """
        buffer = self._buffer
        for _ in range(_STEP):
            if self._in_string and not self._end_string(stop):
                return False
            token = _TOKEN.match(buffer, self._place, stop)
            assert token is not None
            mark, word = token.groups()
            if mark is not None:
                self._place = token.end()
                if self._step(bytes(mark)):
                    return True
            elif word is None:
                self._place = token.end()
                return False
            elif not self._read_word(token.start(2), token.end(), stop):
                return False
        self.busy = True
        return False

    def _step(self, mark: bytes) -> bool:
        """Follow the grammar by one mark: whether the object has ended."""
        expected = self._expected
        after = _AFTER.get(expected)
        step = _STEPS.get((expected, mark))
        if step is not None:
            self._expected = step
            self._in_string = mark == b'"'
        elif (expected, mark) in _ENDS:
            self._expected = self._outer.pop()
            return self._expected == _NOTHING
        elif after is not None and mark == b'"':
            self._expected = after
            self._in_string = True
        elif after is not None and mark in b"{[":
            if len(self._outer) == MAX_DEPTH:
                raise InvalidJson
            self._outer.append(after)
            self._expected = _FIRST_KEY if mark == b"{" else _FIRST_ITEM
        else:
            raise InvalidJson
        return False

    def _read_word(self, start: int, end: int, stop: int) -> bool:
        """Follow the grammar by a number or a literal: whether it has ended."""
        after = _AFTER.get(self._expected)
        whole = end < stop
        pattern = _WORD if whole else _BEGINNING_OF_WORD
        if (
            after is None
            or end - start > MAX_WORD
            or not pattern.fullmatch(self._buffer, start, end)
        ):
            raise InvalidJson
        if whole:
            self._place = end
            self._expected = after
        else:
            self._place = start
        return whole

    def _end_string(self, stop: int) -> bool:
        """Find the end of the string that `_place` is in: whether it is there.

        `_place` never stands behind a backslash that escapes what comes next.
        """
        buffer, start = self._buffer, self._place
        end = start
        while (end := buffer.find(b'"', end, stop)) >= 0:
            if not _backslashes(buffer, start, end) % 2:
                break
            end += 1
        upto = stop if end < 0 else end
        if _CONTROL.search(buffer, start, upto):
            raise InvalidJson
        if end < 0:
            self._place = stop - _backslashes(buffer, start, stop) % 2
            return False
        self._place = end + 1
        self._in_string = False
        return True


def _backslashes(buffer: bytes | bytearray, start: int, end: int) -> int:
    """How many stand directly before `end`, not counting any before `start`."""
    place = end
    while place > start and buffer[place - 1] == _BACKSLASH:
        place -= 1
    return end - place
