"""Python's garbage collector, kept from stopping a server that holds millions of objects.

Nearly everything here is freed by its reference count, at once. The collector is for cycles,
which no hot path makes; but what it costs is by what it walks, and a full pass over a million
subscriptions and their groups takes one to two seconds in which nothing else runs.

So what is there to stay is *frozen*: taken out of every later pass. That is what exists when
the server starts, and from then on what its subscriptions have grown by. In between, passes
over young objects are small and frequent, since a rare one is a long one: with 50,000 young
objects to a pass the middle generation took 420 ms where subscriptions were added, with 2,000
it takes 6.
"""

import gc
from collections.abc import Callable
from typing import Final

import trio

__all__ = ["keep_small", "settle"]

_THRESHOLDS: Final = (2_000, 10, 10)
_STEP: Final = 20_000  # subscriptions; a full pass over their objects takes some 20 ms
_INTERVAL: Final = 0.25  # seconds


def settle() -> None:
    """Freeze what exists, and set how often the collector runs. For the start of a process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


async def keep_small(count: Callable[[], int]) -> None:
    """Freeze what has been added, a step at a time, until cancelled.

    Concerns the whole process, so it is for a server that has it to itself.

    Args:
        count: how many subscriptions there are; cheap.
    """
    frozen = count()
    while True:
        await trio.sleep(_INTERVAL)
        now = count()
        if now - frozen >= _STEP:
            # Collected first: garbage that is frozen stays for good. It costs only what has
            # come since the last time.
            gc.collect()
            gc.freeze()
        if abs(now - frozen) >= _STEP:
            frozen = now
