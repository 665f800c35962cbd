"""The Python API, over a real server's hub."""

from contextlib import AsyncExitStack, contextmanager

import pytest
import trio

from mist.attributes import Attributes
from mist.audience import Audience
from mist.bus import BacklogLimits, Bus
from mist.bus.feed import Feed, Reader
from mist.bus.shown import Window
from mist.commands import Register
from mist.errors import HistoryOff, HistoryUnavailable, InvalidAudience, InvalidTag, NumberUnknown
from mist.history import Erasure, Publication, Selection
from tests.garbage import alive
from tests.history.messages import run
from tests.http.bus.polls import SETTINGS
from tests.servers import running


@pytest.fixture(params=["memory", "sqlite"])
def server_settings(request, tmp_path):
    history = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/history.db"
    return {**SETTINGS, "history": history}


@pytest.fixture
def bus(server):
    return Bus(server.hub)


def ids(messages):
    return [each.message_id for each in messages]


async def test_publish_returns_the_number_in_the_channel(bus):
    assert [await bus.publish("/a", n) for n in range(3)] == [1, 2, 3]
    assert await bus.publish("/b", "x") == 1
    assert (await bus.last_id("/a"), await bus.last_id("/never")) == (3, 0)


@pytest.mark.parametrize(
    "value",
    [
        "text", "", "7", "[draft]", "[1]", '{"a":1}', "ä\r\n|\r\n", {"a": [1, None]}, {}, [], [1.5],
        7, -1.5, True, None,
    ],
)  # fmt: skip
async def test_data_comes_back_as_the_value_it_was(bus, value):
    await bus.publish("/a", value)
    message = await bus.last_message("/a")
    assert message.data == value
    assert type(message.data) is type(value)


async def test_bytes_are_data_as_it_is(bus):
    await bus.publish("/a", b'{"a":1}')
    assert (await bus.last_message("/a")).data == {"a": 1}


async def test_what_is_stored_is_what_others_would_expect(server, bus):
    for value in ("text", {"a": 1}, 7, "[1]"):
        await bus.publish("/a", value)
    page = await server.hub.sequencer.history.read(Selection([frozenset({"/a"})]))
    assert [each.data for each in page.messages()] == [b"text", b'{"a":1}', b"7", b"[1]"]


async def test_what_was_published_is_no_failure_where_its_number_cannot_be_read(
    server, bus, monkeypatch
):
    async def fails(*args, **options):
        raise HistoryUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(server.hub.sequencer.history, "read", fails)
        with pytest.raises(NumberUnknown, match="message 1 was published") as caught:
            await bus.publish("/a", "x")
    assert (caught.value.id, ids(await bus.backlog("/a"))) == (1, [1])


async def test_backlog_is_what_lies_behind_a_number(bus):
    for number in range(5):
        await bus.publish("/a", number)
        await bus.publish("/b", number)
    assert ids(await bus.backlog("/a")) == [1, 2, 3, 4, 5]
    found = await bus.backlog("/b", 3)
    assert [(each.message_id, each.global_id, each.data) for each in found] == [
        (4, 8, 3),
        (5, 10, 4),
    ]
    assert await bus.backlog("/b", 5) == []
    assert await bus.backlog("/b", 99) == []


async def test_global_backlog_is_of_all_channels(server, bus):
    await bus.publish("/a", 1)
    await server.hub.store(frozenset({"x"}), b"no channel")
    await server.hub.store(frozenset({"/a", "/b/c", "x"}), b"both")
    await bus.publish("/b", 2)
    found = await bus.global_backlog()
    assert [(each.global_id, each.channel, each.message_id) for each in found] == [
        (1, "/a", 1),
        (3, "/a", 2),
        (3, "/b/c", 1),
        (4, "/b", 1),
    ]
    assert [each.channel for each in await bus.global_backlog(3)] == ["/b"]
    assert await bus.global_backlog(99) == []


async def test_last_message_may_be_gone(server, bus):
    assert await bus.last_message("/a") is None
    await bus.publish("/a", 1)
    await server.hub.sequencer.history.erase(Erasure(frozenset({"/a"})))
    assert await bus.last_message("/a") is None
    assert await bus.publish("/a", 2) == 2
    assert (await bus.last_message("/a")).data == 2


# targeted delivery


async def test_those_inside_are_told_everything(bus):
    await bus.publish("/a", 1, user_ids=[1, "2"], group_ids=[3], client_ids=["c"], site_id=9)
    (message,) = await bus.backlog("/a")
    assert message.audience == Audience.of(["c"], ["1", "2"], ["3"], None, {"site": "9"})
    async with bus.subscribe("/a") as messages:
        await bus.publish("/a", 2, user_ids=[1])
        assert (await anext(messages)).data == 2


async def test_an_audience_that_can_not_be_read_is_nobody(server, bus):
    history = server.hub.sequencer.history
    await history.append([Publication.of_runs([run("/a", "x")], 1000.0, audience="?")])
    reader = Reader(lambda: ("/a",), lambda: Attributes(user="1"))
    limits = BacklogLimits(age=float("inf"))
    feed = Feed(server.hub.sequencer, {"/a": 0}, reader, limits, Window(history, 10))
    await feed.begin()
    while await feed.read():
        pass
    assert feed.take() == ([], {"/a": 1})


async def test_a_status_is_not_behind_the_messages_that_come_before_it(server, bus):
    """Else its client would be back before them, and be told of them once more."""
    reader = Reader(lambda: ("/a",), lambda: Attributes(user="1"))
    sequencer = server.hub.sequencer
    window = Window(sequencer.history, 10)
    feed = Feed(sequencer, {"/a": -1}, reader, BacklogLimits(), window)
    await feed.begin()
    await bus.publish("/a", "one")
    while await feed.read():
        pass
    messages, status = feed.take()
    assert [each.message_id for each in messages] == [1]
    assert status == {"/a": 1}


async def test_a_site_means_nothing_in_a_global_channel(bus):
    await bus.publish("/global/a", 1, site_id="s")
    assert (await bus.last_message("/global/a")).audience is None


@pytest.mark.parametrize("names", ["user_ids", "group_ids", "client_ids"])
async def test_an_empty_list_is_an_error_and_nothing_is_published(bus, names):
    with pytest.raises(InvalidAudience):
        await bus.publish("/a", 1, **{names: []})
    assert await bus.last_id("/a") == 0


# what is refused


@pytest.mark.parametrize("channel", ["a", "=/a", "/a b", "/a/*", "../a"])
async def test_what_can_not_be_a_channel_is_refused(bus, channel):
    with pytest.raises(InvalidTag):
        await bus.publish(channel, 1)
    with pytest.raises(InvalidTag):
        await bus.backlog(channel)
    with pytest.raises(InvalidTag):
        async with bus.subscribe(channel):
            pass


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "5", 10**12])
@pytest.mark.parametrize("name", ["max_backlog_age", "max_backlog_size"])
async def test_bounds_are_positive_integers(bus, name, value):
    with pytest.raises(ValueError, match="positive"):
        await bus.publish("/a", 1, **{name: value})
    assert await bus.last_id("/a") == 0


async def test_what_json_can_not_say_is_refused(bus):
    with pytest.raises(TypeError):
        await bus.publish("/a", object())
    with pytest.raises(ValueError, match="surrogates"):
        await bus.publish("/a", "\ud800")


async def test_without_a_history_there_are_no_channels(tmp_path):
    async with running(tmp_path, **{**SETTINGS, "history": "none"}) as server:
        bus = Bus(server.hub)
        bus.register_client_message_filter("/a", lambda message: True)
        for attempt in (
            bus.publish("/a", 1), bus.backlog("/a"), bus.last_id("/a"), bus.global_backlog()
        ):  # fmt: skip
            with pytest.raises(HistoryOff):
                await attempt


# subscribing


async def test_subscriber_gets_what_was_and_what_comes(server, bus):
    for number in range(3):
        await bus.publish("/a", number)
    async with bus.subscribe("/a", 1) as messages:
        await bus.publish("/a/below", "no")
        await bus.publish("/a", 3)
        assert [(await anext(messages)).data for _ in range(3)] == [1, 2, 3]
        await bus.publish("/a", 4)
        assert (await anext(messages)).message_id == 5
    assert server.hub.broker.tag_sets() == 0


async def test_subscriber_begins_now_or_with_the_last(bus):
    for number in range(3):
        await bus.publish("/a", number)
    async with bus.subscribe("/a") as new, bus.subscribe("/a", -3) as last:
        await bus.publish("/a", "new")
        assert (await anext(new)).data == "new"
        assert [(await anext(last)).data for _ in range(3)] == [1, 2, "new"]


async def test_cancellation_loses_no_message(bus):
    for number in range(100):
        await bus.publish("/a", number)
    found = []
    async with bus.subscribe("/a", 0) as messages:
        # Cut off at each of its steps, one after the other.
        for steps in range(1000):
            with trio.CancelScope() as scope, pending(steps, scope):
                found.append((await anext(messages)).data)
            if len(found) == 100:
                break
    assert found == list(range(100))


@contextmanager
def pending(steps, scope):
    """Cancel a scope after so many switches of its task."""

    class Counted(trio.abc.Instrument):
        left = steps % 12

        def before_task_step(self, task):
            self.left -= task is mine
            if not self.left:
                scope.cancel()

    mine = trio.lowlevel.current_task()
    instrument = Counted()
    trio.lowlevel.add_instrument(instrument)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(instrument)


async def test_thousand_messages_come_once_and_in_order(bus, nursery):
    async def publish():
        for number in range(1000):
            await bus.publish("/a", number)

    async with bus.subscribe("/a") as messages:
        nursery.start_soon(publish)
        assert [(await anext(messages)).data for _ in range(1000)] == list(range(1000))


# how much is shown


async def test_limits_hold_together(server):
    bus = Bus(server.hub, BacklogLimits(size=4, total=6))
    for number in range(5):
        await bus.publish("/a", number)
        await bus.publish("/b", number)
    assert ids(await bus.backlog("/a")) == [3, 4, 5]  # the last six of all
    assert [(each.channel, each.message_id) for each in await bus.global_backlog()] == [
        ("/a", 3), ("/b", 3), ("/a", 4), ("/b", 4), ("/a", 5), ("/b", 5)
    ]  # fmt: skip
    for _ in range(4):
        await bus.publish("/b", "x")
    assert ids(await bus.backlog("/b")) == [6, 7, 8, 9]
    assert ids(await bus.backlog("/a")) == [5]
    # The log keeps them all the same.
    assert (await server.hub.sequencer.history.statistics()).messages == 14


async def test_what_a_publication_says_holds_beside_the_limits(server):
    bus = Bus(server.hub, BacklogLimits(size=4))
    for number in range(9):
        await bus.publish("/a", number, max_backlog_size=100 if number < 8 else 2)
    assert ids(await bus.backlog("/a")) == [8, 9]
    for number in range(4):
        await bus.publish("/a", number, max_backlog_size=100)
    assert ids(await bus.backlog("/a")) == [10, 11, 12, 13]


async def test_channel_is_shown_for_as_long_as_its_last_message_says(server, bus):
    await bus.publish("/short", 1, max_backlog_age=60)
    await bus.publish("/long", 1, max_backlog_age=10**6)
    await bus.publish("/usual", 1)
    start = (await bus.last_message("/short")).time
    shown = {59: "short long usual", 62: "long usual", 998: "long usual", 1002: ""}
    for later, expected in shown.items():
        bus = Bus(server.hub, BacklogLimits(age=1000.0), lambda later=later: start + later)
        assert {each.channel[1:] for each in await bus.global_backlog()} == set(expected.split())
        found = [name for name in ("short", "long", "usual") if await bus.backlog(f"/{name}")]
        assert found == expected.split()


async def test_the_last_of_all_channels_are_found_once_for_each_newest(server, bus):
    for number in range(10):
        await bus.publish(f"/{number % 3}", number)
    history = server.hub.sequencer.history
    looked = []
    real = history.last

    async def last(*about, **options):
        looked.append(options["upto"])
        return await real(*about, **options)

    history.last = last
    window = Window(history, 4)
    assert [await window.after(10, 0) for _ in range(3)] == [6, 6, 6]
    assert await window.after(10, 7) == 0  # there are no more than three behind it
    assert looked == [10]


async def test_what_comes_is_read_once_for_all_who_wait(server, bus):
    history = server.hub.sequencer.history
    reads = []
    real = history.read

    async def read(selection=None, **options):
        if options["upto"] - options["after"] > 1 or selection.alternatives == {frozenset({"../"})}:
            reads.append((options["after"], options["upto"]))
        return await real(selection, **options)

    async with AsyncExitStack() as stack:
        all_messages = [await stack.enter_async_context(bus.subscribe("/a")) for _ in range(20)]
        others = await stack.enter_async_context(bus.subscribe("/b"))
        history.read = read
        for number in range(1, 4):
            assert await bus.publish("/a", number) == number
            for messages in all_messages:
                assert (await anext(messages)).data == number
        assert reads == [(0, 1), (1, 2), (2, 3)]
        await bus.publish("/b", "other")
        assert (await anext(others)).data == "other"


async def test_no_selection_stays_for_as_long_as_the_server(server, bus):
    """Each would remember all tag lists that it has seen, up to some megabytes of them."""
    before = alive(Selection)
    window = Window(server.hub.sequencer.history, 4)
    for number in range(1, 10):
        await bus.publish(f"/{number}", number)
        assert await window.recent(number - 1, number) is not None
    assert await window.after(9, 0) == 5
    assert alive(Selection) == before


async def test_no_selection_stays_with_a_subscriber_that_waits(bus):
    before = alive(Selection)
    for number in range(1, 10):
        await bus.publish("/a", number)
    async with bus.subscribe("/a", 0) as messages:
        assert [(await anext(messages)).data for _ in range(9)] == list(range(1, 10))
        assert alive(Selection) == before


async def test_what_can_not_be_shared_is_read_by_each(server, bus, monkeypatch):
    monkeypatch.setattr("mist.bus.shown._PAGE_BYTES", 1)
    async with bus.subscribe("/a") as one, bus.subscribe("/a") as other:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(bus.publish, "/a", number)
        for messages in (one, other):
            found = [await anext(messages) for _ in range(50)]
            assert ids(found) == list(range(1, 51))


async def test_backlogs_are_read_two_at_a_time_and_what_comes_waits_for_none(server, bus, nursery):
    for number in range(5):
        await bus.publish("/a", number)
    history = server.hub.sequencer.history
    underway, release, most = [0], trio.Event(), []
    real = history.channel_after

    async def slow(*about):
        underway[0] += 1
        most.append(underway[0])
        await release.wait()
        underway[0] -= 1
        return await real(*about)

    async def read(found):
        found.append(len(await bus.backlog("/a")))

    found = []
    history.channel_after = slow
    async with bus.subscribe("/a") as messages, trio.open_nursery() as readers:
        for _ in range(10):
            readers.start_soon(read, found)
        await bus.publish("/a", "new")
        assert (await anext(messages)).data == "new"
        release.set()
    assert len(found) == 10
    assert set(found) <= {5, 6}  # it was published meanwhile
    assert max(most) == 2


# filters


async def test_filters_are_of_the_hub_and_not_for_those_inside(server, bus):
    await server.hub.registry.execute([Register("t", frozenset({"/a"}))])
    bus.register_client_message_filter("/a", lambda message: False)
    await Bus(server.hub).publish("/a", 1)
    assert ids(await Bus(server.hub).backlog("/a")) == [1]
    assert server.hub.client_filters.concerns("/a/b")
    assert not server.hub.client_filters.admit(await bus.last_message("/a"))
