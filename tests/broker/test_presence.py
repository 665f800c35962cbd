"""Who is present at a tag set, against the plain definition of it; and what watchers are told."""

from collections.abc import Generator
from typing import TypeVar

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.attributes import Attributes
from mist.broker.broker import Broker
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.presence import MOST_LISTED, NOBODY, Identity, Presence, PresenceTags, Seen
from mist.broker.presence_view import LINGER, RELISTED, PresenceView
from mist.message import TagSet
from mist.protocols.line.forms import PLAIN
from mist.replies import Attendee, PresenceChanged, Present

T = TypeVar("T")
ROOM = frozenset({"room:7"})


@attrs.define
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


def result(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def broker_with(*patterns: str, clock: Clock | None = None) -> tuple[Broker, Presence]:
    broker = Broker()
    broker.presence = Presence(PresenceTags(patterns), clock or Clock())
    return broker, broker.presence


def outbox(
    broker: Broker, *, user: str = "", client: str = "", site: str = "", owner: str = "t"
) -> Outbox:
    made = Outbox(PLAIN, OutboxLimits(), broker.ready)
    broker.assign(made, owner, ())
    others = {"site": site} if site else {}
    broker.describe(made, Attributes(client, user, frozenset(), others), ())
    return made


def who(presence: Presence, *tags: str, site: str = "") -> set[Identity]:
    seen = result(presence.look(frozenset(tags), site))
    assert seen.since is not None
    return set(seen.since)


# which tags


@pytest.mark.parametrize(
    ("patterns", "tag", "covered"),
    [
        (("room:*",), "room:7", True),
        (("room:*",), "room:", True),
        (("room:*",), "room", False),
        (("room:*",), "lobby", False),
        (("lobby",), "lobby", True),
        (("lobby",), "lobby2", False),
        (("*",), "anything", True),
        (("*",), "/a/b", True),
        (("*",), "*", False),
        (("*",), "..a", False),
        (("*",), ">a", False),
        (("*",), "mist:connected", False),
        (("mist*", "mist:connected"), "mist:connected", False),
    ],
)
def test_tags_under_presence(patterns: tuple[str, ...], tag: str, covered: bool) -> None:
    assert PresenceTags(patterns).covers(tag) is covered


# who is there


def test_who_names_all_of_the_tags_is_present() -> None:
    broker, presence = broker_with("room:*")
    one, two, three = (outbox(broker, user=each) for each in "abc")
    broker.subscribe(one, ROOM)
    broker.subscribe(two, ROOM | {"urgent"})
    broker.subscribe(three, ROOM | {"room:8"})
    assert who(presence, "room:7") == {("a", "", ""), ("b", "", ""), ("c", "", "")}
    assert who(presence, "room:7", "room:8") == {("c", "", "")}
    assert who(presence, "room:8") == {("c", "", "")}
    assert who(presence, "room:9") == set()
    assert who(presence, "urgent") == set()


def test_sessions_of_a_client_are_one_and_the_first_counts() -> None:
    clock = Clock()
    broker, presence = broker_with("room:*", clock=clock)
    for now in (5.0, 3.0, 9.0):
        clock.now = now
        broker.subscribe(outbox(broker, user="a"), ROOM)
    seen = result(presence.look(ROOM))
    assert seen == Seen(3, {("a", "", ""): 3.0})


def test_clients_of_a_user_are_apart_and_so_are_unnamed_tokens() -> None:
    broker, presence = broker_with("room:*")
    broker.subscribe(outbox(broker, user="a", client="x"), ROOM)
    broker.subscribe(outbox(broker, user="a", client="y"), ROOM)
    broker.subscribe(outbox(broker, owner="t1"), ROOM)
    broker.subscribe(outbox(broker, owner="t1"), ROOM)
    broker.subscribe(outbox(broker, owner="t2"), ROOM)
    assert who(presence, "room:7") == {
        ("a", "x", ""),
        ("a", "y", ""),
        ("", "", "t1"),
        ("", "", "t2"),
    }


def test_services_are_never_present() -> None:
    broker, presence = broker_with("*")
    service = Outbox(PLAIN, OutboxLimits(), broker.ready)
    group = broker.subscribe(service, ROOM)
    assert who(presence, "room:7") == set()
    broker.unsubscribe(service, group)
    assert presence.tag_count == 0


def test_a_service_that_is_given_a_token_is_present_from_then_on() -> None:
    clock = Clock(1.0)
    broker, presence = broker_with("room:*", clock=clock)
    one, named = outbox(broker, owner=""), outbox(broker, owner="")
    group = broker.subscribe(one, ROOM)
    subscription = NamedSubscription(named, PLAIN, b"1")
    broker.add_named(subscription, ROOM, "workers")
    assert subscription.group is not None
    presence.watched = True
    clock.now = 2.0
    broker.assign(one, "t1", [group])
    broker.assign(named, "t2", [], [subscription])
    assert list(presence.changed) == [ROOM]
    assert result(presence.look(ROOM)) == Seen(2, {("", "", "t1"): 2.0, ("", "", "t2"): 2.0})
    clock.now = 3.0
    broker.assign(one, "t3", [group])
    assert result(presence.look(ROOM)).since == {("", "", "t3"): 2.0, ("", "", "t2"): 2.0}
    broker.unsubscribe(one, group)
    broker.remove_named(subscription)
    assert result(presence.look(ROOM)) == NOBODY
    assert presence.tag_count == 0


def test_a_site_sees_its_own() -> None:
    broker, presence = broker_with("room:*")
    broker.subscribe(outbox(broker, user="a", site="one"), ROOM)
    broker.subscribe(outbox(broker, user="b", site="two"), ROOM)
    assert who(presence, "room:7", site="one") == {("a", "", "")}
    assert who(presence, "room:7") == {("a", "", ""), ("b", "", "")}


def test_named_subscriptions_and_members_of_queue_groups_are_present() -> None:
    broker, presence = broker_with("room:*")
    one, two = outbox(broker, user="a"), outbox(broker, user="b")
    plain, member = NamedSubscription(one, PLAIN, b"1"), NamedSubscription(two, PLAIN, b"1")
    broker.add_named(plain, ROOM)
    broker.add_named(member, ROOM, "workers")
    assert who(presence, "room:7") == {("a", "", ""), ("b", "", "")}
    broker.remove_named(member)
    assert who(presence, "room:7") == {("a", "", "")}
    broker.remove_named(plain)
    assert presence.tag_count == 0


def test_another_subscription_with_the_tag_keeps_it_present() -> None:
    broker, presence = broker_with("room:*")
    one = outbox(broker, user="a")
    first, second = broker.subscribe(one, ROOM), broker.subscribe(one, ROOM | {"urgent"})
    broker.unsubscribe(one, first)
    assert who(presence, "room:7") == {("a", "", "")}
    broker.unsubscribe(one, second)
    assert who(presence, "room:7") == set()


def test_above_a_thousand_they_are_counted() -> None:
    broker, presence = broker_with("room:*")
    for number in range(MOST_LISTED):
        broker.subscribe(outbox(broker, user=f"{number}", site="one"), ROOM)
    assert len(who(presence, "room:7")) == MOST_LISTED
    broker.subscribe(outbox(broker, user="more", site="two"), ROOM)
    assert result(presence.look(ROOM)) == Seen(MOST_LISTED + 1, None)
    assert len(who(presence, "room:7", site="one")) == MOST_LISTED
    assert who(presence, "room:7", site="two") == {("more", "", "")}


def test_a_session_counts_once_however_many_subscriptions_it_has_there() -> None:
    broker, presence = broker_with("room:*")
    one = outbox(broker, user="a")
    for number in range(MOST_LISTED + 1):
        broker.subscribe(one, ROOM | {f"x{number}"})
        broker.add_named(NamedSubscription(one, PLAIN, b"%d" % number), ROOM)
    assert who(presence, "room:7") == {("a", "", "")}
    assert result(presence.look(ROOM)).sessions == 1
    for number in range(MOST_LISTED):
        broker.subscribe(outbox(broker, user=f"{number}"), ROOM)
    assert result(presence.look(ROOM)) == Seen(MOST_LISTED + 1, None)


def test_a_crowd_in_groups_of_one_is_counted_in_steps() -> None:
    broker, presence = broker_with("lobby")
    for number in range(5_000):
        broker.subscribe(outbox(broker, user=f"{number}"), frozenset({"lobby", f"user:{number}"}))
    looked = presence.look(frozenset({"lobby"}))
    assert sum(1 for _ in looked) == 2
    assert result(presence.look(frozenset({"lobby"}))) == Seen(5_000, None)


def test_changes_are_noted_while_they_are_watched() -> None:
    broker, presence = broker_with("room:*")
    one = outbox(broker, user="a")
    group = broker.subscribe(one, ROOM | {"urgent"})
    assert presence.changed == {}
    presence.watched = True
    broker.unsubscribe(one, group)
    assert list(presence.changed) == [ROOM]
    presence.changed = {}
    broker.subscribe(one, frozenset({"urgent"}))
    assert presence.changed == {}
    other = broker.subscribe(one, ROOM)
    presence.changed = {}
    broker.describe(one, Attributes(user="b"), [other])
    assert list(presence.changed) == [ROOM]
    presence.changed = {}
    broker.assign(one, "t2", [other])
    assert list(presence.changed) == [ROOM]


TAGS = st.frozensets(st.sampled_from(["room:1", "room:2", "room:3", "x", "y"]), min_size=1)
MEMBER = 6  # of a queue group; below it services, and four sessions
STEPS = st.lists(st.tuples(st.integers(0, MEMBER), TAGS, st.booleans()), max_size=30)


@settings(max_examples=150, deadline=None)
@given(STEPS, TAGS)
def test_it_is_the_plain_definition(steps: list[tuple[int, TagSet, bool]], asked: TagSet) -> None:
    broker, presence = broker_with("room:*")
    outboxes = [outbox(broker, user=f"{number}") for number in range(4)]
    services = [outbox(broker, owner="") for _ in range(2)]
    members: dict[tuple[int, TagSet], NamedSubscription] = {}
    subscribed: set[tuple[int, TagSet]] = set()
    for number, tags, on in steps:
        if number == MEMBER:
            member = members.get((number, tags))
            if on and member is None:
                member = members[number, tags] = NamedSubscription(outboxes[0], PLAIN, b"1")
                broker.add_named(member, tags, "workers")
            elif not on and member is not None:
                broker.remove_named(members.pop((number, tags)))
        elif on:
            broker.subscribe([*outboxes, *services][number], tags)
        elif (group := broker.find(tags)) is not None:
            broker.unsubscribe([*outboxes, *services][number], group)
        if number < len(outboxes):
            (subscribed.add if on else subscribed.discard)((number, tags))
    subscribed |= {(0, tags) for _, tags in members}
    covered = all(tag.startswith("room:") for tag in asked)
    expected = {(f"{n}", "", "") for n, tags in subscribed if asked <= tags and covered}
    assert who(presence, *asked) == expected
    used = {tag for _, tags in subscribed for tag in tags if tag.startswith("room:")}
    assert presence.tag_count == len(used)


# all nodes


def test_nodes_together() -> None:
    a, b = ("a", "", ""), ("b", "", "")
    here = Seen(1, {a: 5.0})
    assert here.with_others([Seen(2, {a: 3.0, b: 4.0})]) == Seen(3, {a: 3.0, b: 4.0})
    assert here.with_others([Seen(MOST_LISTED, None)]) == Seen(MOST_LISTED + 1, None)
    half = Seen(600, {(f"{n}", "", ""): 1.0 for n in range(600)})
    assert half.with_others([half]) == Seen(1_200, None)


# what is told


def seen(*users: str) -> Seen:
    return Seen(len(users), {(each, "", ""): float(ord(each)) for each in users})


def names(attendees: object) -> str:
    assert isinstance(attendees, list)
    return "".join(each.user for each in attendees)


def test_a_list_then_who_joins_and_leaves() -> None:
    view = PresenceView(ROOM, "")
    assert not view.is_ready
    first = view.update(seen("b", "a"), 0.0)
    assert isinstance(first, Present)
    assert first == Present(ROOM, 2, [Attendee("a", "", 97.0), Attendee("b", "", 98.0)])
    assert view.update(seen("b", "a"), 1.0) is None
    joined = view.update(seen("b", "a", "c"), 2.0)
    assert joined == PresenceChanged(ROOM, [Attendee("c", "", 99.0)], [], 3)
    assert view.update(seen("a"), 3.0) is None
    assert view.due == 3.0 + LINGER
    left = view.update(seen("a"), 3.0 + LINGER)
    assert left == PresenceChanged(ROOM, [], [Attendee("b", "", 98.0), Attendee("c", "", 99.0)], 1)
    assert view.due is None


def test_who_is_back_in_time_has_not_left_and_has_been_there_since() -> None:
    view = PresenceView(ROOM, "")
    view.update(seen("a"), 0.0)
    assert view.update(NOBODY, 1.0) is None
    assert view.present.count == 1
    assert view.update(Seen(1, {("a", "", ""): 500.0}), 1.0 + LINGER - 0.1) is None
    assert view.due is None
    assert view.present.attendees == [Attendee("a", "", 97.0)]
    assert view.update(NOBODY, 100.0) is None
    assert view.due == 100.0 + LINGER


def test_more_than_can_be_listed_are_a_number_until_they_are_clearly_fewer() -> None:
    def listing(count: int) -> Seen:
        return Seen(count, {(f"{number}", "", ""): 1.0 for number in range(count)})

    view = PresenceView(ROOM, "")
    view.update(listing(MOST_LISTED), 0.0)
    crowded = view.update(Seen(MOST_LISTED + 1, None), 1.0)
    assert crowded == Present(ROOM, MOST_LISTED + 1, None)
    assert view.update(Seen(MOST_LISTED + 1, None), 2.0) is None
    assert view.update(listing(MOST_LISTED), 3.0) == Present(ROOM, MOST_LISTED, None)
    assert view.update(listing(RELISTED + 1), 4.0) == Present(ROOM, RELISTED + 1, None)
    listed = view.update(listing(RELISTED), 5.0)
    assert isinstance(listed, Present)
    assert listed.attendees is not None
    assert len(listed.attendees) == RELISTED == listed.count
    assert view.update(listing(RELISTED), 6.0) is None


LOOKS = st.lists(st.tuples(st.floats(0.1, 4.0), st.frozensets(st.sampled_from("abc"))), max_size=20)


@settings(max_examples=150, deadline=None)
@given(LOOKS)
def test_what_is_told_adds_up(looks: list[tuple[float, frozenset[str]]]) -> None:
    view = PresenceView(ROOM, "")
    known: set[str] = set()
    now = 0.0
    for seconds, users in [*looks, (LINGER, frozenset("a")), (LINGER, frozenset("a"))]:
        now += seconds
        told = view.update(seen(*sorted(users)), now)
        if isinstance(told, Present):
            known = set(names(told.attendees))
        elif told is not None:
            assert known.isdisjoint(names(told.joined))
            assert known.issuperset(names(told.left))
            known |= set(names(told.joined))
            known -= set(names(told.left))
            assert told.count == len(known)
        assert known >= users
        assert names(view.present.attendees) == "".join(sorted(known))
    assert known == {"a"}


def test_ever_new_names_are_not_kept() -> None:
    view = PresenceView(ROOM, "")
    told: object = None
    for number in range(40):
        users = [f"{number}-{each}" for each in range(100)]
        told = view.update(Seen(100, {(each, "", ""): 1.0 for each in users}), number / 10)
        if isinstance(told, Present) and told.attendees is None:
            break
    assert told == Present(ROOM, 100, None)
    assert number == 20
    listed = view.update(seen("a"), 10.0)
    assert isinstance(listed, Present)
    assert listed.attendees == [Attendee("a", "", 97.0)]
