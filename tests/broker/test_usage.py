"""Accounts: the tables' sums are what somebody who counts each delivery would say."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import mist.broker.matches
from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.broker import Broker, Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.broker.usage import Changed, Delivered, UsageAccounting
from mist.broker.usage_logs import UsageLog
from mist.message import Envelope, TagSet, format_tags
from mist.protocols.frames import JSON_FRAMES
from mist.protocols.line.forms import ESCAPED, PLAIN
from mist.wire import Batch, Entry, TagList, WireForm

FORMS: list[WireForm] = [PLAIN, ESCAPED, JSON_FRAMES]
OWNERS = ["", "t1", "t2"]
tag_sets = st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=3)

Rows = dict[tuple[str, str], tuple[int, ...]]


class Books:
    """A broker with accounts, and what they have come to."""

    def __init__(self, **bounds: int) -> None:
        self.accounts = UsageAccounting(**bounds)
        self.broker = Broker()
        self.broker.observe(self.accounts)

    def outbox(self, owner: str, *tags: str, form: WireForm = PLAIN, **bounds: int) -> Outbox:
        outbox = Outbox(form, OutboxLimits(**bounds), self.broker.ready)
        self.broker.assign(outbox, owner, ())
        for each in tags:
            self.broker.subscribe(outbox, frozenset(each))
        return outbox

    def publish(self, *messages: tuple[str, bytes], source: Outbox | None = None) -> None:
        wire = b"".join(b"publish %b %b\n" % (tags.encode(), data) for tags, data in messages)
        lists = [tags.encode() for tags, _ in messages]
        self.broker.publish(Batch(lists, (wire, len(messages))), source)

    def close(self) -> Rows:
        return sums(self.accounts.close())[0]


def sums(slices: Iterator[tuple[list[Delivered], list[Changed]]]) -> tuple[Rows, Rows]:
    delivered: dict[tuple[str, str], Counter[int]] = {}
    changed: dict[tuple[str, str], Counter[int]] = {}
    for one, other in slices:
        for rows, found in ((one, delivered), (other, changed)):
            for owner, subscription, *numbers in rows:
                total = found.setdefault((owner, subscription.decode()), Counter())
                total.update(dict(enumerate(numbers)))
    return tuple(  # type: ignore[return-value]
        {
            key: tuple(total[n] for n in range(width))
            for key, total in found.items()
            if any(total.values())
        }
        for found, width in ((delivered, 3), (changed, 2))
    )


def test_deliveries_are_counted_by_token_and_subscription() -> None:
    books = Books()
    for owner in ("", "t1", "t1"):
        books.outbox(owner, "a")
    books.outbox("t1", "b")
    books.publish(("a", b"12345"), ("a,b", b"678"), ("c", b"9"))
    assert books.close() == {
        ("", "a"): (2, 0, 8),
        ("t1", "a"): (4, 0, 16),
        ("t1", "b"): (1, 0, 3),
    }
    assert books.close() == {}


def test_a_message_that_matches_twice_is_one_delivery() -> None:
    books = Books()
    books.outbox("t1", "b", "a", "ab")
    books.publish(("a,b", b"x"), ("b", b"y"))
    assert books.close() == {("t1", "a"): (1, 0, 1), ("t1", "b"): (1, 0, 1)}


def test_who_comes_and_goes_has_what_was_published_meanwhile() -> None:
    books = Books()
    first = books.outbox("t1", "a")
    books.publish(("a", b"x"))
    second = books.outbox("t2", "a")
    books.publish(("a", b"xx"))
    books.broker.unsubscribe(first, group(books, "a"))
    books.publish(("a", b"xxx"))
    books.broker.unsubscribe(second, group(books, "a"))
    books.publish(("a", b"xxxx"))
    assert books.close() == {("t1", "a"): (2, 0, 3), ("t2", "a"): (2, 0, 5)}


def test_what_was_published_goes_to_the_token_that_a_session_had_then() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    books.publish(("a", b"x"))
    books.broker.assign(outbox, "t2", [group(books, "a")])
    books.publish(("a", b"x"))
    delivered, changed = sums(books.accounts.close())
    assert delivered == {("t1", "a"): (1, 0, 1), ("t2", "a"): (1, 0, 1)}
    assert changed == {("t1", "a"): (1, 1), ("t2", "a"): (1, 0)}


def test_drops_are_told_by_subscription_and_cost_no_bytes() -> None:
    books = Books()
    books.outbox("t1", "a", "b", messages=2)
    books.publish(("a", b"1"), ("b", b"22"), ("b", b"333"), ("a", b"4444"))
    assert books.close() == {("t1", "a"): (1, 1, 1), ("t1", "b"): (1, 1, 2)}


def test_what_comes_after_a_disconnecting_drop_is_gone_and_counts_as_dropped() -> None:
    books = Books()
    outbox = Outbox(
        PLAIN, OutboxLimits(messages=1, slow_consumer=SlowConsumer.DISCONNECT), books.broker.ready
    )
    books.broker.subscribe(outbox, frozenset("a"))
    books.publish(("a", b"1"), ("a", b"22"), ("a", b"333"))
    assert books.close() == {("", "a"): (1, 2, 1)}


@pytest.mark.parametrize("revoked", [False, True])
def test_what_a_session_leaves_in_its_queue_was_not_sent(revoked: bool) -> None:
    books = Books()
    outbox = books.outbox("t1", "a", "b")
    books.publish(("a", b"1"), ("b", b"22"), ("a", b"333"))
    outbox.sent(len(b"message a 1\nmess"))  # the first, and a part of the second
    books.publish(("b", b"4444"))
    if revoked:
        outbox.mute()
        outbox.withdraw()
    outbox.discard()
    books.broker.settle(outbox)
    assert outbox.statistics().gone == 3
    assert books.close() == {("t1", "a"): (1, 1, 1), ("t1", "b"): (0, 2, 0)}


def test_what_is_left_is_deducted_where_it_was_booked() -> None:
    books = Books()
    outbox = books.outbox("t1", "b")
    books.publish(("a,b", b"x"))
    books.broker.subscribe(outbox, frozenset("a"))
    books.publish(("a,b", b"yy"))
    books.broker.unsubscribe(outbox, group(books, "b"))
    books.broker.assign(outbox, "t2", [group(books, "a")])
    books.publish(("a", b"zzz"))
    outbox.discard()
    books.broker.settle(outbox)
    assert books.close() == {
        ("t1", "a"): (0, 1, 0),
        ("t1", "b"): (0, 1, 0),
        ("t2", "a"): (0, 1, 0),
    }


def test_what_was_squeezed_in_one_by_one_and_left_was_not_sent() -> None:
    books = Books()
    outbox = books.outbox("t1", "a", messages=2)
    books.publish(("a", b"1"), ("a", b"2"), ("a", b"3"))
    outbox.discard()
    books.broker.settle(outbox)
    assert books.close() == {("t1", "a"): (0, 3, 0)}


@pytest.mark.parametrize("queue", ["", "q"])
def test_what_is_left_of_a_named_subscription_was_not_sent(queue: str) -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    named = NamedSubscription(outbox, PLAIN, b"1")
    books.broker.add_named(named, frozenset("b"), queue=queue)
    books.publish(("b", b"x"), ("a,b", b"yy"))
    books.broker.remove_named(named)
    outbox.discard()
    books.broker.settle(outbox)
    assert books.close() == {("t1", "a"): (0, 1, 0), ("t1", "b"): (0, 2, 0)}


def test_what_was_left_in_a_later_period_is_deducted_then() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    books.publish(("a", b"xx"))
    assert books.close() == {("t1", "a"): (1, 0, 2)}
    outbox.discard()
    books.broker.settle(outbox)
    assert books.close() == {("t1", "a"): (-1, 1, -2)}


@pytest.mark.parametrize("paused", [False, True])
def test_who_unsubscribes_before_its_turn_comes_was_sent_nothing(
    monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    monkeypatch.setattr(mist.broker.matches, "WIDE", 3)
    books = Books()
    outboxes = [books.outbox(f"t{n}", "a") for n in range(9)]
    message = Batch.of_runs([(b"a", b"publish a xx\n", 1)] * 2)
    for _ in books.broker.publish_in_steps(message):
        if not any(outbox.queued for outbox in outboxes[-2:]):
            if paused:
                outboxes[-1].pause()
            books.broker.unsubscribe(outboxes[-1], group(books, "a"))
    queued = {outbox.owner: outbox.queued for outbox in outboxes}
    assert not outboxes[-1].queued
    sent = {owner: sent for (owner, _), (sent, *_) in books.close().items()}
    assert sent == {owner: count for owner, count in queued.items() if count}


def test_a_publisher_without_echo_is_sent_nothing() -> None:
    books = Books()
    publisher = books.outbox("t1", "a")
    books.outbox("t2", "a")
    publisher.echo = False
    books.publish(("a", b"x"), ("a", b"y"), source=publisher)
    books.publish(("b,a", b"x"), source=publisher)
    assert books.close() == {("t2", "a"): (3, 0, 3)}


def test_bytes_are_of_the_data_whatever_the_dialect_makes_of_it() -> None:
    books = Books()
    for n, form in enumerate(FORMS):
        books.outbox(f"t{n}", "a", form=form)
    books.broker.publish(Batch.of(frozenset("a"), b"x\ny"))
    assert books.close() == {
        ("t0", "a"): (0, 1, 0),  # a plain line can't hold it
        ("t1", "a"): (1, 0, 3),
        ("t2", "a"): (1, 0, 3),
    }


def test_what_was_held_counts_when_it_comes() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    outbox.pause()
    books.publish(("a", b"x"))
    outbox.hold()
    books.publish(("a", b"yy"))
    assert books.close() == {}
    outbox.resume_live()
    assert books.close() == {("t1", "a"): (1, 0, 2)}


def test_what_was_held_and_let_go_counts_when_it_is_brought() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    outbox.pause()
    outbox.hold()
    books.publish(("a", b"yy"))
    outbox.let_go()
    tag_list = TagList(frozenset("a"))
    entries: list[Entry] = [(tag_list, b"publish a yy\n", 1)]
    outbox.replay(b"publish a yy\n", 1)
    books.broker.note_replayed(outbox, [(entries, None, 1)])
    outbox.resume_live()
    assert books.close() == {("t1", "a"): (1, 0, 2)}


def test_who_falls_behind_is_neither_sent_nor_dropped_anything() -> None:
    books = Books()
    outbox = books.outbox("t1", "a", messages=1)
    behind: list[int] = []
    outbox.on_behind = behind.append
    for first in (1, 2, 3):
        books.broker.publish(Batch.of(frozenset("a"), b"x"), first=first)
    assert behind == [1]
    assert books.close() == {("t1", "a"): (1, 0, 1)}


def test_what_a_form_cannot_carry_is_counted_once_for_who_is_behind() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    other = books.outbox("t2", "a")
    outbox.pause()
    other.mute()
    books.broker.publish(Batch.of(frozenset("a"), b"x\ny"))
    assert books.close() == {("t2", "a"): (0, 1, 0)}  # it is gone
    entries: list[Entry] = [(TagList(frozenset("a")), b"publish a x\ny\n", 1)]
    books.broker.note_replayed(outbox, [(entries, None, 0)])
    assert books.close() == {("t1", "a"): (0, 1, 0)}


def test_another_token_has_its_repeats_deducted() -> None:
    books = Books()
    outbox = books.outbox("t1", "a", "b")
    for _ in range(3):
        books.publish(("a,b", b"x"))
    books.broker.assign(outbox, "t2", [group(books, "a"), group(books, "b")])
    books.publish(("a,b", b"x"))
    assert books.close() == {("t1", "a"): (3, 0, 3), ("t2", "a"): (1, 0, 1)}


def test_a_site_that_changes_is_another_answer_from_then_on() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    books.outbox("t2", "a")
    books.broker.describe(outbox, Attributes.parse("site=x"), [group(books, "a")])
    books.publish(("a", b"x"), ("a", b"x"))
    books.broker.describe(outbox, Attributes.parse("user=1"), [group(books, "a")])
    books.publish(("a", b"xxx"))
    assert books.close() == {("t1", "a"): (1, 0, 3), ("t2", "a"): (3, 0, 5)}


def test_a_publisher_without_echo_is_sent_nothing_through_its_named_subscriptions() -> None:
    books = Books()
    publisher = books.outbox("t1")
    other = books.outbox("t2")
    publisher.echo = False
    for outbox in (publisher, other):
        books.broker.add_named(NamedSubscription(outbox, PLAIN, b"1"), frozenset("a"))
    books.publish(("a", b"x"), source=publisher)
    assert publisher.queued == 0
    assert books.close() == {("t2", "a"): (1, 0, 1)}


def test_a_publisher_of_another_site_without_echo_is_deducted_once() -> None:
    books = Books()
    publisher = books.outbox("t1", "a")
    books.outbox("t2", "a")
    books.broker.describe(publisher, Attributes.parse("site=x"), [group(books, "a")])
    publisher.echo = False
    books.publish(("a", b"x"), source=publisher)
    assert books.close() == {("t2", "a"): (1, 0, 1)}


def test_a_queue_group_counts_for_the_member_that_got_it() -> None:
    books = Books()
    members = [books.outbox("t1", messages=1), books.outbox("t2", messages=1)]
    for outbox in members:
        named = NamedSubscription(outbox, PLAIN, b"1")
        books.broker.add_named(named, frozenset("a"), queue="q")
    books.publish(("a", b"x"), ("a", b"x"))  # one for each, since each has room for one
    assert books.close() == {("t1", "a"): (1, 0, 1), ("t2", "a"): (1, 0, 1)}
    books.publish(("a", b"x"))
    ((key, row),) = books.close().items()
    assert key in {("t1", "a"), ("t2", "a")}
    assert row == (0, 1, 0)


def test_what_a_queue_group_cannot_carry_is_dropped_by_one_member() -> None:
    books = Books()
    named = NamedSubscription(books.outbox("t1"), PLAIN, b"1")
    books.broker.add_named(named, frozenset("a"), queue="q")
    books.broker.publish(Batch.of(frozenset("a"), b"x\ny"))
    assert books.close() == {("t1", "a"): (0, 1, 0)}


def test_targeted_messages_count_for_those_who_were_meant() -> None:
    books = Books()
    first, second = books.outbox("t1", "a"), books.outbox("t2", "a")
    for n, outbox in enumerate((first, second)):
        attributes = Attributes.parse(f"user={n}&groups=g")
        books.broker.describe(outbox, attributes, [group(books, "a")])
    second.echo = False
    for audience, source in (("users=0", None), ("groups=g", None), ("groups=g", second)):
        runs = [(b"a", b"publish a xx\n", 1)]
        envelope = Envelope(audience=Audience.parse(audience))
        books.broker.publish(Batch.of_runs(runs, envelope=envelope), source)
    assert books.close() == {("t1", "a"): (3, 0, 6), ("t2", "a"): (1, 0, 2)}


def test_a_full_period_asks_to_be_closed() -> None:
    books = Books(full=10)
    asked: list[bool] = []
    books.accounts.on_full = lambda: asked.append(True)
    outbox = books.outbox("t1")
    for n in range(9):
        books.broker.subscribe(outbox, frozenset([str(n)]))
    assert not asked
    books.broker.subscribe(outbox, frozenset(["9"]))
    assert asked == [True]
    books.close()
    for n in range(10):
        books.publish((str(n), b"x"))
    assert asked == [True, True]


def test_many_subscriptions_that_move_ask_to_be_closed() -> None:
    books = Books(full=100)
    asked: list[bool] = []
    books.accounts.on_full = lambda: asked.append(True)
    outbox = books.outbox("t1", *"abcdefghijklmnopqrstuvwxy")
    groups = [group(books, each) for each in "abcdefghijklmnopqrstuvwxy"]
    for number, owner in enumerate(["t2", "t1"] * 4, 1):
        books.broker.assign(outbox, owner, groups)
        assert len(asked) == number // 4
    slices = list(books.accounts.close(most=10))
    assert max(len(rows) for _, rows in slices) == 10
    assert sums(iter(slices))[1] == {
        **{("t1", tag): (5, 4) for tag in "abcdefghijklmnopqrstuvwxy"},
        **{("t2", tag): (4, 4) for tag in "abcdefghijklmnopqrstuvwxy"},
    }


def test_many_subscriptions_that_had_messages_move_at_once_and_are_told_of_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    books = Books()
    tags = "abcdefghijklmnopqrstuvwxy"
    outbox = books.outbox("t1", *tags)
    other = books.outbox("t3", *tags)
    groups = [group(books, each) for each in tags]
    books.publish(*((tag, b"12") for tag in tags))
    with monkeypatch.context() as patch:
        patch.setattr(UsageLog, "correct", None)  # which takes 2 µs for each
        books.broker.assign(outbox, "t2", groups)
    books.publish(*((tag, b"345") for tag in tags))
    slices = list(islice(books.accounts.close(most=10), 10))
    with monkeypatch.context() as patch:  # some logs are closed, and the others aren't
        patch.setattr(UsageLog, "correct", None)
        books.broker.assign(outbox, "t4", groups)
        books.broker.assign(other, "t4", groups)
    books.publish(*((tag, b"6789") for tag in tags))
    following = books.accounts.close(most=10)
    slices.append(next(following))  # what was given up
    assert all(len(rows) <= 10 for some in slices[:-1] for rows in some)
    assert sums(iter(slices))[0] == {
        **{("t1", tag): (1, 0, 2) for tag in tags},
        **{("t2", tag): (1, 0, 3) for tag in tags},
        **{("t3", tag): (2, 0, 5) for tag in tags},
    }
    assert sums(following)[0] == {("t4", tag): (2, 0, 8) for tag in tags}


def test_bytes_are_right_where_as_many_messages_are_replayed_as_missed_before_a_move() -> None:
    books = Books()
    outbox = books.outbox("t1", "a")
    outbox.pause()
    books.publish(("a", b"long ones"))
    tag_list = TagList(frozenset("a"))
    entries = [(tag_list, tag_list.head + b"x\n", 1)]
    outbox.replay(entries[0][1], 1)
    books.broker.note_replayed(outbox, [(entries, None, 1)])
    books.broker.assign(outbox, "t2", [group(books, "a")])
    assert books.close() == {("t1", "a"): (1, 0, 1)}


def test_replies_that_are_queued_are_passed_once_however_much_is_subscribed_to() -> None:
    class Counted(list[int]):
        seen = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.seen += 1
            return super().__getitem__(place)

    books = Books()
    outbox = books.outbox("t1", "a")
    outbox._counts = Counted()
    books.publish(("a", b"x"))
    for n in range(1_000):
        books.broker.subscribe(outbox, frozenset({f"x{n}"}))
        outbox.reply(b"ok\n")
    assert Counted.seen < 10_000
    outbox.mute()
    outbox.release()
    books.broker.settle(outbox)
    assert books.close() == {("t1", "a"): (0, 1, 0)}


def test_a_closing_that_was_given_up_is_finished_by_the_next() -> None:
    books = Books()
    for tag in "abcdef":
        outbox = books.outbox(tag, tag)
        books.publish((tag, b"x"))
    books.broker.assign(outbox, "g", [group(books, "f")])
    slices = books.accounts.close(most=2)
    begun, opened = sums(iter([next(slices) for _ in range(2)]))
    assert len(opened) == 4
    slices.close()
    books.outbox("f", "f")
    slices = books.accounts.close(most=2)
    rest, others = sums(iter([next(slices) for _ in range(2)]))
    assert others == {("e", "e"): (1, 0), ("f", "f"): (2, 1), ("g", "f"): (1, 0)}
    slices.close()
    assert opened.keys() | others.keys() == {*((tag, tag) for tag in "abcdef"), ("g", "f")}
    books.publish(("f", b"x"))
    together: Counter[str] = Counter()
    for rows in (begun, rest, books.close()):
        together.update({owner: sent for (owner, _), (sent, *_) in rows.items()})
    assert together == dict.fromkeys("abcdeg", 1) | {"f": 2}


def group(books: Books, tags: str) -> Group:
    found = books.broker.find(frozenset(tags))
    assert found is not None
    return found


class AccountsMachine(RuleBasedStateMachine):
    """Counting each delivery where it arrives comes to the same sums."""

    def __init__(self) -> None:
        super().__init__()
        # So few places that tallies are settled at odd moments, too.
        self.books = Books(most_places=5, full=1_000_000)
        self.broker = self.books.broker
        self.outboxes: list[Outbox] = []
        self.subscribed: list[dict[TagSet, Group]] = []
        self.seen: list[dict[int, tuple[str, str, int]]] = []  # booked to whom, what for, bytes
        self.due: list[dict[int, tuple[str, int]]] = []  # number → subscription, bytes
        self.numbers = 0
        self.expected: dict[tuple[str, str], Counter[int]] = {}
        self.changes: dict[tuple[str, str], Counter[int]] = {}
        self.closing: Iterator[tuple[list[Delivered], list[Changed]]] | None = None
        self.closed: list[tuple[list[Delivered], list[Changed]]] = []
        self.awaited: tuple[Rows, Rows] = {}, {}
        for form in FORMS:  # or most of the time nobody would be there
            self.connect("t1", form, 5, True)
            self.subscribed[-1][frozenset("a")] = self.broker.subscribe(
                self.outboxes[-1], frozenset("a")
            )
            self.changed(len(self.outboxes) - 1, frozenset("a"), 0)

    # what somebody who looks at each outbox sees

    def account(self, n: int, tags: TagSet) -> str | None:
        """The subscription that a message to this outbox counts for."""
        return min(map(format_tags, filter(tags.issuperset, self.subscribed[n])), default=None)

    def look(self) -> None:
        """Count what has come since the last look."""
        for n, outbox in enumerate(self.outboxes):
            waiting = b"".join(outbox._wires)
            found = {int(each) for each in re.findall(rb"#(\d+)#", waiting)}
            for number in found - self.seen[n].keys():
                subscription, size = self.due[n].pop(number)
                self.seen[n][number] = outbox.owner, subscription, size
                total = self.expected.setdefault((outbox.owner, subscription), Counter())
                total.update({0: 1, 2: size})

    def changed(self, n: int, tags: TagSet, place: int) -> None:
        key = self.outboxes[n].owner, format_tags(tags)
        self.changes.setdefault(key, Counter())[place] += 1

    # what happens

    @rule(
        owner=st.sampled_from(OWNERS),
        form=st.sampled_from(FORMS),
        messages=st.sampled_from([2, 5, 1000]),
        echo=st.booleans(),
    )
    def connect(self, owner: str, form: WireForm, messages: int, echo: bool) -> None:
        if len(self.outboxes) == 5:
            return
        outbox = self.books.outbox(owner, form=form, messages=messages)
        outbox.echo = echo
        self.outboxes.append(outbox)
        self.subscribed.append({})
        self.seen.append({})
        self.due.append({})

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data(), tags=tag_sets)
    def subscribe(self, data: st.DataObject, tags: TagSet) -> None:
        n = self.some(data)
        if tags not in self.subscribed[n]:
            self.changed(n, tags, 0)
        self.subscribed[n][tags] = self.broker.subscribe(self.outboxes[n], tags)

    @precondition(lambda self: any(self.subscribed))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from([n for n, each in enumerate(self.subscribed) if each]))
        tags = data.draw(st.sampled_from(sorted(self.subscribed[n], key=sorted)))
        self.outboxes[n].let_go()  # as `mist.sessions.subscriptions` does
        self.broker.unsubscribe(self.outboxes[n], self.subscribed[n].pop(tags))
        self.changed(n, tags, 1)

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def another_token(self, data: st.DataObject, owner: str) -> None:
        n = self.some(data)
        if self.outboxes[n].owner != owner:
            for tags in self.subscribed[n]:
                self.changed(n, tags, 1)
            self.broker.assign(self.outboxes[n], owner, self.subscribed[n].values())
            for tags in self.subscribed[n]:
                self.changed(n, tags, 0)

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data(), form=st.sampled_from(FORMS))
    def another_form(self, data: st.DataObject, form: WireForm) -> None:
        n = self.some(data)
        self.broker.reshape(self.outboxes[n], form, self.subscribed[n].values())

    @rule(
        data=st.data(),
        messages=st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "a,b", "b,a", "a,b,c", "d,a", "c", "d,c,b"]),
                st.integers(0, 30),
                st.booleans(),
            ),
            min_size=1,
            max_size=8,
        ),
        lines=st.booleans(),
        repeated=st.integers(1, 3),
    )
    def publish(
        self,
        data: st.DataObject,
        messages: list[tuple[str, int, bool]],
        lines: bool,
        repeated: int,
    ) -> None:
        source = data.draw(st.sampled_from([None, *self.outboxes]))
        before = [(each.dropped_full, each.dropped_unframable) for each in self.outboxes]
        sent: list[tuple[TagSet, int, int]] = []
        runs: list[tuple[bytes, bytes, int]] = []
        framable = True
        for written, length, feed in messages:
            count = 1 if feed and not lines else repeated
            wire = b""
            for _ in range(count):
                self.numbers += 1
                text = b"#%d#" % self.numbers + b"x" * length
                if feed and not lines:
                    text += b"\n"
                    framable = False
                sent.append((frozenset(written.split(",")), self.numbers, len(text)))
                wire += b"publish %b %b\n" % (written.encode(), text)
            runs.append((written.encode(), wire, count))
        if lines:
            whole = b"".join(run[1] for run in runs), len(sent)
            lists = [run[0] for run in runs for _ in range(run[2])]
            batch = Batch(lists[:1] if len(set(lists)) == 1 else lists, whole)
        else:
            batch = Batch.of_runs(runs, framable=framable)
        owed: list[dict[int, tuple[str, int]]] = []
        for n, outbox in enumerate(self.outboxes):
            owed.append({})
            if outbox is source and not outbox.echo:
                continue
            for tags, number, size in sent:
                subscription = self.account(n, tags)
                if subscription is not None:
                    owed[n][number] = subscription, size
            self.due[n].update(owed[n])
        self.broker.publish(batch, source)
        self.look()
        for n, outbox in enumerate(self.outboxes):
            lost = outbox.dropped_full + outbox.dropped_unframable - sum(before[n])
            missing = [number for number in owed[n] if number in self.due[n]]
            if outbox.muted:
                # The only drops then are of what the form can't carry, and would have been held.
                missing = [number for number in missing if outbox.form is PLAIN and lost]
                feeds = {number for (_, number, size) in sent if self.has_feed(batch, number)}
                missing = [number for number in missing if number in feeds]
            assert len(missing) == lost
            for number in missing:
                subscription, _ = self.due[n].pop(number)
                self.expected.setdefault((outbox.owner, subscription), Counter())[1] += 1

    def has_feed(self, batch: Batch, number: int) -> bool:
        return any(b"#%d#" % number in run[1] and run[1].endswith(b"\n\n") for run in batch.runs)

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data(), hold=st.booleans())
    def fall_behind(self, data: st.DataObject, hold: bool) -> None:
        outbox = self.outboxes[self.some(data)]
        outbox.pause()
        if hold:
            outbox.hold()

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        n = self.some(data)
        outbox = self.outboxes[n]
        if outbox.paused:
            outbox.resume_live()
            self.look()
            self.due[n].clear()

    @precondition(lambda self: any(self.subscribed))
    @rule(data=st.data(), count=st.integers(1, 3), feed=st.booleans())
    def replay(self, data: st.DataObject, count: int, feed: bool) -> None:
        n = data.draw(st.sampled_from([n for n, each in enumerate(self.subscribed) if each]))
        outbox = self.outboxes[n]
        tags = data.draw(st.sampled_from(sorted(self.subscribed[n], key=sorted))) | frozenset("a")
        subscription = self.account(n, tags)
        assert subscription is not None
        tag_list = TagList(tags)
        entries: list[Entry] = []
        for _ in range(count):
            self.numbers += 1
            text = b"#%d#" % self.numbers + b"\n" * feed
            entries.append((tag_list, tag_list.head + text + b"\n", 1))
            if not feed or outbox.form is not PLAIN:
                self.due[n][self.numbers] = subscription, len(text)
        wire, number = outbox.form.join(entries, framable=not feed)
        outbox.replay(wire, self.broker.queued(outbox, (entries, None, number)))
        self.broker.note_replayed(outbox, [(entries, None, number)])
        if number < count:
            total = self.expected.setdefault((outbox.owner, subscription), Counter())
            total[1] += count - number
        self.look()

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        outbox = self.outboxes[self.some(data)]
        while outbox.size:
            outbox.sent(len(outbox.peek()))

    @precondition(lambda self: self.outboxes)
    @rule(data=st.data(), share=st.floats(0, 1), revoked=st.booleans())
    def end(self, data: st.DataObject, share: float, revoked: bool) -> None:
        """A session ends, part of whose queue was read."""
        n = self.some(data)
        outbox = self.outboxes[n]
        outbox.sent(int(outbox.size * share))
        wire, written, count = outbox.partial
        read = min(outbox.form.count_whole(wire, written), count) if written and count else 0
        waiting = [int(each) for each in re.findall(rb"#(\d+)#", b"".join(outbox._wires))]
        for number in waiting[read:]:
            owner, subscription, size = self.seen[n][number]
            total = self.expected.setdefault((owner, subscription), Counter())
            total.update({0: -1, 1: 1, 2: -size})
        if revoked:
            outbox.mute()
            outbox.withdraw()
        outbox.discard()
        self.broker.settle(outbox)
        for tags, group in self.subscribed[n].items():
            self.broker.unsubscribe(outbox, group)
            self.changed(n, tags, 1)
        for each in (self.outboxes, self.subscribed, self.seen, self.due):
            del each[n]  # type: ignore[attr-defined]

    # what the tables say

    @rule()
    def end_minute(self) -> None:
        if self.closing is None:
            self.closing = self.books.accounts.close(most=1)
            # A generator does nothing before it is asked for the first time.
            self.closed = [first] if (first := next(self.closing, None)) else []
            self.awaited = self.as_rows(self.expected, 3), self.as_rows(self.changes, 2)
            self.expected, self.changes = {}, {}

    @precondition(lambda self: self.closing is not None)
    @rule(slices=st.integers(1, 3))
    def close_some(self, slices: int) -> None:
        assert self.closing is not None
        for _ in range(slices):
            part = next(self.closing, None)
            if part is None:
                self.closing = None
                assert sums(iter(self.closed)) == self.awaited
                return
            self.closed.append(part)

    def as_rows(self, found: dict[tuple[str, str], Counter[int]], width: int) -> Rows:
        rows = {key: tuple(total[n] for n in range(width)) for key, total in found.items()}
        return {key: row for key, row in rows.items() if any(row)}

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.outboxes) - 1))

    def teardown(self) -> None:
        while self.closing is not None:
            self.close_some(10)
        assert sums(self.books.accounts.close()) == (
            self.as_rows(self.expected, 3),
            self.as_rows(self.changes, 2),
        )


TestAccounts = AccountsMachine.TestCase
TestAccounts.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("lines", [1, 2])
def test_without_accounts_nothing_is_tallied(lines: int) -> None:
    broker = Broker()
    outbox = Outbox(PLAIN, OutboxLimits(), broker.ready)
    broker.subscribe(outbox, frozenset("a"))
    for _ in range(3):
        broker.publish(Batch.of_runs([(b"a", b"publish a x\n", 1)] * lines))
    matches = list(broker._directory.cached())
    assert matches
    assert not any(match.observed for match in matches)
