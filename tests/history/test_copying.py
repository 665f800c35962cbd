"""A copy of a log that is in use: what the log has, whatever has changed since the last one."""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from mist.errors import HistoryUnavailable, StartupError
from mist.history import Erasure, History, Policy, Rule
from mist.history.opening import open_history
from mist.history.record import Key
from mist.history.sqlite.copying import Copied, check_blocks, copy_log
from tests.history.messages import one, replay, some, texts


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


@pytest.fixture
async def log(source: Path) -> AsyncIterator[History]:
    async with await open_history(f"sqlite:///{source}") as log:
        yield log


def tables(path: Path) -> dict[str, list[object]]:
    """All rows of all tables."""
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}")) for name in names}


async def test_the_first_copy_is_the_whole_log(log: History, source: Path, copy: Path) -> None:
    await log.append([some("a", 50), one("b", "last")])
    assert copy_log(source, copy).blocks is None
    assert tables(copy) == tables(source)
    assert copy.stat().st_mode & 0o777 == 0o600
    async with await open_history(f"sqlite:///{copy}", read_only=True) as copied:
        assert texts(await replay(copied)) == texts(await replay(log))
        assert await copied.verify() == []


async def test_a_folder_may_have_any_name(log: History, source: Path, tmp_path: Path) -> None:
    """Also one that is no UTF-8, or would mean something in a URI."""
    for name in ["a?mode=memory#%41", os.fsdecode(b"b\xff")]:
        (tmp_path / name).mkdir()
        copy = tmp_path / name / "copy.db"
        await log.append([one("a", "1")])
        assert copy_log(source, copy).blocks is None
        await log.append([one("a", "2")])
        assert copy_log(source, copy).blocks is not None
        assert tables(copy) == tables(source)
        async with await open_history(f"sqlite:///{copy}", read_only=True) as copied:
            assert (await copied.statistics()).file_size == copy.stat().st_size


async def test_a_later_copy_writes_what_is_new(log: History, source: Path, copy: Path) -> None:
    await log.append([one("a", "x" * 20_000)])
    copy_log(source, copy)
    assert copy_log(source, copy) == Copied([], 0)
    await log.append([one("a", "y" * 30_000)])
    copied = copy_log(source, copy)
    assert copied.blocks == [2]
    assert 30_000 < copied.size < 31_000
    assert check_blocks(copy, [2]) == []
    assert tables(copy) == tables(source)


@pytest.mark.parametrize("seed", range(6))
async def test_it_is_the_log_whatever_was_done(
    log: History, source: Path, copy: Path, seed: int
) -> None:
    random = Random(seed)
    for step in range(40):
        match random.randrange(8):
            case 0:
                await log.trim(Policy(None, random.randrange(1, 40_000), None, ()), 2000.0)
            case 1:
                await log.erase(Erasure(frozenset(random.choice("abc"))))
            case 2:
                while await log.compact():
                    pass
            case 3:
                await log.new_epoch(random.choice([0, 10_000 * step]))
            case 4:
                await log.trim(Policy(None, None, 20, (Rule("a", 3),)), 2000.0)
            case _:
                tags, size = random.choice(["a", "a,b", "c", "/room"]), random.randrange(3_000)
                publications = [
                    one(
                        tags, random.randbytes(size).hex(), key=Key(random.randbytes(32), bytes(32))
                    )
                    for _ in range(random.randrange(1, 6))
                ]
                await log.append(publications)
        if random.random() < 0.4:
            copied = copy_log(source, copy)
            assert tables(copy) == tables(source)
            assert check_blocks(copy, copied.blocks or []) == []
    copy_log(source, copy)
    async with await open_history(f"sqlite:///{copy}", read_only=True) as copied_log:
        assert await copied_log.verify() == []
        assert await copied_log.position() == await log.position()


async def test_what_is_erased_is_not_left_in_the_file(
    log: History, source: Path, copy: Path
) -> None:
    await log.append([one("a", "the-erased-one"), one("b", "the-kept-one")])
    copy_log(source, copy)
    assert b"the-erased-one" in copy.read_bytes()
    await log.erase(Erasure(frozenset("a")))
    copy_log(source, copy)
    assert b"the-erased-one" not in copy.read_bytes()
    assert b"the-kept-one" in copy.read_bytes()


async def test_an_update_that_fails_leaves_the_copy_as_it_was(
    log: History, source: Path, copy: Path
) -> None:
    await log.append([one("a", "1")])
    copy_log(source, copy)
    before = tables(copy)
    await log.append([one("a", "2")])
    with closing(sqlite3.connect(copy, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL").fetchall()
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON block BEGIN SELECT RAISE(FAIL, 'x'); END"
        )
    with pytest.raises(HistoryUnavailable):
        copy_log(source, copy)
    assert tables(copy) == before


async def test_what_is_no_copy_is_replaced(log: History, source: Path, copy: Path) -> None:
    await log.append([one("a", "1")])
    copy.write_bytes(b"garbage" * 1000)
    assert copy_log(source, copy).blocks is None
    assert tables(copy) == tables(source)


def test_what_is_no_log_is_not_copied(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        copy_log(tmp_path / "missing.db", copy)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
    with pytest.raises(StartupError, match="another program"):
        copy_log(other, copy)
    assert not copy.exists()


async def test_a_damaged_block_is_told_of(log: History, source: Path, copy: Path) -> None:
    await log.append([one("a", "x" * 5_000)])
    copy_log(source, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("UPDATE block SET body = zeroblob(length(body))")
    assert [each.first for each in check_blocks(copy, [1])] == [1]
    assert "not in the copy" in check_blocks(copy, [7])[0].text
