"""Cursors: a reader's position in a log, and what was lost before it."""

import sqlite3
from contextlib import closing

import pytest

from mist.commands import Since
from mist.errors import HistoryDamaged, HistoryUnavailable
from mist.history import Policy
from mist.history.cursor import Cursor, Lost
from mist.history.opening import open_history
from tests.history.messages import ids, one, select

A = select("a")


async def fill(history, count):
    for number in range(count):
        await history.append([one("a", str(number))])


async def keep_bytes(history, size):
    while (await history.trim(Policy(None, size), 1000.0)).more:
        pass
    return (await history.position()).trimmed


def damage(path, *firsts):
    with closing(sqlite3.connect(path)) as database, database:
        marks = ",".join("?" * len(firsts))
        statement = f"UPDATE block SET body = zeroblob(length(body)) WHERE first IN ({marks})"
        assert database.execute(statement, firsts).rowcount == len(firsts)


@pytest.fixture
async def damaged(tmp_path):
    """A log of nine messages, some of which are gone."""
    path = tmp_path / "history.db"
    async with await open_history(f"sqlite:///{path}") as history:
        await fill(history, 9)
        damage(path, 3, 4, 6, 9)
        yield history


async def walk(cursor, upto=9, **options):
    """All pieces: what is missing before which id, and the ids that come."""
    found = []
    while cursor.place < upto:
        piece = await cursor.read(A, upto, **options)
        found.append((piece.missing, ids(piece.page.messages())))
        cursor.take(piece)
    return found


async def test_damage_is_told_at_its_place_and_passed_over(damaged):
    cursor = Cursor(damaged)
    assert await cursor.begin(Since(after=0), A, 9)
    assert await walk(cursor) == [
        (None, [1, 2]),
        (4, []),
        (5, []),
        (None, [5]),
        (7, []),
        (None, [7, 8]),
        (10, []),
    ]
    assert cursor.lost == [Lost(3, 4), Lost(6, 6), Lost(9, 9)]
    assert cursor.place == 9


async def test_what_lies_beyond_the_bound_is_not_lost(damaged):
    cursor = Cursor(damaged, 6)
    assert await walk(cursor, upto=8) == [(None, [7, 8])]
    assert cursor.lost == []


@pytest.mark.parametrize(
    ("last", "upto", "place", "lost"),
    [(2, 8, 6, []), (3, 8, 6, [Lost(6, 6)]), (99, 8, 6, [Lost(6, 6)]), (1, 9, 9, [Lost(9, 9)])],
)
async def test_the_last_so_many_begin_behind_the_damage(damaged, last, upto, place, lost):
    cursor = Cursor(damaged)
    assert await cursor.begin(Since(last=last), A, upto) is (not lost)
    assert (cursor.place, cursor.lost) == (place, lost)


async def test_a_log_that_says_no_end_of_its_damage_can_not_be_passed(history, monkeypatch):
    async def fail(*args, **more):
        raise HistoryDamaged(2, "its directory can't be read")

    await fill(history, 3)
    monkeypatch.setattr(history, "read", fail)
    monkeypatch.setattr(history, "last", fail)
    cursor = Cursor(history)
    with pytest.raises(HistoryDamaged):
        await cursor.read(A, 3)
    with pytest.raises(HistoryDamaged):
        await cursor.begin(Since(last=1), A, 3)
    assert (cursor.place, cursor.lost) == (0, [])


async def test_a_log_that_can_not_be_read_now_is_no_loss(history, monkeypatch):
    async def fail(*args, **more):
        raise HistoryUnavailable

    await fill(history, 3)
    cursor = Cursor(history)
    with monkeypatch.context() as patch:
        patch.setattr(history, "read", fail)
        with pytest.raises(HistoryUnavailable):
            await cursor.read(A, 3)
    assert await walk(cursor, upto=3) == [(None, [1, 2, 3])]


async def test_a_piece_that_is_not_taken_comes_again(history):
    await fill(history, 4)
    cursor = Cursor(history)
    for _ in range(2):
        piece = await cursor.read(A, 4, limit=3)
        assert ids(piece.page.messages()) == [1, 2, 3]
    cursor.take(piece, 2)
    assert await walk(cursor, upto=4) == [(None, [3, 4])]


async def test_what_is_trimmed_before_it_is_read_is_told_once(history):
    await fill(history, 200)
    size = (await history.statistics()).size
    cursor = Cursor(history)
    assert await cursor.begin(Since(after=0), A, 200)
    piece = await cursor.read(A, 200, limit=5)
    cursor.take(piece)
    trimmed = await keep_bytes(history, size // 2)
    assert trimmed > 5
    told = await walk(cursor, upto=200)
    assert [missing for missing, _ in told if missing] == [trimmed + 1]
    assert [id_ for _, found in told for id_ in found] == list(range(trimmed + 1, 201))


async def test_what_was_trimmed_before_the_beginning_is_told_with_it(history):
    await fill(history, 200)
    trimmed = await keep_bytes(history, (await history.statistics()).size // 2)
    for since, recovered in ((Since(after=1), False), (Since(after=0), True)):
        cursor = Cursor(history)
        assert await cursor.begin(since, A, 200) is recovered
        told = await walk(cursor, upto=200)
        assert [missing for missing, _ in told if missing] == []
        assert told[0][1][0] == trimmed + 1


@pytest.mark.parametrize("since", [Since(after=9), Since(after=1, epoch="another")])
async def test_a_place_of_another_log_begins_with_all(history, since):
    await fill(history, 3)
    cursor = Cursor(history)
    assert not await cursor.begin(since, A, 3)
    assert cursor.place == 0
