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
