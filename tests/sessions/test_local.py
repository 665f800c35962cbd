"""Subscribing from inside the process."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mist.auth.opening import open_registry
from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.errors import InvalidTag
from mist.history.opening import open_history
from mist.message import Message
from mist.sessions.hub import Hub
from mist.sessions.local import subscribe
from tests.sessions.storing import sequence


async def make_hub(**options: OutboxLimits) -> Hub:
    return Hub(await open_registry("memory://"), **options)


async def test_a_local_subscriber_gets_what_matches_with_its_data_untouched() -> None:
    hub = await make_hub()
    with subscribe(hub, ["a"]) as messages:
        hub.publish(frozenset("b"), b"not this")
        hub.publish(frozenset("ab"), b"x\\n\n\r\xff\\")
        assert await anext(messages) == Message(frozenset("ab"), b"x\\n\n\r\xff\\")


async def test_with_a_history_messages_have_their_ids() -> None:
    hub = await make_hub()
    async with await open_history("memory://") as history, trio.open_nursery() as nursery:
        hub.sequencer = await sequence(hub.broker, history)
        nursery.start_soon(hub.sequencer.run)
        with subscribe(hub, ["a"]) as messages:
            assert await hub.store(frozenset("ab"), b"one\ntwo") == 1
            assert await hub.store(frozenset("a"), b"three") == 2
            assert await anext(messages) == Message(frozenset("ab"), b"one\ntwo", 1)
            assert await anext(messages) == Message(frozenset("a"), b"three", 2)
        nursery.cancel_scope.cancel()


async def test_it_waits_for_what_has_not_been_published_yet() -> None:
    hub = await make_hub()
    found = []

    async def read() -> None:
        found.append(await anext(messages))

    with subscribe(hub, ["a"]) as messages:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            hub.publish(frozenset("a"), b"later")
    assert [message.data for message in found] == [b"later"]


async def test_after_the_block_nobody_is_subscribed() -> None:
    hub = await make_hub()
    with subscribe(hub, ["a"]):
        assert hub.broker.tags() == {"a"}
    assert hub.broker.tags() == frozenset()


@pytest.mark.parametrize("policy", SlowConsumer)
@pytest.mark.parametrize("together", [False, True])
async def test_a_slow_one_loses_the_newest_and_can_tell_how_many(
    policy: SlowConsumer, together: bool
) -> None:
    hub = await make_hub(outbox_limits=OutboxLimits(messages=2, slow_consumer=policy))
    messages_of = [(frozenset("a"), b"%d" % n) for n in range(5)]
    with subscribe(hub, ["a"]) as messages:
        for some in [messages_of] if together else [[each] for each in messages_of]:
            hub.publish_all(some)
        assert messages.lost == 3
        assert messages.outbox.waiting == 2
        assert [(await anext(messages)).data for _ in range(2)] == [b"0", b"1"]


async def test_bad_tags_are_refused_and_nothing_is_published() -> None:
    hub = await make_hub()
    with pytest.raises(InvalidTag), subscribe(hub, ["a*"]):
        pass
    with pytest.raises(InvalidTag):
        hub.publish(frozenset({"a b"}), b"x")
    assert hub.statistics().broker.published == 0


@given(st.lists(st.binary(max_size=20), max_size=10))
async def test_any_data_comes_back_as_published(data: list[bytes]) -> None:
    hub = await make_hub()
    with subscribe(hub, ["a"]) as messages:
        for each in data:
            hub.publish(frozenset("a"), each)
        assert [(await anext(messages)).data for _ in data] == data
