"""When a client's last poll ended, and for how long and of how many that is known."""

import pytest

from mist.http.bus_polls import Polls

ONE, OTHER = ("token", "one"), ("token", "other")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def polls(clock):
    return Polls(clock)


def test_the_newest_of_a_clients_polls_counts(polls):
    assert polls.now(ONE, 1) is None
    polls.note_end(ONE, 1, 10)
    polls.note_end(ONE, 3, 30)
    polls.note_end(ONE, 2, 40)  # superseded, and late
    assert polls.now(ONE, 4) == 30
    assert polls.now(OTHER, 4) is None


def test_only_polls_that_are_numbered_and_follow_count(polls):
    polls.note_end(ONE, 0, 10)
    assert polls.now(ONE, 0) is None
    assert polls.now(ONE, 1) is None
    polls.note_end(ONE, 5, 10)
    assert [polls.now(ONE, number) for number in (0, 4, 5, 6)] == [None, None, None, 10]


def test_it_is_forgotten_after_a_while(polls, clock):
    polls.note_end(ONE, 1, 10)
    clock.now = 90.0
    assert polls.now(ONE, 2) == 10
    clock.now = 90.1
    assert polls.now(ONE, 2) is None


def test_an_open_poll_ends_when_the_page_subscribes_so_now_is_now(polls):
    class Open:
        def end(self, reason):
            pass

    polls.note_end(ONE, 1, 10)
    with polls.only(ONE, 2, Open()):
        assert polls.now(ONE, 3) is None
    assert polls.now(ONE, 3) == 10


def test_ten_thousand_clients_are_remembered(polls):
    for number in range(10_001):
        polls.note_end(("token", str(number)), 1, number)
    assert polls.now(("token", "0"), 2) is None
    assert [polls.now(("token", str(n)), 2) for n in (1, 10_000)] == [1, 10_000]
