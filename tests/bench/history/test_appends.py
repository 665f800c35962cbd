"""Appends to a log, small: what is counted, what is left behind."""

from pathlib import Path

import pytest

from mist.bench.errors import BenchError
from mist.bench.history.appends import Appends, measure_appends, time_appends
from mist.bench.history.stored import groups, script_of
from mist.bench.script import tag_lists
from mist.history import Durability, Selection
from mist.history.opening import open_history


@pytest.mark.parametrize("durability", [Durability.POWER, Durability.PROCESS])
@pytest.mark.parametrize("lists", [1, 5])
@pytest.mark.parametrize("busy", [True, False])
def test_every_append_has_a_bare_one_beside_it(
    tmp_path: Path, durability: Durability, lists: int, busy: bool
) -> None:
    found = measure_appends(
        tmp_path, durability=durability, group=20, lists=lists, seconds=0.02, busy=busy
    )
    assert (found.durability, found.group, found.tag_lists, found.busy) == (
        durability,
        20,
        lists,
        busy,
    )
    assert len(found.ours) == len(found.bare) >= 5
    assert min(*found.ours, *found.bare) > 0
    assert not list(tmp_path.iterdir())


async def test_each_append_goes_on_with_the_tag_lists_of_the_one_before() -> None:
    lists = tag_lists(25)
    bare: list[bytes] = []
    async with await open_history("memory://") as history:
        appended = groups(script_of(lists, 10), lists, None, 10)
        ours, theirs = await time_appends(history, appended, bare.append, seconds=0)
        assert (len(ours), len(theirs), len(bare)) == (5, 5, 5)
        assert {len(row) for row in bare} == {10 * script_of(lists, 10).delivery_size}
        for _, tag in lists:
            assert (await history.read(Selection([frozenset({tag})]), limit=100)).count == 2


def test_rates_are_of_the_median_append() -> None:
    found = Appends(
        durability=Durability.POWER,
        file_system=None,
        busy=True,
        group=100,
        tag_lists=1,
        size=100,
        ours=[0.1, 0.2, 9.0],
        bare=[0.05, 0.1, 0.1],
    )
    assert found.messages_per_second == pytest.approx(500)
    assert found.bare_messages_per_second == pytest.approx(1_000)


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nowhere"):
        measure_appends(tmp_path / "nowhere", durability=Durability.POWER, group=1, lists=1)
