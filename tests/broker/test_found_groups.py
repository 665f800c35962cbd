"""Long lists of groups are freed in steps, once nobody has them."""

import gc
import sys

from mist.broker.found_groups import FoundGroups, FreedLists
from mist.broker.groups import Group

LONG = 10_000


def nothing() -> None:
    """Nobody is waiting."""


def groups_of(count: int) -> list[Group]:
    group = Group(b"a")
    return [group] * count


def test_a_long_list_is_emptied_in_steps_when_its_last_reference_is_gone() -> None:
    freed = FreedLists()
    with freed.taking(nothing):
        found = FoundGroups(freed, groups_of(LONG))
        other = found
        del found
        assert len(freed) == 0
        assert len(other) == LONG
        del other
        left = [len(freed) for _ in freed.steps()]
    assert left == sorted(left, reverse=True)
    assert len(left) > 2
    assert left[0] > 0
    assert left[-1] == 0


def test_its_groups_are_gone_afterwards() -> None:
    freed = FreedLists()
    with freed.taking(nothing):
        group = Group(b"a")
        before = sys.getrefcount(group)
        found = FoundGroups(freed, [group] * LONG)
        del found
        assert sys.getrefcount(group) == before + LONG
        list(freed.steps())
        assert sys.getrefcount(group) == before


def test_what_is_taken_between_two_steps_is_emptied_too() -> None:
    freed = FreedLists()
    with freed.taking(nothing):
        FoundGroups(freed, groups_of(LONG))
        steps = freed.steps()
        next(steps)
        FoundGroups(freed, groups_of(LONG))
        list(steps)
        assert len(freed) == 0


def test_a_short_list_is_freed_at_once() -> None:
    freed = FreedLists()
    with freed.taking(nothing):
        FoundGroups(freed, groups_of(10))
        assert len(freed) == 0


def test_where_nobody_does_the_steps_it_is_freed_at_once() -> None:
    freed = FreedLists()
    FoundGroups(freed, groups_of(LONG))
    assert len(freed) == 0
    with freed.taking(nothing):
        FoundGroups(freed, groups_of(LONG))
        assert len(freed) == LONG
    assert len(freed) == 0
    FoundGroups(freed, groups_of(LONG))
    assert len(freed) == 0


def test_no_more_than_so_many_wait() -> None:
    freed = FreedLists()
    with freed.taking(nothing):
        for _ in range(5):
            FoundGroups(freed, groups_of(250_000))
        assert len(freed) == 500_000


def test_who_does_the_steps_is_told() -> None:
    freed = FreedLists()
    told: list[int] = []
    with freed.taking(lambda: told.append(len(freed))):
        FoundGroups(freed, groups_of(10))
        FoundGroups(freed, groups_of(LONG))
    assert told == [LONG]


def test_the_cyclic_collector_does_not_walk_through_them() -> None:
    freed = FreedLists()
    kept: list[FoundGroups] = []
    found = FoundGroups(freed, groups_of(LONG))
    found += groups_of(LONG)
    assert not gc.is_tracked(found)
    with freed.taking(lambda: kept.extend(freed._lists)):
        del found
        assert [gc.is_tracked(each) for each in kept] == [False]
        gc.collect()
        list(freed.steps())
    assert kept == [[]]


def test_what_only_such_a_list_refers_to_stays() -> None:
    found = FoundGroups(FreedLists(), [Group(b"a")])
    gc.collect()
    assert found[0].tag_list == b"a"
