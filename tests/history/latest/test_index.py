"""The index of latest values: what it survives, what it forgets, and what bounds it."""

import errno
import math
import shutil
from pathlib import Path

import pytest

from mist.errors import HistoryUnavailable, LatestOff, StartupError
from mist.history import Erasure, LatestQuery, Policy, Rule
from mist.history.latest import tables
from mist.history.opening import open_history
from mist.history.sqlite.block_writer import BlockWriter
from tests.history.latest.values import latest, newest_of_all
from tests.history.messages import ids, one, publication, run, select, texts


async def opened(folder: Path):
    history = await open_history(f"sqlite:///{folder}/h.db")
    await history.keep_latest(["k:*"])
    return history


async def fill(history, keys=50, rounds=3):
    for number in range(rounds):
        runs = [run(f"k:{key},all", f"{key}.{number}") for key in range(keys)]
        await history.append([publication(*runs)])


def after_a_crash(folder: Path) -> Path:
    """The files as a process that is killed now would leave them."""
    copy = folder / f"crashed{len(list(folder.iterdir()))}"
    copy.mkdir()
    for file in folder.glob("h.db*"):
        if not file.name.endswith(("-shm", "-lock")):
            shutil.copy(file, copy)
    return copy


async def check(history):
    assert await latest(history) == await newest_of_all(history)


async def test_values_are_those_of_the_definition(history):
    await history.keep_latest(["k:*"])
    await fill(history)
    found = await latest(history)
    assert texts(found) == [f"{key}.2" for key in range(50)]
    assert texts(await latest(history, after=found[40].id)) == [f"{key}.2" for key in range(41, 50)]
    assert await latest(history, selection=select("none")) == []


@pytest.mark.parametrize("pattern", ["k*", "*", "k", "l:*", "/k:*"])
async def test_what_is_not_kept_is_refused(history, pattern):
    await history.keep_latest(["k:*"])
    with pytest.raises(LatestOff):
        await history.latest(LatestQuery(pattern, lambda: None))


async def test_without_patterns_none_are_kept(history):
    with pytest.raises(LatestOff):
        await history.latest(LatestQuery("k:*", lambda: None))
    await history.keep_latest([])
    assert history.latest_patterns == ()


async def test_a_page_is_bounded_and_says_where_to_go_on(history):
    await history.keep_latest(["k:*"])
    await fill(history, keys=3_000, rounds=1)
    query, after, sizes = LatestQuery("k:*", lambda: None), 0, []
    while True:
        page = await history.latest(query, after=after)
        sizes.append(page.count)
        after = page.after
        if page.complete:
            break
    assert sizes[0] == 64
    assert max(sizes) <= 1_000
    assert sum(sizes) == 3_000
    page = await history.latest(query, after=1_500, packed=True)
    steps = [sum(each.count for each in step) for step in page.unpack()]
    assert max(steps) <= 256 < sum(steps)
    small = await history.latest(LatestQuery("k:*", lambda: None), limit=5)
    assert (small.count, small.after, small.complete) == (5, 5, False)


async def test_one_whose_process_was_killed_goes_on(tmp_path):
    history = await opened(tmp_path)
    await fill(history, rounds=1)
    while await history.compact():
        pass
    await fill(history)
    await check(history)
    crashed = await opened(after_a_crash(tmp_path))
    await check(crashed)
    await crashed.close()
    await history.erase(Erasure(frozenset(["k:1"])))
    await fill(history, keys=5, rounds=1)
    crashed = await opened(after_a_crash(tmp_path))
    await check(crashed)
    await crashed.close()
    await history.close()


async def test_what_was_removed_is_forgotten_even_if_the_process_dies_before(tmp_path, monkeypatch):
    history = await opened(tmp_path)
    await history.append([one("k:1,a", "1"), one("k:1,b", "2"), one("k:2,b", "3")])
    await check(history)

    def fail(self, upto):
        raise HistoryUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(BlockWriter, "forget_removals", fail)
        with pytest.raises(HistoryUnavailable):
            await history.erase(Erasure(frozenset(["b"])))
    crashed = await opened(after_a_crash(tmp_path))
    assert ids(await latest(crashed)) == [1]
    await crashed.close()
    assert ids(await latest(history)) == [1]
    await history.close()


async def test_nothing_of_what_was_erased_is_left_in_the_file(tmp_path):
    history = await opened(tmp_path)
    await history.append([one("k:1,user:marvin", "1"), one("k:1,other", "2")])
    await check(history)
    files = [tmp_path / "h.db-latest", tmp_path / "h.db-latest-wal"]
    await history._latest._run(history._latest._tables.commit)
    assert any(b"marvin" in file.read_bytes() for file in files)
    await history.erase(Erasure(frozenset(["user:marvin"])))
    assert not any(b"marvin" in file.read_bytes() for file in files)
    assert ids(await latest(history)) == [2]
    await history.close()


async def test_an_erasure_by_a_command_leaves_nothing_in_a_file_that_nobody_keeps_up(tmp_path):
    history = await opened(tmp_path)
    await history.append([one("k:1,user:marvin", "1")])
    await check(history)
    await history.close()
    command = await open_history(f"sqlite:///{tmp_path}/h.db")
    await command.erase(Erasure(frozenset(["user:marvin"])))
    await command.close()
    assert not (tmp_path / "h.db-latest").exists()
    history = await opened(tmp_path)
    assert await latest(history) == []
    await history.close()


@pytest.mark.parametrize("kept", [1, 4096])
async def test_a_damaged_file_is_made_anew(tmp_path, kept):
    history = await opened(tmp_path)
    await fill(history, keys=400)
    await check(history)
    await history.close()
    file = tmp_path / "h.db-latest"
    file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\xaa"))
    history = await opened(tmp_path)
    for _ in range(5):
        try:
            await check(history)
            break
        except HistoryUnavailable:
            continue
    await check(history)
    await history.close()


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("patterns", [["k:*"], []])
async def test_what_cannot_be_replaced_is_one_line(tmp_path, end, patterns):
    path = tmp_path / f"h.db-latest{end}"
    (path / "file").mkdir(parents=True)
    history = await open_history(f"sqlite:///{tmp_path}/h.db")
    with pytest.raises((StartupError, HistoryUnavailable), match=r".*h\.db-latest") as caught:
        await history.keep_latest(patterns)
    assert "\n" not in str(caught.value)
    assert (path / "file").is_dir()
    await history.close()


async def test_one_that_is_damaged_and_cannot_be_replaced_for_now_is_made_anew_then(
    tmp_path, monkeypatch
):
    def fails(path):
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    history = await opened(tmp_path)
    await fill(history)
    await check(history)
    monkeypatch.setattr("mist.history.latest.tables.remove_tables", fails)
    history._latest._tables._recover(ValueError("damaged"))
    for _ in range(3):
        with pytest.raises(HistoryUnavailable):
            await latest(history)
        with pytest.raises(HistoryUnavailable):
            await history.compact()
    monkeypatch.undo()
    with pytest.raises(HistoryUnavailable):
        await latest(history)  # and with that it is made anew
    await check(history)
    await history.close()


async def test_one_of_another_log_is_made_anew(tmp_path):
    history = await opened(tmp_path)
    await fill(history)
    await check(history)
    await history.close()
    (tmp_path / "h.db").unlink()
    history = await opened(tmp_path)
    await history.append([one("k:7", "another log")])
    assert texts(await latest(history)) == ["another log"]
    await history.close()


async def test_one_that_does_not_hear_of_removals_is_not_believed(tmp_path):
    history = await opened(tmp_path)
    await fill(history)
    await check(history)
    await history.close()
    file = tmp_path / "h.db-latest"
    old = file.read_bytes()
    history = await open_history(f"sqlite:///{tmp_path}/h.db")
    await history.keep_latest([])  # which removes it
    await history.erase(Erasure(frozenset(["k:3"])))
    await history.close()
    file.write_bytes(old)
    history = await opened(tmp_path)
    await check(history)
    await history.close()


async def test_a_new_epoch_keeps_the_values(history):
    await history.keep_latest(["k:*"])
    await fill(history)
    await check(history)
    await history.new_epoch()
    await check(history)
    await history.new_epoch(above=1_000)
    await fill(history, keys=3, rounds=1)
    await check(history)


async def test_a_full_disk_is_an_error_and_nothing_more(tmp_path):
    history = await opened(tmp_path)
    await fill(history, keys=10)
    await check(history)
    connection = history._latest._tables._connection
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    await fill(history, keys=1_000, rounds=1)
    with pytest.raises(HistoryUnavailable):
        await latest(history)
    await history.append([one("k:1", "published all the same")])
    connection.execute(f"PRAGMA max_page_count = {1 << 30}").fetchall()
    await check(history)
    await history.close()


async def test_retention_with_a_rule_leaves_the_newest_of_each(history):
    await history.keep_latest(["k:*"])
    await fill(history, keys=30)
    policy = Policy(None, None, 0, (Rule("k:*", count=1),))
    while (await history.trim(policy, 2_000.0)).more:
        pass
    assert len(await latest(history)) == 30
    await check(history)
    while (await history.trim(Policy(None, None, 0), 2_000.0)).more:
        pass
    assert await latest(history) == []
    assert (await history._latest.statistics())[0] == 0


async def test_kinds_go_with_their_entries(history):
    await history.keep_latest(["k:*"])
    await history.append([one("k:1,a", "1"), one("k:1,b", "2"), one("k:2,b", "3")])
    await check(history)
    await history.erase(Erasure(frozenset(["b"])))
    await check(history)
    rows = history._latest._tables._connection.execute("SELECT tags, entries FROM kind").fetchall()
    assert rows == [("a", 1)]


@pytest.mark.parametrize("count", [99, 101, 700])
async def test_a_key_with_many_kinds_is_answered_exactly(history, count, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS", 256)
    await history.keep_latest(["k:*"])
    runs = [run(f"k:1,n{number},{'odd' if number % 2 else 'even'}", "x") for number in range(count)]
    await history.append([publication(*runs)])
    for wanted, last in (("odd", count - 1 - count % 2), ("even", count - 1 + count % 2 - 1)):
        found = await latest(history, selection=select(wanted))
        assert ids(found) == ids(await newest_of_all(history, select(wanted)))
        assert len(found) == 1, last
    found = await latest(history, selection=select("n5,odd"))
    assert ids(found) == [6]


async def test_a_message_with_many_keys_comes_once(history):
    await history.keep_latest(["k:*"])
    await history.append([one(",".join(f"k:{number}" for number in range(64)), "1")])
    await history.append([one("k:0", "2")])
    assert texts(await latest(history)) == ["1", "2"]
    assert math.isfinite((await history._latest.statistics())[1])


async def test_tags_that_look_alike_are_different_keys(history):
    await history.keep_latest(["*"])
    await history.append([one("k:1", "1"), one("k:1 ".strip() + "0", "2"), one("K:1", "3")])
    await history.append([one("k:1,k", "4"), one("/k:1", "5")])
    found = await latest(history, LatestQuery("k:*", lambda: None))
    assert texts(found) == ["2", "4"]
