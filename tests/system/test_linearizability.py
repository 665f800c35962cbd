"""The checker of histories, on histories of which it is known."""

import pytest

from tests.system.linearizability import IMPOSSIBLE, Operation, is_linearizable


def write(begun: float, ended: float, value: int) -> Operation[int]:
    return Operation(begun, ended, lambda _: value)


def read(begun: float, ended: float, value: int) -> Operation[int]:
    return Operation(begun, ended, lambda state: state if state == value else IMPOSSIBLE)


@pytest.mark.parametrize(
    ("history", "holds"),
    [
        ([], True),
        ([write(0, 1, 5), read(2, 3, 5)], True),
        ([write(0, 1, 5), read(2, 3, 0)], False),  # stale
        ([write(0, 3, 5), read(1, 2, 0)], True),
        ([write(0, 3, 5), read(1, 2, 5)], True),
        ([write(0, 9, 5), read(1, 2, 5), read(3, 4, 0)], False),  # there and gone again
        ([write(0, 9, 5), read(1, 3, 5), read(2, 4, 0)], True),
        ([write(0, 9, 1), write(0, 9, 2), read(10, 11, 1), read(12, 13, 2)], False),
        ([write(0, 9, 1), write(0, 9, 2), read(1, 2, 1), read(3, 4, 2)], True),
        ([read(0, 1, 5), write(2, 3, 5)], False),  # before it was there
    ],
)
def test_histories_that_are_linearizable_and_such_that_are_not(
    history: list[Operation[int]], holds: bool
) -> None:
    assert is_linearizable(history, 0) == holds
    assert is_linearizable(history[::-1], 0) == holds
