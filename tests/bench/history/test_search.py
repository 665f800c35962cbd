"""Searches: as many matches as were stored, wherever they are."""

from pathlib import Path

import pytest

from mist.bench.history.replay import read
from mist.bench.history.search import FEWEST, measure_search, spots, store_haystack
from mist.bench.history.stored import script_of
from mist.bench.script import MANY
from mist.history import Selection
from mist.history.opening import open_history


@pytest.mark.parametrize("groups", [1, 2, 7, 99, 100, 101, 333, 1_000, 10_000])
def test_a_thousand_are_spread_over_any_number_of_groups(groups: int) -> None:
    found = spots(groups)
    assert (len(found), sum(found)) == (groups, 1_000)
    assert all(count == 0 or count >= 10 for count in found[:-1])
    # None stands far from where it would, were they spread evenly.
    stored = 0
    for number, count in enumerate(found, 1):
        stored += count
        assert -10 < stored - 1_000 * number / groups < 1


async def test_tag_lists_go_on_from_one_group_to_the_next() -> None:
    lists = MANY + MANY // 2
    scripts = {tag: script_of([("eu", tag)], 1_000) for tag in ("rare", "late")}
    async with await open_history("memory://") as history:
        await store_haystack(history, scripts, 2 * FEWEST, lists)
        for tag, count in (
            ("order-00000", 2),
            ("order-04999", 2),
            ("order-05000", 1),
            (f"order-{lists - 1}", 1),
            ("rare", 1_000),
            ("late", 1_000),
        ):
            await read(history, Selection([frozenset({tag})]), count)  # checks their number


def test_matches_are_found_wherever_they_are(tmp_path: Path) -> None:
    found = measure_search(tmp_path, messages=3 * FEWEST + 1, lists=7, seconds=0.01, busy=False)
    assert [(each.through, each.where, each.matches) for each in found] == [
        (through, where, matches)
        for through in ("log", "tcp")
        for where, matches in (("spread", 1_000), ("at the end", 1_000), ("nowhere", 0))
    ]
    for each in found:
        assert each.messages == 3 * FEWEST + 2_000
        assert (each.tag_lists, each.busy) == (7, False)
        assert len(each.firsts) == len(each.seconds) >= 3
        assert 0 < each.first <= each.all
        assert each.each == (pytest.approx(each.all / 1_000) if each.matches else None)
    assert not list(tmp_path.iterdir())
