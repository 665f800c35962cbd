from datetime import UTC, datetime

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.archive.matching import matching
from mist.pipeline.selection import (
    InvalidSelection,
    Range,
    Selection,
    format_alternatives,
    parse_alternatives,
    parse_id,
    parse_time,
)

TAGS = pa.list_(pa.field("element", pa.string(), nullable=False))
NOON = 1_795_262_400_000_000  # 2026-11-21T12:00:00Z


@attrs.frozen
class Known:
    first: int
    last: int
    oldest: int
    newest: int


def column(rows: list[list[str]]) -> pa.Array:
    return pa.array(rows, TAGS)


def wanted(rows: list[list[str]], text: str) -> list[bool]:
    return list(matching(column(rows), parse_alternatives(text)))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, []),
        ("", []),
        ("  ", []),
        ("a", [{"a"}]),
        ("a,b; c", [{"a", "b"}, {"c"}]),
        (" b , a ;c;", [{"a", "b"}, {"c"}]),
        ("a;a", [{"a"}]),
        ("room:1,Ä", [{"room:1", "Ä"}]),
    ],
)
def test_alternatives_are_read(text: str | None, meant: list[set[str]]) -> None:
    assert list(parse_alternatives(text)) == meant


@pytest.mark.parametrize(
    "text", ["a;;b", ";a", ";", "a,,b", "a b", "a*", ">a", "..a", "x" * 256, "a,\x00"]
)
def test_what_no_subscription_may_say_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelection) as caught:
        parse_alternatives(text)
    assert str(caught.value).startswith("subscribe: ")


def test_an_alternative_has_no_more_tags_than_a_subscription() -> None:
    assert parse_alternatives(",".join(map(str, range(16))))
    with pytest.raises(InvalidSelection, match="Too many tags"):
        parse_alternatives(",".join(map(str, range(17))))


def test_of_many_alternatives_the_wrong_one_is_named() -> None:
    with pytest.raises(
        InvalidSelection, match=r"subscribe: Invalid tag 'x y': a tag has no spaces and"
    ):
        parse_alternatives("a,b; x y; c")
    with pytest.raises(InvalidSelection, match=r"Too many subscriptions in 'a;a;.*…'$"):
        parse_alternatives("a;" * 1001)


def test_alternatives_are_written_canonically() -> None:
    assert format_alternatives(parse_alternatives("b,a; c;")) == "a,b;c"


def test_a_row_matches_where_an_alternative_is_a_subset() -> None:
    rows = [["a", "b", "x"], ["a"], ["c"], ["ab"], ["b", "c"]]
    assert wanted(rows, "a,b; c") == [True, False, True, False, True]


def test_nothing_asked_wants_everything() -> None:
    assert matching(column([["a"]]), ()) is None


def test_a_null_row_and_an_empty_one_match_nothing() -> None:
    tags = pa.array([None, [], ["a"], None], pa.list_(pa.string()))
    assert list(matching(tags, parse_alternatives("a"))) == [False, False, True, False]


TAG = st.integers(0, 200).map(str)


@given(
    rows=st.lists(st.lists(TAG, max_size=12), max_size=30),
    alternatives=st.lists(st.frozensets(TAG, min_size=1, max_size=4), min_size=1, max_size=60),
    start=st.integers(0, 5),
    encoded=st.booleans(),
    large=st.booleans(),
)
def test_matching_is_the_plain_set_definition(
    rows: list[list[str]],
    alternatives: list[frozenset[str]],
    start: int,
    encoded: bool,
    large: bool,
) -> None:
    make = pa.large_list if large else pa.list_
    values = pa.dictionary(pa.int32(), pa.string()) if encoded else pa.string()
    tags = pa.array(rows, make(values)).slice(start)
    meant = [any(one <= set(row) for one in alternatives) for row in rows[start:]]
    assert list(matching(tags, tuple(alternatives))) == meant


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-11-21T12:00:00Z", NOON),
        ("2026-11-21T12:00:00", NOON),
        ("2026-11-21 13:00+01:00", NOON),
        ("2026-11-21T12:00:00.000001Z", NOON + 1),
        ("1795262400000", NOON),
        ("2026-11-21", NOON - 43_200_000_000),
        ("0", 0),
    ],
)
def test_times_are_read_as_utc_to_the_microsecond(text: str, micros: int) -> None:
    assert parse_time(text) == micros
    assert datetime.fromtimestamp(micros / 1e6, UTC).year in (1970, 2026)


@pytest.mark.parametrize("text", ["", "noon", "-1", "1969-12-31", "1" * 30, "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelection, match="not a time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "²", str(2**53), "1" * 5000])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelection, match="not an id"):
        parse_id(text)


def test_a_range_is_read_half_open() -> None:
    assert Range.parse("5", "8") == Range(after=4, upto=7)
    assert Range.parse("2026-11-21T12:00Z", None) == Range(since=NOON)
    assert Range.parse(None, "2026-11-21T12:00Z") == Range(until=NOON)
    assert Range.parse() == Range()
    assert Range.parse().everything


@pytest.mark.parametrize(("start", "end"), [("5", "5"), ("8", "5"), ("2026-02-01", "2026-01-01")])
def test_a_range_with_nothing_in_it_is_refused(start: str, end: str) -> None:
    with pytest.raises(InvalidSelection, match="nothing lies"):
        Range.parse(start, end)


def test_a_range_that_ends_before_the_first_id_is_told_without_a_start() -> None:
    with pytest.raises(InvalidSelection, match="nothing lies from the beginning until 1"):
        Range.parse(None, "1")


ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=40
)  # steps of id and of time: neither goes back


def table(steps: list[tuple[int, int]]) -> pa.RecordBatch:
    ids, times, number, moment = [], [], 0, 0
    for step, pause in steps:
        number, moment = number + step, moment + pause
        ids.append(number)
        times.append(moment)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "tags": column([[str(n % 3)] for n in ids]),
        }
    )


def bounds(batch: pa.RecordBatch) -> Known:
    ids = batch.column("id").to_pylist()
    times = batch.column("time").cast(pa.int64()).to_pylist()
    return Known(ids[0], ids[-1], times[0], times[-1])


END = st.none() | st.integers(0, 60)


@given(
    steps=ROWS, size=st.integers(1, 10), after=st.integers(0, 60), upto=END, since=END, until=END
)
def test_ranges_over_rows_segments_and_ids_agree(
    steps: list[tuple[int, int]],
    size: int,
    after: int,
    upto: int | None,
    since: int | None,
    until: int | None,
) -> None:
    whole = table(steps)
    found = Range(after, upto, since, until)
    ids = whole.column("id").to_pylist()
    times = whole.column("time").cast(pa.int64()).to_pylist()
    meant = [
        n
        for n, moment in zip(ids, times, strict=True)
        if n > after
        and (upto is None or n <= upto)
        and (since is None or moment >= since)
        and (until is None or moment < until)
    ]
    assert Selection(found).filter(whole).column("id").to_pylist() == meant

    pieces = [whole.slice(at, size) for at in range(0, len(whole), size)]
    known = {bounds(piece): piece for piece in pieces}
    for segment, piece in known.items():
        chosen = Selection(found).filter(piece).column("id").to_pylist()
        assert found.touches(segment) or not chosen
        assert not found.holds(segment) or len(chosen) == len(piece)

    def edge(segment: Known, moment: int) -> int:
        older = Selection(Range(until=moment)).filter(known[segment]).column("id").to_pylist()
        return older[-1] if older else segment.first - 1

    resolved = found.resolve(list(known), edge)
    assert not resolved.timed
    assert Selection(resolved).filter(whole).column("id").to_pylist() == meant


def test_a_selection_joins_range_and_tags() -> None:
    batch = table([(1, 1)] * 9)
    chosen = Selection(Range(after=2, upto=8), parse_alternatives("0;1")).filter(batch)
    assert chosen.column("id").to_pylist() == [3, 4, 6, 7]
    assert Selection().filter(batch) is batch
    assert Selection().everything


def test_segments_out_of_the_range_are_not_opened() -> None:
    known = [Known(1, 10, 0, 5), Known(11, 20, 5, 9), Known(21, 30, 10, 20)]
    assert Selection(Range(after=10, upto=20)).segments(known) == known[1:2]
    assert Selection(Range(since=9, until=10)).segments(known) == known[1:2]
    assert Selection().segments(known) == known
