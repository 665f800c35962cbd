"""Threads that run the work on a log: one that writes, a few that read, each with its own store.

A thread shares the interpreter lock with the event loop and waits for it after every
statement. So an append is one statement, which is a transaction by itself, and a page of a
replay takes a few.

How long it waits is the interpreter's *switch interval*, 5 ms by default, and in
practice longer. The interval starts over whenever the loop releases the lock for a moment, as
it does each time it polls; and it mostly has it back before the thread has woken up. Beside a
loop that polls every 0.5 ms, four waits of a thread took 30 s with the default, 4.5 s with an
interval of 0.5 ms, and 3 ms with 0.1 ms, which is shorter than the iterations of a
busy loop. So opening a log for writing sets the interval to that.

While pages are replayed, the loop writes to so many sockets that it releases the lock every 0.05
ms: of 5,000 clients that came back at once, an append waited 5 to 20 ms for what takes 0.5, and so
did everybody for its message. Then the interval is 0.01 ms, with which it waited 3 to 6. It is not
so always: a server that stores a message at a time for one of 2,000 takes 5 % more CPU by it, since
what is stored together becomes less.

The loop waits for the lock, too, after each of its system calls, and the longer the more
threads want it: ten replays on four threads took others' p50 from 1 to 110 ms. Reading a block is
mostly work under that lock, and no faster on several threads. So blocks are read on one, one
read after the other, and lookups of a row or two on the others.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final, TypeVar

import trio

from mist.history.block_store import BlockStore, Executor
from mist.history.layout import Row
from mist.history.sqlite.files import Files
from mist.history.sqlite.worker import Worker

__all__ = ["Threads", "lower_switch_interval"]

T = TypeVar("T")

_SWITCH_INTERVAL: Final = 0.0001  # seconds; see above
_REPLAYING: Final = 0.00001  # while pages are replayed
_MICROSECOND: Final = 0.000001

_SCANS: Final = 1  # at a time


def lower_switch_interval() -> None:
    """Lower the interpreter's switch interval for the whole process, permanently."""
    if sys.getswitchinterval() > _SWITCH_INTERVAL:
        sys.setswitchinterval(_SWITCH_INTERVAL)


class _Replays:
    """Those of all logs, since the interval is the process's."""

    def __init__(self) -> None:
        self._count = 0
        self._usual = _SWITCH_INTERVAL  # the interval outside of them

    @contextmanager
    def going_on(self) -> Iterator[None]:
        if not self._count:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, _REPLAYING))
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                # It is whole microseconds, rounded down.
                sys.setswitchinterval(self._usual + _MICROSECOND / 2)


_replays = _Replays()


class Threads(Executor):
    """See the module."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._free = list(files.readers)
        self._writing = Worker("mist history writer")
        self._scanning = trio.CapacityLimiter(_SCANS)
        self._reading = trio.CapacityLimiter(len(files.readers) - _SCANS)

    async def write(self, work: Callable[[BlockStore], T]) -> T:
        writer = self._files.writer
        assert writer is not None, "only a log opened for writing calls this"
        return await self._writing.run(partial(work, writer))

    async def read(
        self, work: Callable[[BlockStore], T], *, long: bool = False, scan: bool = False
    ) -> T:
        def run() -> T:
            store = self._free.pop()  # never empty: the limiter counts them
            try:
                return work(store)
            finally:
                self._free.append(store)

        limiter = self._scanning if scan else self._reading
        return await trio.to_thread.run_sync(run, limiter=limiter)

    async def read_frozen(self, work: Callable[[BlockStore], T]) -> T:
        def frozen(store: BlockStore) -> T:
            with store.snapshot():
                return work(store)

        return await self.read(frozen)

    def replaying(self) -> AbstractContextManager[None]:
        return _replays.going_on()

    def beside(self, name: str) -> str:
        return self._files.beside(name)

    async def supply(self, make: Callable[[], Iterable[Row]]) -> Iterable[Row]:
        await trio.lowlevel.checkpoint()
        return make()  # lazily, in the thread that writes

    async def close(self) -> None:
        limiters = (self._scanning, self._reading)
        all_readers = [(each, object()) for each in limiters for _ in range(int(each.total_tokens))]
        for limiter, reader in all_readers:
            await limiter.acquire_on_behalf_of(reader)
        try:
            await self._writing.run(self._files.close)
        finally:
            for limiter, reader in all_readers:
                limiter.release_on_behalf_of(reader)
            self._writing.close()
