"""Where commands of the NATS protocol end: what is kept, and when it is looked at."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mist.errors import LineTooLong
from mist.protocols.subjects.commands import Announced
from mist.protocols.subjects.framing import MAX_CONTROL_LINE, Framing, FramingLost, cut_batch


def cut_all(framing: Framing, data: bytes) -> list[bytes]:
    """The lines and payloads of the commands that are whole."""
    found = []
    data = framing.take(data)
    start = 0
    while start < len(data) and (cut := framing.cut(data, start, payloads=True)):
        start = cut.end
        found.append(cut.line)
        if isinstance(cut.announced, Announced):
            found.append(cut.payload)
    return found


def test_what_has_not_all_come_is_not_looked_at_again_until_it_may_have() -> None:
    framing = Framing(200_000)
    data = b"PUB foo 200000\r\n" + b"\n" * 200_000
    looked = 0
    for n in range(len(data)):
        there = framing.take(data[n : n + 1])
        if there:
            looked += 1
            assert framing.cut(there, 0, payloads=True) is None
    assert looked == 2  # the first byte, and the announcement's end
    assert framing.held == len(data)
    there = framing.take(b"\r\n")
    cut = framing.cut(there, 0, payloads=True)
    assert cut is not None
    assert cut.payload == b"\n" * 200_000
    assert framing.held == 0


def test_a_line_that_does_not_end_is_looked_at_when_it_is_too_long() -> None:
    framing = Framing(100)
    looked = 0
    for _ in range(MAX_CONTROL_LINE + 1):
        if there := framing.take(b"x"):
            looked += 1
            assert framing.cut(there, 0, payloads=True) is None
    assert looked == 1
    with pytest.raises(FramingLost) as caught:
        framing.cut(framing.take(b"x"), 0, payloads=True)
    assert isinstance(caught.value.invalid.error, LineTooLong)


def test_without_payloads_an_announcement_is_a_line() -> None:
    framing = Framing(100)
    cut = framing.cut(b"PUB foo 99\r\nrest", 0, payloads=False)
    assert cut is not None
    assert (cut.line, cut.announced, cut.end) == (b"PUB foo 99\r", None, 12)


def test_commands_are_cut_in_order() -> None:
    framing = Framing(100)
    assert cut_all(framing, b"PING\r\nPUB a 3\r\n1\n2\r\nhpub a 0 1\n!\nPU") == [
        *(b"PING\r", b"PUB a 3\r", b"1\n2", b"hpub a 0 1", b"!")
    ]
    assert framing.held == 2
    assert cut_all(framing, b"B a 0\n\n") == [b"PUB a 0", b""]


subjects = st.sampled_from(
    ["a", "a.b", "order.17", "a.b.c.d", "Ä.x", "a.*", "a..b", "$x.y-z", "a,b"]
)
payloads = st.sampled_from(
    [b"", b"x", b"x" * 40, b"\n", b"x\r\n", b"\r", b"\r\r", b"PUB a 1\r\ny", b"x\r\nPUB a 1"]
)
ends = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
publishes = st.tuples(subjects, payloads, ends)


@given(st.lists(publishes, min_size=1, max_size=9), st.binary(max_size=9))
@example([("a", b"x", b"\r\n"), ("b", b"y", b"\r\n")] * 3, b"PUB ")
def test_what_is_cut_at_once_is_what_is_cut_one_by_one(
    messages: list[tuple[str, bytes, bytes]], rest: bytes
) -> None:
    data = b"".join(
        [
            b"PUB %b %d%b%b%b" % (subject.encode(), len(payload), end, payload, end)
            for subject, payload, end in messages
        ]
    )
    found = cut_batch(data + rest, 1_000, alike=False)
    if found is None:
        return
    batch, end = found
    assert batch.whole is not None
    lines = cut_all(Framing(1_000), data[:end])
    heads, bodies = lines[0::2], lines[1::2]
    expected = [
        b"publish .%b %b\n" % (head.split()[1], body)
        for head, body in zip(heads, bodies, strict=True)
    ]
    assert batch.whole == (b"".join(expected), len(expected))
    assert [run[0] for run in batch.runs for _ in range(run[2])] == [
        line.split()[1] for line in expected
    ]


def test_plain_subjects_are_cut_at_once_however_many_they_are() -> None:
    data = b"".join([b"PUB order.%d.x 3\r\nabc\r\n" % n for n in range(500)])
    for rest in (b"", b"PUB order.500.x 3\r\nab", b"PING\r\n"):
        found = cut_batch(data + rest, 1_000, alike=False)
        assert found is not None
        assert found[1] == len(data)
        assert len(found[0].tag_lists) == 500
