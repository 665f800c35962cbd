"""Publishing in steps: bounded work in each, and the same deliveries as at once.

Between two steps others publish, subscribe and leave: nobody gets what they asked for no longer,
nobody who is there all the while misses anything, and each publisher's messages stay in order.
"""

import weakref
from collections.abc import Iterator
from itertools import chain, combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mist.broker.directory
import mist.broker.fanout
import mist.broker.joining
import mist.broker.matches
import mist.broker.preparation
import mist.broker.projection
import mist.broker.staying
import mist.broker.walks
from mist.attributes import Attributes
from mist.audience import Audience
from mist.broker.broker import Broker, Group
from mist.broker.matches import Recipients
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.validation import Accepted, Rejected
from mist.errors import CommandError, TooManyMatches
from mist.message import Envelope, Limits
from mist.protocols.line.forms import NUMBERED, PLAIN
from mist.wire import Batch
from tests.broker.test_broker import batch, line, make_outbox, take_all
from tests.deadline import deadline

A = frozenset("a")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is long that has more than a few of anything."""
    monkeypatch.setattr(mist.broker.joining, "_RUNS", 2)
    monkeypatch.setattr(mist.broker.projection, "_SLICE", 5)
    monkeypatch.setattr(mist.broker.joining, "_RESOLVED", 2)
    monkeypatch.setattr(mist.broker.matching, "_ROUTES", 2)
    monkeypatch.setattr(mist.broker.fanout, "_STEP", 2)
    monkeypatch.setattr(mist.broker.fanout, "_WRITTEN", 3)
    monkeypatch.setattr(mist.broker.fanout, "_PIECES", 4)
    monkeypatch.setattr(mist.broker.walks, "_OFFERS", 2)
    monkeypatch.setattr(mist.broker.matches, "WIDE", 3)
    monkeypatch.setattr(mist.broker.matches, "FORMS", 2)
    monkeypatch.setattr(mist.broker.matches, "_WATCHED", 2)
    monkeypatch.setattr(mist.broker.preparation, "_FEW", 3)
    monkeypatch.setattr(mist.broker.preparation, "_NARROW", 1)
    monkeypatch.setattr(mist.broker.preparation, "_STEP", 2)


def subscribed(broker: Broker, *tag_sets: str) -> Outbox:
    outbox = make_outbox(broker)
    for tags in tag_sets:
        broker.subscribe(outbox, frozenset(tags))
    return outbox


def count(steps: Iterator[object]) -> int:
    return sum(1 for _ in steps)


def fill(broker: Broker, letters: str = "abcdef") -> Outbox:
    """An outbox that is subscribed to each pair of letters."""
    return subscribed(broker, *map("".join, combinations(letters, 2)))


# What is in a step


def test_a_cached_batch_for_few_is_one_step_that_is_done() -> None:
    broker = Broker()
    outbox = subscribed(broker, "a")
    for _ in range(3):
        broker.publish(batch(("a", "0")))
    take_all(outbox)
    steps = broker.publish_in_steps(batch(*[("a", "1")] * 500))
    assert outbox.queued == 500
    assert list(steps) == [500]


@pytest.mark.parametrize(("tag", "step"), [("t", 512), ("/t", 100)], ids=["plain", "topics"])
def test_a_long_batch_of_different_lists_is_cut(tag: str, step: int) -> None:
    broker = Broker()
    outbox = subscribed(broker, "a")
    steps = broker.publish_in_steps(batch(*[(f"a,{tag}{n}", "x") for n in range(1_000)]))
    seen = [(done, outbox.queued) for done in steps]
    assert [done for done, _ in seen] == [done for _, done in seen]
    done = [done or 0 for done, _ in seen]
    assert max(later - earlier for earlier, later in pairwise([0, *done])) == step
    assert done[-1] == 1_000


def test_few_recipients_are_looked_for_in_a_step() -> None:
    broker = Broker()
    outbox = subscribed(broker, "a")
    for n in range(1_000):
        broker.subscribe(outbox, frozenset([f"t{n}"]))
    steps = broker.publish_in_steps(batch(*[(f"a,t{n}", "x") for n in range(1_000)]))
    done = [step or 0 for step in steps]
    assert max(later - earlier for earlier, later in pairwise([0, *done])) <= 50
    assert done[-1] == outbox.queued == 1_000


def test_messages_for_some_each_are_given_to_few_in_a_step() -> None:
    """Recipients that are known by now don't make a step of as many messages as it may have."""
    broker = Broker()
    outboxes = [make_outbox(broker, messages=10_000) for _ in range(60)]
    for place, outbox in enumerate(outboxes):
        for n in range(200):
            if (place + n) % 3:  # each message has others than the one before
                broker.subscribe(outbox, frozenset([f"t{n}"]))
    messages = batch(*[(f"t{n}", "x") for n in range(200)])
    longest = given = 0
    for _ in range(3):
        for _ in broker.publish_in_steps(messages):
            have = sum(outbox.queued for outbox in outboxes)
            longest, given = max(longest, have - given), have
    assert given == 3 * 200 * 40
    assert longest <= 300


def long_lists(number: int) -> Batch:
    return batch(*[(",".join(f"{n}-{tag}" for tag in range(64)), "x") for n in range(number)])


def test_a_batch_of_long_lists_is_cut_by_their_bytes() -> None:
    broker = Broker()
    subscribed(broker, "a")
    steps = [done or 0 for done in broker.publish_in_steps(long_lists(200))]
    assert max(later - earlier for earlier, later in pairwise([0, *steps])) <= 75
    assert steps[-1] == 200


def test_long_lists_are_checked_some_at_a_time() -> None:
    parts = list(Broker().validate(long_lists(1_000)))
    assert parts.count(None) >= 20
    accepted = next(part for part in parts if part is not None)
    assert isinstance(accepted, Accepted)
    assert len(accepted.batch.runs) == 1_000


def test_a_message_for_very_many_is_given_to_some_at_a_time() -> None:
    broker = Broker()
    outboxes = [subscribed(broker, "a") for _ in range(10_000)]
    longest = given = 0
    steps = broker.publish_in_steps(batch(("a", "x")))
    for done in steps:
        have = sum(outbox.queued for outbox in outboxes)
        longest, given = max(longest, have - given), have
        assert done is None or given == 10_000
    assert (done, given) == (1, 10_000)
    assert longest <= mist.broker.matches.WIDE


def test_a_client_that_subscribes_to_one_subject_very_often_gets_it_in_steps() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    for n in range(10_000):
        broker.add_named(NamedSubscription(outbox, PLAIN, b"%d" % n), A)
    assert count(iter(broker.publish_in_steps(batch(("a", "x"))))) >= 3
    assert outbox.queued == 10_000


def test_subscriptions_that_have_a_form_each_get_a_message_some_at_a_time() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    for n in range(1_000):
        broker.add_named(NamedSubscription(outbox, type(PLAIN)(), b"%d" % n), A)
    longest = queued = 0
    for _ in broker.publish_in_steps(batch(("a", "x"))):
        longest, queued = max(longest, outbox.queued - queued), outbox.queued
    assert queued == 1_000
    assert longest <= mist.broker.matches.FORMS


def test_many_messages_are_written_in_few_forms_in_a_step() -> None:
    broker = Broker()
    outbox = make_outbox(broker, messages=1_000_000, bytes=1 << 30)
    for n in range(100):
        broker.add_named(NamedSubscription(outbox, type(PLAIN)(), b"%d" % n), A)
    broker.subscribe(outbox, A)
    longest = queued = 0
    for _ in range(2):
        for _ in broker.publish_in_steps(batch(*[("a", str(n)) for n in range(2_000)])):
            longest, queued = max(longest, outbox.queued - queued), outbox.queued
    assert queued == 2 * 101 * 2_000
    assert longest <= mist.broker.fanout._WRITTEN


def test_parts_of_many_forms_are_not_kept_and_those_of_few_are() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    named = [NamedSubscription(outbox, type(PLAIN)(), b"%d" % n) for n in range(1_000)]
    for recipients, kept in (
        (Recipients(named), False),
        (Recipients([make_outbox(broker) for _ in range(10_000)]), True),
    ):
        parts = list(recipients.parts())
        assert set(chain(*parts)) == set(recipients)
        assert sum(each.size for each in parts) == recipients.size
        first = weakref.ref(parts[0])
        del parts
        assert (first() is not None) == kept
        assert set(chain(*recipients.parts())) == set(recipients)


def test_slow_consumers_are_dealt_with_some_at_a_time() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker, messages=0) for _ in range(1_000)]
    for outbox in outboxes:
        broker.subscribe(outbox, A)
    longest = dropped = 0
    for _ in broker.publish_in_steps(batch(("a", "x"))):
        lost = broker.dropped["full"]
        longest, dropped = max(longest, lost - dropped), lost
    assert dropped == 1_000
    assert longest <= 2 * mist.broker.fanout._STEP


def test_slow_consumers_are_offered_few_messages_at_a_time() -> None:
    broker = Broker()
    for _ in range(100):
        broker.subscribe(make_outbox(broker, messages=0), A)
    longest = dropped = 0
    for _ in range(2):
        for _ in broker.publish_in_steps(batch(*[("a", str(n)) for n in range(1_000)])):
            lost = broker.dropped["full"]
            longest, dropped = max(longest, lost - dropped), lost
    assert dropped == 2 * 100 * 1_000
    assert longest <= 3_000


def test_a_slow_consumer_that_unsubscribes_between_two_steps_gets_nothing_more() -> None:
    broker = Broker()
    outboxes = [make_outbox(broker, messages=1) for _ in range(200)]
    for outbox in outboxes:
        broker.subscribe(outbox, A)
        outbox.put(b"full", 1)
    steps = iter(broker.publish_in_steps(batch(("a", "x"))))
    next(steps)
    left, stays = outboxes[-2:]
    group = broker.find(A)
    assert group is not None
    broker.unsubscribe(left, group)
    for outbox in (left, stays):
        take_all(outbox)
    assert count(steps) >= 1
    assert (left.queued, stays.queued) == (0, 1)
    assert broker.dropped["full"] == 198
    assert broker.statistics().matched == 199


class CountedGroup(Group):
    """A group that counts how often it is asked for a subscriber."""

    asked = 0

    def __contains__(self, subscriber: object) -> bool:
        CountedGroup.asked += 1
        return super().__contains__(subscriber)


def test_who_is_left_of_very_many_in_groups_of_their_own_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mist.broker.directory, "Group", CountedGroup)
    broker = Broker()
    outbox = make_outbox(broker, messages=10_000)
    subjects = map(".".join, product(*[("*", token) for token in "abcdefghijk"]))
    named = [NamedSubscription(outbox, type(PLAIN)(), subject.encode()) for subject in subjects]
    for each in named:
        broker.add_named(each, frozenset([f".{each.name.decode()}"]))
    monkeypatch.setattr(CountedGroup, "asked", 0)
    steps = iter(broker.publish_in_steps(batch((".a.b.c.d.e.f.g.h.i.j.k", "x"))))
    next(step for step in steps if outbox.queued)
    broker.remove_named(next(each for each in named if not each.taken))
    assert count(steps) > 1
    assert outbox.queued == len(named) - 1
    assert CountedGroup.asked < 5 * len(named)


def test_few_are_looked_for_in_very_many_groups_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.broker.directory, "Group", CountedGroup)
    broker = Broker()
    letters = "abcdefghijklmnopqrst"
    outboxes = [subscribed(broker, *map("".join, combinations(letters, 2))) for _ in range(2_100)]
    steps = iter(broker.publish_in_steps(batch((",".join(letters), "x"))))
    next(step for step in steps if outboxes[0].queued)
    leaving = outboxes[-50:]
    assert not any(outbox.queued for outbox in leaving)
    for group in chain.from_iterable(broker.groups()):
        for outbox in leaving:
            broker.unsubscribe(outbox, group)
    monkeypatch.setattr(mist.broker.staying, "LOOKED", 1_000)
    monkeypatch.setattr(CountedGroup, "asked", 0)
    longest = before = 0
    for _ in steps:
        longest, before = max(longest, CountedGroup.asked - before), CountedGroup.asked
    assert before >= 50 * 190
    assert longest < 2_000
    assert [outbox.queued for outbox in outboxes] == [1] * 2_050 + [0] * 50


def test_offers_to_queue_groups_are_made_some_at_a_time() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    for n in range(1_000):
        broker.add_named(NamedSubscription(outbox, PLAIN, b"%d" % n), A, f"group{n}")
    longest = queued = 0
    for _ in broker.publish_in_steps(batch(("a", "x"))):
        longest, queued = max(longest, outbox.queued - queued), outbox.queued
    assert queued == 1_000
    assert longest <= 2 * mist.broker.fanout._STEP


def test_a_queue_group_ends_without_a_look_at_the_others() -> None:
    broker = Broker()
    outbox = make_outbox(broker)
    every = [NamedSubscription(outbox, PLAIN, b"%d" % n) for n in range(50_000)]
    for n, named in enumerate(every):
        broker.add_named(named, A, f"group{n}")
    with deadline(20):  # it was a minute
        for named in every:
            broker.remove_named(named)
    assert broker.tag_sets() == 0


def test_a_flush_writes_some_outboxes_at_a_time_the_latest_first() -> None:
    broker = Broker()
    outboxes = [subscribed(broker, "a") for _ in range(200)]
    written: list[Outbox] = []
    for outbox in outboxes:
        outbox.flush = lambda outbox=outbox: (take_all(outbox), written.append(outbox))[1]
    broker.publish(batch(("a", "x")))
    latest = subscribed(broker, "b")
    latest.flush = lambda: (take_all(latest), written.append(latest))[1]
    broker.publish(batch(("b", "x")))
    longest = before = 0
    for _ in broker.flush_in_steps():
        longest, before = max(longest, len(written) - before), len(written)
    assert longest <= mist.broker.fanout._STEP
    assert written[0] is latest
    assert set(written) == {latest, *outboxes}


def test_a_match_that_hits_very_many_is_made_in_steps() -> None:
    broker = Broker()
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
    outbox = subscribed(broker, *map("".join, combinations(letters, 3)))
    assert broker.tag_sets() == 7_140
    steps = broker.publish_in_steps(batch((",".join(letters), "x")))
    assert count(iter(steps)) >= 4
    assert outbox.queued == 1


# What comes of it


@pytest.mark.usefixtures("small_steps")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_steps_deliver_what_is_due_whatever_happens_between_them(data: st.DataObject) -> None:
    sets = st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=3)
    broker = Broker()
    staying = {tags: subscribed(broker, *["".join(tags)]) for tags in data.draw(st.sets(sets))}
    double = fill(broker, "abcd")
    messages = data.draw(st.lists(sets, min_size=1, max_size=8))
    other = data.draw(st.lists(sets, max_size=8))
    texts = [(",".join(sorted(tags)), f"one{n}") for n, tags in enumerate(messages)]
    come: list[tuple[frozenset[str], Outbox]] = []
    others = iter(enumerate(other))
    for _ in broker.publish_in_steps(batch(*texts)):
        if (following := next(others, None)) is None:
            continue
        n, tags = following
        match data.draw(st.sampled_from(["publish", "come", "go"])):
            case "publish":
                broker.publish(batch((",".join(sorted(tags)), f"two{n}")))
            case "come":
                come.append((tags, subscribed(broker, *["".join(tags)])))
            case "go" if come and come[-1][0]:
                left_tags, left = come.pop()
                take_all(left)
                group = broker.find(left_tags)
                assert group is not None
                broker.unsubscribe(left, group)
                assert not left.queued
                come.insert(0, (frozenset(), left))
    everyone = [*staying.items(), *come]
    for tags, outbox in everyone:
        lines = take_all(outbox).decode().splitlines()
        ours = [each.split()[2] for each in lines if each.split()[2].startswith("one")]
        assert ours == sorted(set(ours), key=lambda name: int(name[3:])), "in order, once"
        due = [f"one{n}" for n, each in enumerate(messages) if tags and tags <= each]
        assert set(ours) <= set(due)
        if (tags, outbox) in list(staying.items()):
            assert ours == due
    found = [each.split()[2] for each in take_all(double).decode().splitlines()]
    assert len(found) == len(set(found))


@pytest.mark.usefixtures("small_steps")
def test_a_batch_that_is_given_up_is_counted_as_far_as_it_came() -> None:
    broker = Broker()
    outbox = subscribed(broker, "a")
    steps = iter(broker.publish_in_steps(batch(*[("a", str(n)) for n in range(9)])))
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert broker.statistics().published == outbox.queued == mist.broker.projection._SLICE


# Preparations


def prepared(broker: Broker, tags: str, data: str = "x") -> Accepted:
    (part,) = [part for part in broker.validate(batch((tags, data))) if part is not None]
    assert isinstance(part, Accepted)
    assert len(part.prepared) == 1
    return part


@pytest.mark.usefixtures("small_steps")
def test_what_is_prepared_is_as_exact_as_a_match_at_that_moment() -> None:
    broker = Broker()
    fill(broker)
    stays, goes, moves = (subscribed(broker, tags) for tags in ("ab", "abc", "abd"))
    part = prepared(broker, "a,b,c,d")
    broker.unsubscribe(goes, broker.find(frozenset("abc")))  # type: ignore[arg-type]
    broker.unsubscribe(moves, broker.find(frozenset("abd")))  # type: ignore[arg-type]
    broker.subscribe(moves, frozenset("bcd"))
    comes, elsewhere = subscribed(broker, "abcd"), subscribed(broker, "ae")
    everything = make_outbox(broker)
    broker.subscribe(everything, frozenset("*"))
    assert broker.publish(part.batch, first=7) == 1
    broker.release(part.prepared)
    queued = [each.queued for each in (stays, goes, moves, comes, elsewhere, everything)]
    assert queued == [1, 0, 1, 1, 0, 1]
    assert not broker._preparations


@pytest.mark.usefixtures("small_steps")
def test_what_is_prepared_are_not_a_group_s_own_members() -> None:
    broker = Broker()
    fill(broker)
    first, *others = [subscribed(broker, "q") for _ in range(3)]
    group = broker.find(frozenset("q"))
    assert group is not None
    preparation = broker._preparations.begin(b"q,r")
    list(preparation.steps())
    broker.unsubscribe(first, group)
    assert preparation.finish().groups == [group]  # whose members it has collected anew
    last = subscribed(broker, "r")
    assert list(group.members) == others
    recipients = broker._resolver.resolve(preparation.finish())
    assert set(recipients) == {*others, last}
    broker.release([preparation])


@pytest.mark.usefixtures("small_steps")
def test_a_message_that_is_prepared_is_delivered_without_a_step_in_the_index() -> None:
    broker = Broker()
    outbox = fill(broker)
    part = prepared(broker, "a,b,c,d")
    steps = list(broker.publish_in_steps(part.batch, first=1))
    assert steps == [1]
    assert outbox.queued == 1
    broker.release(part.prepared)


@pytest.mark.usefixtures("small_steps")
def test_preparing_is_done_in_steps_and_what_is_cached_needs_none() -> None:
    broker = Broker()
    outbox = fill(broker)
    tags = "a,b,c,d"
    for _ in range(2):  # it is cached when it is seen the second time
        *steps, part = broker.validate(batch((tags, "x")))
        assert len(steps) >= 3
        assert isinstance(part, Accepted)
        assert broker.publish(part.batch, first=1) == 1
        broker.release(part.prepared)
    assert outbox.queued == 2
    (part,) = broker.validate(batch((tags, "x")))
    assert isinstance(part, Accepted)
    assert not part.prepared


def test_a_message_that_matches_too_much_is_refused_and_counted() -> None:
    broker = Broker(Limits(matches=5_000))
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
    outbox = subscribed(broker, *map("".join, combinations(letters, 3)))
    errors: list[CommandError] = []
    wide = ",".join(letters)
    assert (
        broker.publish(batch(("a,b,c", "1"), (wide, "2"), ("b,c,d", "3")), None, errors.append) == 2
    )
    assert [type(error) for error in errors] == [TooManyMatches]
    assert take_all(outbox) == line("a,b,c", "1") + line("b,c,d", "3")
    parts = [part for part in broker.validate(batch(("a,b,c", "1"), (wide, "2"))) if part]
    assert [type(part) for part in parts] == [Accepted, Rejected]
    assert broker.statistics().rejected == 2
    assert not broker._preparations


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("audience", [None, Audience(users=frozenset("u"))], ids=["all", "some"])
def test_stored_messages_of_more_tags_than_may_be_published_here_are_delivered(
    audience: Audience | None,
) -> None:
    """Another node has accepted them, whose limit is higher."""
    broker = Broker(Limits(message_tags=2))
    fill(broker)
    outbox = make_outbox(broker, NUMBERED)
    broker.describe(outbox, Attributes.parse("user=u"), ())
    broker.subscribe(outbox, A)
    messages = batch(("a", "1"), ("a,b,c", "2"), ("a,t,u,v", "3"), ("a", "4"))
    messages.envelope = Envelope(audience=audience)
    lines = [b"message 7 a 1", b"message 8 a,b,c 2", b"message 9 a,t,u,v 3", b"message 10 a 4"]
    for _ in range(3):  # other lists are cached when they are seen the second time
        assert broker.publish(messages, first=7) == 4
        assert take_all(outbox).splitlines() == lines
    parts = broker.validate(batch(("a,b,c", "x"), ("a,t,u,v", "x")))
    assert {type(part) for part in parts if part is not None} == {Rejected}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("audience", [None, Audience(users=frozenset("u"))], ids=["all", "some"])
def test_a_stored_message_that_matches_too_much_keeps_its_id(audience: Audience | None) -> None:
    """Another node has accepted it, at which fewer tag sets are subscribed to."""
    broker = Broker(Limits(matches=10))
    fill(broker)
    outbox = make_outbox(broker, NUMBERED)
    broker.describe(outbox, Attributes.parse("user=u"), ())
    broker.subscribe(outbox, A)
    messages = batch(("a", "1"), ("a,b,c,d,e,f", "2"), ("a", "3"))
    messages.envelope = Envelope(audience=audience)
    assert list(broker.publish_in_steps(messages, first=7))[-1] == 3
    assert take_all(outbox).splitlines() == [b"message 7 a 1", b"message 9 a 3"]
    assert broker.statistics().rejected == 1


@pytest.mark.usefixtures("small_steps")
def test_preparations_together_hold_a_bounded_number_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    fill(broker)
    part = prepared(broker, "a,b,c,d")
    monkeypatch.setattr(mist.broker.preparation, "_HELD", 5)
    refused = [each for each in broker.validate(batch(("a,b,c", "x"))) if each is not None]
    assert [type(each) for each in refused] == [Rejected]
    broker.release(part.prepared)
    prepared(broker, "a,b,c")


@pytest.mark.usefixtures("small_steps")
def test_validating_that_is_given_up_lets_go_of_what_was_prepared() -> None:
    broker = Broker()
    fill(broker)
    parts = broker.validate(batch(("a,b,c,d", "x")))
    next(parts)
    assert len(broker._preparations) == 1
    parts.close()
    assert not broker._preparations


@pytest.mark.usefixtures("small_steps")
def test_very_wide_matches_are_kept_until_anything_changes() -> None:
    broker = Broker()
    outbox = fill(broker)
    tags = "a,b,c,d,e"
    for _ in range(3):
        broker.publish(batch((tags, "x")))
    match = broker._directory.matches[tags.encode()]
    assert match.kept is not None
    assert list(broker.publish_in_steps(batch((tags, "x")))) == [1]
    newcomer = subscribed(broker, "abc")
    assert len(list(broker.publish_in_steps(batch((tags, "x"))))) > 1
    assert (outbox.queued, newcomer.queued) == (5, 1)


def test_what_was_projected_when_it_was_validated_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where canonical lists are so much shorter that more of them would be a slice."""
    monkeypatch.setattr(mist.broker.projection, "_SLICE_BYTES", 200)
    broker = Broker()
    outbox = subscribed(broker, "a")
    written = [b"t%d,a,a,a,a,a,a,a,a" % n for n in range(40)]
    [part] = [
        part for part in broker.validate(Batch.of_columns(written, [b"x"] * 40)) if part is not None
    ]
    assert isinstance(part, Accepted)
    assert len(part.slices) > 1
    monkeypatch.setattr(broker._directory, "project", None)
    monkeypatch.setattr(mist.broker.joining.Joiner, "join_singly", None)
    for _ in broker.publish_in_steps(part.batch, slices=part.slices):
        pass
    assert take_all(outbox) == b"".join(b"publish a,t%d x\n" % n for n in range(40))
