"""Blocks that are read in parts give what they give as a whole, or say that they are damaged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mist.errors import HistoryDamaged
from mist.history import (
    Durability,
    History,
    Publication,
    Selection,
    StoredMessage,
    layout,
    pieces,
    run_index,
)
from mist.history.block import Block
from mist.history.columns import pack
from mist.history.layout import PIECE, Row, index_size
from mist.history.opening import open_history
from mist.history.pieces import OpenRow
from mist.history.sqlite import rows
from mist.history.tag_lists import TagLists
from tests.history.messages import block_of, run, select
from tests.history.test_block import groups, selections
from tests.history.test_block import messages as messages_of
from tests.history.test_sqlite import run_sql

MESSAGES = 200  # in a block
SIZE = 400  # bytes of each: too much for blocks to be joined


def opened(row: Row, read: Callable[[bytes], object] = len) -> OpenRow:
    """A row of which the index has been read.

    Args:
        read: told what else is.
    """
    size = index_size(row.body)
    assert size is not None
    begin = layout.PREFIX + size

    def read_data(start: int, end: int) -> bytes:
        data = row.body[begin + start : begin + end]
        read(data)
        return data

    return OpenRow(row.head, row.body[:begin], read_data)


@contextmanager
def small_pieces() -> Iterator[None]:
    """So that what is small is read in parts, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_MUCH", 0)
        patch.setattr(layout, "_MANY", 0)
        for module in (layout, pieces):
            patch.setattr(module, "PIECE", 5)
        patch.setattr(run_index, "_FEW_LISTS", 0)
        yield


@small_pieces()
@given(groups, st.none() | selections, st.data())
def test_a_block_in_parts_gives_what_it_gives_as_a_whole(
    group: list[Publication], selection: Selection | None, data: Any
) -> None:
    row = block_of(group)
    whole, parts = Block(row, TagLists()), Block(opened(row), TagLists())
    last = row.head.last
    after, upto = data.draw(st.integers(0, last + 1)), data.draw(st.integers(0, last + 1))
    limit, size = data.draw(st.integers(1, last + 1)), data.draw(st.integers(1, 200))
    assert parts.count(selection, after, upto) == whole.count(selection, after, upto)
    expected = whole.part(selection, after, upto, limit, size)
    found = parts.part(selection, after, upto, limit, size)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert list(found.runs) == list(expected.runs)
        assert (found.count, found.last, found.size) == (
            expected.count,
            expected.last,
            expected.size,
        )
        assert messages_of(parts.stored(found)) == messages_of(whole.stored(expected))
    parts.data.complete()
    assert messages_of(parts.select()) == messages_of(whole.select())


@small_pieces()
@given(groups, selections, st.data())
def test_what_is_read_of_it_is_checked(
    group: list[Publication], selection: Selection, data: Any
) -> None:
    row = block_of(group)
    place = data.draw(st.integers(0, len(row.body) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    changed = row.body[:place] + bytes([row.body[place] ^ bit]) + row.body[place + 1 :]
    size = index_size(row.body)
    assert size is not None
    in_index = place < layout.PREFIX + size
    damaged = attrs.evolve(row, body=changed)
    if index_size(changed) is None:  # then it is read as a whole
        with pytest.raises(HistoryDamaged):
            Block(damaged, TagLists())
        return
    if in_index:
        with pytest.raises(HistoryDamaged):
            Block(opened(damaged), TagLists())
        return
    expected = messages_of(Block(row, TagLists()).select(selection))
    with suppress(HistoryDamaged):
        assert messages_of(Block(opened(damaged), TagLists()).select(selection)) == expected
    with pytest.raises(HistoryDamaged):
        Block(opened(damaged), TagLists()).data.complete()


@small_pieces()
@given(groups, st.data())
def test_data_that_ends_too_soon_is_damaged(group: list[Publication], data: Any) -> None:
    row = block_of(group)
    size = index_size(row.body)
    assert size is not None
    lost = data.draw(st.integers(1, len(row.body) - layout.PREFIX - size))
    short = attrs.evolve(row, body=row.body[: len(row.body) - lost])
    with pytest.raises(HistoryDamaged):
        Block(opened(short), TagLists()).select(None)


def publication(tags: str = "") -> Publication:
    """Messages of which each has a tag of its own; one of them others, too."""
    lists = [f"n{n}" for n in range(MESSAGES)]
    if tags:
        lists[MESSAGES // 2] += "," + tags
    return Publication.of_runs([run(each, each.ljust(SIZE)) for each in lists], 1000.0)


def test_a_search_reads_the_pieces_that_it_needs() -> None:
    row = block_of([publication("z")])
    read: list[bytes] = []
    block = Block(opened(row, read.append), TagLists())
    assert block.count(select("z"), 0, MESSAGES) == [(MESSAGES // 2 + 1, 1)]
    assert read == []
    (found,) = messages_of(block.select(select("z")))
    assert found.data.startswith(b"n%d," % (MESSAGES // 2))
    assert sum(map(len, read)) <= 2 * PIECE
    assert not block.data.is_whole


def test_neighbours_are_read_at_once() -> None:
    row = block_of([Publication.of_runs([run(f"n{n}", "x" * SIZE) for n in range(MESSAGES)], 1.0)])
    read: list[bytes] = []
    block = Block(opened(row, read.append), TagLists())
    found = messages_of(block.select(select("n1", "n2", "n3", "n4")))
    assert [each.id for each in found] == [2, 3, 4, 5]
    assert len(read) == 1


def test_who_wants_much_of_a_block_reads_all_of_it_at_once() -> None:
    lists = [f"a,n{n}" for n in range(MESSAGES)]
    row = block_of([Publication.of_runs([run(each, "x" * SIZE) for each in lists], 1.0)])
    read: list[bytes] = []
    block = Block(opened(row, read.append), TagLists())
    assert len(messages_of(block.select(select("a")))) == MESSAGES
    assert len(read) == 1
    assert block.data.is_whole


def test_what_is_unpacked_at_once_is_no_more_than_a_step() -> None:
    often = 600  # messages of a run
    runs = [run(f"n{n}", *["x"] * often) for n in range(40)]
    row = block_of([Publication.of_runs(runs, 1.0)])
    for asked, steps in ((["n7"], [often]), (["n7", "n8", "n9"], [often, often, often])):
        block = Block(opened(row), TagLists())
        part = block.part(select(*asked))
        assert part is not None
        packed = block.packed(part)
        assert packed.count == sum(steps)
        assert [sum(each.count for each in step) for step in packed.unpack()] == steps
        assert block.data.is_whole == (len(steps) > 1)


COLUMNS = ("section_runs", "run_lists", "run_counts", "run_sizes", "run_gaps", "section_extras")


@small_pieces()
@given(groups, selections, st.sampled_from(COLUMNS), st.data())
def test_columns_that_do_not_fit_together_are_damage(
    group: list[Publication], selection: Selection, name: str, data: Any
) -> None:
    row = block_of(group)
    body = layout.decode_body(row.body)
    length = body.sections if name.startswith("section") else body.runs
    values = st.lists(st.integers(0, 300), min_size=length, max_size=length)
    changed = replace(body, **{name: pack(data.draw(values))})
    with suppress(HistoryDamaged):
        crafted = attrs.evolve(row, body=layout.encode_body(changed))
        Block(opened(crafted), TagLists()).select(selection)


def test_little_data_stands_in_the_index() -> None:
    row = block_of([Publication.of_runs([run(f"n{n}", "x") for n in range(MESSAGES)], 1.0)])
    assert index_size(row.body) is None


def test_messages_with_few_tag_lists_have_no_index() -> None:
    runs = [run(f"n{n % 10}", "x" * SIZE) for n in range(MESSAGES)]
    row = block_of([Publication.of_runs(runs, 1.0)])
    assert index_size(row.body) is None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def open_log(path: Path) -> Any:
    return open_history(f"sqlite:///{path}", durability=Durability.PROCESS)


BLOCKS = 300  # of which some are in the directory


async def store(history: History, number: int = BLOCKS, every: int = 10) -> list[int]:
    """Blocks, every tenth of which has a message with a tag; the ids of those."""
    ids = []
    for n in range(number):
        first = await history.append([publication("" if n % every else "z")])
        if n % every == 0:
            ids.append(first + MESSAGES // 2)
    while await history.compact():
        pass
    return ids


async def search(history: History, *tags: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    after = 0
    while True:
        page = await history.read(select(*tags), after=after, packed=True)
        found += page.messages()
        after = page.after
        if page.complete:
            return found


async def test_a_search_for_few_messages_reads_a_few_bytes_of_each_block(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[Row] = []
    read: list[int] = []
    make_row, make_open = rows.Row, rows.OpenRow

    def row_of(*values: Any) -> Row:
        whole.append(make_row(*values))
        return whole[-1]

    def opened_of(head: Any, index: bytes, more: Callable[[int, int], bytes]) -> OpenRow:
        def noted(start: int, end: int) -> bytes:
            data = more(start, end)
            read.append(len(data))
            return data

        read.append(len(index))
        return make_open(head, index, noted)

    async with await open_log(path) as history:
        ids = await store(history)
        monkeypatch.setattr(rows, "Row", row_of)
        monkeypatch.setattr(rows, "OpenRow", opened_of)
        found = await search(history, "z")
        assert [each.id for each in found] == ids
        assert not whole
        assert sum(read) < len(ids) * (MESSAGES * 12 + 2 * PIECE)  # of 80 KB each
        read.clear()
        assert await history.last(select("z"), 5) == ids[-5] - 1
        assert not whole
        assert sum(read) < 6 * MESSAGES * 12  # no data at all
        read.clear()
        assert len(await search(history, "n7", "z")) == BLOCKS + len(ids)
        assert not whole


async def test_damage_in_data_that_is_not_wanted_costs_nothing(path: Path) -> None:
    async with await open_log(path) as history:
        ids = await store(history, 3, 1)
    for place in ("length(body) - 100", "length(body) / 2"):
        run_sql(
            path,
            f"UPDATE block SET body = CAST(substr(body, 1, {place}) || x'0000' || "
            f"substr(body, {place} + 3) AS BLOB) WHERE first = {MESSAGES + 1}",
        )
        async with await open_log(path) as history:
            (problem,) = await history.verify()
            assert (problem.first, problem.last) == (MESSAGES + 1, 2 * MESSAGES)
            if place == "length(body) - 100":
                assert [each.id for each in await search(history, "z")] == ids
            with pytest.raises(HistoryDamaged) as caught:
                await search(history, f"n{MESSAGES - 1}")
            assert (caught.value.first, caught.value.last) == (MESSAGES + 1, 2 * MESSAGES)


async def test_damage_in_an_index_is_told(path: Path) -> None:
    async with await open_log(path) as history:
        ids = await store(history, 3, 1)
    for change in (
        "CAST(substr(body, 1, 500) || x'00000000' || substr(body, 505) AS BLOB)",
        "CAST(x'c1ffffffff' || substr(body, 6) AS BLOB)",
        "x'c1'",
        "zeroblob(length(body))",
    ):
        run_sql(path, f"UPDATE block SET body = {change} WHERE first = {MESSAGES + 1}")
        async with await open_log(path) as history:
            page = await history.read(select("z"))
            assert [each.id for each in page.messages()] == ids[:1]
            with pytest.raises(HistoryDamaged) as caught:
                await history.read(select("z"), after=page.after)
            assert (caught.value.first, caught.value.last) == (MESSAGES + 1, 2 * MESSAGES)
            assert len(await history.verify()) == 1


async def test_blocks_of_former_versions_are_found_among_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_log(path) as history:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "_MUCH", 1 << 40)  # one array, as they were
            ids = await store(history, 120)
        ids += await store(history, 120)
        assert await history.verify() == []
        assert [each.id for each in await search(history, "z")] == ids
        assert len(await search(history, "n5")) == 240
