"""Feeds: what a reader gets, against a plain definition, however it asks."""

from unittest import mock

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.attributes import Attributes
from mist.broker.broker import Broker
from mist.bus import feed as module
from mist.bus.feed import Feed, Reader
from mist.bus.shown import BacklogLimits, Window
from mist.history import Erasure, Publication
from mist.history.opening import open_history
from mist.sessions.sequencer import Sequencer
from tests.history.messages import run

CHANNELS = ("/a", "/b", "/c", "/d")
USER = "1"


@attrs.define
class Told:
    """A message of the model."""

    id: int
    numbers: dict[str, int]
    for_us: bool
    gone: bool = False


tag_sets = st.frozensets(st.sampled_from([*CHANNELS, "x"]), min_size=1, max_size=3)
published = st.lists(
    st.tuples(tag_sets, st.integers(1, 3), st.sampled_from([None, "users=1", "users=2"])),
    min_size=1,
    max_size=4,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), published),
        st.tuples(st.just("append"), published),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("erase"), tag_sets),
    ),
    max_size=12,
)


async def append(history, model, lasts, found):
    publications = []
    for tags, count, audience in found:
        for _ in range(count):
            numbers = {}
            for channel in sorted(tags & lasts.keys()):
                lasts[channel] += 1
                numbers[channel] = lasts[channel]
            model.append(Told(len(model) + 1, numbers, audience != "users=2"))
        entry = run(",".join(tags), *["data"] * count)
        publications.append(Publication.of_runs([entry], 1000.0, audience=audience))
    await history.append(publications)


class Client:
    """One that keeps its places as message-bus.js does.

    Attributes:
        got: channel to the numbers told, in order.
    """

    def __init__(self, places):
        self.places = dict(places)
        self.got = {channel: [] for channel in places}
        self.ids = []

    def take(self, messages, status):
        for each in messages:
            self.got[each.channel].append(each.message_id)
            self.ids.append(each.global_id)
            self.places[each.channel] = each.message_id
        self.places |= status


async def poll(client, make_feed, *, chunked, meanwhile=None):
    """One poll that doesn't wait; whether something was told.

    Args:
        meanwhile: done when it knows where the channels stand, and has read nothing yet.
    """
    feed = make_feed(client.places)
    await feed.begin()
    if meanwhile is not None:
        await meanwhile()
    told = False
    more = True
    while more:
        more = await feed.read()
        assert len(feed.messages) <= 3 + 3  # not full, and one in as many channels as a message has
        if chunked:
            told = told or feed.has_news
            client.take(*feed.take())
        elif feed.full or (feed.has_news and not more):
            break
    told = told or feed.has_news
    client.take(*feed.take(final=True))
    return told


async def scenario(plan, then, places, limits, chunked, during):
    async with await open_history("memory://") as history:
        model, lasts = [], dict.fromkeys(CHANNELS, 0)
        for step, argument in plan:
            if step == "append":
                await append(history, model, lasts, argument)
            elif step == "erase":
                await history.erase(Erasure(argument))
            else:
                await history.compact()
        kept = {message.id for message in (await history.read()).messages()}
        for each in model:
            each.gone = each.id not in kept
        before, newest = dict(lasts), len(model)
        sequencer = await Sequencer.over(Broker(), history)
        window = Window(history, limits.total)
        reader = Reader(lambda: CHANNELS, lambda: Attributes(user=USER))

        def make_feed(asked):
            return Feed(sequencer, asked, reader, limits, window, lambda: 1000.0)

        async def go_on():
            await append(history, model, lasts, then)
            sequencer.delivery.newest = len(model)

        client = Client(places)
        during = during and then
        await poll(client, make_feed, chunked=chunked, meanwhile=go_on if during else None)
        if then and not during:  # goes on while the client is at it
            await go_on()
        polls = 0
        while await poll(client, make_feed, chunked=chunked):
            polls += 1
            assert polls < 200

        # By the plain definition.
        in_channels = [each.id for each in model[:newest] if each.numbers and not each.gone]
        shown_from = (
            ([0, *in_channels])[-limits.total - 1] if len(in_channels) > limits.total else 0
        )
        for channel, place in places.items():
            last = before[channel]
            start = last if place == -1 or place > last else place
            start = max(last + place + 1, 0) if place < -1 else start
            floor = max(start, last - limits.size)
            expected = [
                each.numbers[channel]
                for each in model
                if channel in each.numbers and each.for_us and not each.gone
                and each.numbers[channel] > floor
                and (each.id > shown_from or each.id > newest)
            ]  # fmt: skip
            got = client.got[channel]
            assert got == sorted(set(got))
            assert set(got) <= set(expected)
            pushed_out = then and limits != BacklogLimits()  # by what was published later
            # To "the last k" of nothing that is all, until there is something.
            began_anew = then and place < -1 and not last
            if not pushed_out and not began_anew:
                assert got == expected, channel
            assert client.places[channel] == lasts[channel] or not lasts[channel]


@given(
    steps,
    published | st.just([]),
    st.dictionaries(st.sampled_from(CHANNELS), st.integers(-6, 12), min_size=1),
    st.sampled_from(
        [BacklogLimits(), BacklogLimits(size=4), BacklogLimits(total=5), BacklogLimits(3, 7)]
    ),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_reader_is_told_each_once_in_order_and_nothing_else(
    plan, then, places, limits, chunked, during
):
    with (
        mock.patch.object(module, "_MOST", 4),
        mock.patch.object(module, "_TOGETHER", 2),
        mock.patch.object(module, "_NEAR", 2),
    ):
        trio.run(scenario, plan, then, places, limits, chunked, during)
