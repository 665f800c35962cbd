"""The Py4J gateway to the Java process: its output, its log messages, and Ctrl-C at its start."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mist.pipeline.errors import explain

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["JavaOutput", "defer_interrupt", "silence_accumulators", "silence_py4j"]

MAX_LINES: Final = 50  # lines of Java's output that are kept


@contextlib.contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block."""
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


def silence_py4j(quiet: bool) -> None:
    """Turn the log of Py4J off or on.

    It logs tracebacks of errors that it also raises, as after Ctrl-C or the exit of Java.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL if quiet else logging.NOTSET)
    if quiet:
        logging.getLogger().addFilter(_is_worth_saying)
    else:
        logging.getLogger().removeFilter(_is_worth_saying)


def silence_accumulators(context: "SparkContext") -> None:
    """Suppress the traceback of the accumulator server, to which Java reports task updates.

    After Ctrl-C Java exits before Spark is stopped, which PySpark treats as an error.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _is_worth_saying(record: logging.LogRecord) -> bool:
    # Py4J logs some errors on the root logger.
    return not str(record.msg).endswith("while sending command.")


class JavaOutput:
    """The output of the Java process, read to its end by a thread.

    Attributes:
        lines: the last lines.
    """

    def __init__(self, verbose: bool) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self._verbose = verbose
        self._reader: threading.Thread | None = None

    @contextlib.contextmanager
    def pipe(self) -> Iterator[int]:
        """The write end of a pipe for Java, which has to inherit it within the block."""
        read_end, write_end = os.pipe()
        # A daemon: Java's workers may hold the pipe open slightly longer than this process lives.
        self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reader.start()
        try:
            yield write_end
        finally:
            os.close(write_end)

    def _read(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8", errors="replace") as output:
            for line in output:
                self.lines.append(line.rstrip())
                if self._verbose:
                    sys.stderr.write(line)

    def reason(self, error: Exception) -> str:
        """One line for why Java doesn't start: from its output, else from the error."""
        text = str(error)
        if self._reader is not None and "JAVA_GATEWAY_EXITED" in text:
            self._reader.join(1.0)
            text = "\n".join(self.lines)
        return explain(text) or "it says nothing; try --verbose"
