"""Rows of an archive are wanted exactly when a live subscriber, or a reader of the history, would
have got them."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.addresses import EVERYTHING
from mist.archive.matching import carrying, matching
from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.history import Selection
from mist.message import TagSet, format_tags
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch
from tests.addressed import asked, published, wants

TEXTS = pa.string()
NUMBERS = pa.dictionary(pa.int32(), pa.string())


def column(rows: Sequence[TagSet], kind: pa.DataType = TEXTS) -> pa.Array:
    return pa.array([sorted(row) for row in rows], pa.list_(kind))


def heard(rows: Sequence[TagSet], subscriptions: Sequence[TagSet]) -> list[bool]:
    """Whether a live subscriber to all of these gets each message."""
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
    for each in subscriptions:
        broker.subscribe(outbox, each)
    found = []
    for row in rows:
        before = outbox.size
        broker.publish(Batch.of(row, b"x"))
        found.append(outbox.size > before)
    return found


def replayed(rows: Sequence[TagSet], subscriptions: Sequence[TagSet]) -> list[bool]:
    """Whether a reader of the history gets it."""
    selection = Selection.asked(subscriptions)
    return [selection is None or selection.matches(format_tags(row).encode()) for row in rows]


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(
    rows=st.lists(published, max_size=20),
    subscriptions=st.lists(asked, min_size=1, max_size=8),
    start=st.integers(0, 3),
)
def test_a_row_is_wanted_where_a_subscriber_gets_the_message(
    kind: pa.DataType, rows: list[TagSet], subscriptions: list[TagSet], start: int
) -> None:
    found = matching(column(rows, kind).slice(start), subscriptions).tolist()
    rows = rows[start:]
    assert found == [any(wants(each, row) for each in subscriptions) for row in rows]
    assert found == heard(rows, subscriptions)
    assert found == replayed(rows, subscriptions)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("/foo", [0, 1, 2]),
        ("=/foo", [0]),
        ("/", [0, 1, 2, 3]),
        ("/foo,a", [2]),
        (".a.*", [4]),
        (".a.>", [4, 5]),
        (".a.b", [4]),
        ("*", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_addresses_are_understood(wanted: str, found: list[int]) -> None:
    rows = [["/foo"], ["/foo/bar"], ["/foo/bar", "a"], ["/foobar"], [".a.b"], [".a.b.c"], ["a"], []]
    tags = pa.array(rows, pa.list_(pa.string()))
    mask = matching(tags, [frozenset(wanted.split(","))])
    assert [n for n, each in enumerate(mask) if each] == found


def test_more_addresses_than_a_word_has_bits_are_told_apart() -> None:
    wanted = [frozenset({f"/t{n}", f".s.*.{n}"}) for n in range(100)]
    rows = [frozenset({f"/t{n}/x", f".s.x.{m}"}) for n in range(0, 100, 9) for m in (n, n + 1)]
    assert matching(column(rows), wanted).tolist() == [True, False] * 12
    assert matching(column(rows, NUMBERS), wanted).tolist() == [True, False] * 12


def test_everything_is_every_row_and_nothing_asked_for_no_question() -> None:
    tags = column([frozenset("a"), frozenset("b")])
    assert matching(tags, [EVERYTHING]).tolist() == [True, True]
    assert matching(tags, [frozenset("a"), EVERYTHING]).tolist() == [True, True]
    assert matching(tags, ()) is None


def test_what_carries_a_tag_carries_it_as_published() -> None:
    tags = column([frozenset({"/foo"}), frozenset({"/foo/bar"}), frozenset({".a.b"})])
    assert carrying(tags, [frozenset({"/foo"})]).tolist() == [True, False, False]
    assert carrying(tags, [frozenset({"../foo"})]).tolist() == [True, True, False]
    assert carrying(tags, [frozenset({"..#2"})]).tolist() == [False, False, True]


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
def test_nulls_and_empty_rows_match_no_address(kind: pa.DataType) -> None:
    tags = pa.array([None, [], ["/a", None], [None], ["/a/b"]], pa.list_(kind))
    assert matching(tags, [frozenset({"/a"})]).tolist() == [False, False, True, False, True]
    assert matching(tags.slice(0, 0), [frozenset({"/a"})]).tolist() == []
