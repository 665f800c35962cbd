"""Messages as rows and rows as publications."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.archive import Archive, ArchiveDamaged
from mist.archive.publishing import InvalidRow, to_publications
from mist.archive.rows import parts_to_batch
from mist.archive.schema import MESSAGES
from mist.archive.segments import day_of, iter_batches, read_segment, write_segment
from mist.history import HistoryDamaged, Part, Publication, Selection, Stored
from mist.history.block import Block
from mist.history.encoding import encode_stored
from mist.history.layout import Row
from mist.history.tag_lists import TagLists
from mist.message import Limits
from mist.wire import Entry, TagList, split_run
from tests.archive.stored import to_batch

TAGS = st.frozensets(st.sampled_from(["a", "b", "room:1", "ä"]), min_size=1, max_size=3)
LINES = st.binary(max_size=9).filter(lambda data: b"\n" not in data)


def entry(tags: frozenset[str], *data: bytes) -> Entry:
    tag_list = TagList(tags)
    return tag_list, b"".join(tag_list.head + each + b"\n" for each in data), len(data)


@st.composite
def logs(draw: st.DrawFn) -> list[Stored]:
    """A stretch of a log, with gaps."""
    found, next_id, time = [], draw(st.integers(1, 9)), 1_795_000_000.0
    for _ in range(draw(st.integers(0, 4))):
        framable = draw(st.booleans())
        entries, firsts = [], []
        for _ in range(draw(st.integers(1, 4))):
            data = (
                draw(st.lists(LINES, min_size=1, max_size=3))
                if framable
                else [draw(st.binary(max_size=5))]
            )
            next_id += draw(st.sampled_from([0, 0, 0, 3]))
            entries.append(entry(draw(TAGS), *data))
            firsts.append(next_id)
            next_id += len(data)
        found.append(
            Stored(
                entries,
                time,
                draw(st.sampled_from(["", "tcp", "r-1"])),
                framable,
                draw(st.none() | st.just("except=x&users=7")),
                draw(st.none() | st.just({"h": b"\xff"})),
                firsts=firsts,
            )
        )
        time += draw(st.sampled_from([0.0, 0.000001, 12.5]))
    return found


def _row(stored: list[Stored]) -> Row:
    last = stored[-1]
    return encode_stored(stored, stored[0].firsts[0], last.firsts[-1] + last.entries[-1][2] - 1)


def blocks(stored: list[Stored], cuts: set[int]) -> list[Block]:
    """A log of several blocks; each ends ahead of those numbers of publications."""
    found, tag_lists = [], TagLists()
    places = sorted({0, len(stored), *(each for each in cuts if each < len(stored))})
    for start, end in pairwise(places):
        found.append(Block(_row(stored[start:end]), tag_lists))
    return found


@given(logs(), st.sets(st.integers(1, 3)), st.none() | st.sets(TAGS, min_size=1), st.data())
def test_columns_become_the_same_rows(
    stored: list[Stored],
    cuts: set[int],
    alternatives: set[frozenset[str]] | None,
    data: st.DataObject,
) -> None:
    selection = None if alternatives is None else Selection(alternatives)
    after = data.draw(st.integers(0, 20))
    upto, limit = data.draw(st.integers(after, 60)), data.draw(st.integers(1, 12))
    parts: list[Part] = []
    expected: list[Stored] = []
    for block in blocks(stored, cuts):
        part = block.part(selection, after, upto, limit)
        if part is not None:
            parts.append(part)
            expected += block.stored(part)
    batch = parts_to_batch(parts)
    batch.validate(full=True)
    assert batch.schema.equals(MESSAGES)
    assert batch.equals(to_batch(expected))


def test_many_columns_become_the_same_rows() -> None:
    # More than is worked on at a time, and cut in the middle of what is.
    data = [b"%d" % n * (n % 40) for n in range(30_000)]
    runs = [entry(frozenset({"a", f"n:{n % 7}"}), *data[n : n + 10]) for n in range(0, 30_000, 10)]
    alone = [entry(frozenset("b"), each) for each in data]
    for entries, step in ((runs, 10), (alone, 1)):
        ids = list(range(5, 5 + 30_000, step))
        (block,) = blocks([Stored(entries, 9.0, "p", firsts=ids)], set())
        part = block.part(None, 17, 29_000)
        assert part is not None
        assert len(part.columns.data) > 2 * 256 * 1024
        assert parts_to_batch([part, part]).equals(to_batch(block.stored(part) * 2))


def test_lf_in_data_that_was_to_have_none_stays_in_it() -> None:
    (block,) = blocks([Stored([entry(frozenset("a"), b"1\n2")], 9.0, "p", firsts=[5])], set())
    part = block.part()
    assert part is not None
    assert parts_to_batch([part]).column("data").to_pylist() == [b"1\n2"]


def test_columns_with_too_few_line_ends_are_damage() -> None:
    (block,) = blocks([Stored([entry(frozenset("a"), b"1", b"2")], 9.0, "p", firsts=[5])], set())
    block.columns.data = b"1-2\n"
    part = block.part()
    assert part is not None
    with pytest.raises(HistoryDamaged) as caught:
        parts_to_batch([part])
    assert (caught.value.first, caught.value.last) == (5, 6)


@given(logs())
def test_what_became_rows_can_be_published_again(stored: list[Stored]) -> None:
    batch = to_batch(stored)
    publications = to_publications(batch, 7.0, "again", Limits())
    assert all((each.time, each.publisher) == (7.0, "again") for each in publications)
    found = [
        (frozenset(tag_list.decode().split(",")), data, each.audience, each.meta)
        for each in publications
        for tag_list, wire, count in each.batch.runs
        for data in split_run(tag_list, wire, count)
    ]
    assert found == [
        (message.tags, message.data, message.audience, message.meta)
        for each in stored
        for message in each.messages()
    ]
    for each in publications:
        # What can't be a line must say so.
        assert each.batch.framable == all(wire.count(b"\n") == 1 for _, wire, _ in each.batch.runs)


@pytest.mark.parametrize(
    ("tags", "data", "says"),
    [
        ([], b"", "row 1: "),
        (None, b"", "row 1: "),
        (["a", None], b"", "row 1: "),
        (["a b"], b"", "row 1: "),
        (["a"] * 3 + [f"t{n}" for n in range(70)], b"", "row 1: "),
        (["a"], None, "row 1: "),
        (["a"], b"12345", "row 1: "),
    ],
)
def test_a_row_that_breaks_a_rule_is_named(
    tags: list[str] | None, data: bytes | None, says: str
) -> None:
    batch = pa.record_batch(
        {
            "tags": pa.array([["fine"], tags], pa.list_(pa.string())),
            "data": pa.array([b"1", data], pa.binary()),
        }
    )
    with pytest.raises(InvalidRow, match=says) as caught:
        to_publications(batch, 1.0, "x", Limits(data=4))
    assert caught.value.row == 1


def addressed(*audiences: str | None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "tags": pa.array([["a"]] * len(audiences), pa.list_(pa.string())),
            "data": pa.array([b"x"] * len(audiences), pa.binary()),
            "audience": pa.array(audiences, pa.string()),
        }
    )


@pytest.mark.parametrize(
    "audience", ["", "x", "users=", "users=1,2", "users=1&users=2", "u" * 20_000]
)
def test_a_row_for_nobody_that_can_be_meant_is_named(audience: str) -> None:
    with pytest.raises(InvalidRow, match=r"row 2: Invalid audience") as caught:
        to_publications(addressed(None, "users=1", audience), 1.0, "x", Limits())
    assert caught.value.row == 2


def test_audiences_are_stored_as_they_are_written_canonically() -> None:
    batch = addressed("users=2;1", "groups=a&users=1;2", "users=1;2&groups=a", "site=x", None)
    found = to_publications(batch, 1.0, "x", Limits())
    assert [(each.count, each.audience) for each in found] == [
        (1, "users=1;2"),
        (2, "groups=a&users=1;2"),
        (1, "site=x"),
        (1, None),
    ]


def test_who_is_bound_to_a_site_publishes_for_it_alone() -> None:
    batch = addressed("users=1", "site=other", None)
    found = to_publications(batch, 1.0, "x", Limits(), site="here")
    assert [(each.count, each.audience) for each in found] == [
        (1, "site=here&users=1"),
        (2, "site=here"),
    ]
    assert {
        each.audience for each in to_publications(batch.select([0, 1]), 1.0, "", Limits(), site="s")
    } == {"site=s"}


def messages(count: int, first: int = 1) -> list[Stored]:
    entries = [entry(frozenset({"a", f"n:{n % 7}"}), b"%d" % n) for n in range(count)]
    ids = list(range(first, first + count))
    return [Stored(entries, 1_795_262_400.0, "tcp", firsts=ids)]


def test_a_segment_comes_back_as_it_was_written(tmp_path: Path) -> None:
    table = Archive.create(tmp_path).messages
    batch = to_batch(messages(5_000))
    segment = write_segment(table, batch, MESSAGES, 1, 5_000)
    assert segment.file == "date=2026-11-21/00000000000000000001-00000000000000005000.parquet"
    assert (segment.rows, segment.bytes) == (5_000, table.path(segment).stat().st_size)
    assert segment.oldest == segment.newest == 1_795_262_400_000_000
    assert read_segment(table, segment).equals(pa.Table.from_batches([batch]))
    assert read_segment(table, segment, ["id"]).column_names == ["id"]
    sizes = [each.num_rows for each in iter_batches(table, segment, batch_size=2_000)]
    assert sizes == [2_000, 2_000, 1_000]
    assert list(tmp_path.glob("date=*/.*")) == []


@given(logs())
def test_any_rows_come_back_from_the_disk(stored: list[Stored]) -> None:
    batch = to_batch(stored)
    if not batch.num_rows:
        return
    with TemporaryDirectory() as folder:
        table = Archive.create(Path(folder)).messages
        ids = batch.column("id")
        segment = write_segment(table, batch, MESSAGES, ids[0].as_py(), ids[-1].as_py())
        found = read_segment(table, segment)
        assert found.schema.equals(MESSAGES)
        assert found.to_pylist() == batch.to_pylist()
        times = batch.column("time").cast(pa.int64()).to_pylist()
        assert (segment.oldest, segment.newest) == (times[0], times[-1])
        last = ids[-1].as_py()
        some = [each.to_pylist() for each in iter_batches(table, segment, within=(last, last))]
        assert [row["id"] for rows in some for row in rows][-1] == last
        assert list(iter_batches(table, segment, within=(last + 1, last + 9))) == []


def test_columns_are_written_as_their_values_ask(tmp_path: Path) -> None:
    table = Archive.create(tmp_path).messages
    (block,) = blocks(messages(250_000), set())
    part = block.part()
    assert part is not None
    segment = write_segment(table, parts_to_batch([part]), MESSAGES, 1, 250_000)
    metadata = pq.read_metadata(table.path(segment))
    assert [metadata.row_group(n).num_rows for n in range(3)] == [100_000, 100_000, 50_000]
    columns = {
        column.path_in_schema: column
        for column in map(metadata.row_group(0).column, range(metadata.num_columns))
    }
    assert all(column.compression == "ZSTD" for column in columns.values())
    assert "DELTA_BINARY_PACKED" in columns["id"].encodings
    assert "DELTA_BINARY_PACKED" in columns["time"].encodings
    assert columns["tags.list.element"].has_dictionary_page
    assert columns["publisher"].has_dictionary_page
    assert not columns["data"].has_dictionary_page


def test_a_segment_that_fails_leaves_nothing(tmp_path: Path) -> None:
    table = Archive.create(tmp_path).messages

    def rows() -> object:
        yield to_batch(messages(10))
        raise KeyError("gone")

    with pytest.raises(KeyError):
        write_segment(table, rows(), MESSAGES, 1, 10, day=day_of(0))  # type: ignore[arg-type]
    assert list(tmp_path.glob("date=*/*")) == []


@pytest.mark.parametrize("harm", ["cut", "gone", "garbage"])
def test_a_segment_that_is_not_what_was_written_is_one_line(tmp_path: Path, harm: str) -> None:
    table = Archive.create(tmp_path).messages
    segment = write_segment(table, to_batch(messages(100)), MESSAGES, 1, 100)
    path = table.path(segment)
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:50] if harm == "cut" else b"PAR1" * 100)
    with pytest.raises(ArchiveDamaged, match=path.name) as caught:
        read_segment(table, segment)
    assert "\n" not in str(caught.value)


def test_an_empty_log_has_no_rows() -> None:
    assert to_batch([]).num_rows == parts_to_batch([]).num_rows == 0
    assert to_publications(to_batch([]), 1.0, "x", Limits()) == []


def test_publications_are_cut_where_what_they_share_changes() -> None:
    stored = [
        Stored([entry(frozenset("a"), b"1", b"2")], 1.0, "p", firsts=[1]),
        Stored([entry(frozenset("a"), b"3")], 1.0, "p", True, "users=1", firsts=[3]),
    ]
    found = to_publications(to_batch(stored), 2.0, "q", Limits())
    assert [(each.count, each.audience) for each in found] == [(2, None), (1, "users=1")]
    assert isinstance(found[0], Publication)
