"""What only `sqlite:///…` has: a file, other processes, crashes, a disk that is full."""

import contextlib
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest
import trio

from mist.errors import StartupError
from mist.history import Durability, HistoryDamaged, HistoryUnavailable, Key, Policy, Rule, leaps
from mist.history import log as log_module
from mist.history.opening import open_history
from mist.history.replay import read_page
from tests.history.messages import ids, one, publication, replay, run, select, some
from tests.history.test_model import small_numbers

NOTHING_KEPT = Policy(max_age=None, max_bytes=0)
KEY = Key(b"n" * 32, b"d" * 32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


async def fill(url, *publications):
    async with await open_history(url) as history:
        await history.append(publications)


async def trim(history, policy, now=1000.0):
    while (await history.trim(policy, now)).more:
        pass


async def compact(history):
    while await history.compact():
        pass


async def fill_segments(url):
    """Thirty messages, in blocks that are in the directory where numbers are small."""
    async with await open_history(url) as history:
        for number in range(30):
            await history.append([one(f"a,t{number}", "x" * 600)])
        await compact(history)


async def tidy_some(history):
    """As maintenance does it: what is damaged may be due for ever."""
    for _ in range(100):
        if not await history.compact():
            return


async def refusal(url, **options):
    with pytest.raises(StartupError) as caught:
        await open_history(url, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run_sql(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


# what lasts


async def test_messages_epoch_and_position_last(url):
    async with await open_history(url) as history:
        await history.append([some("a", 3), one("b", time=2000.0)])
        before = await history.position()
    async with await open_history(url) as history:
        assert await history.position() == before
        assert ids(await replay(history)) == [1, 2, 3, 4]
        assert await history.append([one("c", time=5.0)]) == 5
        assert (await replay(history, after=4))[0].time == 2000.0


async def test_ids_are_not_reused_after_everything_was_trimmed(url):
    async with await open_history(url) as history:
        await history.append([some("a", 9, time=2000.0)])
        await trim(history, NOTHING_KEPT)
    async with await open_history(url) as history:
        position = await history.position()
        assert (position.first, position.newest, position.trimmed) == (10, 9, 9)
        assert await history.append([one("a", time=5.0)]) == 10
        assert (await replay(history))[0].time == 2000.0


async def test_what_was_trimmed_of_a_tag_is_remembered(url):
    policy = Policy(None, 0, None, (Rule("room:*", count=1),))
    async with await open_history(url) as history:
        await history.append([one("room:1"), some("room:2", 4), one("x")])
        await trim(history, policy)
    async with await open_history(url) as history:
        assert await history.recovered(select("room:1"), 0)
        assert not await history.recovered(select("room:2"), 3)
        assert await history.recovered(select("room:2"), 4)


async def test_file_is_for_its_owner_only(url, path):
    async with await open_history(url) as history:
        await history.append([one("a")])
        for each in path.parent.iterdir():
            assert stat.S_IMODE(each.stat().st_mode) == 0o600, each


async def test_file_that_others_can_read_is_warned_of(url, path, caplog):
    await fill(url, one("a"))
    assert not caplog.records
    path.chmod(0o644)
    await fill(url, one("a"))
    assert "others can read" in caplog.text


async def test_missing_folders_are_made_and_for_the_owner_only(tmp_path):
    await fill(f"sqlite:///{tmp_path}/some/where/history.db", one("a"))
    assert stat.S_IMODE((tmp_path / "some" / "where").stat().st_mode) == 0o700


# who may have it


async def test_second_writer_is_refused_and_a_reader_is_not(url):
    async with await open_history(url) as history:
        await history.append([one("a")])
        assert "in use by another process" in await refusal(url)
        async with await open_history(url, read_only=True) as reader:
            assert ids(await replay(reader)) == [1]
            await history.append([one("b")])
            assert ids(await replay(reader)) == [1, 2]
            assert (await reader.position()).newest == 2
            assert await reader.verify() == []
            assert (await reader.statistics()).durability is Durability.POWER
    await (await open_history(url)).close()


async def test_reader_changes_nothing(url):
    await fill(url, one("a"))
    async with await open_history(url, read_only=True) as reader:
        for attempt in (
            reader.append([one("b")]),
            reader.trim(NOTHING_KEPT, 0.0),
            reader.compact(),
            reader.new_epoch(),
        ):
            with pytest.raises(HistoryUnavailable, match="reading only"):
                await attempt
    async with await open_history(url) as history:
        assert ids(await replay(history)) == [1]


async def test_reader_makes_no_file(url, path):
    assert "No such file" in await refusal(url, read_only=True)
    assert not path.exists()


async def test_file_of_another_program_is_refused_and_left_alone(url, path):
    run_sql(path, "CREATE TABLE other (a)")
    content = path.read_bytes()
    assert "another program" in await refusal(url)
    assert "another program" in await refusal(url, read_only=True)
    assert path.read_bytes() == content


async def test_file_that_is_no_database_is_refused_and_left_alone(url, path):
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    assert "not a database" in await refusal(url)
    assert path.read_bytes().startswith(b"not a database")


async def test_other_version_is_refused(url, path):
    await fill(url, one("a"))
    run_sql(path, "PRAGMA user_version = 7")
    assert "version 7" in await refusal(url)


NEW_IN = {
    2: ["DROP TABLE key"],
    3: ["DROP TABLE writer", "DROP TABLE erasure"],
    4: ["DROP TABLE channel", "DROP TABLE numbering"],
    5: ["ALTER TABLE directory RENAME COLUMN ends TO masks"],
}


def undo(path, version):
    """Make a log what it was in an older version."""
    statements = [each for new, found in NEW_IN.items() if new > version for each in found]
    run_sql(path, *statements, f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_log_of_an_older_version_is_brought_up_to_this_one(url, path, version):
    await fill(url, one("a", "old"))
    schema = run_sql(path, "SELECT sql FROM sqlite_schema ORDER BY name")
    undo(path, version)
    content = path.read_bytes()
    assert f"version {version}; a server" in await refusal(url, read_only=True)
    assert path.read_bytes() == content
    async with await open_history(url) as history:
        assert await history.append([one("a", "new", key=KEY)]) == 2
        assert [each.data for each in await replay(history)] == [b"old", b"new"]
        assert (await history.recall(KEY.name)).first == 2
        assert await history.verify() == []
        async with await open_history(url, read_only=True) as reader:
            assert (await reader.recall(KEY.name)).first == 2
    assert run_sql(path, "SELECT sql FROM sqlite_schema ORDER BY name") == schema
    assert run_sql(path, "PRAGMA user_version") == [(6,)]


async def test_log_that_can_not_be_brought_up_stays_as_it_was(url, path):
    await fill(url, one("a"))
    undo(path, 1)
    run_sql(path, "CREATE TABLE writer (a)")
    await refusal(url)
    assert run_sql(path, "PRAGMA user_version") == [(1,)]
    assert run_sql(path, "SELECT name FROM sqlite_schema WHERE name = 'key'") == []
    run_sql(path, "DROP TABLE writer")
    async with await open_history(url) as history:
        assert ids(await replay(history)) == [1]


@pytest.mark.parametrize("place", ["", "\0", "/dev/null", "/proc/nowhere/x/history.db"])
async def test_path_that_can_not_be_a_file_is_refused(place):
    await refusal(f"sqlite:///{place}")


async def test_folder_in_the_place_of_the_file_is_refused(tmp_path):
    assert "directory" in (await refusal(f"sqlite:///{tmp_path}")).lower()


async def test_file_less_durable_than_process_is_refused(url):
    assert "durable" in await refusal(url, durability=Durability.NOTHING)


async def test_refused_writer_leaves_no_lock(url, path):
    run_sql(path, "CREATE TABLE other (a)")
    await refusal(url)
    path.unlink()
    await fill(url, one("a"))


# keys


async def test_keys_last(url):
    await fill(url, one("a"), one("b", time=7.5, key=KEY))
    async with await open_history(url) as history:
        kept = await history.recall(KEY.name)
    assert (kept.first, kept.digest) == (2, KEY.digest)


async def test_where_a_key_can_not_be_stored_its_messages_are_not(url, path):
    await fill(url, one("a"))
    run_sql(
        path,
        "CREATE TRIGGER full BEFORE INSERT ON key BEGIN SELECT RAISE(ABORT, 'no room'); END",
    )
    async with await open_history(url) as history:
        with pytest.raises(HistoryUnavailable):
            await history.append([one("a", "lost", key=KEY)])
        assert ids(await replay(history)) == [1]
        assert await history.append([one("a", "kept")]) == 2


KEYED_WRITER = """
import os, sys, trio
from mist.history import Key
from mist.history.opening import open_history
from tests.history.messages import publication, run

async def main():
    history = await open_history(sys.argv[1])
    number = 0
    while True:
        number += 1
        key = Key(number.to_bytes(32, "big"), bytes(32))
        await history.append([publication(run("a", str(number)), key=key)])
        os.write(1, b"%d\\n" % number)

trio.run(main)
"""


async def test_a_kill_leaves_both_a_key_and_its_message_or_neither(url, path):
    command = [sys.executable, "-c", KEYED_WRITER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        told = [int(writer.stdout.readline()) for _ in range(50)]
        writer.kill()
        told += map(int, writer.stdout.read().split())
    async with await open_history(url) as history:
        stored = [int(each.data) for each in await replay(history)]
    keys = [int.from_bytes(name, "big") for (name,) in run_sql(path, "SELECT name FROM key")]
    assert sorted(keys) == stored
    assert set(told) <= set(stored)


# how it ended


async def reopened_epochs(url, path, monkeypatch, durability, *, boot, clean):
    """The epochs before and after a stop, and the boot id it is opened with again."""
    async with await open_history(url, durability=durability) as history:
        await history.append([one("a")])
        before = (await history.position()).epoch
    run_sql(path, f"UPDATE log SET clean = {int(clean)}")
    monkeypatch.setattr(leaps, "_BOOT_ID", boot)
    async with await open_history(url, durability=durability) as history:
        assert ids(await replay(history)) == [1]
        return before, (await history.position()).epoch


@pytest.mark.parametrize(
    ("durability", "same_boot", "clean", "is_new"),
    [
        (Durability.PROCESS, True, True, False),
        (Durability.PROCESS, True, False, False),
        (Durability.PROCESS, False, True, False),
        (Durability.PROCESS, False, False, True),
        (Durability.POWER, False, False, False),
    ],
)
async def test_epoch_is_new_where_the_machine_may_have_taken_messages_back(
    url, path, tmp_path, monkeypatch, durability, same_boot, clean, is_new
):
    boot = tmp_path / "boot_id"
    boot.write_text("one")
    monkeypatch.setattr(leaps, "_BOOT_ID", boot)
    other = tmp_path / "other"
    other.write_text("one" if same_boot else "two")
    before, after = await reopened_epochs(
        url, path, monkeypatch, durability, boot=other, clean=clean
    )
    assert (before != after) is is_new


async def test_unknown_boot_counts_as_another(url, path, tmp_path, monkeypatch):
    nowhere = tmp_path / "nowhere"
    monkeypatch.setattr(leaps, "_BOOT_ID", nowhere)
    before, after = await reopened_epochs(
        url, path, monkeypatch, Durability.PROCESS, boot=nowhere, clean=False
    )
    assert before != after


async def kill_in_full_flight(url, times, *options):
    acknowledged = {}
    chance = random.Random(times)
    for _ in range(times):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.history.writer", url, *options],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
        ) as writer:
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 200))]
            writer.kill()
            # What was still in the pipe was acknowledged too; a line cut short wasn't read.
            lines += [line for line in writer.stdout.readlines() if line.endswith(b"\n")]
        for line in lines:
            first, count, name = line.decode().split()
            for place in range(int(count)):
                assert int(first) + place not in acknowledged, "an id was given twice"
                acknowledged[int(first) + place] = f"{name}/{place}"
    return acknowledged


async def check_after_kills(url, times):
    acknowledged = await kill_in_full_flight(url, times)
    async with await open_history(url) as history:
        found = {message.id: message.data.decode() for message in await replay(history)}
        assert acknowledged.items() <= found.items()
        assert len(set(found.values())) == len(found)
        assert await history.verify() == []


async def test_kill_loses_no_acknowledged_message_and_repeats_no_id(url):
    await check_after_kills(url, 10)


@pytest.mark.slow
async def test_hundred_kills_lose_no_acknowledged_message_and_repeat_no_id(url):
    await check_after_kills(url, 100)


async def test_kill_in_the_middle_of_retention_leaves_a_sound_log(url):
    acknowledged = await kill_in_full_flight(url, 5, "--keep")
    async with await open_history(url) as history:
        position = await history.position()
        assert position.newest >= max(acknowledged)
        found = {message.id: message.data.decode() for message in await replay(history)}
        kept = {each: text for each, text in acknowledged.items() if each > position.trimmed}
        assert kept.items() <= found.items()
        assert await history.verify() == []


# what goes wrong later


async def test_full_disk_refuses_the_append_and_no_other(url):
    async with await open_history(url) as history:
        await history.append([one("a", "before")])
        connection = history._access.executor._files.writer._connection
        connection.execute("PRAGMA max_page_count = 60")
        accepted = [1]
        with pytest.raises(HistoryUnavailable, match="disk is full"):
            while True:
                accepted.append(await history.append([one("a", "x" * 50_000)]))
        with pytest.raises(HistoryUnavailable):
            await history.append([one("a", "x" * 50_000)])
        assert ids(await replay(history)) == accepted
        connection.execute("PRAGMA max_page_count = 100000")
        assert await history.append([one("a", "after")]) == accepted[-1] + 1
        assert await history.verify() == []


async def test_file_system_that_is_full_loses_nothing_acknowledged(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = await trio.run_process(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_stderr=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        async with await open_history(f"sqlite:///{folder}/history.db") as history:
            accepted = []
            with pytest.raises(HistoryUnavailable):
                while True:
                    accepted.append(await history.append([one("a", os.urandom(30_000))]))
            assert accepted
            assert ids(await replay(history)) == accepted
            await trio.run_process(["mount", "-o", "remount,size=8m", str(folder)])
            assert await history.append([one("a")]) == accepted[-1] + 1
        async with await open_history(f"sqlite:///{folder}/history.db") as history:
            assert ids(await replay(history)) == [*accepted, accepted[-1] + 1]
            assert await history.verify() == []
        await trio.run_process(["mount", "-o", "remount,ro", str(folder)])
        assert "Read-only" in await refusal(f"sqlite:///{folder}/history.db")
    finally:
        await trio.run_process(["umount", "-l", str(folder)])


async def test_damaged_block_is_named_and_what_lies_around_it_is_read(url, path, caplog):
    async with await open_history(url) as history:
        for number in range(3):
            await history.append([one("a", str(number)), one("b", str(number))])
    run_sql(
        path,
        "UPDATE block SET body = CAST(substr(body, 1, length(body) - 1) || x'77' AS BLOB) "
        "WHERE first = 3",
    )
    async with await open_history(url) as history:
        (problem,) = await history.verify()
        assert (problem.first, problem.last) == (3, 4)
        assert "checksum" in problem.text
        for wanted, before in ((select("a"), [1]), (None, [1, 2])):
            page = await history.read(wanted)
            assert (ids(page.messages()), page.complete) == (before, False)
            with pytest.raises(HistoryDamaged) as caught:
                await history.read(wanted, after=page.after)
            assert caught.value.first == 3
            columns = await history.columns(wanted)
            assert (columns.after, columns.complete) == (page.after, False)
            assert columns.count == page.count
            with pytest.raises(HistoryDamaged) as caught:
                await history.columns(wanted, after=page.after)
            assert caught.value.first == 3
        assert [record.first for record in caplog.records] == [3]
        assert ids(await replay(history, after=4)) == [5, 6]
        assert await history.append([one("a")]) == 7
        await compact(history)
        await trim(history, Policy(None, 0, None, (Rule("a", count=5),)))
        assert ids(await replay(history)) == [1, 5, 7]
        assert not await history.recovered(select("a"), 3)


async def test_damaged_data_is_reported(url, path):
    data = os.urandom(20_000)
    async with await open_history(url) as history:
        await history.append([one("a")])
        await history.append([one("a", data)])
    place = path.read_bytes().index(data[10_000:10_100])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"no, never mind")
    async with await open_history(url) as history:
        (problem,) = await history.verify()
        assert (problem.first, problem.last) == (2, 2)
        assert ids((await history.read(limit=1)).messages()) == [1]


async def test_damaged_structure_is_one_clear_refusal(url, path):
    async with await open_history(url) as history:
        for _ in range(50):
            await history.append([one("a", os.urandom(20_000))])
    with path.open("r+b") as file:
        file.seek(2 * 8192)
        file.write(os.urandom(100 * 8192))
    assert (await refusal(url)).endswith("history.db: the database is damaged")


async def test_whatever_is_damaged_is_told_by_our_errors_alone(url, path):
    with small_numbers():
        async with await open_history(url) as history:
            for number in range(40):
                await history.append([one(f"a,t{number % 7}", "x" * (600 + number * 40))])
            await compact(history)
        sound = path.read_bytes()
        for seed in range(60):
            chance = random.Random(seed)
            damaged = bytearray(sound)
            if seed % 3 == 0:
                del damaged[chance.randrange(len(sound)) :]
            for _ in range(chance.choice([1, 20, 400]) if seed % 3 else 0):
                damaged[chance.randrange(len(sound))] = chance.randrange(256)
            path.with_name("history.db-wal").unlink(missing_ok=True)
            path.write_bytes(damaged)
            with contextlib.suppress(StartupError):
                async with await open_history(url) as history:
                    await history.verify()
                    for attempt in (
                        lambda log: replay(log, select("t3")),
                        replay,
                        lambda log: log.last(select("t3"), 3),
                        lambda log: log.append([one("a")]),
                        lambda log: trim(log, Policy(None, 0, None, (Rule("t3", count=2),))),
                        tidy_some,
                    ):
                        with contextlib.suppress(HistoryUnavailable):
                            await attempt(history)


async def test_log_without_its_state_is_refused(url, path):
    await fill(url, one("a"))
    run_sql(path, "DELETE FROM log")
    assert "damaged" in await refusal(url)
    assert "damaged" in await refusal(url, read_only=True)


async def test_lost_directory_entry_is_found_and_rebuilt(url, path):
    with small_numbers():
        await fill_segments(url)
        run_sql(path, "DELETE FROM directory")
        async with await open_history(url) as history:
            assert await history.verify()
        run_sql(path, "DELETE FROM segment")
        async with await open_history(url) as history:
            await compact(history)
            assert run_sql(path, "SELECT count(*) > 5 FROM segment") == [(1,)]
            assert await history.verify() == []
            assert ids(await replay(history, select("t7"))) == [8]


# housekeeping


@pytest.fixture
async def settled(url):
    """300 blocks of which most are in the directory, and what is in them: id to tags."""
    chance = random.Random(7)
    tags = {}
    with small_numbers():
        async with await open_history(url) as history:
            for number in range(1, 301):
                tags[number] = {f"t{chance.randrange(40)}", chance.choice("abc"), "all"}
                await history.append([one(",".join(tags[number]), "x" * 600, time=number)])
            await compact(history)
            yield history, tags


@pytest.mark.parametrize(
    "alternatives",
    [
        ["t7"],
        ["a,t7"],
        ["a,b"],
        ["t1", "t2,c"],
        ["all,a"],
        ["none"],
        ["t3,none"],
        ["t1", "t9", "b"],
    ],
)
async def test_directory_leads_to_every_match(settled, path, alternatives):
    history, tags = settled
    assert run_sql(path, "SELECT count(*) > 50 FROM segment") == [(1,)]
    wanted = [set(each.split(",")) for each in alternatives]
    expected = [number for number, has in tags.items() if any(each <= has for each in wanted)]
    selection = select(*alternatives)
    assert ids(await replay(history, selection, limit=7)) == expected
    for after, upto in ((100, 200), (0, 10), (290, 300), (150, 151)):
        found = await replay(history, selection, after=after, upto=upto)
        assert ids(found) == [each for each in expected if after < each <= upto]
    for n in (1, 5, 1000):
        start = await history.last(selection, n)
        assert [each for each in expected if each > start] == expected[-n:]


async def test_directory_of_an_older_version_is_made_anew(url, path):
    with small_numbers():
        await fill_segments(url)
        undo(path, 4)
        run_sql(path, "UPDATE directory SET masks = x'00', hashes = x'00'")
        async with await open_history(url) as history:
            assert run_sql(path, "SELECT count(*) FROM segment") == [(0,)]
            assert ids(await replay(history, select("t7"))) == [8]
            await compact(history)
            assert run_sql(path, "SELECT count(*) > 5 FROM segment") == [(1,)]
            assert await history.verify() == []
            assert ids(await replay(history, select("t7"))) == [8]


async def test_directory_stays_true_when_blocks_are_thinned_and_taken(settled, path):
    history, tags = settled
    policy = Policy(max_age=100, max_bytes=None, rules=(Rule("t7", count=1000),))
    await trim(history, policy, now=300)
    await compact(history)
    expected = [number for number, has in tags.items() if number >= 200 or "t7" in has]
    assert ids(await replay(history)) == expected
    assert ids(await replay(history, select("t7"))) == [each for each in tags if "t7" in tags[each]]
    assert ids(await replay(history, select("a"))) == [
        each for each in expected if "a" in tags[each]
    ]
    await trim(history, NOTHING_KEPT)
    await compact(history)
    assert run_sql(path, "SELECT count(*) FROM directory") == [(0,)]
    assert run_sql(path, "SELECT count(*) FROM segment") == [(0,)]


async def test_survivors_that_sank_before_they_settled_are_found(url):
    with small_numbers():
        async with await open_history(url) as history:
            policy = Policy(None, 0, None, (Rule("keep", count=1000),))
            expected = []
            for number in range(60):
                tag = "keep" if number % 3 == 0 else "drop"
                first = await history.append([one(tag, "x" * 600)])
                expected += [first] if tag == "keep" else []
                if number % 5 == 0:
                    await trim(history, policy)
                if number % 7 == 0:
                    await compact(history)
            await trim(history, policy)
            assert ids(await replay(history, select("keep"))) == expected
            assert await history.verify() == []


async def test_small_blocks_are_joined(url):
    async with await open_history(url) as history:
        for number in range(300):
            await history.append([one("a", str(number), publisher=f"p{number % 3}", time=number)])
        before = await replay(history)
        await compact(history)
        assert (await history.statistics()).blocks < 25
        assert await replay(history) == before
        assert await history.verify() == []


async def test_several_groups_of_small_blocks_are_joined_in_a_step(url):
    async with await open_history(url) as history:
        for number in range(300):
            await history.append([one("a", str(number), publisher=f"p{number % 3}", time=number)])
        before = await replay(history)
        assert await history.compact()
        assert (await history.statistics()).blocks == 300 - 256 + 8
        assert await replay(history) == before
        assert await history.verify() == []


async def test_joining_does_not_wait_for_the_disk_but_appends_do(url, path):
    statements = []
    async with await open_history(url, durability=Durability.POWER) as history:
        connection = history._access.executor._files.writer._connection
        for number in range(40):
            await history.append([one("a", str(number), publisher=f"p{number}", time=number)])
        connection.set_trace_callback(statements.append)
        await compact(history)
        joining = statements.index("PRAGMA synchronous = 1")
        assert statements.index("BEGIN IMMEDIATE") == joining + 1
        assert statements[statements.index("COMMIT") + 1] == "PRAGMA synchronous = 2"
        connection.set_trace_callback(None)
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
        run_sql(
            path,
            "CREATE TRIGGER no BEFORE DELETE ON block BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        for number in range(40):
            await history.append([one("a", str(number), publisher=f"p{number}", time=number)])
        with pytest.raises(HistoryUnavailable):
            await compact(history)
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]


async def sizes(history, path):
    """Bytes of each block's messages, in KiB, once nothing is left to be joined."""
    await compact(history)
    return [size // 1024 for (size,) in run_sql(path, "SELECT size FROM block ORDER BY first")]


@pytest.mark.parametrize(
    ("appended", "joined"),
    [
        ([17] * 8, [17] * 8),  # to be rewritten for a quarter of the blocks
        ([9] * 8, [72]),
        ([8] * 7, [8] * 7),  # no block is full yet
        ([10] * 7, [10] * 7),
        ([2, 14] * 6, [64, 2, 14, 2, 14]),
        ([40, 20, *[9] * 8, 40], [40, 20, 72, 40]),  # not with those before: that would be fewer
        ([5] * 5 + [70] + [5] * 5, [5] * 5 + [70] + [5] * 5),
        ([50, 40] + [3] * 12, [50, 64, 3, 3, 3, 3]),
    ],
)
async def test_blocks_are_joined_where_one_replaces_at_least_eight(url, path, appended, joined):
    async with await open_history(url) as history:
        for size in appended:
            await history.append([one("a", bytes(size * 1024))])
        before = await replay(history)
        assert await sizes(history, path) == joined
        assert await replay(history) == before


async def test_space_is_given_back(url, path):
    async with await open_history(url) as history:
        for _ in range(20):
            await history.append([one("a", os.urandom(1 << 20))])
        await compact(history)
        large = path.stat().st_size
        await trim(history, NOTHING_KEPT)
        await compact(history)
        run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert large > 10 << 20
    assert path.stat().st_size < 10 << 20


async def test_write_ahead_log_is_bounded_while_appends_and_reads_go_on(url, path):
    wal = path.with_name("history.db-wal")
    async with await open_history(url) as history:
        for _ in range(60):
            await history.append([one("a", os.urandom(1 << 20))])
            await history.read(limit=1)
            await compact(history)
        assert wal.stat().st_size < 20 << 20


async def test_readers_and_writer_are_not_in_each_others_way(url):
    seen = []

    async def follow(history):
        after = 0
        while after < 400:
            page = await history.read(after=after)
            seen.extend(ids(page.messages()))
            after = page.after
            if not page.stored:  # a loop that never waits would starve the writer's thread
                await trio.sleep(0.001)

    async with await open_history(url) as history:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, history)
                for _ in range(100):
                    await history.append([some("a", 4)])
                    await history.compact()
    assert seen == list(range(1, 401))


async def test_writer_lowers_the_switch_interval_and_never_raises_it(url):
    before = sys.getswitchinterval()
    try:
        for interval, expected in ((0.005, 0.0001), (0.00001, 0.00001)):
            sys.setswitchinterval(interval)
            await fill(url, one("a"))
            assert sys.getswitchinterval() == pytest.approx(expected)
    finally:
        sys.setswitchinterval(before)


async def test_the_switch_interval_is_shorter_until_the_last_replay_is_done(url):
    before = sys.getswitchinterval()
    selection = select("a")
    sys.setswitchinterval(0.0001)
    try:
        async with await open_history(url) as history:
            await history.append([one("a")])
            seen = []
            for a, b in ((selection, None), (None, selection)) * 5:
                with history.expecting(a, 0, 1):
                    with contextlib.suppress(KeyError), history.expecting(b, 0, 1):
                        raise KeyError
                    seen.append(sys.getswitchinterval())
                seen.append(sys.getswitchinterval())
        assert seen == pytest.approx([0.00001, 0.0001] * 10)
    finally:
        sys.setswitchinterval(before)


async def test_cancelled_append_is_whole_or_not_there(url):
    async with await open_history(url) as history:
        for delay in range(30):
            with trio.move_on_after(delay / 10_000):
                await history.append([some("a", 3)])
        newest = (await history.position()).newest
        assert newest % 3 == 0
        assert ids(await replay(history)) == list(range(1, newest + 1))
        assert await history.append([one("a")]) == newest + 1


@pytest.mark.slow
async def test_ten_million_messages(url):
    group = [publication(*(run(f"all,n{n}", "x" * 20, "y") for n in range(5000)))]
    async with await open_history(url, durability=Durability.PROCESS) as history:
        for number in range(1000):
            await history.append(group)
            if number % 100 == 50:
                await history.append([some("rare", 100)])
                await compact(history)
        await compact(history)
        assert len(await replay(history, select("rare"))) == 1000
        assert (await history.position()).newest == 10_001_000
        count = 0
        after = 0
        while True:
            page = await history.read(after=after)
            count += page.count
            after = page.after
            if page.complete:
                break
        assert count == 10_001_000


async def test_blocks_are_read_one_after_the_other_and_lookups_beside_them(url, monkeypatch):
    started, go, active = [], threading.Event(), []

    def read_slowly(*arguments, **options):
        active.append(1)
        started.append(len(active))
        go.wait(20)
        active.pop()
        return read_page(*arguments, **options)

    monkeypatch.setattr(log_module, "read_page", read_slowly)
    with trio.fail_after(20):
        async with await open_history(url) as history:
            await history.append([one("a")])
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(history.read)
                while not started:
                    await trio.lowlevel.checkpoint()
                for _ in range(20):
                    assert await history.recall(bytes(32)) is None
                go.set()
    assert started == [1] * 4
