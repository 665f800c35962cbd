"""The groups that a wide match has found, freed in steps once nobody has the list any more.

To let go of 100,000 references at once takes 1.5 ms, as each object is fetched into the processor's
caches to be told. Who is the last to have such a list is not known: the memo may keep the match,
its message may be on its way, or both. So the list itself notices, and hands itself over.

Nor does the cyclic collector walk through such a list, which took 8 to 22 ms each time: it holds
what the directory has, and is no part of a cycle.
"""

import ctypes
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from mist.broker.groups import Group

__all__ = ["FoundGroups", "FreedLists"]

_STEP: Final = 4_096  # references let go of in a step, which takes 0.05 ms

_SHORT: Final = 4_096  # groups of a list that is freed at once

_MOST: Final = 500_000  # references that wait: 4 MB. What comes on top is freed at once.


def _nothing(_: object) -> None:
    """What `_untrack` does where there is no such thing, and nothing depends on it."""


def _untracking() -> Callable[[object], object]:
    if sys.implementation.name != "cpython":
        return _nothing
    function = ctypes.pythonapi.PyObject_GC_UnTrack
    function.argtypes, function.restype = [ctypes.py_object], None
    return function


# CPython does the same to tuples and dicts of what can't be part of a cycle. What they refer to
# counts as referred to from outside: it is never taken for garbage too early.
_untrack: Final = _untracking()


class FoundGroups(list[Group]):
    """A list of groups that is freed in steps, where it is long and somebody does the steps.

    Args:
        freed: takes the list when its last reference is gone.
        groups: to begin with.
    """

    __slots__ = ("_freed",)

    def __init__(self, freed: "FreedLists", groups: Iterable[Group] = ()) -> None:
        super().__init__(groups)
        self._freed = freed
        _untrack(self)

    def __del__(self) -> None:
        # Taken, it lives on, and isn't asked again when it ends for good, empty.
        if len(self) > _SHORT:
            self._freed.take(self)


class FreedLists:
    """Lists that nobody has any more, and that are to be emptied."""

    __slots__ = ("_lists", "_on_take", "_waiting")

    def __init__(self) -> None:
        self._lists: list[FoundGroups] = []
        self._waiting = 0
        self._on_take: Callable[[], None] | None = None

    def __len__(self) -> int:
        """References that wait."""
        return self._waiting

    @contextmanager
    def taking(self, on_take: Callable[[], None]) -> Iterator[None]:
        """Take lists until the end of the block. Before and after it they are freed at once.

        Args:
            on_take: called when there is something to be done. It must not raise.
        """
        self._on_take = on_take
        try:
            yield
        finally:
            self._on_take = None
            self._lists.clear()
            self._waiting = 0

    def take(self, groups: FoundGroups) -> None:
        """Take a list that nobody else has, or leave it to be freed at once."""
        if self._on_take is not None and self._waiting < _MOST:
            _untrack(groups)  # which its end has undone
            self._lists.append(groups)
            self._waiting += len(groups)
            self._on_take()

    def steps(self) -> Generator[None, None, None]:
        """Empty what there is; more may be taken meanwhile."""
        while self._lists:
            groups = self._lists.pop()
            while groups:
                before = len(groups)
                del groups[-_STEP:]
                self._waiting -= before - len(groups)
                yield
