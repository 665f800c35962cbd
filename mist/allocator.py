"""Memory allocator tuning, for a server: glibc's `malloc`.

One arena for all threads. By default each thread gets an arena of its own, up to eight for each
core. The interpreter lock lets hardly two threads allocate at once; but what lives for long is then
made in the arena of whichever thread made it, and keeps the holes around it from the others. In an
hour of churn five arenas came to 25 MiB, and the process grew by a MiB or two whenever the table of
a cache was made anew in another one. With one arena it was 11 MiB smaller from the start, and had
not grown after an hour.

And memory that was freed stays at hand, up to 8 MiB. By default as little as 128 KiB goes back to
the kernel, which then has to give it again page by page: that took 1.1 ms for each copy of a
megabyte, where the copy alone takes 0.04. A line of a megabyte is copied some times, as a request's
body and a block of the log are, and everybody waits meanwhile.

What lies free for minutes goes back all the same, also from between what is in use. A dict that
entries come to and leave is made anew now and then, and takes its old place and a new one. The
memo's takes 1.3 MB, every 45 minutes in that hour of churn, and RSS grew by as much.
"""

import ctypes
import os
import time
from typing import Final

import trio

__all__ = ["keep_trimmed", "settle"]

# Of <malloc.h>: what each is called, and what it may be set by. Sizes in bytes.
_ARENA_MAX: Final = (-8, "MALLOC_ARENA_MAX", 1)
_TRIM_THRESHOLD: Final = (-1, "MALLOC_TRIM_THRESHOLD_", 8 * 1024 * 1024)
_MMAP_THRESHOLD: Final = (-3, "MALLOC_MMAP_THRESHOLD_", 4 * 1024 * 1024)

_INTERVAL: Final = 300.0  # seconds
_LITTLE: Final = 512 * 1024  # free bytes that stay
# Seconds that it takes, about, in which everybody waits; and the most. Where it takes longer, after
# a large peak, what is free stays at hand for the next one.
_FOR_EACH_CHUNK: Final = 1.3e-6
_FOR_EACH_BYTE: Final = 0.12e-9
_MOST: Final = 0.015
_LONG: Final = 0.005  # to find out how much is free
_SELDOM: Final = 7_200.0

# Of <malloc.h>: the fields of `struct mallinfo2`.
_NAMES: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Usage(ctypes.Structure):
    """What `mallinfo2` returns: among others how many chunks are free, and of how many bytes."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _NAMES)


def settle() -> None:
    """Tune the allocator. Call at the start of a process, before its first thread.

    Nothing happens where the C library has no such settings; and none is changed that is set by a
    variable of the environment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, variable, value in (_ARENA_MAX, _TRIM_THRESHOLD, _MMAP_THRESHOLD):
        if variable not in os.environ:
            mallopt(parameter, value)


async def keep_trimmed() -> None:
    """Give free memory back to the kernel every five minutes, until cancelled; see the module.

    Nothing happens where the C library has no such functions.
    """
    library = ctypes.CDLL(None)
    usage = getattr(library, "mallinfo2", None)
    trim = getattr(library, "malloc_trim", None)
    if usage is None or trim is None:
        return
    usage.restype = _Usage
    interval = _INTERVAL
    while True:
        await trio.sleep(interval)
        began = time.perf_counter()
        found = usage()
        # It counts chunks one by one: of very many it asks seldom.
        took = time.perf_counter() - began
        interval = _INTERVAL if took < _LONG else min(2 * interval, _SELDOM)
        seconds = found.ordblks * _FOR_EACH_CHUNK + found.fordblks * _FOR_EACH_BYTE
        if found.fordblks > _LITTLE and seconds < _MOST:
            trim(0)
