"""Garbage collection tuning: no long collector pauses, however many objects live.

All that comes and goes with peers is freed by reference counting: a connection leaves no cycles
(`tests/test_collector.py` holds every kind of visit to that). The collector is for what is left;
but its cost depends on the objects that it traverses. A full pass over a million subscriptions
takes one to two seconds in which nothing else runs; over ten thousand connections, 0.4 s.

So what lives for long is *frozen*, which takes it out of every later pass: what exists when the
server starts, and then what has survived the passes over young objects, some thousand at a
time. Full passes are made here, over what is not frozen yet, so that each is short; the automatic
ones are turned off. Frozen garbage is never freed, so all is traversed once before, except where
so much comes at once that even this would be long.

Passes over young objects are small and frequent, because a rare one is a long one: with 50,000
young objects to a pass the middle generation took 420 ms while subscriptions were added. It now has
some 900: 0.2 ms, or 1 where each is a set of 64 tags (with 20,000 it took 14).

Passes are due by objects that came less those that went. So where one peer's things are freed while
another's are made, none is due however many are young, and the one that comes at last is over all
of them: 0.3 s. So young objects are counted here, too, and frozen where they are many.

Refused: to thaw all now and then, for a full pass. It would be the pause that all this avoids.
"""

import gc
from typing import Final

import trio

__all__ = ["keep_small", "settle"]

_NEVER: Final = 1 << 30
_THRESHOLDS: Final = (300, 2, _NEVER)
_MIDDLE: Final = 1  # generations
_OLDEST: Final = 2
_MOST: Final = 1_000  # objects in it that a full pass may traverse again
_BURST: Final = 2  # passes over young objects; what they leave takes a full pass of up to 5 ms
_MANY: Final = 3_000  # objects, young ones included, of which a full pass takes as long
_INTERVAL: Final = 0.1  # seconds
_IDLE: Final = 0.5  # seconds, while there are no passes: an idle server should sleep


def settle() -> None:
    """Freeze all objects and set the collector's thresholds. Call at the start of a process.

    What is old is not looked at: of 65,000 objects, 5 were garbage there, and a full pass took
    35 ms.
    """
    gc.collect(_MIDDLE)
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


async def keep_small() -> None:
    """Keep full passes short, until cancelled.

    It affects the whole process, so it is for a server that has its process to itself.
    """
    interval = _INTERVAL
    while True:
        await trio.sleep(interval)
        passes = gc.get_count()[_OLDEST]  # over young objects, since what is old was looked at
        many = sum([len(gc.get_objects(each)) for each in range(_OLDEST + 1)]) > _MANY
        interval = _INTERVAL if passes or many else min(2 * interval, _IDLE)
        if passes > _BURST or many:
            gc.freeze()
        elif passes:
            gc.collect()
            if len(gc.get_objects(_OLDEST)) > _MOST:
                gc.freeze()
