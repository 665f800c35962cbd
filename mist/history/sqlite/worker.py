"""A thread that works for an event loop, one piece of work after the other.

`trio.to_thread.run_sync` takes three passes of a loop for what the thread may do in half a
millisecond: one to take its limiter, one until the result is handed over, and one until the task
that waits goes on. A busy loop's passes take milliseconds, and every message that is stored waits
for two appends. Here the thread is asked at once, and it wakes the task itself, through a pipe.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import trio

__all__ = ["Worker"]

T = TypeVar("T")

_DONE: Final = b"."


class Worker:
    """See the module. Starts no thread before there is work.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._read_end = self._write_end = -1
        self._busy = False
        self._result: Any = None
        self._error: BaseException | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in the thread, and return or raise what it does.

        A checkpoint. Once it has begun it is not cancelled.

        Raises:
            trio.BusyResourceError: other work is not done yet.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._busy:
            raise trio.BusyResourceError("a worker does one thing at a time")
        if self._thread is None:
            self._start()
        self._busy = True
        self._asked.put(work)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._read_end)
        os.read(self._read_end, len(_DONE))
        self._busy = False
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # which refers to this frame
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread. It has nothing to do, so this hardly waits. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.put(None)
            thread.join()
            for end in (self._read_end, self._write_end):
                os.close(end)

    def _start(self) -> None:
        self._read_end, self._write_end = os.pipe()
        # A daemon: nothing waits for it where the process ends without closing it.
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                self._result = work()
            except BaseException as error:
                self._error = error
            del work  # may hold much, and the next may be long in coming
            os.write(self._write_end, _DONE)
