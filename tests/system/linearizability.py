"""Whether a history of concurrent operations could have been one after the other.

Wing and Gong's search: an operation may be the first one if none had ended before it began. Those
that lead from a state that was tried with the same operations left are not tried again (Lowe).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import attrs

__all__ = ["IMPOSSIBLE", "Operation", "is_linearizable"]

State = TypeVar("State", bound=Hashable)

IMPOSSIBLE: Final = object()
"""What `Operation.apply` returns where its outcome can't be so."""


@attrs.frozen
class Operation(Generic[State]):
    """What somebody did.

    Attributes:
        begun, ended: seconds, by one clock; an operation whose outcome isn't known never ended.
        apply: the state after it, from the one before it; or `IMPOSSIBLE`.
        name: for who reads a failure.
    """

    begun: float
    ended: float
    apply: Callable[[State], State | object] = attrs.field(repr=False)
    name: str = ""


def is_linearizable(history: Sequence[Operation[State]], state: State) -> bool:
    """Whether there is an order of all operations that agrees with their times and outcomes.

    Args:
        state: before all of them.
    """
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[frozenset[int], State]] = [(frozenset(range(len(history))), state)]
    while stack:
        left, state = stack.pop()
        if not left:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first_end = min(history[each].ended for each in left)
        for each in left:
            if history[each].begun > first_end:
                continue
            after = history[each].apply(state)
            if after is not IMPOSSIBLE:
                stack.append((left - {each}, after))  # type: ignore[arg-type]
    return False
