"""Who may get which rows: as live, and as by the history."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.archive.visibility import visible_rows
from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.audience import Audience
from mist.broker.attribute_index import is_global, reaches
from mist.message import TagSet
from tests.addressed import attributes, audiences, published

TEXTS = pa.string()
NUMBERS = pa.dictionary(pa.int32(), pa.string())
GLOBAL = st.sampled_from(["/global/a", "/global", "/globala", "/a/global/"])


def found(rows: list[tuple[TagSet, str | None]], who: Attributes, kind: pa.DataType) -> list[bool]:
    audience = pa.array([text for _, text in rows], kind)
    tags = pa.array([sorted(tags) for tags, _ in rows], pa.list_(kind))
    # Also as a slice, whose buffers begin elsewhere.
    audience, tags = (pa.concat_arrays([each.slice(0, 1), each]).slice(1) if len(each) else each
                      for each in (audience, tags))  # fmt: skip
    mask = visible_rows(audience, tags, who)
    return [True] * len(rows) if mask is None else mask.tolist()


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@given(
    rows=st.lists(st.tuples(published | st.frozensets(GLOBAL, min_size=1), audiences)),
    who=attributes,
)
def test_a_row_has_the_recipients_of_its_message(
    kind: pa.DataType, rows: list[tuple[TagSet, Audience | None]], who: Attributes
) -> None:
    texts = [(tags, None if audience is None else audience.text) for tags, audience in rows]
    meant = [reaches(audience, who, is_global(tags)) for tags, audience in rows]
    assert found(texts, who, kind) == meant


@pytest.mark.parametrize("kind", [TEXTS, NUMBERS], ids=["texts", "numbers"])
def test_what_is_no_audience_is_for_nobody(kind: pa.DataType) -> None:
    rows = [(frozenset("a"), text) for text in ("x", "", "users=1", None)]
    assert found(rows, Attributes.parse("user=1"), kind) == [False, False, True, True]
    assert found(rows, NO_ATTRIBUTES, kind) == [False, False, False, True]


def test_where_nobody_is_addressed_nothing_is_looked_at() -> None:
    tags = pa.array([["a"], None], pa.list_(pa.string()))
    assert visible_rows(pa.nulls(2, TEXTS), tags, NO_ATTRIBUTES) is None
    assert visible_rows(pa.nulls(2, TEXTS), tags, Attributes.parse("user=1")) is None
    assert visible_rows(pa.nulls(2, TEXTS), tags, Attributes.parse("site=x")).tolist() == [
        False,
        False,
    ]
    assert visible_rows(pa.nulls(0, TEXTS), tags.slice(0, 0), Attributes.parse("site=x")) is None
