"""File sizes: of the same messages, in a log and as bare rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mist.bench.errors import BenchError
from mist.bench.history.size import FileSize, measure_size, rows, store_bare
from mist.bench.history.stored import groups, script_of
from mist.bench.script import tag_lists


@pytest.mark.parametrize("lists", [1, 7])
def test_both_files_hold_every_message_and_are_removed(tmp_path: Path, lists: int) -> None:
    found = measure_size(tmp_path, messages=20_100, lists=lists)
    assert (found.messages, found.tag_lists, found.size) == (20_100, lists, 100)
    # Data and a tag list at least; a page or two of each block or so at most.
    for size in (found.ours, found.bare):
        assert 105 < size / found.messages < 250
    assert found.times == found.ours / found.bare
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lists", [1, 7])
def test_rows_are_the_messages_one_by_one(tmp_path: Path, lists: int) -> None:
    tags = tag_lists(lists)
    made = list(rows(groups(script_of(tags, 1_200), tags, 1_200, 500)))
    assert [tag_list for _, tag_list, _ in made] == [
        ",".join(tags[n % lists]) for n in range(1_200)
    ]
    assert [data[:10] for _, _, data in made] == [b"0%09d" % n for n in range(1_200)]
    assert {len(data) for _, _, data in made} == {100}
    path = tmp_path / "bare.db"
    store_bare(path, made)
    assert [each.name for each in tmp_path.iterdir()] == ["bare.db"]
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT id, time, tags, data FROM message ORDER BY id")
        assert found.fetchall() == [(number, *row) for number, row in enumerate(made, 1)]


def test_the_log_is_so_many_times_the_bare_file() -> None:
    found = FileSize(file_system=None, messages=10, tag_lists=1, size=100, ours=3_000, bare=2_000)
    assert found.times == 1.5


def test_a_file_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="writing to SQLite itself"):
        store_bare(tmp_path / "nowhere" / "bare.db", [])
