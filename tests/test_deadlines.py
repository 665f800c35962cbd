"""Deadlines against a dict of times, and their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from mist.deadlines import Deadlines

things = st.integers(0, 9)
times = st.integers(0, 20).map(float)
steps = st.one_of(
    st.tuples(st.just("set"), things, times),
    st.tuples(st.just("remove"), things),
    st.tuples(st.just("due"), times, st.integers(1, 4)),
)


@given(st.lists(steps, max_size=60))
def test_they_are_a_dict_of_times(steps: list[tuple[object, ...]]) -> None:
    deadlines, model = Deadlines[int](), dict[int, float]()
    for step in steps:
        match step:
            case ("set", int(one), float(at)):
                first = deadlines.set(one, at)
                others = [each for other, each in model.items() if other != one]
                assert first == all(at < each for each in others)
                model[one] = at
            case ("remove", int(one)):
                deadlines.remove(one)
                model.pop(one, None)
            case ("due", float(now), int(most)):
                found = deadlines.due(now, most)
                due = sorted(each for each in model.values() if each <= now)
                assert [model[one] for one in found] == due[:most]
                for one in found:
                    del model[one]
        assert deadlines.first == min(model.values(), default=None)
        assert {one: deadlines.get(one) for one in model} == model
        assert len(deadlines) == len(model)


def test_what_is_moved_again_and_again_takes_no_room() -> None:
    deadlines = Deadlines[str]()
    for number in range(10_000):
        deadlines.set("a", float(number))
        deadlines.set("b", float(10_000 - number))
        deadlines.set(f"gone{number}", 1.0)
        deadlines.remove(f"gone{number}")
    assert len(deadlines._heap) < 200
    assert deadlines.due(20_000.0, 9) == ["b", "a"]
