"""Long lists are written in steps, are whole, and end the session where they don't fit."""

from collections.abc import Callable

import pytest

from mist.broker.broker import Broker
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import ListSubscriptions, ListTags
from mist.message import Limits
from mist.protocols import Protocol
from mist.protocols.frames import FrameProtocol
from mist.protocols.json import JsonProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.line import LineProtocol
from mist.replies import Subscriptions
from mist.sessions.listing import list_subscriptions, list_tags
from mist.sessions.realm_tags import OtherTags
from mist.sessions.subscriptions import SubscriptionSet
from tests.steps import run

PROTOCOLS = [LineProtocol, FrameProtocol, JsonProtocol, JsonFrameProtocol]
NUMBER = 10_000


def subscribed(number: int, **bounds: int) -> tuple[Broker, SubscriptionSet, Outbox]:
    broker = Broker()
    outbox = Outbox(LineProtocol(Limits()).form, OutboxLimits(**bounds), broker.ready)
    subscriptions = SubscriptionSet(broker, outbox, 1 << 30, counted=False)
    for n in range(number):
        subscriptions.add(frozenset({"all", f"t{n:05}"}), number)
    return broker, subscriptions, outbox


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_subscriptions_are_listed_in_steps(protocol: Callable[[Limits], Protocol]) -> None:
    _, subscriptions, outbox = subscribed(NUMBER)
    command = ListSubscriptions()
    dialect = protocol(Limits())
    steps, wire = run(list_subscriptions(subscriptions, outbox, dialect, command))
    assert steps >= 4
    tag_lists = [group.tag_list for group in subscriptions]
    assert sorted(tag_lists) == [b"all,t%05d" % n for n in range(NUMBER)]
    assert wire == dialect.reply(command, Subscriptions(tag_lists))
    assert wire.count(b"all") >= NUMBER


@pytest.mark.parametrize("protocol", [LineProtocol, JsonProtocol])
def test_many_tags_are_listed_in_steps_sorted(protocol: Callable[[Limits], Protocol]) -> None:
    broker, _, outbox = subscribed(NUMBER)
    broker.subscribe(outbox, frozenset({"*"}))
    broker.subscribe(outbox, frozenset({".order.*"}))
    steps, wire = run(list_tags(broker, outbox, protocol(Limits()), ListTags()))
    assert steps >= 256
    assert wire is not None
    listed = wire.decode().replace('"', " ").split()
    first = listed.index("*")
    names = ["*", ".order.*", "all", *(f"t{n:05}" for n in range(NUMBER))]
    assert listed[first : first + len(names)] == names


def test_what_other_nodes_have_too_is_listed_once() -> None:
    broker, _, outbox = subscribed(1_999)  # with `all`, as many as are written in a step
    others = OtherTags(["t01998", "u"], 100)
    for each in (others, OtherTags(["t01998"], 100)):
        _, wire = run(list_tags(broker, outbox, LineProtocol(Limits()), ListTags(), each))
        assert wire is not None
        names = ["all", *(f"t{n:05}" for n in range(1_999)), *(["u"] if each is others else [])]
        assert wire.decode() == f"listall {' '.join(names)}\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_few_are_listed_without_a_step(protocol: Callable[[Limits], Protocol]) -> None:
    for number in (0, 1, 100):
        _, subscriptions, outbox = subscribed(number)
        steps, wire = run(
            list_subscriptions(subscriptions, outbox, protocol(Limits()), ListSubscriptions())
        )
        assert steps == 0
        assert wire


def test_a_list_that_does_not_fit_is_not_made() -> None:
    broker, subscriptions, outbox = subscribed(NUMBER, bytes=1_000)
    protocol = LineProtocol(Limits())
    listed = run(list_subscriptions(subscriptions, outbox, protocol, ListSubscriptions()))
    assert listed == (0, None)
    steps, wire = run(list_tags(broker, outbox, protocol, ListTags()))
    assert wire is None
    assert steps < 256
