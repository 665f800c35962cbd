"""A sharded dict is a dict, however many keys it has, and whatever happens while it is walked."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from mist.index import shards
from mist.index.shards import ShardedDict

MANY = 3 * shards._FLAT


class Key:
    """What is hashed by its address."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def filled(keys: list[Key]) -> ShardedDict[Key, int]:
    made: ShardedDict[Key, int] = ShardedDict()
    for key in keys:
        made[key] = key.number
    return made


def test_few_keep_their_order() -> None:
    made: ShardedDict[str, int] = ShardedDict()
    for number in range(100):
        made[f"k{99 - number}"] = number
    assert list(made) == [f"k{99 - number}" for number in range(100)]
    assert list(made.values()) == list(range(100))
    assert len(list(made.slices())) == 1


def test_many_are_in_shards_that_are_small() -> None:
    keys = [Key(number) for number in range(MANY)]
    made = filled(keys)
    assert len(made) == MANY
    assert set(made) == set(keys)
    assert sorted(made.values()) == list(range(MANY))
    sizes = [len(shard) for shard in made._shards]
    assert len(sizes) == shards.MASK + 1
    assert max(sizes) < 8 * MANY / len(sizes)
    while made:
        del made[next(iter(made))]
    assert not list(made.slices())
    # Of an emptied dict that keeps its table, all is walked through that has been there.
    assert {sys.getsizeof(shard) for shard in made._shards} == {sys.getsizeof({})}


def test_what_comes_and_goes_between_slices_hurts_nobody() -> None:
    keys = [Key(number) for number in range(MANY)]
    made = filled(keys[:100])
    walk = made.slices()
    seen = set(next(walk))
    for key in keys[100:]:  # it is sharded meanwhile
        made[key] = key.number
    for some in walk:
        seen.update(some)
    assert set(keys[:100]) <= seen
    for some in made.slices():
        for key in some:
            del made[key]
    assert not made


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("spdg"))))
@settings(max_examples=200)
def test_it_does_as_a_dict_does(steps: list[tuple[int, str]]) -> None:
    flat, shards._FLAT = shards._FLAT, 10  # type: ignore[misc]
    try:
        made: ShardedDict[int, int] = ShardedDict()
        model: dict[int, int] = {}
        for number, (key, what) in enumerate(steps):
            match what:
                case "s":
                    made[key] = model[key] = number
                case "p":
                    assert made.pop(key) == model.pop(key, None)
                case "d" if key in model:
                    del made[key]
                    del model[key]
                case _:
                    assert made.get(key) == model.get(key)
                    assert (key in made) == (key in model)
            assert len(made) == len(model)
        assert {key: made[key] for key in made} == model
    finally:
        shards._FLAT = flat  # type: ignore[misc]
