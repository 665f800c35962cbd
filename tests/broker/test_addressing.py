"""Addresses, audiences and named subscriptions in the broker: who gets what, and how often."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, product

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import mist.broker.subscriptions
from mist.attributes import Attributes
from mist.audience import Audience
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.broker.attribute_index import AttributeIndex, reaches
from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.usage import UsageAccounting
from mist.errors import NotSubscribed, TooManySubscriptions
from mist.index import Index
from mist.message import ASK, Envelope, TagSet, parse_tag_list
from mist.protocols.line.forms import ESCAPED, PLAIN
from mist.protocols.listing import finished
from mist.sessions.hub import Hub, HubLimits
from mist.sessions.session import Session
from mist.wire import Batch


def asked(text: str) -> TagSet:
    return parse_tag_list(text.encode(), 16, ASK)


def to(text: str | None, tags: str = "a", *data: str) -> Batch:
    """Messages for an audience."""
    audience = None if text is None else Audience.parse(text)
    runs = [(tags.encode(), f"publish {tags} {each}\n".encode(), 1) for each in data or ("x",)]
    return Batch.of_runs(runs, envelope=Envelope(audience=audience))


def taken(outbox: Outbox) -> list[str]:
    """The data of what is queued."""
    wire = b""
    while outbox.size:
        piece = bytes(outbox.peek())
        outbox.sent(len(piece))
        wire += piece
    return [line.split(" ", 2)[2] for line in wire.decode().splitlines()]


class Site:
    """A broker and its subscribers."""

    def __init__(self, accounts: UsageAccounting | None = None) -> None:
        self.broker = Broker()
        if accounts is not None:
            self.broker.observe(accounts)
        self.outboxes: dict[str, Outbox] = {}

    def outbox(self, attributes: str = "", *tags: str, **bounds: int) -> Outbox:
        found = Outbox(PLAIN, OutboxLimits(**bounds), self.broker.ready)
        self.broker.describe(found, Attributes.parse(attributes), ())
        for each in tags:
            self.broker.subscribe(found, asked(each))
        return found

    def named(
        self, outbox: Outbox, tags: str, name: str = "1", queue: str = ""
    ) -> NamedSubscription:
        named = NamedSubscription(outbox, PLAIN, name.encode())
        self.broker.add_named(named, asked(tags), queue)
        return named

    def publish(self, tags: str, *data: str) -> None:
        self.broker.publish(to(None, tags, *data))

    def send(
        self, audience: str, tags: str = "a", *data: str, source: Outbox | None = None
    ) -> None:
        self.broker.publish(to(audience, tags, *data), source)


class TestAddresses:
    @pytest.mark.parametrize(
        ("wanted", "gets"),
        [
            ("/foo", ["/foo", "/foo/bar", "/foo,urgent"]),
            ("=/foo", ["/foo", "/foo,urgent"]),
            ("/foo,urgent", ["/foo,urgent"]),
            ("/", ["/foo", "/foo/bar", "/foo,urgent", "/other"]),
            (".foo.*", [".foo.bar"]),
            (".foo.>", [".foo.bar", ".foo.bar.baz"]),
            (".foo.bar", [".foo.bar"]),
            ("*", ["/foo", "/foo/bar", "/foo,urgent", "/other", ".foo.bar", ".foo.bar.baz", "a"]),
        ],
    )
    def test_who_gets_what(self, wanted: str, gets: list[str]) -> None:
        site = Site()
        outbox = site.outbox("", wanted)
        everything = ["/foo", "/foo/bar", "/foo,urgent", "/other", ".foo.bar", ".foo.bar.baz", "a"]
        for _ in range(3):  # as an unauthenticated peer, remembered, and from memory
            for each in everything:
                site.publish(each, each)
            assert taken(outbox) == gets

    @pytest.mark.parametrize("wanted", ["/foo", "=/foo", "*", "/"])
    def test_coming_and_going_is_noticed_by_what_is_remembered(self, wanted: str) -> None:
        site = Site()
        other = site.outbox("", "urgent")
        for _ in range(3):
            site.publish("/foo,urgent")
        outbox = site.outbox()
        group = site.broker.subscribe(outbox, asked(wanted))
        site.publish("/foo,urgent")
        assert len(taken(outbox)) == 1
        site.broker.unsubscribe(outbox, group)
        site.publish("/foo,urgent")
        assert taken(outbox) == []
        assert len(taken(other)) == 5
        assert site.broker.tags() == {"urgent"}

    def test_tags_are_shown_as_asked_for(self) -> None:
        site = Site()
        wanted = ["/foo", "=/foo/bar", ".a.*,x", ".a.b", "*", "x"]
        outbox = site.outbox("", *wanted)
        assert site.broker.tags() == {"/foo", "=/foo/bar", ".a.*", "x", ".a.b", "*"}
        uses = dict(use for some in site.broker.tag_uses() for use in some)
        assert uses == {"/foo": 1, "=/foo/bar": 1, ".a.*": 1, "x": 2, ".a.b": 1}
        groups = [group for some in site.broker.groups() for group in some]
        assert {group.tag_list.decode() for group in groups} == {
            ",".join(sorted(each.split(","))) for each in wanted
        }
        for group in groups:
            assert site.broker.find(group.tags) is group
            site.broker.unsubscribe(outbox, group)
        assert site.broker.tags() == frozenset()
        assert site.broker.tag_sets() == 0

    def test_a_derived_tag_is_nobodys_to_say(self) -> None:
        site = Site()
        outbox = site.outbox("", "/foo")
        errors: list[Exception] = []
        site.broker.publish(to(None, "../foo"), None, errors.append)
        site.broker.publish(to(None, "=/foo"), None, errors.append)
        site.broker.publish(to(None, ".a,.b"), None, errors.append)
        assert len(errors) == 3
        assert taken(outbox) == []


class TestAudiences:
    def test_only_its_recipients_get_it(self) -> None:
        site = Site()
        first = site.outbox("user=1&groups=a", "a")
        second = site.outbox("user=2&groups=a;b", "a")
        nobody = site.outbox("", "a")
        elsewhere = site.outbox("user=1", "b")
        for audience in ("users=1", "groups=b", "users=1&groups=b", "groups=a", "users=3"):
            site.send(audience, "a,c", audience)
        assert taken(first) == ["users=1", "users=1&groups=b", "groups=a"]
        assert taken(second) == ["groups=b", "users=1&groups=b", "groups=a"]
        assert taken(nobody) == taken(elsewhere) == []
        site.publish("a", "all")
        assert taken(first) == taken(second) == taken(nobody) == ["all"]

    def test_an_exception_alone_is_everybody_else(self) -> None:
        site = Site()
        one, other = site.outbox("client=x", "a"), site.outbox("", "a")
        site.send("except=x")
        assert (taken(one), taken(other)) == ([], ["x"])

    def test_attributes_change_for_a_session_that_lives(self) -> None:
        site = Site()
        outbox = site.outbox("user=1", "a")
        site.send("users=1")
        site.broker.describe(outbox, Attributes.parse("user=2"), ())
        site.send("users=1")
        site.send("users=2", "a", "y")
        assert taken(outbox) == ["x", "y"]

    def test_the_publisher_is_left_out_who_wants_no_echo(self) -> None:
        site = Site()
        outbox, other = site.outbox("user=1", "a"), site.outbox("user=1", "a")
        outbox.echo = False
        site.send("users=1", source=outbox)
        assert (taken(outbox), taken(other)) == ([], ["x"])

    def test_what_reaches_nobody_counts_as_unmatched(self) -> None:
        site = Site()
        site.outbox("user=1", "a")
        site.send("users=2", "a", "x", "y")
        statistics = site.broker.statistics()
        assert (statistics.published, statistics.unmatched) == (2, 2)

    def test_a_message_for_one_of_many_looks_at_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        outboxes = [site.outbox(f"user={n}", "a") for n in range(2000)]
        asked_about: list[Attributes] = []

        def counting(audience: Audience | None, attributes: Attributes, everywhere: bool) -> bool:
            asked_about.append(attributes)
            return reaches(audience, attributes, everywhere)

        monkeypatch.setattr("mist.broker.matches.reaches", counting)
        site.send("users=17;1999;none")
        assert [n for n, each in enumerate(outboxes) if taken(each)] == [17, 1999]
        assert len(asked_about) == 2

    def test_and_where_few_are_subscribed_at_those(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        for _ in range(2000):
            site.outbox("groups=a")
        outbox = site.outbox("groups=a", "a")
        asked_about: list[Attributes] = []

        def counting(audience: Audience | None, attributes: Attributes, everywhere: bool) -> bool:
            asked_about.append(attributes)
            return reaches(audience, attributes, everywhere)

        monkeypatch.setattr("mist.broker.matches.reaches", counting)
        site.send("groups=a")
        assert taken(outbox) == ["x"]
        assert len(asked_about) == 1


class TestSites:
    def test_one_that_is_bound_gets_its_own_and_what_is_global(self) -> None:
        site = Site()
        red, blue = site.outbox("site=red", "a", "/"), site.outbox("site=blue", "a", "/")
        free = site.outbox("", "a", "/")
        site.publish("a", "for all")
        site.send("site=red", "a", "for red")
        site.publish("/global/news", "news")
        site.send("site=red", "/global/news", "red news")
        assert taken(red) == ["for red", "news", "red news"]
        assert taken(blue) == ["news", "red news"]
        assert taken(free) == ["for all", "news", "red news"]

    def test_being_bound_changes_what_is_aimed_already(self) -> None:
        site = Site()
        outbox = site.outbox()
        group = site.broker.subscribe(outbox, asked("a"))
        for _ in range(3):
            site.publish("a")
        assert len(taken(outbox)) == 3
        site.broker.describe(outbox, Attributes.parse("site=red"), [group])
        site.publish("a")
        assert taken(outbox) == []
        site.broker.describe(outbox, Attributes(), [group])
        site.publish("a")
        assert taken(outbox) == ["x"]

    def test_whether_anybody_listens_is_a_matter_of_the_site(self) -> None:
        site = Site()

        def listens(tags: TagSet, of: str = "") -> bool:
            return finished(site.broker.listens(tags, of))

        assert not listens(asked("a"))
        assert not listens(asked("a"), "red")
        red = site.outbox("site=red", "a")
        site.named(red, "q", queue="workers")
        for tags in ("a", "q"):
            assert listens(asked(tags), "red")
            assert not listens(asked(tags), "blue")
            assert not listens(asked(tags))
        site.outbox("site=red", "/")
        assert listens(asked("/global/news"), "blue")
        assert not listens(asked("/local/news"), "blue")
        site.outbox("", "a")
        assert listens(asked("a"))
        assert not listens(asked("a"), "blue")

    def test_who_listens_may_be_another_than_who_asks(self) -> None:
        site = Site()
        own = site.outbox("", "a")
        site.named(own, "a", queue="workers")
        assert finished(site.broker.listens(asked("a")))
        assert not finished(site.broker.listens(asked("a"), but=own))
        site.named(site.outbox(), "a", queue="workers")
        assert finished(site.broker.listens(asked("a"), but=own))

    def test_few_are_asked_in_a_step_whether_they_listen(self) -> None:
        site = Site()
        red = site.outbox("site=red")
        for _ in range(3_000):
            site.named(red, "q", queue="workers")
            site.named(red, "a")
        for tags in ("q", "a"):
            steps = list(site.broker.listens(asked(tags), "blue"))
            assert len(steps) >= 3_000 // mist.broker.subscriptions._LISTENERS

    def test_whether_anybody_listens_is_known_with_the_first_of_very_many(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = Site()
        outbox = site.outbox()
        subject = [f"t{n}" for n in range(12)]
        for tokens in product(*[("*", token) for token in subject]):
            site.named(outbox, f".{'.'.join(tokens)}")
        found: list[int] = []
        step = Index.match_in_steps

        def match_in_steps(index: Index[Group], tags: TagSet) -> Iterator[list[Group]]:
            for groups in step(index, tags):
                found.append(len(groups))
                yield groups

        monkeypatch.setattr(Index, "match_in_steps", match_in_steps)
        assert finished(site.broker.listens(asked(f".{'.'.join(subject)}")))
        assert 0 < sum(found) < 2_000


class TestLanes:
    def test_each_gets_its_own_copy_in_its_own_form(self) -> None:
        site = Site()
        outbox = site.outbox("", "a")
        site.named(outbox, ".a.*,a", "1")
        named = NamedSubscription(outbox, ESCAPED, b"2")
        site.broker.add_named(named, asked("a"))
        site.publish(".a.b,a", "x\\y")
        assert Counter(taken(outbox)) == {"x\\y": 2, "x\\\\y": 1}

    def test_one_that_ends_after_so_many(self) -> None:
        site = Site()
        outbox = site.outbox()
        named = site.named(outbox, "a")
        site.publish("a", "1")
        named.end_after(3, lambda: site.broker.remove_named(named))
        site.broker.publish(Batch([b"a"], (b"publish a 2\npublish a 3\npublish a 4\n", 3)))
        site.publish("a", "5")
        assert taken(outbox) == ["1", "2", "3"]
        assert site.broker.tag_sets() == 0
        assert not site.broker.dropped.total()

    def test_the_session_that_wants_no_echo_has_none_in_its_lanes(self) -> None:
        site = Site()
        outbox, other = site.outbox(), site.outbox()
        outbox.echo = False
        site.named(outbox, "a")
        site.named(other, "a")
        site.broker.publish(to(None), outbox)
        assert (taken(outbox), taken(other)) == ([], ["x"])

    def test_an_audience_holds_for_them(self) -> None:
        site = Site()
        one, other = site.outbox("user=1"), site.outbox("user=2")
        for each in (one, other):
            site.named(each, "a", "1")
            site.named(each, "a", "2")
        site.send("users=1")
        assert (taken(one), taken(other)) == (["x", "x"], [])
        site.broker.describe(other, Attributes.parse("user=1"), (), [])

    def test_a_full_outbox_drops_and_counts(self) -> None:
        site = Site()
        outbox = site.outbox(messages=2)
        site.named(outbox, "a")
        site.publish("a", "1", "2", "3")
        assert taken(outbox) == ["1", "2"]
        assert site.broker.dropped == {"full": 1}


class TestQueues:
    def test_one_member_gets_each_message(self) -> None:
        site = Site()
        outboxes = [site.outbox() for _ in range(4)]
        for each in outboxes:
            site.named(each, "a", queue="workers")
        beside = site.outbox("", "a")
        numbers = [str(n) for n in range(400)]
        site.publish("a", *numbers)
        shares = [taken(each) for each in outboxes]
        assert sorted(chain.from_iterable(shares), key=int) == numbers
        assert all(40 < len(share) < 180 for share in shares)
        assert taken(beside) == numbers

    def test_other_names_and_other_tags_are_other_queues(self) -> None:
        site = Site()
        outboxes = [site.outbox() for _ in range(3)]
        for each, (tags, queue) in zip(outboxes, [("a", "q"), ("a", "r"), ("b", "q")], strict=True):
            site.named(each, tags, queue=queue)
        site.publish("a,b")
        assert [taken(each) for each in outboxes] == [["x"]] * 3

    def test_a_full_member_is_passed_over(self) -> None:
        site = Site()
        full, free = site.outbox(messages=1), site.outbox()
        for each in (full, free):
            site.named(each, "a", queue="q")
        site.publish("a", *map(str, range(50)))
        assert len(taken(full)) == 1
        assert len(taken(free)) == 49
        assert not site.broker.dropped.total()

    def test_where_all_are_full_it_is_dropped_once(self) -> None:
        site = Site()
        outboxes = [site.outbox(messages=1) for _ in range(2)]
        for each in outboxes:
            site.named(each, "a", queue="q")
        site.publish("a", *map(str, range(5)))
        assert [len(taken(each)) for each in outboxes] == [1, 1]
        assert site.broker.dropped == {"full": 3}

    def test_a_queue_group_deals_to_recipients_only(self) -> None:
        site = Site()
        mine, other = site.outbox("user=1"), site.outbox("user=2")
        for each in (mine, other):
            site.named(each, "a", queue="q")
        for _ in range(20):
            site.send("users=1")
        assert (len(taken(mine)), len(taken(other))) == (20, 0)

    def test_nothing_is_left_of_one_that_ended(self) -> None:
        site = Site()
        outboxes = [site.outbox() for _ in range(3)]
        named_subscriptions = [site.named(each, ".a.*", queue="q") for each in outboxes]
        for named in named_subscriptions:
            site.broker.remove_named(named)
            site.broker.remove_named(named)
        site.publish(".a.b")
        assert not any(map(taken, outboxes))
        assert site.broker.tag_sets() == 0

    def test_it_is_a_member_that_is_paid_for(self) -> None:
        accounts = UsageAccounting()
        site = Site(accounts)
        owners = ["x", "y"]
        for owner in owners:
            outbox = site.outbox()
            site.broker.assign(outbox, owner, ())
            site.named(outbox, "a", queue="q")
        site.publish("a", *["12345"] * 30)
        site.send("except=nobody", "a", *["12345"] * 10)
        rows = [row for delivered, _ in accounts.close() for row in delivered if row.sent]
        assert {row.owner for row in rows} == set(owners)
        assert sum(row.sent for row in rows) == 40
        assert sum(row.bytes for row in rows) == 200


values = st.sampled_from("12")
everyone = st.builds(
    lambda client, user, groups, site: Attributes(
        client, user, groups, {"site": site} if site else {}
    ),
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["", "1", "2"]),
    st.frozensets(values),
    st.sampled_from(["", "1", "2"]),
)
audiences = st.builds(
    lambda clients, users, groups, excepted, site: (clients, users, groups, excepted, site),
    *[st.frozensets(values)] * 4,
    st.sampled_from(["", "1", "2"]),
).filter(any)


@given(
    st.lists(st.tuples(everyone, st.sampled_from(["a", "b", "/global/a"])), max_size=12),
    st.lists(audiences, min_size=1, max_size=4),
    st.sampled_from(["a", "a,b", "/global/a", "a,/global/a"]),
)
def test_deliveries_are_those_of_the_plain_rule(
    sessions: list[tuple[Attributes, str]], wanted: list[tuple[frozenset[str], ...]], tags: str
) -> None:
    site = Site()
    outboxes = [site.outbox(attributes.text, subscribed) for attributes, subscribed in sessions]
    expected: list[list[str]] = [[] for _ in sessions]
    for number, (clients, users, groups, excepted, home) in enumerate(wanted):
        others = ((("site", str(home)),)) if home else ()
        audience = Audience(clients, users, groups, excepted, others)
        site.send(audience.text, tags, str(number))
        anywhere = "/global/" in tags
        for place, (attributes, subscribed) in enumerate(sessions):
            at_home = anywhere or attributes.site == home
            allowed = (
                (not clients or attributes.client in clients)
                and not (attributes.client and attributes.client in excepted)
                and (
                    not (users or groups) or attributes.user in users or groups & attributes.groups
                )
            )
            if subscribed in tags.split(",") and at_home and allowed:
                expected[place].append(str(number))
    assert [taken(each) for each in outboxes] == expected


def test_an_outbox_that_has_left_is_in_no_attribute_index() -> None:
    attribute_index = AttributeIndex()
    site = Site()
    outboxes = [site.outbox(f"user={n}&groups=a;b&client=c{n}&site=s") for n in range(3)]
    for each in outboxes:
        attribute_index.enter(each)
    assert (len(attribute_index), attribute_index.bound) == (9, 3)
    for each in outboxes:
        attribute_index.leave(each)
    assert (len(attribute_index), attribute_index.bound) == (0, 0)


def walked(audience: str) -> Iterator[object]:
    site = Site()
    attribute_index = AttributeIndex()
    for n in range(10):
        attribute_index.enter(site.outbox(f"user={n}&groups=all&plan={'pro' if n < 2 else 'free'}"))
    size, among = attribute_index.named(Audience.parse(audience), False)
    found = list(among())
    assert len(found) <= size or size < 0
    yield size
    yield len(found)


@pytest.mark.parametrize(
    ("audience", "size"),
    [("groups=all&plan=pro", 2), ("users=1;2;3", 3), ("groups=all&users=1", 11), ("except=x", -1)],
)
def test_the_shortest_list_is_gone_through(audience: str, size: int) -> None:
    assert next(iter(walked(audience))) == size


def make_session(limits: HubLimits) -> Session:
    hub = Hub(LocalRegistry(MemoryStore()), hub_limits=limits)
    session = Session(hub, PLAIN, lambda notice: b"", transport="tcp")
    hub.sessions.attach(session)
    return session


async def test_names_of_subscriptions_count_against_the_bound_on_their_bytes() -> None:
    session = make_session(HubLimits(subscription_bytes=100))
    for n in range(2):
        session.subscribe_named(asked(f"{n}" * 10), b"%d" % n * 40, PLAIN, "")
    with pytest.raises(TooManySubscriptions):
        session.subscribe_named(asked("more"), b"more", PLAIN, "")
    session.named_subscriptions.remove(b"0" * 40, None)
    with pytest.raises(NotSubscribed):
        session.named_subscriptions.remove(b"0" * 40, None)
    session.subscribe_named(asked("more"), b"more", PLAIN, "")
    assert [named.name for named in session.named_subscriptions] == [b"1" * 40, b"more"]
    await session.aclose()
    assert session.hub.broker.tag_sets() == 0


async def test_others_run_while_many_named_subscriptions_are_taken_down(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr("mist.turns._PASS", 0.0)
    session = make_session(HubLimits())
    await nursery.start(session.hub.turns.run)
    for n in range(5000):
        session.subscribe_named(asked(f"t{n}"), b"%d" % n, PLAIN, "q" if n % 2 else "")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while session.hub.broker.tag_sets():
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as beside:
        beside.start_soon(count)
        await session.aclose()
    assert turns >= 50  # with 50 taken down in between
    assert session.hub.broker.tag_sets() == 0
