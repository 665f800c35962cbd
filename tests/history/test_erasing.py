"""Erasure: what is erased is gone for good, and nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.errors import HistoryUnavailable
from mist.history import Erased, Erasure, Policy, Rule
from mist.history.opening import open_history
from tests.history.messages import ids, one, publication, replay, run, select, some, texts

EVERYTHING = Policy(None, None, None)


def tags(*found):
    return Erasure(frozenset(found))


@pytest.fixture
async def filled(history):
    """Ids 1 to 9 over three blocks."""
    await history.append([publication(run("a", "1", "2", "3"), run("a,b", "4"))])
    await history.append([one("b,c", "5"), publication(run("a,b,c", "6", "7"), publisher="p")])
    await history.append([some("d", 2)])
    return history


@pytest.mark.parametrize(
    ("erasure", "gone"),
    [
        (tags("a"), [1, 2, 3, 4, 6, 7]),
        (tags("a", "b"), [4, 6, 7]),
        (tags("x"), []),
        (tags("d"), [8, 9]),
        (Erasure(publisher="p"), [6, 7]),
        (Erasure(publisher="q"), []),
        (Erasure(frozenset("b"), "p"), [6, 7]),
        (Erasure(frozenset("d"), "p"), []),
    ],
)
async def test_exactly_what_is_meant_goes(filled, erasure, gone):
    first, last = (gone[0], gone[-1]) if gone else (0, 0)
    assert await filled.erase(erasure) == Erased(len(gone), first, last)
    left = [n for n in range(1, 10) if n not in gone]
    assert ids(await replay(filled)) == left
    assert await filled.erase(erasure) == Erased()
    assert await filled.verify() == []
    assert (await filled.statistics()).messages == len(left)
    position = await filled.position()
    assert (position.newest, position.expired) == (9, 0)
    assert position.first == (left[0] if left else 10)
    assert await filled.append([one("a", "10")]) == 10


async def test_who_resumes_from_before_is_told_and_who_resumes_behind_is_not(filled):
    await filled.erase(tags("a", "b", "c"))
    assert not await filled.recovered(select("a"), 6)
    assert not await filled.recovered(None, 0)
    assert await filled.recovered(select("a"), 7)
    assert (await filled.position()).trimmed == 7


async def test_nothing_said_is_refused():
    for wrong in (lambda: Erasure(), lambda: Erasure(frozenset())):
        with pytest.raises(ValueError, match="erasure needs"):
            wrong()


async def test_a_log_of_many_blocks_is_gone_over_to_its_end(history):
    for n in range(150):
        await history.append([one("a" if n % 3 else "b", str(n))])
    assert await history.erase(tags("b")) == Erased(50, 1, 148)
    assert texts(await replay(history)) == [str(n) for n in range(150) if n % 3]
    assert await history.verify() == []


async def in_steps(history, erasure, **options):
    """The results of an erasure in the smallest steps there are."""
    done = [await history.erase(erasure, seconds=0, **options)]
    while done[-1].after is not None:
        assert len(done) < 1000
        done.append(await history.erase(erasure, after=done[-1].after, seconds=0))
    return done


async def test_in_steps_it_does_what_it_does_at_once(history):
    for n in range(300):
        await history.append([one("a" if n % 3 else "b", str(n))])
    done = await in_steps(history, tags("b"))
    assert len(done) > 3
    places = [each.after for each in done[:-1]]
    assert places == sorted(places)
    total = Erased()
    for each in done:
        total = total.plus(each)
    assert total == Erased(100, 1, 298)
    assert texts(await replay(history)) == [str(n) for n in range(300) if n % 3]
    assert await history.verify() == []


async def test_a_step_goes_on_where_others_have_published_meanwhile(history):
    for n in range(150):
        await history.append([one("b", str(n))])
    step = await history.erase(tags("b"), seconds=0)
    await history.append([one("b", "new"), one("a", "new")])
    rest = [await history.erase(tags("b"), after=step.after, seconds=0)]
    while rest[-1].after is not None:
        rest.append(await history.erase(tags("b"), after=rest[-1].after, seconds=0))
    assert step.messages + sum(each.messages for each in rest) == 151
    assert texts(await replay(history)) == ["new"]


async def test_what_is_tracked_of_an_erased_tag_is_forgotten_and_never_taken_for_nothing(history):
    policy = Policy(None, None, 1, (Rule("user:*", 1),))
    for n in range(6):
        await history.append([one("user:1", str(n)), one("x", "x")])
    while (await history.trim(policy, 1000.0)).more:
        pass
    assert not await history.recovered(select("user:1"), 2)
    await history.erase(tags("user:1"))
    assert not await history.recovered(select("user:1"), 2)
    await history.append([one("user:1", "new")])
    assert await history.recovered(select("user:1"), 12)


async def test_what_follows_the_last_id_stays_also_within_a_run(history):
    await history.append([some("/a", 5), one("b"), some("/a", 5)])
    erased = await history.erase(tags("/a"), upto=9)
    assert (erased.messages, erased.first, erased.last) == (8, 1, 9)
    page = await history.read(numbered=True)
    assert ids(page.messages()) == [6, 10, 11]
    assert [each for stored in page.stored for each in stored.numbers] == [{}, {"/a": 9}]
    assert texts(page.messages()) == ["", "3", "4"]


async def test_retention_counts_on_as_before(history):
    for _ in range(20):
        await history.append([some("a", 10), some("b", 10)])
    await history.erase(tags("a"))
    policy = Policy(None, None, 100)
    while (await history.trim(policy, 1000.0)).more:
        pass
    assert (await history.statistics()).messages == 100


@settings(max_examples=30)
@given(st.data())
async def test_it_is_as_if_they_had_never_been(data):
    lists = ["a", "b", "a,b", "c", "b,c"]
    entries = st.tuples(st.sampled_from(lists), st.integers(1, 3), st.sampled_from(["", "p"]))
    async with await open_history("memory://") as history:
        everything = []
        for block in data.draw(st.lists(st.lists(entries, min_size=1, max_size=4), max_size=6)):
            await history.append([some(t, n, publisher=p) for t, n, p in block])
        everything = await replay(history)
        wanted = data.draw(
            st.none() | st.sampled_from(lists).map(lambda t: frozenset(t.split(",")))
        )
        publisher = data.draw(st.sampled_from(["", "p"] if wanted is None else [None, "", "p"]))
        erasure = Erasure(wanted, publisher)
        gone = [
            each
            for each in everything
            if (wanted is None or wanted <= each.tags) and publisher in (None, each.publisher)
        ]
        assert (await history.erase(erasure)).messages == len(gone)
        assert await replay(history) == [each for each in everything if each not in gone]


# of a file


def grep(folder, needle):
    return [each.name for each in folder.iterdir() if needle in each.read_bytes()]


async def test_no_byte_is_left_in_the_file_of_a_log_that_was_busy(tmp_path):
    url = f"sqlite:///{tmp_path}/history.db"
    needle = b"SECRET-OF-USER-1"
    async with await open_history(url) as history:
        for n in range(600):
            user = n % 5
            text = needle.decode() if user == 1 else f"fine {n}"
            await history.append([one(f"user:{user},t{n % 50}", f"{text} {'x' * (n % 3000)}")])
            if n % 50 == 0:
                while await history.compact():  # joined: older copies of each are about
                    pass
            if n % 200 == 199:
                await history.trim(Policy(None, None, n - 100), 1000.0)
        assert grep(tmp_path, needle)
        left = [each for each in await replay(history) if "user:1" not in each.tags]
        assert (await history.erase(tags("user:1"))).messages > 50
        assert grep(tmp_path, needle) == []
        assert grep(tmp_path, b"user:1") == []
        assert await replay(history) == left
        assert await history.verify() == []
    assert grep(tmp_path, needle) == []
    async with await open_history(url) as history:
        assert await replay(history) == left
        assert not await history.recovered(select("user:1"), 1)


async def test_steps_leave_no_byte_either(tmp_path):
    async with await open_history(f"sqlite:///{tmp_path}/history.db") as history:
        for n in range(200):
            secret = n % 2
            data = ("SECRET-OF-USER-1" if secret else "fine") * 1000
            await history.append([one("user:1" if secret else "b", data)])
        assert len(await in_steps(history, tags("user:1"))) > 3
        assert grep(tmp_path, b"SECRET-OF-USER-1") == []
        assert grep(tmp_path, b"user:1") == []


async def test_large_messages_leave_nothing_either(tmp_path):
    url = f"sqlite:///{tmp_path}/history.db"
    needle = b"SECRET-OF-USER-1"
    async with await open_history(url) as history:
        for n in range(12):
            data = (needle if n % 3 == 1 else b"fine") * 20_000
            await history.append([one("a" if n % 3 == 1 else "b", data)])
            await history.trim(Policy(None, 1_000_000, None), 1000.0)
        await history.erase(tags("a"))
        assert grep(tmp_path, needle) == []
        assert await history.verify() == []


async def test_where_somebody_reads_on_it_is_an_error_and_another_time_does_it(
    tmp_path, monkeypatch
):
    import sqlite3

    monkeypatch.setattr("mist.history.sqlite.database._BUSY_TIMEOUT", 0.1)
    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        await history.append([one("a", "SECRET")])
        reader = sqlite3.connect(tmp_path / "history.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM block").fetchone()
        with pytest.raises(HistoryUnavailable, match="reading"):
            await history.erase(tags("a"))
        reader.close()
        assert await history.erase(tags("a")) == Erased()
        assert grep(tmp_path, b"SECRET") == []


async def test_a_block_that_can_not_be_read_goes_as_a_whole(tmp_path):
    import sqlite3

    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        await history.append([one("a", "1")])
        await history.append([one("a", "2")])
    connection = sqlite3.connect(tmp_path / "history.db")
    connection.execute("UPDATE block SET checksum = 0 WHERE first = 1")
    connection.commit()
    connection.close()
    async with await open_history(url) as history:
        assert await history.erase(Erasure(publisher="p")) == Erased()
        assert texts(await replay(history)) == ["2"]
        assert not await history.recovered(None, 0)


# by time


async def test_where_a_time_begins(history):
    times = [10.0, 10.0, 20.0, 30.5, 30.5, 40.0]
    for time in times:
        await history.append([one("a", time=time)])
    await history.append([publication(run("a", "1", "2"), time=50.0), one("b", time=60.0)])
    for time, after in [
        (0.0, 0),
        (10.0, 0),
        (10.1, 2),
        (30.5, 3),
        (30.6, 5),
        (50.0, 6),
        (55.0, 8),
        (60.0, 8),
        (1e9, 9),
    ]:
        assert await history.before(time) == after, time
