"""The broker: matching is exactly ⊆, each once, in order, whatever is joined or remembered."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import mist.broker.matches
import mist.broker.subscriptions
from mist.addresses import EVERYTHING
from mist.broker.broker import Broker, Group
from mist.broker.meters import Meters
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.errors import CommandError, EmptyTag, InvalidTag
from mist.message import Limits
from mist.protocols.frames import JSON_FRAMES
from mist.protocols.line.forms import ESCAPED, PLAIN
from mist.protocols.listing import finished
from mist.protocols.rfc6455 import text_frame
from mist.wire import Batch, WireForm

VOCABULARY = "abcdef"
tag_sets = st.frozensets(st.sampled_from(VOCABULARY), min_size=1, max_size=4)


def make_outbox(broker: Broker, form: WireForm = PLAIN, **bounds: int) -> Outbox:
    return Outbox(form, OutboxLimits(**bounds), broker.ready)


def take_all(outbox: Outbox) -> bytes:
    found = b""
    while outbox.size:
        data = bytes(outbox.peek())
        outbox.sent(len(data))
        found += data
    return found


def line(tags: str, data: str) -> bytes:
    return f"publish {tags} {data}\n".encode()


def batch(*messages: tuple[str, str]) -> Batch:
    """As a protocol hands it over when all lines are publishes."""
    wire = b"".join(line(*message) for message in messages)
    return Batch([tags.encode() for tags, _ in messages], (wire, len(messages)))


def test_a_message_reaches_exactly_those_whose_tags_it_carries() -> None:
    broker = Broker()
    ab, ac = make_outbox(broker), make_outbox(broker)
    broker.subscribe(ab, frozenset("ab"))
    broker.subscribe(ac, frozenset("ac"))
    broker.publish(batch(("a,b", "1"), ("a", "2"), ("a,b,c", "3"), ("ab", "4")))
    assert take_all(ab) == line("a,b", "1") + line("a,b,c", "3")
    assert take_all(ac) == line("a,b,c", "3")


def test_what_backtracking_missed_is_matched() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset("ac"))
    broker.subscribe(outbox, frozenset("b"))
    broker.publish(batch(("a,b", "x")))
    assert take_all(outbox) == line("a,b", "x")


def test_an_outbox_gets_one_copy_however_many_subscriptions_match() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    for tags in ("a", "b", "ab"):
        broker.subscribe(outbox, frozenset(tags))
    broker.publish(batch(("a,b", "x")))
    assert take_all(outbox) == line("a,b", "x")


def test_tags_are_delivered_in_canonical_form() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset("a"))
    wire = line("b,a,b", "1") + line("b,a,b", "publish b,a,b 2")
    for _ in range(3):  # unknown, seen, remembered
        broker.publish(Batch.of_runs([(b"b,a,b", wire, 2)]))
        assert take_all(outbox) == line("a,b", "1") + line("a,b", "publish b,a,b 2")


def test_a_bad_tag_list_is_told_in_its_place_and_costs_nothing_else() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    broker.subscribe(outbox, frozenset("a"))

    def tell(error: CommandError) -> None:
        outbox.reply(str(error).encode() + b"\n")

    messages = batch(("a", "1"), ("a,,b", "2"), ("a", "3"), ("b*", "4"), ("a", "5"))
    assert broker.publish(messages, on_error=tell) == 3
    assert take_all(outbox) == b"".join(
        [line("a", "1"), b"Empty tag\n", line("a", "3"), b"Invalid tag\n", line("a", "5")]
    )
    assert broker.statistics().rejected == 2


def test_errors_are_told_once_for_each_message_of_a_run() -> None:
    errors: list[CommandError] = []
    Broker().publish(Batch.of_runs([(b"a,", line("a,", "1") * 3, 3)]), on_error=errors.append)
    assert [type(error) for error in errors] == [EmptyTag] * 3


def test_the_limit_on_a_messages_tags_is_the_brokers() -> None:
    errors: list[CommandError] = []
    Broker(Limits(message_tags=1)).publish(batch(("a,b", "x")), on_error=errors.append)
    assert [str(error) for error in errors] == ["Too many tags"]


def test_without_echo_the_publisher_is_left_out_and_nobody_else() -> None:
    broker = Broker()
    publisher, other = make_outbox(broker), make_outbox(broker)
    publisher.echo = False
    for outbox in (publisher, other):
        broker.subscribe(outbox, frozenset("a"))
    broker.publish(batch(("a", "1"), ("a", "2")), publisher)
    assert take_all(publisher) == b""
    assert take_all(other) == line("a", "1") + line("a", "2")


def test_a_line_feed_in_the_data_never_reaches_a_plain_line() -> None:
    broker = Broker()
    plain, escaped, frames = (make_outbox(broker, form) for form in (PLAIN, ESCAPED, JSON_FRAMES))
    for outbox in (plain, escaped, frames):
        broker.subscribe(outbox, frozenset("a"))
    broker.publish(Batch.of(frozenset("a"), b"x\npublish a forged"))
    assert take_all(plain) == b""
    assert take_all(escaped) == b"publish a x\\npublish a forged\n"
    assert b'"data":"x\\npublish a forged"' in take_all(frames)
    assert plain.dropped_unframable == 1
    assert broker.statistics().dropped == {"unframable": 1}


def test_one_bytes_object_serves_all_outboxes_of_a_form() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker, JSON_FRAMES) for _ in range(3)]
    for outbox in outboxes:
        broker.subscribe(outbox, frozenset("a"))
    broker.publish(batch(("a", "x")))
    assert len({id(outbox.peek()) for outbox in outboxes}) == 1


def test_another_form_takes_effect_for_the_next_message() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    group = broker.subscribe(outbox, frozenset("a"))
    for _ in range(3):
        broker.publish(batch(("a", "x\\")))
    take_all(outbox)
    broker.reshape(outbox, ESCAPED, [group])
    broker.publish(batch(("a", "x\\")))
    assert take_all(outbox) == b"publish a x\\\\\n"


def test_what_a_full_outbox_loses_does_not_depend_on_joining() -> None:
    for joined in (True, False):
        broker = Broker()
        outbox = make_outbox(broker, bytes=30)
        broker.subscribe(outbox, frozenset("a"))
        messages = [("a", "1"), ("a", "x" * 40), ("a", "2")]
        for each in [messages] if joined else [[message] for message in messages]:
            broker.publish(batch(*each))
        assert take_all(outbox) == line("a", "1") + line("a", "2")
        assert broker.statistics().dropped == {"full": 1}


def test_one_full_outbox_costs_the_others_nothing() -> None:
    broker = Broker()
    stalled, healthy = make_outbox(broker, bytes=20), make_outbox(broker)
    for outbox in (stalled, healthy):
        broker.subscribe(outbox, frozenset("a"))
    for n in range(100):
        broker.publish(batch(("a", str(n))))
    assert healthy.dropped_full == 0
    assert take_all(healthy) == b"".join(line("a", str(n)) for n in range(100))
    assert stalled.size <= 20
    assert stalled.dropped_full == 100 - stalled.queued


def test_flush_visits_every_outbox_with_something_queued_once() -> None:
    broker = Broker()
    flushed: list[str] = []
    for name in "xy":
        outbox = make_outbox(broker)
        outbox.flush = lambda name=name: flushed.append(name)  # type: ignore[misc]
        broker.subscribe(outbox, frozenset(name))
    broker.publish(batch(("x", "1"), ("x", "2")))
    broker.flush()
    assert flushed == ["x"]
    assert not broker.ready


def test_targets_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.broker.matches, "_MAX_KEPT", 10)
    broker = Broker()
    outboxes = [make_outbox(broker) for _ in range(4)]
    for outbox in outboxes:
        broker.subscribe(outbox, frozenset("a"))
        broker.subscribe(outbox, frozenset("b"))
    for n in range(50):
        for _ in range(3):
            broker.publish(batch((f"a,t{n}", "x"), (f"b,t{n}", "y")))
    assert [outbox.queued for outbox in outboxes] == [300] * 4


messages = st.lists(
    st.tuples(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5), st.integers(0, 9)),
    max_size=30,
)


@given(
    st.lists(st.lists(tag_sets, max_size=3), max_size=5),
    messages,
    st.integers(1, 10),
)
def test_deliveries_are_those_of_the_set_definition(
    subscriptions: list[list[frozenset[str]]],
    published: list[tuple[list[str], int]],
    size: int,
) -> None:
    broker = Broker()
    outboxes = []
    for wanted in subscriptions:
        outbox = make_outbox(broker)
        outboxes.append(outbox)
        for tags in wanted:
            broker.subscribe(outbox, tags)
    everything = [(",".join(tags), str(data)) for tags, data in published]
    for start in range(0, len(everything), size):
        broker.publish(batch(*everything[start : start + size]))
    for outbox, wanted in zip(outboxes, subscriptions, strict=True):
        expected = [
            line(",".join(sorted(set(tags))), str(data))
            for tags, data in published
            if any(each <= set(tags) for each in wanted)
        ]
        assert take_all(outbox) == b"".join(expected)


def shown(form: WireForm, tags: str, data: str) -> bytes:
    """One message as an outbox of this form holds it, written out plainly."""
    canonical = sorted(set(tags.split(",")))
    if form is JSON_FRAMES:
        return text_frame(
            json.dumps({"keys": canonical, "data": data}, separators=(",", ":")).encode()
        )
    return line(",".join(canonical), data.replace("\\", "\\\\") if form is ESCAPED else data)


class BrokerMachine(RuleBasedStateMachine):
    """Subscribing, leaving, changing forms and publishing in any order, against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.outboxes = [make_outbox(self.broker) for _ in range(4)]
        self.groups: list[dict[frozenset[str], Group]] = [{} for _ in self.outboxes]

    @rule(who=st.integers(0, 3), tags=tag_sets)
    def subscribe(self, who: int, tags: frozenset[str]) -> None:
        self.groups[who][tags] = self.broker.subscribe(self.outboxes[who], tags)

    @rule(who=st.integers(0, 3), tags=tag_sets)
    def unsubscribe(self, who: int, tags: frozenset[str]) -> None:
        group = self.groups[who].pop(tags, None)
        if group is not None:
            self.broker.unsubscribe(self.outboxes[who], group)

    @rule(who=st.integers(0, 3), form=st.sampled_from([PLAIN, ESCAPED, JSON_FRAMES]))
    def change_form(self, who: int, form: WireForm) -> None:
        self.broker.reshape(self.outboxes[who], form, self.groups[who].values())

    @rule(who=st.integers(0, 3), echo=st.booleans())
    def change_echo(self, who: int, echo: bool) -> None:
        self.outboxes[who].echo = echo

    @rule(
        written=st.lists(
            st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(",".join),
            min_size=1,
            max_size=5,
        ),
        again=st.integers(1, 3),
        whole=st.booleans(),
        who=st.integers(0, 3),
    )
    def publish(self, written: list[str], again: int, whole: bool, who: int) -> None:
        messages = [(tags, f"{number}\\") for number, tags in enumerate(written)]
        published = batch(*messages)
        for _ in range(again):
            self.broker.publish(
                published if whole else Batch.of_runs(published.runs), self.outboxes[who]
            )
        for number, (outbox, groups) in enumerate(zip(self.outboxes, self.groups, strict=True)):
            expected = b"".join(
                shown(outbox.form, tags, data)
                for tags, data in messages
                if any(wanted <= set(tags.split(",")) for wanted in groups)
            )
            if number == who and not outbox.echo:
                expected = b""
            assert take_all(outbox) == expected * again

    @invariant()
    def groups_live_as_long_as_they_have_members(self) -> None:
        live = Counter(tags for groups in self.groups for tags in groups)
        assert self.broker.statistics().tag_sets == len(live)
        assert self.broker.tags() == frozenset().union(*live)


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_an_invalid_tag_is_looked_at_again_each_time() -> None:
    errors: list[CommandError] = []
    broker = Broker()
    for _ in range(3):
        broker.publish(batch(("a*", "x")), on_error=errors.append)
    assert [type(error) for error in errors] == [InvalidTag] * 3


def test_groups_know_how_many_are_in_them() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker) for _ in range(3)]
    for number, each in enumerate(outboxes):
        for tags in ["a", "a,b", "c"][: number + 1]:
            broker.subscribe(each, frozenset(tags.split(",")))
    groups = [group for some in broker.groups() for group in some]
    assert {group.tag_list: group.subscribers for group in groups} == {b"a": 3, b"a,b": 2, b"c": 1}
    assert dict(use for some in broker.tag_uses() for use in some) == {"a": 2, "b": 1, "c": 1}
    broker.unsubscribe(outboxes[0], groups[0])
    broker.unsubscribe(outboxes[0], groups[0])
    assert Group(b"x").subscribers == 0


def test_tags_of_all_that_is_published_are_counted() -> None:
    clock = iter(range(1000))
    broker = Broker(Limits(message_tags=2), Meters(lambda: float(next(clock))))
    subscriber = make_outbox(broker)
    broker.subscribe(subscriber, frozenset("a"))
    for _ in range(3):
        broker.publish(batch(("a", "1"), ("a,b", "2"), ("a", "3")))  # cached or not
        broker.publish(batch(("a*", "refused"), ("a,b,c", "too many"), ("c", "4")))
    broker.publish(Batch.of(frozenset("b"), b"line\nfeed"))
    (a, a_rate), (b, b_rate), (c, c_rate) = broker.top_tags(5)
    assert [a, b, c] == ["a", "b", "c"]
    assert [round(rate / c_rate * 3) for rate in (a_rate, b_rate, c_rate)] == [9, 4, 3]
    assert Broker().top_tags(5) == []


def test_receivers_are_all_who_might_get_a_message_each_once() -> None:
    broker = Broker()
    one, other, shared, last = (make_outbox(broker) for _ in range(4))
    broker.subscribe(one, frozenset({"/a"}))
    broker.subscribe(one, frozenset({"/a/b"}))
    broker.subscribe(other, frozenset({"=/a"}))
    broker.subscribe(last, EVERYTHING)
    for outbox in (shared, one):
        broker.add_named(NamedSubscription(outbox, PLAIN, b"1"), frozenset({"/a/b"}), "queue")
    assert finished(broker.receivers(frozenset({"/a/b"}))) == {one, shared, last}
    assert finished(broker.receivers(frozenset({"/a"}))) == {one, other, last}
    assert finished(broker.receivers(frozenset({"b"}))) == {last}


def test_few_receivers_are_looked_at_in_a_step() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker) for _ in range(3_000)]
    for outbox in outboxes:
        broker.subscribe(outbox, frozenset("a"))
        broker.add_named(NamedSubscription(outbox, PLAIN, b"1"), frozenset("b"), "queue")
    for tag in "ab":
        steps = list(broker.receivers(frozenset(tag)))
        assert len(steps) >= 3_000 // mist.broker.subscriptions._LISTENERS
        assert finished(broker.receivers(frozenset(tag))) == set(outboxes)
