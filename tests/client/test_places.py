"""Where a reader is, beside a queue in which the places stand between the messages."""

from collections import deque
from random import Random

import pytest

from mist.client.places import Places
from mist.client.position import Position


@pytest.mark.parametrize("seed", range(50))
def test_a_place_holds_once_all_before_it_was_taken(seed: int) -> None:
    random = Random(seed)
    places = Places()
    queue: deque[Position | int] = deque()  # places, and ids of messages
    expected: Position | None = None
    queued = taken = newest = log = 0
    last: int | None = None
    for _ in range(400):
        kind = random.randrange(6)
        if kind == 0:  # another log, or a later place in this one
            if random.random() < 0.5:
                log, newest = log + 1, random.randrange(9)
            newest += random.randrange(3)
            place = Position(str(log), newest)
            places = places.note(queued, place, taken)
            queue.append(place)
        elif kind < 3 and log:
            newest += random.randrange(1, 3)
            queue.append(newest)
            queued += 1
        elif any(isinstance(each, int) for each in queue):
            while not isinstance(found := queue.popleft(), int):
                expected = found
            assert expected is not None
            expected, last, taken = Position(expected.epoch, found), found, taken + 1
        while queue and isinstance(queue[0], Position):
            expected = queue.popleft()  # type: ignore[assignment]
        assert places.after(taken, last) == expected


def test_little_is_kept_of_what_a_reader_is_past() -> None:
    places = Places()
    for n in range(100):
        places = places.note(n, Position("e", n), n)
    assert places == Places(((98, Position("e", 98)), (99, Position("e", 99))))
