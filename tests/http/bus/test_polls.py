"""What "now" means in a poll: where its client's poll before ended, and what it had read of it."""

import pytest

from mist.http.bus_polls import OpenPoll, Polls
from mist.http.bus_questions import Question

ONE, OTHER = ("token", "one"), ("token", "other")
NEWEST = 1_000


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Session:
    ended = None

    def end(self, reason):
        self.ended = reason


class Feed:
    place = 0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def polls(clock):
    return Polls(clock)


def question(number, *channels):
    return Question(dict.fromkeys(channels, -1), number)


def now(polls, number, client=ONE):
    return polls.since(client, question(number, "/new"), NEWEST)["/new"]


def opened(polls, number, *channels, newest=NEWEST, client=ONE):
    since = polls.since(client, question(number, *channels), newest)
    return OpenPoll(number, since, Session(), Feed())


def ended(polls, number, newest, client=ONE):
    polls.note_end(client, opened(polls, number, client=client), newest, answered=True)


def test_the_newest_of_a_clients_polls_counts(polls):
    assert now(polls, 1) == NEWEST
    ended(polls, 1, 10)
    ended(polls, 3, 30)
    ended(polls, 2, 40)  # superseded, and late
    assert now(polls, 4) == 30
    assert now(polls, 4, OTHER) == NEWEST


def test_only_channels_that_are_asked_for_from_now_on_have_a_now(polls):
    places = {"/a": -1, "/b": 0, "/c": -2, "/d": 7}
    assert polls.since(ONE, Question(places, 1), 5) == {"/a": 5}


def test_only_polls_that_are_numbered_and_follow_count(polls):
    ended(polls, 0, 10)
    assert now(polls, 0) == now(polls, 1) == NEWEST
    ended(polls, 5, 10)
    assert [now(polls, number) for number in (0, 4, 5, 6)] == [NEWEST, NEWEST, NEWEST, 10]


def test_it_is_forgotten_after_a_while(polls, clock):
    ended(polls, 1, 10)
    clock.now = 90.0
    assert now(polls, 2) == 10
    clock.now = 90.1
    assert now(polls, 2) == NEWEST


def test_ten_thousand_clients_are_remembered(polls):
    for number in range(10_001):
        ended(polls, 1, number, ("token", str(number)))
    assert now(polls, 2, ("token", "0")) == NEWEST
    assert [now(polls, 2, ("token", str(n))) for n in (1, 10_000)] == [1, 10_000]


def test_of_two_open_polls_the_older_one_ends(polls):
    one, two, late = opened(polls, 1), opened(polls, 2), opened(polls, 1)
    with polls.only(ONE, one), polls.only(ONE, two), polls.only(ONE, late):
        assert [each.session.ended is not None for each in (one, two, late)] == [True, False, True]
        assert len(polls) == 1
    assert len(polls) == 0


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_page_that_has_read_nothing_yet_means_the_now_of_its_first_poll(polls, clock, told, seen):
    first = opened(polls, 1, "/a", newest=10)
    with polls.only(ONE, first):
        if told:
            polls.note_told(first)
            first.feed.place = 12
        clock.now = 2.0
        if not seen:  # the next poll comes before the server sees that this one is gone
            assert polls.since(ONE, question(2, "/a", "/b"), 20) == {"/a": 10, "/b": 20}
    polls.note_end(ONE, first, 20, answered=False)
    second = opened(polls, 2, "/a", "/b", newest=30)
    assert second.since == {"/a": 10, "/b": 20}
    polls.note_end(ONE, second, 40, answered=False)
    assert opened(polls, 3, "/a", "/b", "/c", newest=50).since == {"/a": 10, "/b": 20, "/c": 40}


def test_a_page_that_asks_from_now_on_long_after_it_was_told_is_paused_and_goes_on(polls, clock):
    first = opened(polls, 1, "/a", newest=10)
    with polls.only(ONE, first):
        polls.note_told(first)
        clock.now = 2.1
        polls.note_told(first)  # again, which is not the first time
        first.feed.place = 15
        assert polls.since(ONE, question(2, "/a", "/b"), 20) == {"/a": 15, "/b": 20}
    polls.note_end(ONE, first, 20, answered=False)
    assert polls.since(ONE, question(2, "/a", "/b"), 30) == {"/a": 15, "/b": 20}


def test_of_a_poll_that_was_answered_all_was_told(polls):
    first = opened(polls, 1, "/a", newest=10)
    polls.note_end(ONE, first, 12, answered=True)
    assert polls.since(ONE, question(2, "/a", "/b"), 30) == {"/a": 12, "/b": 12}


def test_a_poll_of_which_the_next_ones_number_is_not_known_leaves_nothing(polls):
    first = opened(polls, 2, "/a", newest=10)
    with polls.only(ONE, first):
        assert polls.since(ONE, question(0, "/a"), 20) == {"/a": 20}
        assert polls.since(ONE, question(2, "/a"), 20) == {"/a": 20}


def test_of_ten_thousand_channels_it_is_remembered_what_was_not_read(polls):
    names = [f"/{number}" for number in range(1_000)]
    for client in range(11):
        poll = opened(polls, 1, *names, newest=10, client=("token", str(client)))
        polls.note_end(("token", str(client)), poll, 20, answered=False)
    starts = [
        polls.since(("token", str(client)), question(2, "/0"), 30)["/0"] for client in range(11)
    ]
    assert starts == [20] + [10] * 10
