"""What is alive, and what only the garbage collector would free."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["alive", "left_in_cycles", "uncollected"]


def alive(*kinds: type) -> int:
    """How many objects of these types there are."""
    gc.collect()
    return _count(kinds)


@contextmanager
def uncollected(*kinds: type) -> Iterator[list[int]]:
    """How many more objects of these types there are at the end of the block, where nothing is
    freed but with its last reference; filled in then.

    Unlike `left_in_cycles` it also finds those that a generator holds which it would end.
    """
    found: list[int] = []
    before = alive(*kinds)
    gc.disable()
    try:
        yield found
        found.append(_count(kinds) - before)
    finally:
        gc.enable()


@contextmanager
def left_in_cycles() -> Iterator[set[type]]:
    """The types of mist's objects that the block leaves in cycles; filled in at its end."""
    found: set[type] = set()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(kind for kind in map(type, gc.garbage) if kind.__module__.startswith("mist."))
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()


def _count(kinds: tuple[type, ...]) -> int:
    return sum(isinstance(each, kinds) for each in gc.get_objects())
