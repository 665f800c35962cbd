"""File descriptors of the process.

The kernel keeps them in a table, and makes a larger one when it is full: at 64, 128, 256 and so on.
In a process with threads that waits until every processor has let go of the old one, 10 to 25 ms in
which nobody is served: so it was at some of the first accepted connections, each time.
"""

import fcntl
import os
import resource
from typing import Final

__all__ = ["OTHERS", "reserve"]

OTHERS: Final = 100  # that a server has open beside its connections: databases, libraries


def reserve(connections: int) -> None:
    """Have the kernel make the table large enough at once. Call before the first thread.

    It takes 8 bytes for each descriptor. Where the process may not have so many, it is made for as
    many as it may; where that fails, nothing happens.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = connections + OTHERS - 1
    if limit != resource.RLIM_INFINITY:
        highest = min(highest, limit - 1)
    try:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, highest))
    except OSError:  # that one is open; or, without a limit of the process's, one of the system's
        pass
    finally:
        os.close(null)
