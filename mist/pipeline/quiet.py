"""Silencing the Java process: its output, PySpark's messages, and Ctrl-C while it starts."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mist.pipeline.failures import explain

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["LastWords", "hush", "hush_updates", "uninterrupted"]

LAST_WORDS: Final = 50  # lines of Java's that are kept


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Have Ctrl-C wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: waiting.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting.is_set():
        raise KeyboardInterrupt


def hush(quiet: bool) -> None:
    """Whether the line to Java may log what it raises as well: Ctrl-C, and that Java has gone, at
    the length of tracebacks."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL if quiet else logging.NOTSET)
    if quiet:
        logging.getLogger().addFilter(_is_worth_saying)
    else:
        logging.getLogger().removeFilter(_is_worth_saying)


def hush_updates(context: "SparkContext") -> None:
    """Have the line on which Java reports what tasks counted end without a traceback.

    After Ctrl-C Java goes before Spark is stopped, which PySpark takes for a fault.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _is_worth_saying(record: logging.LogRecord) -> bool:
    # Some of it py4j logs as nobody in particular.
    return not str(record.msg).endswith("while sending command.")


class LastWords:
    """Java's output, read to its end, and the last lines of it.

    Attributes:
        lines: the last of them.
    """

    def __init__(self, verbose: bool) -> None:
        self.lines: deque[str] = deque(maxlen=LAST_WORDS)
        self._verbose = verbose
        self._reader: threading.Thread | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[int]:
        """The end of a pipe that Java is to write to; to be handed on within the block."""
        ours, theirs = os.pipe()
        # A daemon: Java's workers may hold the pipe a moment longer than we live.
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()
        try:
            yield theirs
        finally:
            os.close(theirs)

    def _read(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8", errors="replace") as output:
            for line in output:
                self.lines.append(line.rstrip())
                if self._verbose:
                    sys.stderr.write(line)

    def reason(self, error: Exception) -> str:
        """One line for why it doesn't start: what Java died of, else the cause it names."""
        text = str(error)
        if self._reader is not None and "JAVA_GATEWAY_EXITED" in text:
            self._reader.join(1.0)
            text = "\n".join(self.lines)
        return explain(text) or "it says nothing; try --verbose"
