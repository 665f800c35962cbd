"""Transactions of writers that ask again: in the log once, as a whole."""

import itertools

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mist.errors import HistoryUnavailable
from mist.history import Bulk, Mark
from mist.history.block import Block
from mist.history.commits import make_blocks, pack_blocks, unpack_blocks
from mist.history.opening import open_history
from mist.history.tag_lists import TagLists
from mist.wire import split_run
from tests.history.messages import ids, one, publication, replay, run, some, texts


def bulk(*publications):
    rows = make_blocks(publications)
    return Bulk(lambda: iter(rows), sum(each.count for each in publications))


def mark(batch=1, writer="w", owner=""):
    return Mark(owner, writer, batch)


async def test_a_batch_is_stored_behind_what_is_there(history):
    await history.append([one("a", "0")])
    commit, fresh = await history.commit(bulk(some("b", 3), one("c", "x")), mark(), 2000.0)
    assert fresh
    assert (commit.batch, commit.first, commit.last, commit.count) == (1, 2, 5, 4)
    assert await history.append([one("a", "9", time=2001.0)]) == 6
    messages = await replay(history)
    assert texts(messages) == ["0", "0", "1", "2", "x", "9"]
    assert ids(messages) == [1, 2, 3, 4, 5, 6]
    assert [each.time for each in messages] == [1000.0, *[2000.0] * 4, 2001.0]
    assert (await history.position()).newest == 6
    assert (await history.statistics()).messages == 6
    assert await history.verify() == []


async def test_a_batch_is_not_stored_again(history):
    first, _ = await history.commit(bulk(some("a", 3)), mark(5), 1000.0)
    for batch in (5, 4, 0):
        assert await history.commit(bulk(some("b", 2)), mark(batch), 1001.0) == (first, False)
    assert len(await replay(history)) == 3
    _, fresh = await history.commit(bulk(one("a")), mark(6), 1002.0)
    assert fresh


async def test_writers_and_owners_have_numbers_of_their_own(history):
    for each in (mark(), mark(writer="v"), mark(owner="f00"), mark(owner="f00", writer="v")):
        _, fresh = await history.commit(bulk(one("a")), each, 1000.0)
        assert fresh
    assert (await history.committed("f00", "v")).first == 4
    assert await history.committed("f01", "v") is None


async def test_an_empty_batch_leaves_its_number(history):
    await history.append([one("a")])
    commit, fresh = await history.commit(bulk(), mark(3), 1000.0)
    assert (fresh, commit.first, commit.last, commit.count) == (True, 0, 0, 0)
    assert (await history.position()).newest == 1
    assert (await history.commit(bulk(one("b")), mark(3), 1000.0))[1] is False
    assert await history.append([one("a")]) == 2


async def test_batches_at_once_are_stored_once(history):
    outcomes = []

    async def commit():
        outcomes.append(await history.commit(bulk(some("a", 3)), mark(), 1000.0))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(commit)
    assert sorted(fresh for _, fresh in outcomes) == [False] * 4 + [True]
    assert len({each for each, _ in outcomes}) == 1
    assert len(await replay(history)) == 3


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("damaged")])
async def test_what_fails_in_the_middle_stores_nothing(history, error):
    rows = make_blocks([some("a", 9_000)])

    def blocks():
        yield from rows[:2]
        raise error

    await history.append([one("a")])
    with pytest.raises(type(error)):
        await history.commit(Bulk(blocks, 9_000), mark(), 1000.0)
    assert await history.committed("", "w") is None
    assert len(await replay(history)) == 1
    commit, fresh = await history.commit(Bulk(lambda: iter(rows), 9_000), mark(), 1000.0)
    assert (fresh, commit.first) == (True, 2)
    assert len(await replay(history)) == 9_001
    assert await history.verify() == []


async def test_a_batch_of_another_length_is_refused(history):
    for count in (2, 4):
        with pytest.raises(ValueError, match="another number"):
            await history.commit(Bulk(bulk(some("a", 3)).blocks, count), mark(), 1000.0)
    assert await replay(history) == []
    assert await history.append([one("a")]) == 1


async def test_only_so_many_writers_of_an_owner_are_known(history, monkeypatch):
    for module in ("mist.history.memory", "mist.history.sqlite.commits"):
        monkeypatch.setattr(f"{module}.MAX_WRITERS", 3)
    await history.commit(bulk(one("a")), mark(owner="other"), 1000.0)
    for number, writer in enumerate("abcda"):
        await history.commit(bulk(one("a")), mark(number, writer), 1001.0 + number)
    known = [writer for writer in "abcd" if await history.committed("", writer) is not None]
    assert known == ["a", "c", "d"]
    assert await history.committed("other", "w") is not None


async def test_it_is_known_when_the_log_is_opened_again(tmp_path):
    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        commit, _ = await history.commit(bulk(some("a", 3)), mark(), 1000.0)
    async with await open_history(url) as history:
        assert await history.commit(bulk(some("a", 3)), mark(), 1000.0) == (commit, False)
    async with await open_history(url, read_only=True) as history:
        assert await history.committed("", "w") == commit
        with pytest.raises(HistoryUnavailable, match="reading only"):
            await history.commit(bulk(), mark(9), 1000.0)


async def test_it_can_be_read_by_tags_and_trimmed_like_all_else(history):
    await history.commit(bulk(*[one(f"t{n % 7}", str(n)) for n in range(9_000)]), mark(), 1000.0)
    while await history.compact():
        pass
    from tests.history.messages import select

    assert texts(await replay(history, select("t3"))) == [str(n) for n in range(3, 9_000, 7)]
    from mist.history import Policy

    while (await history.trim(Policy(None, None, 1_000), 1000.0)).more:
        pass
    left = await replay(history)
    assert 1_000 <= len(left) < 5_000
    assert left[-1].data == b"8999"


# blocks

TAGS = st.lists(st.sampled_from(["a", "b", "Ä", "c:1"]), min_size=1, unique=True).map(",".join)
DATA = st.binary(max_size=20)


@st.composite
def publications(draw):
    framable = draw(st.booleans())
    entries = []
    for tags in draw(st.lists(TAGS, min_size=1, max_size=5)):
        data = draw(st.lists(DATA, min_size=1, max_size=4 if framable else 1))
        if framable:
            data = [each.replace(b"\n", b"") for each in data]
        entries.append(run(tags, *data))
    return publication(
        *entries,
        publisher=draw(st.sampled_from(["", "f00"])),
        framable=framable,
        audience=draw(st.none() | st.just("x")),
        meta=draw(st.none() | st.dictionaries(st.text(max_size=3), DATA, max_size=2)),
    )


def flat(stored):
    return [
        (m.id, m.tags, m.data, m.publisher, m.audience, m.meta and dict(m.meta), each.framable)
        for each in stored
        for m in each.messages()
    ]


@given(st.lists(publications(), max_size=6), st.integers(1, 6), st.integers(40, 200))
def test_blocks_hold_what_was_published_within_their_bounds(found, messages, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mist.history.commits._BLOCK_MESSAGES", messages)
        patch.setattr("mist.history.commits._BLOCK_BYTES", size)
        rows = unpack_blocks(pack_blocks(make_blocks(found)))
    newest, held = 0, []
    for row in rows:
        placed = row.placed(newest, 77)
        block = Block(placed, TagLists())
        assert block.check() is None
        assert placed.head.messages <= messages
        stored = block.select()
        assert placed.head.messages == 1 or sum(each.size for each in stored) <= size
        held += flat(stored)
        newest = placed.head.last
    expected, numbers = [], itertools.count(1)
    for each in found:
        for tag_list, wire, count in each.batch.runs:
            tags = frozenset(tag_list.decode().split(","))
            expected += [
                (next(numbers), tags, data, each.publisher, each.audience, each.meta,
                 each.batch.framable)
                for data in split_run(tag_list, wire, count)
            ]  # fmt: skip
    assert held == expected


@given(st.data())
def test_damaged_blocks_are_told(data):
    packed = pack_blocks(make_blocks([some("a", 50), one("b", "x" * 50)]))
    place = data.draw(st.integers(0, len(packed) - 1))
    flipped = bytearray(packed)
    flipped[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), packed[:place]):
        try:
            rows = unpack_blocks(damaged)
        except ValueError:
            continue
        # The count of messages is no part of the sum; a block says itself that it is another.
        with pytest.raises(Exception, match=r"disagree|next block"):
            for row in rows:
                Block(row, TagLists())
