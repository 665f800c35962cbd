"""Deliveries as lines: plain, escaped, with ids and without."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.message import TagSet
from mist.protocols.line.forms import ESCAPED, NUMBERED, NUMBERED_ESCAPED, PLAIN, read_escaped
from mist.wire import Batch, Entry, TagList, WireForm

AB = frozenset("ab")
ODD = frozenset({"a\\", "\\n", "50%d", "publish"})
FORMS: list[WireForm] = [PLAIN, ESCAPED, NUMBERED, NUMBERED_ESCAPED]


def entry(data: bytes, tags: TagSet = AB) -> Entry:
    [(_, wire, count)] = Batch.of(tags, data).runs
    return TagList(tags), wire, count


def run(data: Sequence[bytes], tags: TagSet = AB) -> Entry:
    wires = [entry(each, tags)[1] for each in data]
    return TagList(tags), b"".join(wires), len(data)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_escaped_lines_carry_any_data_in_one_line_each(data: list[bytes]) -> None:
    pieces = ESCAPED.pieces([entry(each) for each in data])
    assert all(piece.count(b"\n") == 1 and piece.endswith(b"\n") for piece in pieces)
    assert [m.data for m in read_escaped(b"".join(pieces))] == data if data else not pieces


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_plain_lines_leave_out_what_would_forge_a_line(data: list[bytes]) -> None:
    pieces = PLAIN.pieces([entry(each) for each in data])
    assert pieces == [b"publish a,b %b\n" % each for each in data if b"\n" not in each]
    joined, count = PLAIN.join([entry(each) for each in data], framable=False)
    assert (joined, count) == (b"".join(pieces), len(pieces))


# What is delivered, and how each form writes it, with the first id 7.
TABLE: list[tuple[Entry, list[bytes]]] = [
    (
        entry(b"x"),
        [b"publish a,b x\n", b"publish a,b x\n", b"message 7 a,b x\n", b"message 7 a,b x\n"],
    ),
    (
        run([b"1", b"", b"publish a,b 3"]),
        [
            b"publish a,b 1\npublish a,b \npublish a,b publish a,b 3\n",
            b"publish a,b 1\npublish a,b \npublish a,b publish a,b 3\n",
            b"message 7 a,b 1\nmessage 8 a,b \nmessage 9 a,b publish a,b 3\n",
            b"message 7 a,b 1\nmessage 8 a,b \nmessage 9 a,b publish a,b 3\n",
        ],
    ),
    (
        run([b"100%", b"%d%%", b"\\\r"]),
        [
            b"publish a,b 100%\npublish a,b %d%%\npublish a,b \\\r\n",
            b"publish a,b 100%\npublish a,b %d%%\npublish a,b \\\\\\r\n",
            b"message 7 a,b 100%\nmessage 8 a,b %d%%\nmessage 9 a,b \\\r\n",
            b"message 7 a,b 100%\nmessage 8 a,b %d%%\nmessage 9 a,b \\\\\\r\n",
        ],
    ),
    (
        run([b"\\", b"x"], frozenset({"\\", "%"})),
        [
            b"publish %,\\ \\\npublish %,\\ x\n",
            b"publish %,\\ \\\\\npublish %,\\ x\n",
            b"message 7 %,\\ \\\nmessage 8 %,\\ x\n",
            b"message 7 %,\\ \\\\\nmessage 8 %,\\ x\n",
        ],
    ),
    (
        entry(b"x\ny"),
        [b"", b"publish a,b x\\ny\n", b"", b"message 7 a,b x\\ny\n"],
    ),
]


@pytest.mark.parametrize(("delivered", "written"), TABLE)
def test_every_form_writes_every_row_to_the_byte(delivered: Entry, written: list[bytes]) -> None:
    unframable = delivered[2] == 1 and delivered[1].count(b"\n") > 1
    for form, lines in zip(FORMS, written, strict=True):
        count = lines.count(b"\n")
        assert b"".join(form.pieces([delivered], firsts=[7])) == lines
        for framable in (False,) if unframable else (True, False):
            assert form.join([delivered], framable=framable, firsts=[7]) == (lines, count)
    for form, unnumbered in ((NUMBERED, PLAIN), (NUMBERED_ESCAPED, ESCAPED)):
        assert form.pieces([delivered]) == unnumbered.pieces([delivered])
        assert form.join([delivered], framable=False) == unnumbered.join(
            [delivered], framable=False
        )


def test_only_lines_without_ids_and_escapes_are_passed_on_as_they_came() -> None:
    assert [form.passes_lines for form in FORMS] == [True, False, False, False]
    assert [form.numbered for form in FORMS] == [False, False, True, True]
    assert len({form.name for form in FORMS}) == 4


def test_nothing_delivered_is_nothing_written() -> None:
    for form in FORMS:
        assert form.pieces([], firsts=[]) == []
        assert form.join([], framable=True, firsts=[]) == (b"", 0)
        assert form.join([], framable=True) == (b"", 0)


LINES = st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")) | st.sampled_from(
    [b"publish a,b x", b"%d", b"\\", b"\r", b"message 1 a x", b"\\n"]
)
RUNS = st.lists(
    st.tuples(
        st.sampled_from([AB, ODD, frozenset("ä")]),
        st.integers(1, (1 << 53) - 100),
        st.lists(LINES, min_size=1, max_size=4),
    ),
    max_size=4,
)


@given(RUNS)
def test_numbered_lines_read_back_give_the_ids_and_the_data(
    runs: list[tuple[TagSet, int, list[bytes]]],
) -> None:
    entries = [run(data, tags) for tags, _, data in runs]
    firsts = [first for _, first, _ in runs]
    meant = [(first + n, tags, each) for tags, first, data in runs for n, each in enumerate(data)]
    for form in (NUMBERED, NUMBERED_ESCAPED):
        pieces = form.pieces(entries, firsts=firsts)
        assert len(pieces) == len(meant)
        for framable in (True, False):
            joined = form.join(entries, framable=framable, firsts=firsts)
            assert joined == (b"".join(pieces), len(meant))
    escaped = b"".join(NUMBERED_ESCAPED.pieces(entries, firsts=firsts))
    if meant:
        assert [(m.id, m.tags, m.data) for m in read_escaped(escaped)] == meant
    read = []
    for line in b"".join(NUMBERED.pieces(entries, firsts=firsts)).split(b"\n")[:-1]:
        word, number, tag_list, data = line.split(b" ", 3)
        assert word == b"message"
        read.append((int(number), frozenset(tag_list.decode().split(",")), data))
    assert read == meant


@given(RUNS)
def test_escaped_lines_are_the_same_joined_and_in_pieces(
    runs: list[tuple[TagSet, int, list[bytes]]],
) -> None:
    entries = [run(data, tags) for tags, _, data in runs]
    pieces = ESCAPED.pieces(entries)
    assert ESCAPED.join(entries, framable=True) == (b"".join(pieces), len(pieces))
    if entries:
        found = list(read_escaped(b"".join(pieces)))
        assert [m.data for m in found] == [each for _, _, data in runs for each in data]
        assert {m.id for m in found} == {None}


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_what_is_left_out_keeps_its_id(data: list[bytes]) -> None:
    entries = [entry(each) for each in data]
    firsts = range(5, 5 + len(data))
    left = [(n, each) for n, each in enumerate(data, 5) if b"\n" not in each]
    lines = [b"message %d a,b %b\n" % pair for pair in left]
    assert NUMBERED.pieces(entries, firsts=firsts) == lines
    assert NUMBERED.join(entries, framable=False, firsts=firsts) == (b"".join(lines), len(lines))
    escaped, count = NUMBERED_ESCAPED.join(entries, framable=False, firsts=firsts)
    assert count == len(data)
    if data:
        assert [(m.id, m.data) for m in read_escaped(escaped)] == list(enumerate(data, 5))


def test_an_id_is_wanted_for_each_entry() -> None:
    for form in (NUMBERED, NUMBERED_ESCAPED):
        with pytest.raises(ValueError, match="zip"):
            form.pieces([entry(b"x")] * 3, firsts=[1, 2])
        with pytest.raises(ValueError, match="zip"):
            form.join([run([b"x", b"y"])] * 3, framable=True, firsts=[1, 2])
