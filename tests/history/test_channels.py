"""Messages counted in their channels, over every member of the family."""

import subprocess
import sys
import tempfile

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.history import Bulk, ChannelPosition, Erasure, HistoryDamaged, Mark, Policy, Rule
from mist.history.commits import make_blocks, pack_blocks, unpack_blocks
from mist.history.numbering import BACKLOG_AGE, BACKLOG_SIZE, channel_key
from mist.history.opening import open_history
from tests.history.messages import one, publication, run, select, some
from tests.history.messages import replay as read_all
from tests.history.test_model import small_numbers
from tests.history.test_sqlite import run_sql, undo

NOTHING_KEPT = Policy(max_age=None, max_bytes=0)


async def numbered(history, selection=None, *, limit=1000):
    """Id to numbers of every message that has some."""
    found, after = {}, 0
    while True:
        page = await history.read(selection, after=after, limit=limit, numbered=True)
        for stored in page.stored:
            if stored.numbers is None:
                continue
            for first, entry, numbers in zip(
                stored.firsts, stored.entries, stored.numbers, strict=True
            ):
                for place in range(entry[2]):
                    if numbers:
                        found[first + place] = {k: v + place for k, v in numbers.items()}
        if page.complete:
            return found
        after = page.after


async def last_of(history, channel):
    return (await history.channels([channel]))[channel].last


async def trim(history, policy, now=1000.0):
    while (await history.trim(policy, now)).more:
        pass


async def compact(history):
    while await history.compact():
        pass


async def commit(history, batch, *publications, packed=True):
    rows = make_blocks(publications)
    if packed:  # as they come over HTTP
        rows = unpack_blocks(pack_blocks(rows))
    count = sum(each.count for each in publications)
    return await history.commit(Bulk(lambda: rows, count), Mark("", "w", batch), 1000.0)


# numbers


async def test_each_channel_counts_from_one(history):
    await history.append([one("/a"), one("x"), one("/b"), one("/a,x")])
    await history.append([one("/a")])
    assert await numbered(history) == {1: {"/a": 1}, 3: {"/b": 1}, 4: {"/a": 2}, 5: {"/a": 3}}


async def test_message_with_two_channels_has_a_number_in_each(history):
    await history.append([some("/b", 2), one("/a,/b,x")])
    assert await numbered(history) == {1: {"/b": 1}, 2: {"/b": 2}, 3: {"/a": 1, "/b": 3}}


async def test_run_counts_each_of_its_messages(history):
    await history.append([some("/a", 1000)])
    await history.append([some("/a", 3)])
    assert (await numbered(history, limit=7))[1003] == {"/a": 1003}
    assert await last_of(history, "/a") == 1003


@pytest.mark.parametrize("packed", [True, False])
async def test_a_writer_s_batch_counts_too(history, packed):
    await history.append([some("/a", 2)])
    await commit(history, 1, some("/a", 6000), one("/b"), packed=packed)
    await commit(history, 1, some("/a", 6000), packed=packed)  # was stored before
    await history.append([one("/a,/b")])
    assert (await numbered(history, select("/b"))) == {
        6003: {"/b": 1},
        6004: {"/a": 6003, "/b": 2},
    }


async def test_channel_is_what_begins_with_a_slash_and_nothing_else(history):
    await history.append([one("a/b,.a,x:/y"), one("/,/a/b")])
    assert await numbered(history) == {2: {"/": 1, "/a/b": 1}}
    # The topic above is another channel, in which nothing was published.
    assert await last_of(history, "/a") == 0


async def test_where_a_channel_stands_is_its_last_message(history):
    await history.append([one("/a", time=5.0), one("/a,x", time=6.0), one("x", time=6.0)])
    assert await history.channels(["/a", "/b"]) == {
        "/a": ChannelPosition(2, 2, 6_000_000),
        "/b": ChannelPosition(),
    }
    assert await history.channels([]) == {}


async def test_what_is_not_asked_for_is_not_said(history):
    await history.append([one("/a")])
    page = await history.read()
    assert [each.numbers for each in page.stored] == [None]


# what becomes of them


async def test_numbers_go_on_when_everything_was_trimmed(history):
    await history.append([some("/a", 5)])
    await trim(history, NOTHING_KEPT)
    assert await last_of(history, "/a") == 5
    await history.append([one("/a")])
    assert await numbered(history) == {6: {"/a": 6}}
    assert await history.channel_after("/a", 3) == 0
    assert await history.channel_after("/a", 6) == 6


async def test_what_a_rule_keeps_of_a_block_keeps_its_numbers(history):
    await history.append([some("/a", 3), some("/a,x", 2), some("/a", 3), some("/a,x", 4)])
    await trim(history, Policy(max_age=None, max_bytes=0, rules=(Rule("x", count=5),)))
    kept = {5: {"/a": 5}, **{n: {"/a": n} for n in range(9, 13)}}
    assert await numbered(history) == kept
    assert await numbered(history, limit=1) == kept
    assert await history.channel_after("/a", 4) in (0, 4)
    assert await history.channel_after("/a", 6) == 5
    assert await history.channel_after("/a", 10) == 10


async def test_what_is_left_of_an_erasure_keeps_its_numbers(history):
    await history.append([one("/a,secret"), one("/a"), one("/a,secret"), one("/a")])
    await history.erase(Erasure(frozenset({"secret"})))
    assert await numbered(history) == {2: {"/a": 2}, 4: {"/a": 4}}
    await history.erase(Erasure(frozenset({"/a"})))
    await history.append([one("/a")])
    assert await numbered(history) == {5: {"/a": 5}}
    assert await history.verify() == []


async def test_joined_blocks_keep_their_numbers(history):
    expected = {}
    for number in range(1, 201):
        first = await history.append([one(["/a", "x", "/a,/b"][number % 3])])
        own = await history.channels(["/a", "/b"])
        if number % 3 != 1:
            expected[first] = {"/a": own["/a"].last}
        if number % 3 == 2:
            expected[first]["/b"] = own["/b"].last
    await compact(history)
    assert await numbered(history) == expected
    assert await history.verify() == []


TAGS = ["/a", "/b", "x", "r"]
tag_sets = st.frozensets(st.sampled_from(TAGS), min_size=1, max_size=3)
groups = st.lists(st.tuples(tag_sets, st.integers(1, 4)), min_size=1, max_size=4)
policies = st.builds(
    Policy,
    max_age=st.none(),
    max_bytes=st.none(),
    max_messages=st.integers(0, 30),
    rules=st.lists(
        st.builds(Rule, st.sampled_from(["r", "/a", "/*"]), count=st.integers(0, 5)), max_size=2
    ).map(tuple),
)
steps = st.one_of(
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("commit"), groups),
    st.tuples(st.just("trim"), policies),
    st.tuples(st.just("compact"), st.integers(1, 10)),
    st.tuples(st.just("erase"), tag_sets),
    st.tuples(st.just("reopen"), st.none()),
)


async def scenario(url, plan):
    history = await open_history(url)
    lasts, numbers, batch, newest = dict.fromkeys(TAGS[:2], 0), {}, 0, 0
    try:
        for step, argument in plan:
            if step in ("append", "commit"):
                for tags, count in argument:
                    for _ in range(count):
                        newest += 1
                        own = {}
                        for channel in sorted(tags & lasts.keys()):
                            lasts[channel] += 1
                            own[channel] = lasts[channel]
                        if own:
                            numbers[newest] = own
                found = publication(
                    *(run(",".join(tags), *map(str, range(count))) for tags, count in argument)
                )
                if step == "append":
                    await history.append([found])
                else:
                    batch += 1
                    await commit(history, batch, found)
            elif step == "trim":
                await trim(history, argument)
            elif step == "compact":
                for _ in range(argument):
                    await history.compact()
            elif step == "erase":
                await history.erase(Erasure(argument))
            elif url != "memory://":
                await history.close()
                history = await open_history(url)
        kept = {message.id for message in await read_all(history)}
        expected = {id_: own for id_, own in numbers.items() if id_ in kept}
        for limit in (3, 1000):
            assert await numbered(history, limit=limit) == expected
        positions = await history.channels(list(lasts))
        assert {channel: each.last for channel, each in positions.items()} == lasts
        for channel, last in lasts.items():
            here = {id_: own[channel] for id_, own in expected.items() if channel in own}
            for number in range(last + 1):
                after = await history.channel_after(channel, number)
                behind = {id_ for id_ in here if id_ > after}
                assert behind == {id_ for id_, own in here.items() if own > number}
        assert await history.verify() == []
    finally:
        await history.close()


@given(st.lists(steps, max_size=20))
@settings(max_examples=120)
def test_memory_counts_whatever_happens(plan):
    with small_numbers():
        trio.run(scenario, "memory://", plan)


@given(st.lists(steps, max_size=20))
@settings(max_examples=60)
def test_sqlite_counts_whatever_happens(plan):
    with small_numbers(), tempfile.TemporaryDirectory() as folder:
        trio.run(scenario, f"sqlite:///{folder}/history.db", plan)


# where a number is


async def test_a_number_is_found_in_few_blocks(history, monkeypatch):
    from mist.history import channels as module

    for _ in range(300):
        await history.append([one("x"), one("/a")])
    looked_at = []
    real = module.Block
    monkeypatch.setattr(
        module, "Block", lambda row, lists: looked_at.append(row.head.first) or real(row, lists)
    )
    assert await history.channel_after("/a", 300) == 600
    assert len(looked_at) == 1
    looked_at.clear()
    for number in (0, 1, 17, 150, 299):
        assert await history.channel_after("/a", number) == 2 * number
    assert len(looked_at) < 5 * 12


# what shall be shown


def bounded(tags, count=1, *, size=None, age=None):
    meta = {}
    if size is not None:
        meta[BACKLOG_SIZE] = b"%d" % size
    if age is not None:
        meta[BACKLOG_AGE] = b"%d" % age
    return some(tags, count, meta=meta)


async def test_the_last_message_says_how_long_its_channel_is_shown(history):
    await history.append([bounded("/a", age=60), one("/b")])
    await history.append([bounded("/b", age=5), one("/b")])
    found = await history.channels(["/a", "/b"])
    assert (found["/a"].age, found["/b"].age) == (60, None)


async def test_a_message_takes_older_ones_from_what_is_shown_for_good(history):
    await history.append([some("/a", 10)])
    await history.append([some("/a", 1), bounded("/a", size=3), some("/a,/b", 4)])
    assert (await history.channels(["/a"]))["/a"].floor == 9
    await history.append([bounded("/a", size=100)])
    found = await history.channels(["/a", "/b"])
    assert (found["/a"].last, found["/a"].floor, found["/b"].floor) == (17, 9, 0)


@pytest.mark.parametrize("said", [b"", b"-1", b"1e3", b"\xff", b"9" * 20])
async def test_bounds_that_are_no_numbers_are_none(history, said):
    await history.append([some("/a", 5, meta={BACKLOG_SIZE: said, BACKLOG_AGE: said})])
    found = (await history.channels(["/a"]))["/a"]
    assert (found.floor, found.age) == (0, None)


# in a file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def file(path):
    return f"sqlite:///{path}"


async def test_numbers_go_on_after_a_restart(file):
    async with await open_history(file) as history:
        await history.append([some("/a", 3)])
    async with await open_history(file) as history:
        await history.append([one("/a")])
        assert await numbered(history) == {n: {"/a": n} for n in range(1, 5)}
        async with await open_history(file, read_only=True) as reader:
            assert await numbered(reader) == await numbered(history)
            assert await last_of(reader, "/a") == 4


WRITER = """
import os, sys, trio
from mist.history.opening import open_history
from tests.history.messages import one, some

async def main():
    history = await open_history(sys.argv[1])
    while True:
        await history.append([some("/a", 3), one("/b,x")])
        found = await history.channels(["/a", "/b"])
        os.write(1, b"%d %d\\n" % (found["/a"].last, found["/b"].last))

trio.run(main)
"""


async def test_a_kill_leaves_no_gap_and_gives_no_number_twice(file):
    told = []
    for times in (20, 40, 60):
        with subprocess.Popen([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE) as it:
            told += [it.stdout.readline() for _ in range(times)]
            it.kill()
            told += [line for line in it.stdout.readlines() if line.endswith(b"\n")]
    pairs = [tuple(map(int, line.split())) for line in told]
    assert all(a == 3 * b for a, b in pairs)
    async with await open_history(file) as history:
        for channel, index in (("/a", 0), ("/b", 1)):
            found = [own[channel] for own in (await numbered(history)).values() if channel in own]
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= max(pair[index] for pair in pairs)
            assert await last_of(history, channel) == len(found)


async def test_messages_without_a_channel_write_nothing_more(file, path):
    async with await open_history(file) as history:
        await history.append([one("a,b")])
        await commit(history, 1, one("a"))
    assert run_sql(path, "SELECT count(*) FROM channel") == [(0,)]
    assert run_sql(path, "SELECT count(*) FROM numbering") == [(0,)]


async def test_what_an_older_version_has_stored_is_numbered(file, path):
    async with await open_history(file) as history:
        await history.append([some("/a", 3), one("x"), one("/a,/b")])
        await history.append([one("/a")])
        expected = await numbered(history)
        positions = await history.channels(["/a", "/b"])
    undo(path, 3)
    async with await open_history(file) as history:
        assert await numbered(history) == expected
        assert await history.channels(["/a", "/b"]) == positions
        assert await history.verify() == []


async def test_an_older_log_with_a_damaged_block_is_numbered_but_for_that(file, path):
    async with await open_history(file) as history:
        for _ in range(3):
            await history.append([one("/a")])
    undo(path, 3)
    run_sql(path, "UPDATE block SET body = x'00' WHERE first = 2")
    async with await open_history(file) as history:
        assert await last_of(history, "/a") == 2
        with pytest.raises(HistoryDamaged):
            await history.read(after=1, numbered=True)


async def test_rows_of_numbers_go_with_their_blocks(file, path):
    async with await open_history(file) as history:
        for _ in range(5):
            await history.append([one("/a")])
        await trim(history, NOTHING_KEPT)
    assert run_sql(path, "SELECT count(*) FROM numbering") == [(0,)]
    assert run_sql(path, "SELECT name, last FROM channel") == [(channel_key("/a"), 5)]


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM numbering", "UPDATE numbering SET numbers = zeroblob(length(numbers))"],
)
async def test_lost_numbers_are_damage_and_the_messages_are_not_lost(file, path, damage):
    async with await open_history(file) as history:
        await history.append([some("/a", 3), one("x")])
    run_sql(path, damage)
    async with await open_history(file) as history:
        assert len(await read_all(history)) == 4
        with pytest.raises(HistoryDamaged, match="channel"):
            await history.read(numbered=True)
        (problem,) = await history.verify()
        assert (problem.first, problem.last) == (1, 4)
        assert await history.channel_after("/a", 1) == 0
        await trim(history, Policy(max_age=None, max_bytes=0, rules=(Rule("/a", count=1),)))
        assert [each.id for each in await read_all(history)] == [3]
        await history.append([one("/a")])
        assert await history.channel_after("/a", 4) == 5


async def test_an_erased_channel_leaves_no_name(file, path):
    async with await open_history(file) as history:
        await history.append([one("/user/very-private-name"), one("x")])
        await history.erase(Erasure(frozenset({"/user/very-private-name"})))
        assert await last_of(history, "/user/very-private-name") == 1
    for each in path.parent.iterdir():
        assert b"very-private-name" not in each.read_bytes()


async def test_many_channels_in_one_append(history):
    await history.append([publication(*(run(f"/c/{n}", "x") for n in range(5000)))])
    await history.append([publication(*(run(f"/c/{n}", "x") for n in range(5000)))])
    found = await history.channels([f"/c/{n}" for n in range(5000)])
    assert {each.last for each in found.values()} == {2}
    assert await history.channel_after("/c/7", 1) == 8
