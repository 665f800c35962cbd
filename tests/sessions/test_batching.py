"""What a program passes is checked in its own call, and nothing of it is published."""

from typing import Any

import pytest
import trio

from mist.audience import Audience
from mist.auth.opening import open_registry
from mist.broker.broker import Broker
from mist.errors import CommandError
from mist.message import Envelope
from mist.sessions.batching import Checked
from mist.sessions.hub import Hub
from tests.sessions.storing import join, take

A = frozenset("a")
TWO = [(A, b"1"), (A, b"2")]


MISUSE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"messages": []}, ValueError, "no message"),
    ({"messages": TWO, "envelopes": [None]}, ValueError, "1 envelopes for 2 messages"),
    ({"messages": TWO, "envelopes": [None] * 3}, ValueError, "3 envelopes for 2 messages"),
    ({"messages": [("ab", b"1")]}, TypeError, "tags must be a set"),
    ({"messages": [(b"ab", b"1")]}, TypeError, "tags must be a set"),
    ({"messages": [({1}, b"1")]}, TypeError, "each tag must be str"),
    ({"messages": [(A, b"1"), (A, "2")]}, TypeError, "data must be bytes, not str"),
    ({"messages": [(A, None)]}, TypeError, "data must be bytes"),
    ({"messages": TWO, "publisher": None}, TypeError, "publisher must be str"),
    ({"messages": TWO, "envelopes": [None, "x"]}, TypeError, "must be Envelope or None, not str"),
    ({"messages": TWO, "envelopes": [None, Envelope(meta={"a": 1})]}, TypeError, "meta"),
    ({"messages": TWO, "envelopes": [None, Envelope(audience="a")]}, TypeError, "audience"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), MISUSE, ids=range(len(MISUSE)))
async def test_misuse_raises_in_the_caller_and_publishes_nothing(
    hub: Hub, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    for each in (hub, Hub(await open_registry("memory://"))):
        subscriber = join(each, "a")
        with pytest.raises(error, match=text):
            each.publish_all(**arguments)
        each.publish(A, b"3")
        if each.sequencer is not None:
            with pytest.raises(error, match=text):
                await each.store_all(**arguments)
            with trio.fail_after(5):
                assert await each.store(A, b"4") == 2
        assert take(subscriber).startswith(b"publish a 3\n")


async def test_a_key_is_a_key(hub: Hub) -> None:
    with pytest.raises(TypeError, match="key"):
        await hub.store_all(TWO, key="k")  # type: ignore[arg-type]
    assert await hub.store(A, b"1") == 1


async def test_neighbours_with_one_envelope_are_one_batch(hub: Hub) -> None:
    for_me = Envelope(audience=Audience.of(users=["me"]), meta={"a": b"1"})
    subscriber = join(hub, "a")
    messages = [(A, b"%d" % n) for n in range(4)]
    assert await hub.store_all(messages, envelopes=[None, None, for_me, None]) == 1
    assert take(subscriber) == b"publish a 0\npublish a 1\npublish a 3\n"


@pytest.mark.parametrize("envelopes", [[], [None, None, None]])
def test_without_envelopes_all_messages_are_one_batch(envelopes: list[None]) -> None:
    with Checked(Broker()) as checked:
        for _ in checked.check_lists([(b"b,a", b"1"), (b"a", b"2\n"), (b"a,b", b"3")]):
            pass
        [whole] = checked.batches(envelopes)
        assert not whole.batch.framable
        assert checked.broker.publish(whole.batch) == 3


@pytest.mark.parametrize(
    "tag_list", [b"", b"a b", b"a,", b",", b"a\nb", b"a\n", b"\n", b"a\r", b"\xff", b"*"]
)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("data", [b"1", b"1\n"])
def test_a_tag_list_that_breaks_the_rules_is_told_of(
    tag_list: bytes, place: int, data: bytes
) -> None:
    messages = [(b"a", data), (b"b", b"2"), (b"a,b", b"3")]
    messages[place] = tag_list, data
    with Checked(Broker()) as checked, pytest.raises(CommandError):
        for _ in checked.check_lists(messages):
            pass


async def test_tags_may_come_in_any_collection(hub: Hub) -> None:
    subscriber = join(hub, "a,b")
    hub.publish(["b", "a"], b"1")  # type: ignore[arg-type]
    await hub.store(iter("ab"), b"2")  # type: ignore[arg-type]
    assert take(subscriber) == b"publish a,b 1\npublish a,b 2\n"


def test_very_many_messages_are_let_go_of_in_steps() -> None:
    with Checked(Broker()) as checked:
        for _ in checked.check([(A, b"x")] * 1_000):
            pass
        left = [len(checked.tag_lists) for _ in checked.let_go()]
    assert left == [800, 600, 400, 200, 0]
