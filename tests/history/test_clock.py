"""A log's time never goes back, never stands still, and doesn't run away from the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history import Durability, Policy, Rule
from mist.history.clock import Clock, Moment
from mist.history.opening import open_history
from tests.history.messages import ids, one, replay

HOUR = 3600.0
DAY = 24 * HOUR
YEARS = 3650 * DAY


def stamps(clock, *times):
    return [clock.stamp(time) / 1e6 for time in times]


def test_a_clock_that_goes_on_is_taken_as_it_is():
    assert stamps(Clock(), 10, 20, 20, 30.5) == [10, 20, 20, 30.5]


def test_time_goes_on_at_half_its_speed_until_the_clock_has_caught_up():
    times = [20, 15, 17, 19, 21, 23, 25, 30]
    assert stamps(Clock(), *times) == [20, 20, 21, 22, 23, 23, 25, 30]


def test_half_steps_are_not_lost():
    clock = Clock()
    stamps(clock, 20, 10)
    for microsecond in range(1, 1001):
        clock.stamp(10 + microsecond / 1e6)
    assert clock.latest == 20_000_500


def test_a_clock_that_goes_back_again_and_again_is_followed():
    assert stamps(Clock(), 20, 10, 12, 4, 6, 2, 4) == [20, 20, 21, 21, 22, 22, 23]


def test_after_a_start_time_goes_on_where_it_was():
    assert stamps(Clock(100_000_000), 50, 60) == [100, 105]


@given(st.lists(st.floats(0, 100)), st.integers(0, 100_000_000))
def test_time_never_goes_back_and_is_ahead_only_of_a_clock_that_did(times, latest):
    clock = Clock(latest)
    for time in times:
        before = clock.latest
        after = clock.stamp(time)
        wall = round(time * 1e6)
        assert after >= before
        assert after == wall or wall < after <= max(before + 50_000_000, wall)


def test_a_clock_that_leaps_is_no_time_that_passed():
    clock = Clock()
    assert stamps(clock, 10 * YEARS, 0, 9 * YEARS) == [10 * YEARS, 10 * YEARS, 10 * YEARS + 1800]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 200))
def test_an_age_is_by_the_clock_or_for_what_is_from_its_future_by_the_log(wall, ahead, time):
    now = Moment(wall, wall + ahead)
    assert now.age(time) == (wall - time if time <= wall else wall + ahead - time)


@pytest.fixture
async def history(url):
    async with await open_history(url, durability=Durability.PROCESS) as history:
        yield history


async def trim(history, policy, now):
    while (await history.trim(policy, now)).more:
        pass


@pytest.mark.parametrize(
    "policy",
    [Policy(10 * HOUR, None), Policy(0, None, None, (Rule("a", age=10 * HOUR),))],
    ids=["globally", "by a rule"],
)
async def test_a_clock_that_was_years_ahead_lets_messages_go_all_the_same(history, policy):
    start = 1_000_000_000.0
    await history.append([one("a", time=start)])
    await history.append([one("a", time=start + YEARS)])
    left = []
    for hour in range(40):
        now = start + hour * HOUR
        await history.append([one("a", time=now)])
        await trim(history, policy, now)
        left.append(ids(await replay(history)))
    # What came before is as old as the clock says: it went after its ten hours, not at once.
    assert [each[0] for each in left[:11]] == [1] * 11
    assert left[11][0] == 2
    # And what came after goes too, at half the speed: it isn't kept for years.
    assert [each[0] for each in left[11:20]] == [2] * 9
    assert [len(each) for each in left[25:]] == [21] * 15


async def test_a_clock_that_goes_back_takes_nothing_along(history):
    policy = Policy(max_age=DAY, max_bytes=None)
    for hour in range(10):
        await history.append([one("a", time=1e9 + hour * 3600)])
    for now in (1e9 - YEARS, 1e9 - DAY, 1e9, 1e9 - YEARS, 1e9 + 10 * 3600):
        await trim(history, policy, now)
        assert len(await replay(history)) == 10


async def test_a_clock_that_goes_back_between_two_starts_is_no_other(tmp_path):
    url = f"sqlite:///{tmp_path}/history.db"
    policy = Policy(max_age=DAY, max_bytes=None)
    times = []
    for start in (1e9, 1e9 - YEARS, 1e9 - 2 * YEARS, 1e9 + 10):
        async with await open_history(url) as history:
            for second in (0, 4):
                await history.append([one("a", time=start + second)])
            await trim(history, policy, start + 4)
            times = [message.time - 1e9 for message in await replay(history)]
    assert times == [0, 4, 4, 6, 6, 8, 10, 14]
