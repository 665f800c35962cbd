"""The canonical record, batches of them, and what wire forms share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.commands import Publish
from mist.message import Limits
from mist.protocols.line import LineProtocol
from mist.protocols.line.forms import PLAIN
from mist.wire import RECORD_START, Batch, Entry, TagList, ids_of, record, record_head

AB = TagList(frozenset({"a", "b"}))


@given(st.binary().filter(lambda data: b"\n" not in data))
def test_a_record_is_a_line_of_the_line_protocol(data: bytes) -> None:
    [command] = LineProtocol(Limits()).receive(record(b"a,b", data))
    assert isinstance(command, Publish)
    assert command.batch.whole == (record(b"a,b", data), 1)
    assert command.batch.tag_lists == (b"a,b",)


def test_a_record_is_delivered_as_the_same_object_that_came() -> None:
    line = record(b"a,b", b"data")
    wire, count = PLAIN.join([(AB, line, 1)], framable=True)
    assert wire is line
    assert count == 1


def test_a_record_is_its_head_and_data_and_lf() -> None:
    assert record(b"a,b", b"x\ny") == record_head(b"a,b") + b"x\ny\n" == AB.head + b"x\ny\n"
    assert record_head(b"a,b").startswith(RECORD_START)


@given(st.binary(max_size=50))
def test_a_batch_of_one_keeps_data_of_any_content(data: bytes) -> None:
    found = frozenset({"b", "a"})
    batch = Batch.of(found, data)
    [(tag_list, wire, count)] = batch.runs
    assert (tag_list, count) == (b"a,b", 1)
    assert TagList(found).split(wire, count) == [data]
    assert batch.framable == (b"\n" not in data)


lists = st.sampled_from([b"a", b"b,a", b".a.b", b"\xff"])
line_data = st.binary(max_size=9).filter(lambda data: b"\n" not in data)


@given(st.lists(st.tuples(lists, line_data), min_size=1, max_size=5))
def test_a_batch_of_columns_is_the_batch_of_its_lines(messages: list[tuple[bytes, bytes]]) -> None:
    tag_lists, datas = [each for each, _ in messages], [data for _, data in messages]
    batch = Batch.of_columns(tag_lists, datas)
    lines = [record(*message) for message in messages]
    assert batch.number(0, len(messages)) == len(messages)
    assert batch.is_lines
    assert batch.whole == (b"".join(lines), len(lines))
    assert batch.runs == [(tags, wire, 1) for tags, wire in zip(tag_lists, lines, strict=True)]
    for other in (Batch(tag_lists, batch.whole), Batch.of_runs(batch.runs)):
        assert other.datas == datas
        assert other.number(0, len(messages)) == len(messages)
        assert other.number(1, len(messages)) == len(messages) - 1


def test_messages_that_share_a_tag_list_have_no_columns() -> None:
    two = record(b"a", b"1") + record(b"a", b"2")
    for batch in (Batch((b"a",), (two, 2)), Batch.of_runs([(b"a", two, 2)])):
        assert batch.datas is None
        assert batch.number(0, 1) == 2


@pytest.mark.parametrize("data", [[b""], [b"x", b"", b"publish a,b y"]])
def test_rewriting_a_run_changes_its_tag_lists_only(data: list[bytes]) -> None:
    wire = b"".join(record(b"b,a", each) for each in data)
    rewritten = AB.rewrite(record_head(b"b,a"), wire, len(data))
    assert rewritten == b"".join(record(b"a,b", each) for each in data)
    assert AB.split(rewritten, len(data)) == data


@pytest.mark.parametrize(
    ("counts", "firsts", "ids"),
    [
        ([3], [7], [7, 8, 9]),
        ([1, 1], [7, 9], [7, 9]),
        ([2, 1, 2], [1, 3, 9], [1, 2, 3, 9, 10]),
    ],
)
def test_ids_count_on_from_the_first_of_each_entry(
    counts: list[int], firsts: list[int], ids: list[int]
) -> None:
    entries: list[Entry] = [(AB, b"", count) for count in counts]
    assert list(ids_of(entries, firsts)) == ids
