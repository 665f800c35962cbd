"""The terminal: another screen without a cursor, keys as they are pressed; left as it was.

It is left on every way out: the end, an error, Ctrl-C, SIGTERM, SIGHUP. While the process is
suspended (Ctrl-Z) the terminal is the shell's again.
"""

import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

import attrs

from mist.cli.top.screen import Line, Style

__all__ = ["Terminal", "open_terminal"]

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the alternate screen, no cursor, empty
_LEAVE: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_REST: Final = "\x1b[J"
# What a key sends that has no character, such as an arrow: none of ours (ECMA-48: CSI, SS3; or what
# is pressed with Alt). Several keys may come in one read.
_SEQUENCE: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]?|O.?|.?)", re.DOTALL)
_STYLES: Final = {
    Style.PLAIN: "",
    Style.TITLE: "\x1b[1m",
    Style.HEADING: "\x1b[7m",
    Style.ALARM: "\x1b[1;31m",
}
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@attrs.define(eq=False)
class Terminal:
    """See the module. Made by `open_terminal`.

    Attributes:
        keys: the descriptor that keys are read from.
        wake: written to by `ring` and by signals, so that `wait` returns.
    """

    keys: int
    _before: list[Any]
    _reader: int
    _writer: int

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def ring(self) -> None:
        """Have `wait` return. From any thread, and from signal handlers."""
        with suppress(OSError):  # it is full, and so wakes anyway; or closed
            os.write(self._writer, b"x")

    def wait(self) -> str:
        """Wait for a key or a ring. The keys pressed, empty for none.

        Raises:
            EOFError: the terminal is gone.
        """
        ready, _, _ = select.select([self.keys, self._reader], [], [])
        if self._reader in ready:
            os.read(self._reader, 4096)
        if self.keys not in ready:
            return ""
        try:
            pressed = os.read(self.keys, 64)
        except OSError:
            pressed = b""
        if not pressed:
            raise EOFError
        return _SEQUENCE.sub(b"", pressed).decode("ascii", "ignore")

    def draw(self, lines: list[Line]) -> None:
        """Show these lines, and nothing else."""
        parts = [_HOME]
        for index, line in enumerate(lines):
            style = _STYLES[line.style]
            text = f"{style}{line.text}\x1b[0m" if style else line.text
            parts += ["\r\n" if index else "", text, _CLEAR_LINE]
        _write("".join([*parts, _CLEAR_REST]))

    def enter(self) -> None:
        """Take the terminal."""
        tty.setcbreak(self.keys)
        _write(_ENTER)

    def leave(self) -> None:
        """Give it back as it was."""
        _write(_LEAVE)
        termios.tcsetattr(self.keys, termios.TCSADRAIN, self._before)


def _write(text: str) -> None:
    # Not by `print`, whose buffer a signal handler must not touch in the midst of a line.
    data = text.encode(errors="replace")
    with suppress(OSError):  # the terminal is gone, which `wait` tells
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    """Take the terminal for the length of the block."""
    keys = sys.stdin.fileno()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    terminal = Terminal(keys, termios.tcgetattr(keys), reader, writer)
    handlers: dict[signal.Signals, Any] = {
        **dict.fromkeys(_ENDING, _end),
        signal.SIGWINCH: lambda *_: terminal.ring(),
        signal.SIGTSTP: lambda *_: _suspend(terminal),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        terminal.enter()
        yield terminal
    finally:
        for number in (*handlers, signal.SIGINT):
            before.setdefault(number, signal.getsignal(number))
            signal.signal(number, signal.SIG_IGN)  # an impatient second one
        terminal.leave()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _end(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that the block above is left in the usual way.
    sys.exit(128 + number)


def _suspend(terminal: Terminal) -> None:
    terminal.leave()
    os.kill(os.getpid(), signal.SIGSTOP)
    # Here it goes on, once the shell says so.
    terminal.enter()
    terminal.ring()
