"""Every message accounted for: what was due is delivered, dropped for a reason, or waiting.

    matched + replayed = delivered + dropped + waiting

at any moment, whatever becomes of those who are to get the messages.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.broker.usage import UsageAccounting
from mist.http.event_chunks import ChunkedEventForm
from mist.message import Envelope, TagSet
from mist.protocols.event_forms import EventForm
from mist.protocols.frames.forms import JSON_FRAMES
from mist.protocols.json.forms import JSON_OBJECT_FRAMES, JSON_OBJECTS
from mist.protocols.line.forms import ESCAPED, NUMBERED, NUMBERED_ESCAPED, PLAIN
from mist.protocols.subjects.forms import subject_form
from mist.protocols.topics.forms import TopicForm
from mist.wire import Batch, Entry, TagList, WireForm

TOPICS = TopicForm(lambda: 1.0)
SUBJECTS = subject_form(b"7", headers=True)
FORMS: list[WireForm] = [
    PLAIN,
    ESCAPED,
    NUMBERED,
    NUMBERED_ESCAPED,
    JSON_OBJECTS,
    JSON_OBJECT_FRAMES,
    JSON_FRAMES,
    TOPICS,
    SUBJECTS,
    EventForm("e"),
    ChunkedEventForm("e"),
]


@given(
    form=st.sampled_from(FORMS),
    messages=st.lists(st.binary(max_size=8) | st.binary(min_size=120, max_size=140), min_size=1),
    meta=st.booleans(),
    data=st.data(),
)
@settings(max_examples=300)
def test_a_form_knows_its_whole_messages_wherever_it_is_cut(
    form: WireForm, messages: list[bytes], meta: bool, data: st.DataObject
) -> None:
    tag_list = TagList(frozenset({"a", "/topic", ".subject"}))
    entries: list[Entry] = [(tag_list, tag_list.head + each + b"\n", 1) for each in messages]
    envelope = Envelope(meta={"nats.headers": b"NATS/1.0\r\nA: b\r\n\r\n"}) if meta else None
    framable = not any(b"\n" in each for each in messages)
    firsts = list(range(1, len(messages) + 1))
    wire, count = form.join(entries, framable=framable, firsts=firsts, envelope=envelope)
    pieces = form.pieces(entries, firsts=firsts, envelope=envelope)
    assert count == len(pieces)
    end = data.draw(st.integers(0, len(wire)))
    whole = at = 0
    for piece in pieces:
        at += len(piece)
        whole += at <= end
    assert form.count_whole(wire, end) == whole


def make_outbox(**options: object) -> Outbox:
    return Outbox(PLAIN, OutboxLimits(1_000, 10), [], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "delivered"), [(0, 0), (3, 0), (4, 1), (6, 1), (8, 2), (9, 2), (12, 3)]
)
def test_a_message_that_is_written_in_part_is_gone(written: int, delivered: int) -> None:
    outbox = make_outbox()
    outbox.put(b"one\ntwo\nsix\n", 3)
    outbox.sent(written)
    outbox.discard()
    assert outbox.statistics().sent == delivered
    assert outbox.statistics().gone == 3 - delivered
    assert outbox.waiting == 0


def test_what_was_held_or_owed_when_the_session_ended_is_gone() -> None:
    outbox = make_outbox()
    outbox.pause()
    outbox.keep(b"left to the history\n", 2)
    outbox.hold()
    outbox.keep(b"held\n", 1)
    assert (outbox.waiting, outbox.owed, outbox.gone) == (3, 2, 0)
    outbox.mute()
    assert (outbox.waiting, outbox.gone) == (0, 3)
    outbox.keep(b"too late\n", 1)
    assert outbox.settle() == (4, 0)
    assert outbox.settle() == (0, 0)


def test_what_the_history_no_longer_had_is_gone_once_the_session_is_live() -> None:
    outbox = make_outbox()
    outbox.pause()
    outbox.keep(b"trimmed before it was read\n", 3)
    outbox.note_replayed(1, owed=True)
    outbox.replay(b"one\n", 1)
    outbox.resume_live()
    assert (outbox.owed, outbox.gone, outbox.waiting) == (0, 2, 1)


LIMITS = [
    OutboxLimits(10_000, 3),
    OutboxLimits(60, 1_000),
    OutboxLimits(10_000, 2, SlowConsumer.DISCONNECT),
    OutboxLimits(),
]
TAGS: list[TagSet] = [frozenset(each) for each in (["a"], ["b"], ["a", "b"], ["c"], [".s"])]
MESSAGES = [b"a", b"a,b", b"b,a", b"a,b,c", b"c", b"d", b".s,a", b"/t,b"]


class Peer:
    """A session, as far as the broker knows it."""

    def __init__(self, broker: Broker, form: WireForm, limits: OutboxLimits, resumes: bool) -> None:
        self.broker = broker
        self.outbox = Outbox(form, limits, broker.ready, on_overrun=lambda reason: self.mute())
        self.groups: dict[TagSet, Group] = {}
        self.named: list[tuple[NamedSubscription, TagSet, str]] = []
        self.over = False
        if resumes:
            self.outbox.on_behind = lambda after: None

    def mute(self) -> None:
        self.outbox.mute()

    def end(self) -> None:
        """As `Session.aclose` does."""
        self.over = True
        self.outbox.discard()
        self.broker.settle(self.outbox)
        for named, _, _ in self.named:
            self.broker.remove_named(named)
        self.broker.describe(self.outbox, Attributes(), self.groups.values())
        for group in self.groups.values():
            self.broker.unsubscribe(self.outbox, group)
        self.outbox.release()
        self.broker.settle(self.outbox)


class ConservationMachine(RuleBasedStateMachine):
    """Who is due a message is found by the set definition; what becomes of it adds up to that."""

    observed = False

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        if self.observed:
            self.broker.observe(UsageAccounting())
        self.peers: list[Peer] = []
        self.due = 0
        self.published = 0

    @property
    def alive(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.over]

    @rule(
        form=st.sampled_from(FORMS),
        limits=st.sampled_from(LIMITS),
        resumes=st.booleans(),
        tags=st.sampled_from(TAGS),
        echo=st.booleans(),
        user=st.sampled_from(["", "1"]),
    )
    def connect(
        self,
        form: WireForm,
        limits: OutboxLimits,
        resumes: bool,
        tags: TagSet,
        echo: bool,
        user: str,
    ) -> None:
        peer = Peer(self.broker, form, limits, resumes)
        peer.outbox.echo = echo
        self.peers.append(peer)
        peer.groups[tags] = self.broker.subscribe(peer.outbox, tags)
        self.broker.describe(peer.outbox, Attributes(user=user), peer.groups.values())

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), tags=st.sampled_from(TAGS))
    def subscribe(self, data: st.DataObject, tags: TagSet) -> None:
        peer = data.draw(st.sampled_from(self.alive))
        peer.groups[tags] = self.broker.subscribe(peer.outbox, tags)

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        tags=st.sampled_from(TAGS),
        queue=st.sampled_from(["", "q"]),
        most=st.none() | st.integers(1, 4),
    )
    def subscribe_named(
        self, data: st.DataObject, tags: TagSet, queue: str, most: int | None
    ) -> None:
        peer = data.draw(st.sampled_from(self.alive))
        form = PLAIN if queue else data.draw(st.sampled_from([SUBJECTS, PLAIN]))
        named = NamedSubscription(peer.outbox, form, b"n")
        found = named, tags, queue
        peer.named.append(found)
        self.broker.add_named(named, tags, queue)

        def finish() -> None:
            peer.named.remove(found)
            self.broker.remove_named(named)

        if most is not None:
            named.end_after(most, finish)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(self.alive))
        if peer.groups:
            tags = data.draw(st.sampled_from(sorted(peer.groups, key=sorted)))
            peer.outbox.let_go()
            self.broker.unsubscribe(peer.outbox, peer.groups.pop(tags))

    def count_due(self, tags: TagSet, source: Peer | None, user: str) -> int:
        """Who is to get a message, by the plain definition."""
        due = 0
        queues: set[tuple[TagSet, str]] = set()
        for peer in self.alive:
            if peer is source and not peer.outbox.echo:
                continue
            if user and peer.outbox.attributes.user != user:
                continue
            due += any(asked <= tags for asked in peer.groups)
            for _, asked, queue in peer.named:
                if asked <= tags:
                    due += not queue
                    if queue:
                        queues.add((asked, queue))
        return due + len(queues)

    @rule(
        data=st.data(),
        messages=st.lists(
            st.tuples(st.sampled_from(MESSAGES), st.sampled_from([b"", b"x" * 20, b"\n"])),
            min_size=1,
            max_size=8,
        ),
        whole=st.booleans(),
        user=st.sampled_from(["", "", "1"]),
        numbered=st.booleans(),
    )
    def publish(
        self,
        data: st.DataObject,
        messages: list[tuple[bytes, bytes]],
        whole: bool,
        user: str,
        numbered: bool,
    ) -> None:
        source = data.draw(st.sampled_from([None, *self.alive]))
        envelope = Envelope(audience=Audience.of(None, [user], None, None, None)) if user else None
        first = self.published + 1 if numbered else None
        if whole and not user:
            messages = [(tags, text.replace(b"\n", b"")) for tags, text in messages]
            wire = b"".join(b"publish %b %b\n" % each for each in messages)
            batch = Batch([tags for tags, _ in messages], (wire, len(messages)))
        else:
            runs = [(tags, b"publish %b %b\n" % (tags, text), 1) for tags, text in messages]
            framable = not any(b"\n" in text for _, text in messages)
            batch = Batch.of_runs(runs, framable=framable, envelope=envelope)
        limited = any(named._most >= 0 for peer in self.alive for named, _, _ in peer.named)
        due = sum(
            self.count_due(frozenset(tags.decode().split(",")), source, user)
            for tags, _ in messages
        )
        before = self.broker.statistics().matched
        self.broker.publish(batch, source and source.outbox, first=first)
        self.published += len(messages)
        matched = self.broker.statistics().matched - before
        # A subscription that ends after so many messages is due no more, in the middle of a batch.
        assert matched <= due if limited else matched == due

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), hold=st.booleans())
    def fall_behind(self, data: st.DataObject, hold: bool) -> None:
        outbox = data.draw(st.sampled_from(self.alive)).outbox
        outbox.pause()
        if hold:
            outbox.hold()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), count=st.integers(0, 5), owed=st.booleans(), live=st.booleans())
    def replay(self, data: st.DataObject, count: int, owed: bool, live: bool) -> None:
        outbox = data.draw(st.sampled_from(self.alive)).outbox
        if outbox.ended:
            return
        outbox.note_replayed(count, owed=owed)
        tag_list = TagList(frozenset({"a"}))
        entries: list[Entry] = [(tag_list, tag_list.head + b"x\n", 1)] * count
        wire, written = outbox.form.join(entries, framable=True)
        self.broker.dropped["unframable"] += count - written
        outbox.replay(wire, written)
        if live and outbox.paused:
            outbox.resume_live()
        self.broker.settle(outbox)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), share=st.floats(0, 1))
    def read(self, data: st.DataObject, share: float) -> None:
        outbox = data.draw(st.sampled_from(self.alive)).outbox
        outbox.sent(int(outbox.size * share))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), at_once=st.booleans())
    def end(self, data: st.DataObject, at_once: bool) -> None:
        peer = data.draw(st.sampled_from(self.alive))
        peer.mute()
        if at_once:  # or its subscriptions stay for a while
            peer.end()

    @invariant()
    def every_message_is_accounted_for(self) -> None:
        for peer in self.peers:
            self.broker.settle(peer.outbox)
        counts = self.broker.statistics()
        delivered = sum(peer.outbox.sent_messages for peer in self.peers)
        waiting = sum(peer.outbox.waiting for peer in self.peers)
        assert all(count >= 0 for count in counts.dropped.values())
        assert (
            counts.matched + counts.replayed == delivered + sum(counts.dropped.values()) + waiting
        )

    def teardown(self) -> None:
        for peer in self.alive:
            peer.end()
        self.every_message_is_accounted_for()
        assert all(peer.outbox.waiting == 0 for peer in self.peers)


class ObservedConservationMachine(ConservationMachine):
    observed = True


TestConservation = ConservationMachine.TestCase
TestConservation.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestObservedConservation = ObservedConservationMachine.TestCase
TestObservedConservation.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
