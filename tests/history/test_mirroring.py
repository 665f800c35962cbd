"""A log as a mirror: what arrives is stored as it was ordered, each once, all or nothing."""

from pathlib import Path

import attrs
import pytest

from mist.commands import Since
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Bulk, History, Key, KeyRecord, Mark
from mist.history.arrivals import Arrival, BatchArrival, Piece
from mist.history.commits import make_blocks, pack_block, unpack_block
from mist.history.cursor import Cursor
from mist.history.encoding import encode_blocks
from mist.history.mirroring import NotAMirror
from mist.history.numbering import BACKLOG_SIZE, ChannelPosition
from mist.history.opening import open_history, open_mirror
from tests.history.messages import one, publication, replay, run, select, some, texts

EPOCH = "e" * 16
DAY = 24 * 3600 * 1_000_000


def piece(*publications, key=None):
    """What a node sends of some publications, and others get."""
    placed = []
    for packed in map(pack_block, encode_blocks(publications, [0] * len(publications))):
        row = unpack_block(packed)
        placed.append(row.moved(placed[-1].head.last) if placed else row)
    return Piece(placed, sum(each.count for each in publications), key)


async def begun(history, epoch=EPOCH):
    """The log as a mirror of another, from its begin."""
    mirror = await history.mirror()
    await mirror.begin_anew(epoch)
    return mirror


def arrival(offset, first, *pieces, time=1_000_000):
    return Arrival(offset, first, time + offset, pieces)


async def test_messages_get_the_ids_and_the_time_of_their_arrival(history: History) -> None:
    mirror = await begun(history)
    assert mirror.offset == 0
    await mirror.apply(
        [
            arrival(1, 1, piece(some("a", 3), one("a,b", "x", publisher="p"))),
            arrival(2, 5),
            arrival(3, 5, piece(one("b", "y")), piece(one("a", "z"))),
        ]
    )
    assert mirror.offset == 3
    messages = await replay(history)
    assert [(m.id, m.time, m.data) for m in messages] == [
        (1, 1.000001, b"0"),
        (2, 1.000001, b"1"),
        (3, 1.000001, b"2"),
        (4, 1.000001, b"x"),
        (5, 1.000003, b"y"),
        (6, 1.000003, b"z"),
    ]
    assert messages[3].publisher == "p"
    assert texts(await replay(history, select("b"))) == ["x", "y"]
    position = await history.position()
    assert (position.epoch, position.first, position.newest) == (EPOCH, 1, 6)
    assert await history.verify() == []


async def test_messages_above_an_id_are_counted_and_ids_of_nothing_are_not(
    history: History,
) -> None:
    mirror = await begun(history)
    await mirror.apply([arrival(1, 1, piece(some("a", 3)))])
    await mirror.apply([Arrival(2, 4, 1_000_002, (), 5)])
    await mirror.apply([arrival(3, 9, piece(some("a", 2)))])
    assert [await mirror.count(id_) for id_ in range(12)] == [5, 4, 3, *[2] * 6, 1, 0, 0]


async def test_pages_that_many_ask_for_follow_what_arrives(history: History) -> None:
    mirror = await begun(history)

    async def asked() -> list[str]:
        pages = [await replay(history, select("a"), packed=True) for _ in range(3)]
        assert pages[1:] == [pages[0]] * 2
        return texts(pages[0])

    for number in range(1, 4):
        await mirror.apply(
            [arrival(number, 2 * number - 1, piece(one("a", str(number)), one("b")))]
        )
        assert await asked() == [str(n) for n in range(1, number + 1)]
    await mirror.apply_batch(batch(4, 7, 1, make_blocks([one("a", "4")]), 1))
    assert await asked() == ["1", "2", "3", "4"]
    await mirror.begin_anew("f" * 16)
    assert await asked() == []
    await mirror.apply([arrival(1, 1, piece(one("a", "new")))])
    assert await asked() == ["new"]


async def test_what_is_not_next_is_refused_and_nothing_is_stored(history: History) -> None:
    mirror = await begun(history)
    await mirror.apply([arrival(1, 1, piece(one("a")))])
    for wrong in (
        [arrival(1, 2, piece(one("a")))],
        [arrival(3, 2, piece(one("a")))],
        [arrival(2, 3, piece(one("a")))],
        [arrival(2, 1, piece(one("a")))],
        [arrival(2, 2, piece(one("a"))), arrival(3, 2, piece(one("a")))],
    ):
        with pytest.raises(ValueError, match="what comes next"):
            await mirror.apply(wrong)
    assert mirror.offset == 1
    assert len(await replay(history)) == 1
    await mirror.apply([arrival(2, 2, piece(one("a")))])
    assert len(await replay(history)) == 2


async def test_a_block_that_can_not_be_read_is_refused(history: History) -> None:
    mirror = await begun(history)
    good = piece(some("a", 3))
    (row,) = good.rows
    for rows, count in (([attrs.evolve(row, body=b"?")], 3), ([row], 4)):
        with pytest.raises(ValueError, match=r"."):
            await mirror.apply([arrival(1, 1, Piece(rows, count))])
    assert mirror.offset == 0
    assert await replay(history) == []


async def test_what_has_a_known_key_is_left_out(history: History) -> None:
    mirror = await begun(history)
    key, other = Key(b"k" * 32, b"d" * 32), Key(b"k" * 32, b"e" * 32)
    (first,) = await mirror.apply([arrival(1, 1, piece(some("a", 2), key=key))])
    assert first.known == {}
    again, conflict = await mirror.apply(
        [
            arrival(2, 3, piece(one("a", "x")), piece(some("a", 2), key=key)),
            arrival(3, 6, piece(one("a", "?"), key=other), piece(one("a", "y"))),
        ]
    )
    known = KeyRecord(1, 1_000_001, key.name, key.digest)
    assert (again.known, conflict.known) == ({1: known}, {0: known})
    assert [(m.id, m.data) for m in await replay(history)] == [
        (1, b"0"),
        (2, b"1"),
        (3, b"x"),
        (7, b"y"),
    ]
    assert [row.head.first for row in (*again.rows, *conflict.rows)] == [3, 7]
    assert (await history.position()).newest == 7
    assert await history.verify() == []
    assert await history.recovered(None, 4)


async def test_one_key_twice_in_what_is_applied_at_once(history: History) -> None:
    mirror = await begun(history)
    key = Key(b"k" * 32, b"d" * 32)
    _, second = await mirror.apply(
        [arrival(n, n, piece(one("a", str(n)), key=key)) for n in (1, 2)]
    )
    assert list(second.known) == [0]
    assert texts(await replay(history)) == ["1"]
    assert (await history.position()).newest == 2


async def test_a_key_is_known_for_a_day_by_the_time_of_the_log(history: History) -> None:
    mirror = await begun(history)
    key = Key(b"k" * 32, b"d" * 32)
    for offset, time in ((1, DAY), (2, 2 * DAY), (3, 2 * DAY + 10)):
        await mirror.apply([Arrival(offset, offset, time, [piece(one("a", str(offset)), key=key)])])
    assert texts(await replay(history)) == ["1", "3"]


async def test_channels_are_numbered_as_by_who_published(history: History) -> None:
    mirror = await begun(history)
    await mirror.apply([arrival(1, 1, piece(some("/c", 3), one("/c,/e", "x")))])
    await mirror.apply([arrival(2, 5, piece(some("/c,/d", 2)))])
    positions = await history.channels(["/c", "/d"])
    assert (positions["/c"].last, positions["/d"].last) == (6, 2)
    page = await history.read(select("/d"), numbered=True)
    assert page.stored[0].numbers is not None
    assert await history.verify() == []


async def test_the_bounds_of_channels_come_with_what_is_published() -> None:
    published = [publication(run("/c", "1", "2", "3"), meta={BACKLOG_SIZE: b"2"})]
    async with await open_history("memory://") as alone, await open_history("memory://") as other:
        await alone.append(published)
        mirror = await begun(other)
        await mirror.apply([arrival(1, 1, piece(*published))])
        (mine,) = (await alone.channels(["/c"])).values()
        (theirs,) = (await other.channels(["/c"])).values()
        assert (mine.last, mine.floor) == (theirs.last, theirs.floor) == (3, 1)


# batches


def batch(offset, first, number, rows, count, time=1_000_000):
    bulk = Bulk(lambda: iter(rows), count)
    return BatchArrival(offset, first, time + offset, bulk, Mark("o", "w", number))


async def test_a_batch_is_stored_once(history: History) -> None:
    mirror = await begun(history)
    rows = make_blocks([some("a", 3_000), one("b", "x")])
    commit, fresh = await mirror.apply_batch(batch(1, 1, 1, rows, 3_001))
    assert (commit.first, commit.last, commit.count, fresh) == (1, 3_001, 3_001, True)
    assert await mirror.apply_batch(batch(2, 3_002, 1, rows, 3_001)) == (commit, False)
    assert mirror.offset == 2
    assert (await history.position()).newest == 6_002
    await mirror.apply([arrival(3, 6_003, piece(one("a", "y")))])
    messages = await replay(history)
    assert [m.id for m in messages] == [*range(1, 3_002), 6_003]
    assert await history.committed("o", "w") == commit
    assert await history.verify() == []


async def test_a_batch_that_fails_is_not_stored(history: History) -> None:
    mirror = await begun(history)
    rows = make_blocks([some("a", 3)])
    with pytest.raises(ValueError, match="another number"):
        await mirror.apply_batch(batch(1, 1, 1, rows, 4))
    with pytest.raises(ValueError, match="what comes next"):
        await mirror.apply_batch(batch(2, 1, 1, rows, 3))
    assert (mirror.offset, await replay(history)) == (0, [])
    await mirror.apply_batch(batch(1, 1, 1, [], 0))
    assert mirror.offset == 1


# opening


async def test_a_mirror_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mirror.db"
    history, mirror = await open_mirror(url)
    async with history:
        assert (mirror.epoch, mirror.offset) == ("", 0)
        await mirror.begin_anew(EPOCH)
        await mirror.apply([arrival(1, 1, piece(one("a", "1"), key=Key(b"k" * 32, b"d" * 32)))])
        await mirror.apply([arrival(2, 2, piece(one("a", "2"), key=Key(b"k" * 32, b"d" * 32)))])
    history, mirror = await open_mirror(url)
    async with history:
        assert (mirror.epoch, mirror.offset, mirror.newest) == (EPOCH, 2, 2)
        await mirror.go_on(EPOCH)
        assert (await history.position()).newest == 2  # though nothing is there of it
        await mirror.apply([arrival(3, 3, piece(one("a", "3")))])
        assert [(m.id, m.data) for m in await replay(history)] == [(1, b"1"), (3, b"3")]
        assert await history.verify() == []


async def test_notes_are_kept_with_what_they_come_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    history, mirror = await open_mirror(url)
    async with history:
        await mirror.begin_anew(EPOCH)
        await mirror.apply([Arrival(1, 1, 1, notes={b"a": b"1", b"b": b"2", b"c": b"3"})])
        await mirror.apply(
            [Arrival(2, 1, 2, notes={b"a": None, b"b": b"4"}), Arrival(3, 1, 3, notes={b"b": b"5"})]
        )
        with pytest.raises(ValueError, match="not what comes next"):
            await mirror.apply([Arrival(9, 1, 4, notes={b"c": None})])
        assert mirror.notes == {b"b": b"5", b"c": b"3"}
    history, mirror = await open_mirror(url)
    async with history:
        assert mirror.notes == {b"b": b"5", b"c": b"3"}
        await mirror.begin_anew("f" * 16)
        assert mirror.notes == {}
    history, mirror = await open_mirror(url)
    async with history:
        assert mirror.notes == {}


async def test_a_mirror_goes_on_in_another_epoch(history: History) -> None:
    mirror = await begun(history)
    await mirror.apply([arrival(1, 1, piece(some("a", 5)))])
    await mirror.go_on("f" * 16, {EPOCH: 5, "older": 3})
    await mirror.apply([Arrival(2, 6, 2_000_000, void=4), arrival(3, 10, piece(one("a", "new")))])
    position = await history.position()
    assert (position.epoch, position.newest) == ("f" * 16, 10)
    assert [m.id for m in await replay(history)] == [1, 2, 3, 4, 5, 10]
    for epoch, id_, is_known in (
        ("f" * 16, 10, True),
        (EPOCH, 5, True),
        (EPOCH, 6, False),
        ("older", 3, True),
        ("older", 4, False),
        ("unknown", 1, False),
        (None, 10, True),
        (None, 11, False),
    ):
        assert position.has(id_, epoch) is is_known
        assert await history.recovered(None, id_, epoch) is is_known
    assert await history.verify() == []


async def test_a_position_of_an_epoch_before_is_one_of_this(history: History) -> None:
    mirror = await begun(history)
    await mirror.apply([arrival(1, 1, piece(some("a", 5)))])
    await mirror.go_on("f" * 16, {EPOCH: 4})
    for id_, place, recovered in ((3, 3, True), (4, 4, True), (5, 0, False)):
        cursor = Cursor(history)
        assert await cursor.begin(Since(after=id_, epoch=EPOCH), None, 5) is recovered
        assert cursor.place == place


@pytest.mark.parametrize("newest", [0, 30])
async def test_a_mirror_begins_anew(history: History, newest: int) -> None:
    mirror = await begun(history)
    key = Key(b"k" * 32, b"d" * 32)
    rows = make_blocks([some("/channel", 3)])
    await mirror.apply([arrival(1, 1, piece(some("/channel", 5), key=key))])
    await mirror.apply_batch(BatchArrival(2, 6, 5_000_000, Bulk(lambda: rows, 3), Mark("", "w", 1)))
    await mirror.begin_anew("f" * 16, {EPOCH: 2}, 7 if newest else 0, newest)
    position = await history.position()
    assert (position.epoch, position.first, position.newest) == ("f" * 16, newest + 1, newest)
    assert position.trimmed == newest
    assert await replay(history) == []
    assert await history.recall(key.name) is None
    assert await history.committed("", "w") is None
    assert (await history.channels(["/channel"]))["/channel"] == ChannelPosition()
    first = newest + 1
    (applied,) = await mirror.apply(
        [arrival(8 if newest else 1, first, piece(some("/channel", 2), key=key))]
    )
    assert applied.known == {}
    assert [m.id for m in await replay(history)] == [first, first + 1]
    assert await history.recovered(None, first)
    assert await history.recovered(None, newest) is True
    assert await history.recovered(None, 0) is (newest == 0)
    assert await history.verify() == []
    while await history.compact():
        pass
    assert len(await replay(history)) == 2


async def test_what_is_begun_anew_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mirror.db"
    history, mirror = await open_mirror(url)
    async with history:
        await mirror.begin_anew(EPOCH)
        await mirror.apply([arrival(1, 1, piece(some("a", 5)))])
        await mirror.begin_anew("f" * 16, {}, 7, 30)
    history, mirror = await open_mirror(url)
    async with history:
        assert (mirror.epoch, mirror.offset, mirror.newest) == ("f" * 16, 7, 30)
        assert await replay(history) == []
        assert await history.verify() == []


async def test_a_log_with_messages_of_its_own_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        await history.append([one("a", "mine")])
        with pytest.raises(NotAMirror):
            await history.mirror()
    with pytest.raises(StartupError, match="messages of its own"):
        await open_mirror(url)
    async with await open_history(url) as history:
        assert texts(await replay(history)) == ["mine"]


async def test_a_mirror_is_no_log_to_append_to(history: History) -> None:
    await begun(history)
    with pytest.raises(HistoryUnavailable, match="mirror"):
        await history.append([one("a")])
    with pytest.raises(HistoryUnavailable, match="mirror"):
        await history.commit(Bulk(lambda: iter(()), 0), Mark("", "w", 1), 0.0)
