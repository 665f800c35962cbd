"""Blocks as batches: the same messages, whichever way they are read."""

from collections import Counter
from collections.abc import Sequence
from io import BytesIO

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history.encoding import encode_blocks
from mist.history.layout import Row
from mist.history.record import Publication
from mist.history.tag_lists import TagLists
from mist.message import Envelope
from mist.sessions.slices import Slice, lists_of, plain_slices, slices_of
from mist.wire import Batch

_LISTS = st.sampled_from([b"a", b"a,b", b"/x/y,a", b"c"])
_DATA = st.binary(max_size=5).map(lambda raw: raw.replace(b"\n", b""))


def _row(*batches: Batch, envelope: Envelope | None = None) -> Row:
    publications = [
        Publication(batch, 0.0, "", None, None if envelope is None else envelope.meta)
        for batch in batches
    ]
    (row,) = encode_blocks(publications, [0] * len(publications))
    return row.placed(10, 5)


def _messages(slices: Sequence[Slice]) -> list[tuple[int, bytes, bytes]]:
    found: list[tuple[int, bytes, bytes]] = []
    for batch, first, last in slices:
        at = first
        for tag_list, wire, count in batch.runs:
            for each in BytesIO(wire).readlines() if batch.framable else [wire]:
                found.append((at, tag_list, each))
                at += 1
            assert count == 1 or batch.framable
        assert (at, batch.count) == (last + 1, last + 1 - first)
    return found


@given(
    st.lists(st.lists(st.tuples(_LISTS, _DATA), min_size=1, max_size=400), min_size=1, max_size=3)
)
def test_plain_messages_are_the_same_from_columns(
    sections: list[list[tuple[bytes, bytes]]],
) -> None:
    batches = [Batch.of_columns([t for t, _ in each], [d for _, d in each]) for each in sections]
    row = _row(*batches)
    plain = plain_slices(row)
    assert plain is not None
    own = [(t, b"publish %b %b\n" % (t, d)) for each in sections for t, d in each]
    assert _messages(plain) == [(11 + n, *each) for n, each in enumerate(own)]
    assert max(batch.count for batch, _, _ in plain) <= 256
    assert lists_of(row) == Counter(t for t, _ in own)


@pytest.mark.parametrize(
    ("batch", "meta"),
    [
        (Batch.of_runs([(b"a", b"publish a x\ny\n", 1)], framable=False), None),
        (Batch([b"a"], (b"publish a x\npublish a y\n", 2)), None),
        (Batch.of_columns([b"a"], [b"x"]), {"k": b"v"}),
    ],
)
def test_what_is_not_plain_is_left_to_the_other_way(
    batch: Batch, meta: dict[str, bytes] | None
) -> None:
    row = _row(batch, envelope=Envelope(meta=meta))
    assert plain_slices(row) is None
    slices = slices_of(row, TagLists())
    assert sum(each.count for each, _, _ in slices) == batch.count
    assert lists_of(row) == {b"a": batch.count}


def test_what_is_damaged_is_left_to_the_other_way() -> None:
    row = _row(Batch.of_columns([b"a", b"b"], [b"x", b"y"]))
    assert plain_slices(attrs.evolve(row, body=row.body[:-1])) is None
    head = attrs.evolve(row.head, messages=3)
    assert plain_slices(attrs.evolve(row, head=head)) is None
    with pytest.raises(ValueError, match="truncated"):
        lists_of(attrs.evolve(row, body=row.body[:-1]))
