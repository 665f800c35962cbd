"""What a delivery observer is told, in the order in which it happens."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from mist.broker.broker import Broker
from mist.broker.groups import Group
from mist.broker.matches import Match, Matched, Recipients
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.observer import DeliveryObserver, Receiver, Replayed
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.broker.queued import Queued
from mist.protocols.line.forms import PLAIN
from mist.wire import Batch, Run, TagList, record

A = frozenset("a")


class Diary(DeliveryObserver):
    """Writes down each call, messages as their number."""

    def __init__(self) -> None:
        self.pages: list[tuple[object, ...]] = []

    def told(self) -> list[tuple[object, ...]]:
        pages, self.pages = self.pages, []
        return pages

    def joined(self, group: Group, owner: str) -> None:
        self.pages.append(("joined", group.tag_list, owner, group.subscribers))

    def left(self, group: Group, owner: str) -> None:
        self.pages.append(("left", group.tag_list, owner, group.subscribers))

    def moved(self, groups: Sequence[Group], before: str, after: str) -> None:
        self.pages.append(("moved", [group.tag_list for group in groups], before, after))

    def changing(self, group: Group) -> None:
        self.pages.append(("changing", group.tag_list))

    def published(
        self, recipients: Recipients, entries: Sequence[Matched], skip: Outbox | None
    ) -> None:
        self.pages.append(("published", number(entries), skip))

    def published_whole(
        self,
        recipients: Recipients,
        runs: Sequence[Run],
        matches: Mapping[bytes, Match],
        skip: Outbox | None,
    ) -> None:
        self.published(recipients, [(matches[tags], wire, n) for tags, wire, n in runs], skip)

    def delivered(self, member: NamedSubscription, entries: Sequence[Matched]) -> None:
        self.pages.append(("delivered", member.name, number(entries)))

    def dropped(
        self, receiver: Receiver, entries: Sequence[Matched], queued: Sequence[bool] | None = None
    ) -> None:
        self.pages.append(("dropped", number(entries), queued))

    def missed(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        self.pages.append(("missed", number(entries)))

    def held(self, receiver: Receiver, entries: Sequence[Matched]) -> Callable[[], None]:
        self.pages.append(("held", number(entries)))
        return lambda: self.pages.append(("got", number(entries)))

    def withdrawn(self, receiver: Receiver, entries: Sequence[Matched]) -> None:
        self.pages.append(("withdrawn", number(entries)))

    def moving(self, outbox: Outbox) -> None:
        pass

    def gone(self, outbox: Outbox, queued: Queued) -> None:
        self.pages.append(("gone", int(queued)))

    def replayed(
        self, outbox: Outbox, runs: Iterable[Replayed], match: Callable[[TagList], Match]
    ) -> None:
        [(entries, _, count)] = runs
        self.pages.append(("replayed", count, match(entries[0][0]).groups[0].tag_list))


def number(entries: Sequence[Matched]) -> int:
    return sum(entry[2] for entry in entries)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def broker(diary: Diary) -> Broker:
    broker = Broker()
    broker.observe(diary)
    return broker


def make_outbox(broker: Broker, **bounds: int) -> Outbox:
    return Outbox(PLAIN, OutboxLimits(**bounds), broker.ready)


def lines(count: int) -> Batch:
    return Batch((b"a",), (record(b"a", b"x") * count, count))


def test_subscribers_are_told_of_before_they_come_and_go(broker: Broker, diary: Diary) -> None:
    outbox = make_outbox(broker)
    group = broker.subscribe(outbox, A)
    broker.subscribe(outbox, A)
    broker.assign(outbox, "t", [group])
    broker.unsubscribe(outbox, group)
    broker.unsubscribe(outbox, group)
    assert diary.told() == [
        ("joined", b"a", "", 0),
        ("moved", [b"a"], "", "t"),
        ("left", b"a", "t", 1),
    ]


def test_a_delivery_is_told_once_however_many_get_it(broker: Broker, diary: Diary) -> None:
    outboxes = [make_outbox(broker) for _ in range(3)]
    for outbox in outboxes:
        broker.subscribe(outbox, A)
    diary.told()
    for _ in range(3):  # matched, then matched and cached, then a cached batch passed on whole
        broker.publish(lines(2))
    broker.publish(Batch.of(frozenset("b"), b"nobody gets it"))
    outboxes[0].echo = False
    broker.publish(lines(1), outboxes[0])
    assert diary.told() == [("published", 2, None)] * 3 + [("published", 1, outboxes[0])]


def test_what_goes_another_way_is_told_of_each(broker: Broker, diary: Diary) -> None:
    outbox = make_outbox(broker, messages=2)
    broker.subscribe(outbox, A)
    diary.told()
    broker.publish(lines(3))
    assert diary.told() == [("published", 3, None), ("dropped", 3, [True, True, False])]
    broker.publish(Batch.of(A, b"x\ny"))
    assert diary.told() == [("published", 1, None), ("dropped", 1, None)]
    outbox.pause()
    broker.publish(lines(1))
    assert diary.told() == [("published", 1, None), ("missed", 1)]
    outbox.hold()
    broker.publish(lines(2))
    outbox.resume_live()
    assert diary.told() == [("published", 2, None), ("held", 2), ("got", 2)]
    broker.note_replayed(outbox, [([(TagList(A), record(b"a", b"x"), 1)], None, 1)])
    assert diary.told() == [("replayed", 1, b"a")]


def test_a_queue_group_is_told_of_by_member(broker: Broker, diary: Diary) -> None:
    outbox = make_outbox(broker, messages=1)
    named = NamedSubscription(outbox, PLAIN, b"7")
    broker.add_named(named, A, queue="q")
    diary.told()
    broker.publish(lines(2))
    assert diary.told() == [
        ("published", 2, None),
        ("delivered", b"7", 1),
        ("dropped", 1, None),
    ]
