"""A client of mist for programs without an event loop: one for each process, whichever forks.

    from process_client import mist

    mist().store(["order", "eu"], "17")

Web servers and workers load a program, then fork. A connection can't be shared by both: so each
process connects for itself, when it first has something to say. All its threads share the client.
"""

import atexit
import os
from contextlib import ExitStack
from functools import cache
from threading import Lock

from mist.client.sync import Client, connect

_lock = Lock()


def mist() -> Client:
    """This process's client."""
    with _lock:
        return _connected(os.getpid())


@cache
def _connected(process: int) -> Client:
    url = os.environ.get("MIST_URL", "tcp://127.0.0.1:1445")
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(connect(url, secret=os.environ.get("MIST_SECRET")))


# A fork while another thread connects would leave the lock taken in the child, for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
