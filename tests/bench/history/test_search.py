"""Searches: as many matches as were stored, wherever they are."""

from pathlib import Path

from mist.bench.history.search import FEWEST, measure_search


def test_matches_are_found_wherever_they_are(tmp_path: Path) -> None:
    found = measure_search(tmp_path, messages=3 * FEWEST + 1, seconds=0.01, busy=False)
    assert [(each.through, each.where, each.matches) for each in found] == [
        (through, where, matches)
        for through in ("log", "tcp")
        for where, matches in (("spread", 1_000), ("at the end", 1_000), ("nowhere", 0))
    ]
    for each in found:
        assert each.messages == 3 * FEWEST + 2_000
        assert not each.busy
        assert len(each.firsts) == len(each.seconds) >= 3
        assert 0 < each.first <= each.all
    assert not list(tmp_path.iterdir())
