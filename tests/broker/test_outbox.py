"""The outbox: bounded, in order, nothing lost without being counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mist.broker.backlog import Written
from mist.broker.outbox import BURST, RESERVE, Outbox
from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.protocols.line.forms import PLAIN


def make_outbox(size: int = 100, messages: int = 10, **options: object) -> Outbox:
    policy = options.pop("slow_consumer", SlowConsumer.DROP)
    assert isinstance(policy, SlowConsumer)
    return Outbox(PLAIN, OutboxLimits(size, messages, policy), [], **options)  # type: ignore[arg-type]


def take_all(outbox: Outbox) -> bytes:
    found = b""
    while outbox.size:
        data = bytes(outbox.peek())
        outbox.sent(len(data))
        found += data
    return found


def test_what_is_put_comes_out_in_order() -> None:
    outbox = make_outbox()
    assert outbox.put(b"one", 1)
    outbox.reply(b"two")
    assert outbox.put(b"three", 2)
    assert take_all(outbox) == b"onetwothree"
    assert outbox.statistics().sent == 3


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(1, 9)), max_size=20))
def test_what_several_have_written_together_is_the_sum_of_what_each_has(
    steps: list[tuple[int, int, int]],
) -> None:
    written = Written()
    outboxes = [make_outbox(written=written) for _ in range(2)]
    for which, messages, part in steps:
        outbox = outboxes[which]
        outbox.put(b"a,b x\n" * messages, messages)
        outbox.sent(min(part, outbox.size))  # of most writes in the middle of a message
    outboxes[0].note_sent(3, 30)
    for each in outboxes:
        each.discard()
    assert written.messages == sum(each.sent_messages for each in outboxes)
    assert written.bytes == sum(each.sent_bytes for each in outboxes)


def test_it_enters_the_ready_list_once() -> None:
    ready: list[Outbox] = []
    outbox = Outbox(PLAIN, OutboxLimits(), ready)
    outbox.put(b"a", 1)
    outbox.reply(b"b")
    assert ready == [outbox]


def test_a_put_that_does_not_fit_changes_nothing() -> None:
    outbox = make_outbox(size=5)
    assert outbox.put(b"12345", 1)
    assert not outbox.put(b"6", 1)
    assert take_all(outbox) == b"12345"


def test_the_number_of_messages_is_bounded_too() -> None:
    outbox = make_outbox(messages=2)
    assert outbox.put(b"ab", 2)
    assert not outbox.put(b"c", 1)


def test_a_refused_run_is_dropped_message_by_message_from_where_it_is_full() -> None:
    outbox = make_outbox(size=5)
    outbox.put_each([b"12", b"34", b"56", b"7"])
    assert take_all(outbox) == b"12347"
    assert outbox.dropped_full == 1


def test_dropping_is_reported_once_until_it_was_noted() -> None:
    reports: list[Outbox] = []
    outbox = make_outbox(size=1, on_dropping=reports.append)
    outbox.put_each([b"1", b"2", b"3"])
    assert len(reports) == 1
    outbox.noted_drops()
    outbox.put_each([b"4"])
    assert len(reports) == 2
    assert outbox.dropped_full == 3


def test_the_disconnect_policy_ends_the_session_at_the_first_drop() -> None:
    reasons: list[str] = []
    outbox = make_outbox(size=1, on_overrun=reasons.append, slow_consumer=SlowConsumer.DISCONNECT)
    outbox.put_each([b"1", b"2", b"3"])
    assert reasons == ["slow consumer"]


def test_replies_may_use_the_reserve_and_then_end_the_session() -> None:
    reasons: list[str] = []
    outbox = make_outbox(size=10, on_overrun=reasons.append)
    outbox.put(b"x" * 10, 1)
    outbox.reply(b"r" * RESERVE)
    assert not reasons
    outbox.reply(b"r")
    assert reasons == ["outbox can't take a reply"]
    assert outbox.size == 10 + RESERVE


def test_a_muted_outbox_takes_replies_only_and_counts_no_drops() -> None:
    outbox = make_outbox()
    outbox.mute()
    outbox.put_each([b"a"])
    outbox.reply(b"r")
    assert take_all(outbox) == b"r"
    assert outbox.dropped_full == 0


def test_a_closed_outbox_takes_nothing_but_keeps_what_it_has() -> None:
    outbox = make_outbox()
    outbox.put(b"a", 1)
    outbox.close()
    outbox.reply(b"r")
    assert not outbox.put(b"b", 1)
    assert take_all(outbox) == b"a"


def test_a_discarded_outbox_does_not_count_what_it_held_as_sent() -> None:
    outbox = make_outbox()
    outbox.put(b"a", 1)
    outbox.discard()
    assert outbox.statistics().sent == 0
    assert outbox.size == 0


def test_a_peek_joins_no_more_than_a_burst() -> None:
    outbox = make_outbox(size=10 * BURST)
    for _ in range(8):
        outbox.put(b"x" * (BURST // 2 - 1), 1)
    assert len(outbox.peek()) <= BURST
    outbox.put(b"y", 1)
    assert take_all(outbox).endswith(b"xy")


def test_a_message_larger_than_a_burst_comes_whole() -> None:
    outbox = make_outbox(size=10 * BURST)
    outbox.put(b"x" * (2 * BURST), 1)
    outbox.put(b"y", 1)
    assert len(outbox.peek()) == 2 * BURST


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=20), st.data())
def test_writing_in_any_pieces_keeps_every_byte(wires: list[bytes], data: st.DataObject) -> None:
    outbox = make_outbox(size=1000, messages=100)
    for wire in wires:
        assert outbox.put(wire, 1)
    found = b""
    while outbox.size:
        chunk = bytes(outbox.peek())
        written = data.draw(st.integers(1, len(chunk)))
        outbox.sent(written)
        found += chunk[:written]
    assert found == b"".join(wires)
    assert outbox.statistics().sent == len(wires)
    assert outbox.queued == 0


class OutboxMachine(RuleBasedStateMachine):
    """An outbox against a plain list of (bytes, messages) and the bounds applied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = make_outbox(size=60, messages=6)
        self.expected = b""
        self.dropped = 0

    @rule(wire=st.binary(min_size=1, max_size=30))
    def deliver(self, wire: bytes) -> None:
        fits = len(self.expected) + len(wire) <= 60 and self.outbox.queued + 1 <= 6
        self.outbox.put_each([wire])
        if fits:
            self.expected += wire
        else:
            self.dropped += 1

    @rule(wire=st.binary(min_size=1, max_size=30))
    def answer(self, wire: bytes) -> None:
        self.outbox.reply(wire)
        self.expected += wire

    @precondition(lambda self: self.outbox.size)
    @rule(share=st.floats(0.01, 1.0))
    def write(self, share: float) -> None:
        chunk = bytes(self.outbox.peek())
        written = max(1, int(len(chunk) * share))
        assert self.expected.startswith(chunk)
        self.outbox.sent(written)
        self.expected = self.expected[written:]

    @invariant()
    def counts_agree(self) -> None:
        assert self.outbox.size == len(self.expected)
        assert self.outbox.dropped_full == self.dropped
        assert self.outbox.queued >= 0


TestOutboxMachine = OutboxMachine.TestCase


@pytest.mark.parametrize("room", [0, 1])
def test_room_for_a_reply_includes_the_reserve(room: int) -> None:
    outbox = make_outbox(size=10)
    assert outbox.has_room_for_reply(10 + RESERVE + room) == (room == 0)


@given(
    st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.integers(0, 30), st.integers(0, 30)
)
def test_what_is_withdrawn_is_gone_but_for_what_was_begun(
    wires: list[bytes], written: int, writing: int
) -> None:
    outbox = make_outbox(1_000)
    for wire in wires:
        outbox.put(wire, 1)
    everything = b"".join(wires)
    written = min(written, len(everything))
    outbox.sent(written)
    outbox.writing = writing = min(writing, outbox.size)
    before = outbox.statistics()
    outbox.withdraw()
    left = take_all(outbox)
    begun = written + writing
    assert (everything[:written] + left).startswith(everything[:begun])
    assert everything.startswith(everything[:written] + left)
    ends = [len(b"".join(wires[:n])) for n in range(len(wires) + 1)]
    assert written + len(left) == min(end for end in ends if end >= begun)
    after = outbox.statistics()
    assert after.queued == 0
    assert after.gone + after.sent == before.queued + before.sent
