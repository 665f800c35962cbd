"""A damaged page of a log's file costs the messages on it, told as lost, and nothing else."""

import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from mist.commands import Since
from mist.errors import StartupError
from mist.history import Durability, History, Publication, Selection
from mist.history.cursor import Cursor
from mist.history.opening import open_history
from mist.wire import record

PAGE = 8192  # bytes
COUNT = 2_800
GROUP = 40  # messages in a block, which is too large to be joined with others
SOME = Selection([frozenset({"a", "t3"})])
WANTED = {None: set(range(1, COUNT + 1)), SOME: {n for n in range(1, COUNT + 1) if n % 7 == 3}}


def publication(n: int, size: int = 850, own: bool = False) -> Publication:
    """A message; `own`: with a tag that no other has."""
    tag_list = b"a,n%d,t%d" % (n, n % 7) if own else b"a,t%d" % (n % 7)
    data = random.Random(n).randbytes(size).hex().encode()
    return Publication.of_runs([(tag_list, record(tag_list, b"%d %b" % (n, data)), 1)], 1000.0 + n)


@asynccontextmanager
async def opened(path: Path, *, read_only: bool = False) -> AsyncIterator[History]:
    async with await open_history(
        f"sqlite:///{path}", durability=Durability.PROCESS, read_only=read_only
    ) as log:
        yield log


@pytest.fixture(params=[False, True], ids=["few lists", "many lists"])
async def sound(tmp_path: Path, request: pytest.FixtureRequest) -> bytes:
    """The file of a log, closed; what belongs to it in the way of indexes is there.

    With many tag lists, its blocks are read in parts where not all messages are wanted.
    """
    path = tmp_path / "history.db"
    async with opened(path) as log:
        for start in range(1, COUNT + 1, GROUP):
            group = range(start, start + GROUP)
            await log.append([publication(n, own=request.param) for n in group])
        while await log.compact():
            pass
    return path.read_bytes()


def trees(sound: bytes) -> list[int]:
    """The pages of the tables' trees, but the first; the others have what is too long for those."""
    return [n for n in range(1, len(sound) // PAGE) if sound[n * PAGE] in (2, 5, 10, 13)]


def damaged(folder: Path, sound: bytes, page: int, noise: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "history.db"
    path.write_bytes(sound[: page * PAGE] + noise + sound[page * PAGE + len(noise) :])
    path.chmod(0o600)
    return path


async def read_all(
    log: History, selection: Selection | None, upto: int = COUNT
) -> tuple[list[int], set[int]]:
    """The ids that a reader gets, and those that it is told it can't have."""
    cursor = Cursor(log)
    assert await cursor.begin(Since(after=0), selection, upto)
    got: list[int] = []
    while cursor.place < upto:
        piece = await cursor.read(selection, upto)
        for message in piece.page.messages():
            assert message.data.startswith(b"%d " % message.id)
            got.append(message.id)
        cursor.take(piece)
    lost = {id_ for each in cursor.lost for id_ in range(each.first, each.last + 1)}
    return got, lost


@pytest.mark.parametrize("kind", ["noise", "zeros", "header"])
async def test_whatever_page_is_damaged_what_lies_elsewhere_is_read(
    tmp_path: Path, sound: bytes, kind: str
) -> None:
    refused = []
    costs = []
    listing = trees(sound)
    others = [n for n in range(1, len(sound) // PAGE) if n not in listing]
    pages = random.Random(kind).sample(listing, 14) + random.Random(kind).sample(others, 6)
    for page in pages:
        chance = random.Random(page)
        noise = {
            "noise": chance.randbytes(PAGE),
            "zeros": bytes(PAGE),
            "header": chance.randbytes(16),
        }[kind]
        path = damaged(tmp_path / "damaged", sound, page, noise)
        try:
            async with opened(path) as log:
                for selection in (None, SOME):
                    got, lost = await read_all(log, selection)
                    assert got == sorted(set(got))
                    assert set(got) | lost >= WANTED[selection]
                    assert set(got) <= WANTED[selection]
                costs.append(len(lost))
                if lost:
                    assert await log.verify()
        except StartupError:
            refused.append(page)
    # The tables' roots, and where the newest ids are: without those, ids would be given twice.
    assert len(refused) <= 6
    assert not set(refused) & set(others)
    assert sum(cost > 0 for cost in costs) > len(pages) / 3
    assert max(costs) <= 20 * GROUP  # the blocks that one page lists


async def find_leaf(tmp_path: Path, sound: bytes) -> tuple[Path, set[int]]:
    """A log one of whose pages that list blocks is damaged, and the ids that are lost with it."""
    for page in trees(sound):
        path = damaged(tmp_path / "leaf", sound, page, bytes(16))
        try:
            async with opened(path) as log:
                _, lost = await read_all(log, None)
        except StartupError:
            continue
        if len(lost) > GROUP:
            return path, lost
    raise AssertionError("no such page")


async def test_verify_names_the_ids_and_the_place_in_the_file(tmp_path: Path, sound: bytes) -> None:
    path, lost = await find_leaf(tmp_path, sound)
    async with opened(path, read_only=True) as log:
        problems = await log.verify()
    named = [each for each in problems if each.last]
    assert [(each.first, each.last) for each in named] == [(min(lost), max(lost))]
    (place,) = [each.text for each in problems if "at byte" in each.text]
    byte = int(place.partition("at byte ")[2].replace(",", ""))
    assert path.read_bytes()[byte : byte + 16] == bytes(16)


async def test_the_last_messages_begin_behind_the_damage(tmp_path: Path, sound: bytes) -> None:
    path, lost = await find_leaf(tmp_path, sound)
    async with opened(path) as log:
        cursor = Cursor(log)
        assert not await cursor.begin(Since(last=COUNT), None, COUNT)
        assert cursor.place == max(lost)
        cursor = Cursor(log)
        assert await cursor.begin(Since(last=COUNT - max(lost)), None, COUNT)
        assert cursor.place == max(lost)


async def test_damage_is_logged_once(
    tmp_path: Path, sound: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = await find_leaf(tmp_path, sound)
    caplog.clear()
    async with opened(path) as log:
        for _ in range(3):
            await read_all(log, None)
    assert [record.message for record in caplog.records] == [
        "history is damaged; `mist history verify` tells where"
    ]


def flipped(folder: Path, sound: bytes, byte: int, bit: int) -> Path:
    """A log one bit of which has changed."""
    changed = bytes([sound[byte] ^ (1 << bit)])
    return damaged(folder, sound, byte // PAGE, sound[byte // PAGE * PAGE : byte] + changed)


def cells(sound: bytes, page: int) -> list[int]:
    """Where the cells of a leaf of the table of blocks begin."""
    at = page * PAGE
    count = int.from_bytes(sound[at + 3 : at + 5], "big")
    places = [int.from_bytes(sound[at + 8 + 2 * n : at + 10 + 2 * n], "big") for n in range(count)]
    return [at + place for place in places]


def leaves(sound: bytes) -> list[int]:
    """The leaves of the table of blocks: those with rows too long for a page."""
    return [
        page
        for page in trees(sound)
        if sound[page * PAGE] == 13
        and any(sound[cell] & 0x80 and sound[cell + 1] & 0x80 for cell in cells(sound, page))
    ]


@pytest.mark.parametrize(
    ("part", "selections"),
    [
        # The number of cells, where each begins, its length and its key.
        ("structure", [None, SOME]),
        # Likewise the types of its columns, and the numbers that they begin with.
        ("row", [None]),
    ],
)
async def test_whatever_bit_flips_in_the_tree_nothing_is_skipped_in_silence(
    tmp_path: Path, sound: bytes, part: str, selections: list[Selection | None]
) -> None:
    chance = random.Random(part)
    lossy = 0
    for _ in range(30):
        page = chance.choice(leaves(sound))
        cell = chance.choice(cells(sound, page))
        if part == "row":
            byte = cell + chance.randrange(40)
        else:
            byte = chance.choice(
                [page * PAGE + chance.randrange(3, 12), cell + chance.randrange(5)]
            )
        path = flipped(tmp_path / "flipped", sound, byte, chance.randrange(8))
        try:
            async with opened(path) as log:
                for selection in selections:
                    got, lost = await read_all(log, selection)
                    assert got == sorted(set(got))
                    assert set(got) | lost >= WANTED[selection]
                lossy += bool(lost)
                if lost:
                    assert await log.verify()
        except StartupError:
            continue
    assert lossy > 6


async def test_the_key_of_a_block_may_change_and_no_id_is_told_wrong(
    tmp_path: Path, sound: bytes
) -> None:
    # The key is in the cell behind its length: two bytes with 7 bits each, for ids above 127.
    page = leaves(sound)[-1]
    byte = cells(sound, page)[0] + 4
    async with opened(flipped(tmp_path / "flipped", sound, byte, 0)) as log:
        got, lost = await read_all(log, None)
        assert set(got).isdisjoint(lost)
        assert set(got) | lost == WANTED[None]
        assert lost
        assert [each for each in await log.verify() if set(range(each.first, each.last + 1)) & lost]


async def test_compaction_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened(path) as log:
        for n in range(1, 301):
            await log.append([publication(n)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM block WHERE first = 100")
    async with opened(path) as log:
        while await log.compact():
            pass
        got, lost = await read_all(log, None, 300)
        assert lost == {100}
        assert len(got) == 299
        assert [(each.first, each.last) for each in await log.verify()] == [(100, 100)]


async def test_a_block_that_the_directory_lists_and_is_gone_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened(path) as log:
        for n in range(1, 121):
            await log.append([publication(n, 35_000)])
        while await log.compact():
            pass
    with closing(sqlite3.connect(path)) as connection, connection:
        ((listed,),) = connection.execute("SELECT max(last) FROM segment").fetchall()
        connection.execute("DELETE FROM block WHERE first IN (10, 17, 101)")
    assert 17 < listed < 101
    async with opened(path) as log:
        got, lost = await read_all(log, SOME, 120)
        assert lost == {10, 17, 101}
        assert set(got) == {n for n in WANTED[SOME] if n <= 120} - lost
        cursor = Cursor(log)
        assert not await cursor.begin(Since(last=100), SOME, 120)
        assert cursor.place == 101


async def test_a_log_of_which_nothing_is_recorded_is_checked_from_the_next_gap_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    async with opened(path) as log:
        for n in range(1, 31):
            await log.append([publication(n)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE continuity")
        connection.execute("DELETE FROM block WHERE first = 10")
    async with opened(path, read_only=True) as log:
        assert await read_all(log, None, 30) == ([n for n in range(1, 31) if n != 10], set())
    async with opened(path):
        pass
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM block WHERE first = 20")
    async with opened(path, read_only=True) as log:
        assert await read_all(log, None, 30) == (
            [n for n in range(1, 31) if n not in (10, 20)],
            {20},
        )
