"""A damaged page of a log's file costs the messages on it, told as lost, and nothing else."""

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mist.commands import Since
from mist.errors import StartupError
from mist.history import Durability, History, Publication, Selection
from mist.history.cursor import Cursor
from mist.history.opening import open_history
from mist.wire import TagList

PAGE = 8192  # bytes
COUNT = 2_800
GROUP = 40  # messages in a block, which is too large to be joined with others
SOME = Selection([frozenset({"a", "t3"})])
WANTED = {None: set(range(1, COUNT + 1)), SOME: {n for n in range(1, COUNT + 1) if n % 7 == 3}}


def publication(n: int) -> Publication:
    tag_list = TagList(frozenset({"a", f"t{n % 7}"}))
    data = random.Random(n).randbytes(850).hex().encode()
    return Publication([(tag_list, b"%b%d %b\n" % (tag_list.head, n, data), 1)], 1000.0 + n)


@asynccontextmanager
async def opened(path: Path, *, read_only: bool = False) -> AsyncIterator[History]:
    async with await open_history(
        f"sqlite:///{path}", durability=Durability.PROCESS, read_only=read_only
    ) as log:
        yield log


@pytest.fixture
async def sound(tmp_path: Path) -> bytes:
    """The file of a log, closed; what belongs to it in the way of indexes is there."""
    path = tmp_path / "history.db"
    async with opened(path) as log:
        for start in range(1, COUNT + 1, GROUP):
            await log.append([publication(n) for n in range(start, start + GROUP)])
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


async def read_all(log: History, selection: Selection | None) -> tuple[list[int], set[int]]:
    """The ids that a reader gets, and those that it is told it can't have."""
    cursor = Cursor(log)
    assert await cursor.begin(Since(after=0), selection, COUNT)
    got: list[int] = []
    while cursor.place < COUNT:
        piece = await cursor.read(selection, COUNT)
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
