"""Addresses in the kernels: what the plain rule says, and what live subscribers get."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.archive.matching import matching
from mist.archive.visibility import visible_rows
from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.history import Publication, Selection
from mist.history.opening import open_history
from mist.history.visibility import visible_to
from mist.message import Envelope, TagSet, format_tags
from mist.pipeline.kernels.coverage import FANOUT, SUBSCRIPTION, TAG, Coverage
from mist.pipeline.kernels.matching import Matcher
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch, record
from tests.addressed import asked, attributes, audiences, published, wants
from tests.pipeline.kernels.columns import NUMBERS, TEXTS, column, written
from tests.pipeline.kernels.test_matching import check, found_by

Messages = list[tuple[TagSet, Audience | None]]

subscriptions = st.sets(asked, min_size=1, max_size=12).map(lambda sets: sorted(sets, key=written))
messages = st.lists(st.tuples(published, audiences), max_size=15)


def matcher_of(wanted: list[TagSet], **options: object) -> Matcher:
    return Matcher(pa.array([written(tags) for tags in wanted]), **options)  # type: ignore[arg-type]


def by_rule(wanted: list[TagSet], rows: list[TagSet]) -> list[tuple[int, str]]:
    return sorted(
        (n, written(each)) for n, row in enumerate(rows) for each in wanted if wants(each, row)
    )


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(wanted=subscriptions, rows=st.lists(published, max_size=15), repeats=st.sampled_from([1, 4]))
def test_it_finds_what_addresses_mean(
    kind: pa.DataType, wanted: list[TagSet], rows: list[TagSet], repeats: int
) -> None:
    rows = rows * repeats
    check(matcher_of(wanted), column(rows, kind), by_rule(wanted, rows))


@given(wanted=subscriptions, rows=st.lists(published, max_size=15), seen=st.lists(published))
def test_what_was_seen_changes_no_answer(
    wanted: list[TagSet], rows: list[TagSet], seen: list[TagSet]
) -> None:
    names = sorted(frozenset[str]().union(*seen))
    counts = pa.array([sum(name in each for each in seen) for name in names], pa.int64()).to_numpy()
    matcher = matcher_of(wanted, seen=(pa.array(names, pa.string()), counts))
    check(matcher, column(rows), by_rule(wanted, rows))


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ("/foo", [0, 1, 2]),
        ("=/foo", [0]),
        ("=/foo,x", []),
        ("/,x", [2]),
        (".a.*", [3]),
        (".a.>", [3, 4]),
        (".a.b.c,y", [4]),
        ("*", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_subscriptions_are_told_as_they_are_asked_for(wanted: str, rows: list[int]) -> None:
    tags = [{"/foo"}, {"/foo/bar"}, {"/foo/b", "x"}, {".a.b"}, {".a.b.c", "y"}, set[str]()]
    matcher = Matcher(pa.array([wanted, "nobody"]))
    check(matcher, column(tags), [(row, wanted) for row in rows])


def test_who_gets_everything_gets_it_also_where_it_is_all_there_is() -> None:
    check(Matcher(pa.array(["*"])), column([{"a"}, {"b"}] * 3), [(n, "*") for n in range(6)])


def lived(wanted: list[TagSet], rows: Messages, who: Attributes) -> list[tuple[int, str]]:
    """Who gets what live, with these attributes."""
    broker = Broker()
    outboxes = [Outbox(PLAIN, OutboxLimits(), broker.ready) for _ in wanted]
    for outbox, tags in zip(outboxes, wanted, strict=True):
        broker.subscribe(outbox, tags)
        broker.describe(outbox, who, ())
    found = []
    for n, (tags, audience) in enumerate(rows):
        before = [outbox.size for outbox in outboxes]
        batch = Batch.of(tags, b"x")
        batch.envelope = None if audience is None else Envelope(audience=audience)
        broker.publish(batch)
        found += [
            (n, written(each))
            for each, outbox, size in zip(wanted, outboxes, before, strict=True)
            if outbox.size > size
        ]
    return sorted(found)


async def replayed(wanted: list[TagSet], rows: Messages, who: Attributes) -> list[tuple[int, str]]:
    """Who gets what out of a history."""
    found = []
    async with await open_history("memory://") as history:
        for tags, audience in rows:
            tag_list = format_tags(tags).encode()
            text = None if audience is None else audience.text
            runs = [(tag_list, record(tag_list, b"x"), 1)]
            await history.append([Publication.of_runs(runs, 0.0, audience=text)])
        for each in wanted:
            page = await history.read(Selection.asked([each]))
            for stored in page.stored:
                mine = visible_to(stored, who)
                found += [(n - 1, written(each)) for n in (() if mine is None else mine.firsts)]
    return sorted(found)


@settings(max_examples=50)
@given(wanted=subscriptions, rows=messages, who=attributes)
async def test_live_replayed_selected_and_matched_are_the_same(
    wanted: list[TagSet], rows: Messages, who: Attributes
) -> None:
    live = lived(wanted, rows, who)
    assert await replayed(wanted, rows, who) == live
    tags = column([tags for tags, _ in rows])
    texts = [None if audience is None else audience.text for _, audience in rows]
    mask = visible_rows(pa.array(texts, pa.string()), tags, who)
    may = [True] * len(rows) if mask is None else mask.tolist()
    selected = [
        (n, written(each))
        for each in wanted
        for n, fits in enumerate(matching(tags, [each]))
        if fits and may[n]
    ]
    assert sorted(selected) == live
    assert [pair for pair in found_by(matcher_of(wanted), tags) if may[pair[0]]] == live


def counted(wanted: list[str], rows: list[set[str]]) -> dict[str, dict[str, int]]:
    coverage = Coverage(Matcher(pa.array(wanted)))
    coverage.add(column(rows))
    found: dict[str, dict[str, int]] = {SUBSCRIPTION: {}, TAG: {}, FANOUT: {}}
    for batch in coverage.batches():
        for row in batch.to_pylist():
            found[row["kind"]][row["name"]] = row["messages"]
    return found


def test_a_tag_is_heard_where_an_address_stands_for_it() -> None:
    rows = [{"/a/b", "x"}, {"/b", "y"}, {".a.b"}, {".b.b"}, {"/c/d"}, {"/c"}]
    found = counted(["/a", ".a.*", "=/c", "z"], rows)
    assert found[SUBSCRIPTION] == {"/a": 1, ".a.*": 1, "=/c": 1}
    assert found[TAG] == {"x": 1, "/b": 1, "y": 1, ".b.b": 1, "/c/d": 1}
    assert found[FANOUT] == {"0": 3, "1": 3}


def test_nothing_is_unheard_where_somebody_listens_to_everything() -> None:
    found = counted(["*", "/a"], [{"/a/b", "x"}, {".b"}])
    assert found == {SUBSCRIPTION: {"*": 2, "/a": 1}, TAG: {}, FANOUT: {"1": 1, "2": 1}}
