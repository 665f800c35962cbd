"""The client against a server with a history: nothing missing, nothing twice, in order."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed

import mist.client
from mist.client import (
    Client,
    Gap,
    HistoryOff,
    HistoryUnavailable,
    MessagesLost,
    Position,
    RegistryUnavailable,
    RemoteError,
    Revoked,
    State,
    Subscription,
    TooManyRequests,
    Unframable,
    sync,
)
from mist.errors import CommandError, InvalidPosition, InvalidTag
from mist.errors import HistoryUnavailable as Unavailable
from mist.errors import RegistryUnavailable as NoRegistry
from mist.errors import TooManyRequests as Limited
from mist.history import Policy
from mist.server import Server
from mist.sessions.receiving import CommandSession
from tests.client.fakes import Fake
from tests.client.loops import connect, next_of, trio_only
from tests.client.test_client import Proxy, States
from tests.servers import running
from tests.waiting import until

DIALECTS = ["tcp", "ws"]
STARTED = '{"success":true,"command":"subscribe","epoch":"E","id":5,"recovered":true}'


class Place:
    """A server, a proxy before each of its endpoints, and a client that publishes directly."""

    def __init__(self, server: Server, proxies: dict[str, Proxy], publisher: Client) -> None:
        self.server = server
        self.proxies = proxies
        self.publisher = publisher

    def connect(self, dialect: str, **options: object):
        options.setdefault("backoff_base", 0.001)
        options.setdefault("backoff_cap", 0.02)
        if dialect == "ws":
            options["token"] = "T"
        return connect(self.url(dialect), **options)  # type: ignore[arg-type]

    def url(self, dialect: str) -> str:
        return self.proxies[dialect].url.replace("tcp", dialect)

    async def publish(self, *texts: str, tags: str = "a") -> list[int]:
        return [await self.publisher.store(tags.split(","), text) for text in texts]

    async def fill(self, count: int = 3_000, tags: str = "a", size: int = 1_000) -> None:
        """Publish messages that begin with their numbers; under trio, since what publishes them is
        not what is tested."""
        async with mist.client.connect(self.server.urls[0]) as publisher:
            for n in range(count):
                await publisher.publish(tags.split(","), f"{n} " + "x" * size)
            await publisher.flush()


@contextlib.asynccontextmanager
async def place_at(path: Path, history: str = "memory://") -> AsyncIterator[Place]:
    async with (
        running(path, history=history) as server,
        connect(server.urls[0]) as publisher,
        trio.open_nursery() as nursery,
    ):
        await publisher.register(["*"], "T")
        proxies = {
            dialect: await nursery.start(Proxy(url.replace("ws", "tcp")).run)
            for dialect, url in zip(DIALECTS, server.urls, strict=True)
        }
        yield Place(server, proxies, publisher)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    with trio.fail_after(30):
        async with place_at(tmp_path) as place:
            yield place


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


async def take(subscription: Subscription, count: int) -> list[str]:
    return [message.text for message in await next_of(subscription, count)]


async def take_numbers(subscription: Subscription, count: int) -> list[int]:
    """Of messages that `Place.fill` published."""
    return [int(text.split()[0]) for text in await take(subscription, count)]


# storing, ids, since


async def test_store_returns_the_id_that_subscribers_see(place: Place, dialect: str) -> None:
    async with place.connect(dialect) as client, client.subscribe(["a"]) as subscription:
        await place.publisher.publish(["a"], "published")
        id_ = await place.publisher.store(["a", "b"], "x\\y ")
        first, second = await anext(subscription), await anext(subscription)
        assert (first.text, first.id) == ("published", id_ - 1)
        assert (second.data, second.id, second.tags) == (b"x\\y ", id_, {"a", "b"})
        assert (await place.publisher.last()).id == id_


async def test_what_cannot_be_stored_is_refused(place: Place) -> None:
    client = place.publisher
    with pytest.raises(InvalidTag):
        await client.store(["a b"], "x")
    with pytest.raises(Unframable):
        await client.store(["a"], "x\ny")
    async with place.connect("ws") as browser:
        with pytest.raises(RemoteError, match="not allowed"):  # the token grants no publishing
            await browser.store(["a"], "x")


async def test_a_history_that_cannot_be_written_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.server.hub.sequencer is not None

    async def fail(*args: object) -> int:
        raise Unavailable("full")

    with monkeypatch.context() as patch:
        patch.setattr(place.server.hub.sequencer.history, "append", fail)
        with pytest.raises(HistoryUnavailable):
            await place.publisher.store(["a"], "x")
    assert await place.publisher.store(["a"], "x") >= 1


async def test_many_stores_get_their_own_ids(place: Place) -> None:
    found: dict[int, str] = {}

    async def store(text: str) -> None:
        found[await place.publisher.store(["a"], text)] = text

    async with trio.open_nursery() as nursery:
        for n in range(100):
            nursery.start_soon(store, str(n))
    async with place.connect("tcp") as client, client.subscribe(["a"], since=0) as subscription:
        got = [await anext(subscription) for _ in range(100)]
    assert {message.id: message.text for message in got} == found


@pytest.mark.parametrize(
    ("since", "expected"),
    [(0, "135"), (1, "35"), (5, ""), (-1, "5"), (-2, "35"), (-9, "135"), ("epoch", "5")],
)
async def test_since_brings_what_was_and_then_what_comes(
    place: Place, dialect: str, since: object, expected: str
) -> None:
    for n in range(1, 6):
        await place.publish(str(n), tags="a" if n % 2 else "b")
    epoch = (await place.publisher.last()).epoch
    forms = [(epoch, 4), Position(epoch, 4)] if since == "epoch" else [since]
    async with place.connect(dialect) as client, client.subscribe(["a"]) as live:
        for n, form in enumerate(forms, 1):
            async with client.subscribe(["a"], since=form) as subscription:  # type: ignore[arg-type]
                await place.publish("6")
                assert await take(subscription, len(expected) + n) == [*expected, *"6" * n]
                await client.ping()
                assert subscription.take() == []
            assert await client.list() == (frozenset("a"),)
        assert await take(live, len(forms)) == ["6"] * len(forms)


async def test_a_place_that_is_none_is_refused(place: Place) -> None:
    for since in (True, "5", ("e", -1), 1 << 60, ("", 1)):
        with pytest.raises(InvalidPosition):
            async with place.publisher.subscribe(["a"], since=since):  # type: ignore[arg-type]
                pass


async def test_a_place_on_another_log_is_told_as_a_gap(place: Place, dialect: str) -> None:
    await place.publish("1", "2")
    gaps: list[Gap] = []
    async with place.connect(dialect) as client:
        async with client.subscribe(["a"], since=("other", 1), on_gap=gaps.append) as found:
            assert await take(found, 2) == ["1", "2"]
        async with client.subscribe(["a"], since=-5, on_gap=gaps.append) as found:
            assert await take(found, 2) == ["1", "2"]
    assert gaps == [Gap(forgotten=True)]


@trio_only
async def test_a_long_replay_loses_nothing_of_a_reader_that_is_slow(
    place: Place, dialect: str
) -> None:
    for n in range(20_000):
        await place.publisher.publish(["a"], str(n))
    await place.publisher.flush()
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a"], since=0) as subscription,
    ):
        for n in range(20_000):
            assert (await anext(subscription)).text == str(n)
            if n % 100 == 0:
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert subscription.lost == 0


# positions


async def test_a_subscription_tells_where_its_reader_is(place: Place, dialect: str) -> None:
    await place.publish("1", "2")
    epoch = (await place.publisher.last()).epoch
    async with place.connect(dialect) as client:
        async with client.subscribe(["a"], since=0) as old, client.subscribe(["a"]) as live:
            await client.ping()
            assert live.position == Position(epoch, 2)
            assert old.position != Position(epoch, 2)  # nothing of it was taken
            assert await take(old, 1) == ["1"]
            assert old.position == Position(epoch, 1)
            await place.publish("3", "4", "5")
            assert await take(live, 1) == ["3"]
            assert live.position == Position(epoch, 3)
            assert await take(old, 4) == ["2", "3", "4", "5"]
            assert old.position == Position(epoch, 5)
        async with client.subscribe(["a"], since=live.position) as again:
            assert await take(again, 2) == ["4", "5"]


async def test_a_position_names_the_log_that_a_message_was_in(tmp_path: Path, dialect: str) -> None:
    with trio.fail_after(30):
        async with place_at(tmp_path / "1") as one, place_at(tmp_path / "2") as other:
            async with one.connect(dialect) as client, client.subscribe(["a"]) as messages:
                await one.publish("1", "2", "3")
                await client.ping()
                epochs = [(await each.publisher.last()).epoch for each in (one, other)]
                assert await take(messages, 1) == ["1"]
                await other.publish("4", "5")
                url = dict(zip(DIALECTS, other.server.urls, strict=True))[dialect]
                one.proxies[dialect].lead_to(url.replace("ws", "tcp"))
                await one.proxies[dialect].cut()
                for text, position in (
                    ("2", Position(epochs[0], 2)),
                    ("3", Position(epochs[0], 3)),
                    ("4", Position(epochs[1], 1)),
                    ("5", Position(epochs[1], 2)),
                ):
                    assert await take(messages, 1) == [text]
                    assert messages.position == position


async def test_without_a_history_there_is_no_position(tmp_path: Path, dialect: str) -> None:
    with trio.fail_after(30):
        async with place_at(tmp_path, history="none") as place:
            async with place.connect(dialect) as client, client.subscribe(["a"]) as messages:
                await place.publisher.publish(["a"], "1")
                assert await take(messages, 1) == ["1"]
                assert messages.position is None


# lost connections


async def test_a_lost_connection_goes_on_where_it_was(place: Place, dialect: str) -> None:
    gaps: list[Gap] = []
    states = States()
    async with (
        place.connect(dialect, on_state=states) as client,
        client.subscribe(["a"], on_gap=gaps.append) as one,
        client.subscribe(["b"], on_gap=gaps.append) as idle,
        client.subscribe(["c"], on_gap=gaps.append) as fresh,
    ):
        await place.publish("1", "2")
        await place.publish("b1", tags="b")
        assert await take(one, 2) == ["1", "2"]
        assert await take(idle, 1) == ["b1"]
        proxy = place.proxies[dialect]
        proxy.refusing = True
        await proxy.cut()
        await states.wait(State.RECONNECTING)
        await place.publish("3", "both", tags="a,b")
        await place.publish("c1", tags="c")
        proxy.refusing = False
        await place.publish("4")
        assert await take(one, 3) == ["3", "both", "4"]
        assert await take(idle, 2) == ["3", "both"]
        assert await take(fresh, 1) == ["c1"]
        await client.ping()
        assert [each.take() for each in (one, idle, fresh)] == [[], [], []]
        assert [each.reconnects for each in (one, idle, fresh)] == [1, 1, 1]
        assert set(await client.list()) == {frozenset("a"), frozenset("b"), frozenset("c")}
    assert gaps == []


@pytest.mark.parametrize("seed", range(3))
@trio_only
async def test_every_message_comes_once_through_twenty_cuts_under_load(
    place: Place, dialect: str, seed: int
) -> None:
    random = Random(seed)
    expected: dict[str, list[int]] = {"a": [], "b": [], "a,b": []}
    found: dict[str, list[int | None]] = {name: [] for name in expected}
    old: list[int | None] = []
    gaps: list[Gap] = []
    done = trio.Event()
    published: list[int] = []

    async def load() -> None:
        while not done.is_set():
            for _ in range(random.randint(1, 40)):
                tags = random.choice(["a", "b", "a,b", "c"])
                text = "x" * random.choice([5, 200, 5_000])
                await place.publisher.publish(tags.split(","), text)
                published.append(len(published) + 1)
                for name, ids in expected.items():
                    if set(name.split(",")) <= set(tags.split(",")):
                        ids.append(published[-1])
            await trio.sleep(random.random() * 0.02)
        await place.publisher.flush()

    async def read(subscription: Subscription, into: list[int | None]) -> None:
        before = 0
        async for message in subscription:
            into.append(message.id)
            assert message.id is not None
            assert subscription.position is not None
            assert before < message.id <= subscription.position.id
            before = subscription.position.id
            if random.random() < 0.01:
                await trio.sleep(0.001)

    async def cut() -> None:
        proxy = place.proxies[dialect]
        for _ in range(20):
            if random.random() < 0.8:  # else perhaps while it is being made again
                for _ in range(2_000):
                    if client.state is State.CONNECTED:
                        break
                    await trio.sleep(0.001)
            await trio.sleep(random.random() * 0.04)
            proxy.refusing = random.random() < 0.3
            await proxy.cut()
            if proxy.refusing:
                await trio.sleep(random.random() * 0.02)
                proxy.refusing = False
        done.set()

    async with place.connect(dialect) as client, contextlib.AsyncExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for name in expected:
                subscription = await stack.enter_async_context(
                    client.subscribe(name.split(","), on_gap=gaps.append, queue=100_000)
                )
                nursery.start_soon(read, subscription, found[name])
            nursery.start_soon(load)
            nursery.start_soon(cut)
            await until(lambda: len(published) >= 500)
            subscription = await stack.enter_async_context(
                client.subscribe(["b"], on_gap=gaps.append, queue=100_000, since=0)
            )
            nursery.start_soon(read, subscription, old)
            await done.wait()
            await place.publisher.flush()
            last = {name: ids[-1] for name, ids in expected.items()}
            await until(lambda: all(found[name][-1:] == [last[name]] for name in last))
            await until(lambda: old[-1:] == [last["b"]])
            nursery.cancel_scope.cancel()
    assert place.proxies[dialect].connections > 3
    assert found == expected
    assert old == expected["b"]
    assert gaps == []


async def test_the_old_messages_asked_for_go_on_after_a_cut_too(place: Place, dialect: str) -> None:
    await place.fill()
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a", "b"]) as live,
        client.subscribe(["a"], since=0, queue=100_000) as old,
        client.subscribe(["a"], since=-2_000, queue=100_000) as newer,
    ):
        got = await take_numbers(old, 10)
        await place.proxies[dialect].cut()
        await place.publish("3000", tags="a,b")
        got += await take_numbers(old, 2_991)
        assert got == list(range(3_001))
        rest = await take_numbers(newer, 1_999)
        while rest[-1] != 3_000:
            rest += await take_numbers(newer, 1)
        assert rest == list(range(3_001 - len(rest), 3_001))
        assert await take(live, 1) == ["3000"]


# gaps


async def test_a_log_that_was_replaced_is_one_gap(tmp_path: Path, dialect: str) -> None:
    states = States()
    told: list[Gap] = []
    with trio.fail_after(20):
        async with place_at(tmp_path / "1") as first, place_at(tmp_path / "2") as second:
            proxy, onward = first.proxies[dialect], second.proxies[dialect]
            await first.publish("1", "2", "3")
            async with (
                first.connect(dialect, on_state=states) as client,
                client.subscribe(["a"], on_gap=told.append) as subscription,
                client.subscribe(["a"], raise_on_gap=True) as raising,
                client.subscribe(["b"]) as idle,
            ):
                await first.publish("4")
                assert await take(subscription, 1) + await take(raising, 1) == ["4", "4"]
                await second.publish("kept")
                proxy._target = onward._target
                for _ in range(2):
                    await proxy.cut()
                    await states.wait(State.RECONNECTING, 1)
                    await second.publish("new")
                    if not told:
                        assert await take(subscription, 2) == ["kept", "new"]
                        with pytest.raises(MessagesLost) as caught:
                            await anext(raising)
                        assert caught.value.forgotten
                        assert await take(raising, 2) == ["kept", "new"]
                    else:
                        assert await take(subscription, 1) + await take(raising, 1) == ["new"] * 2
                await second.publish("b", tags="b")
                assert await take(idle, 1) == ["b"]
    assert told == [Gap(reconnected=True, forgotten=True)]


async def test_what_was_trimmed_meanwhile_is_one_gap(place: Place, dialect: str) -> None:
    assert place.server.hub.sequencer is not None
    history = place.server.hub.sequencer.history
    gaps: list[Gap] = []
    proxy = place.proxies[dialect]
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a"], on_gap=gaps.append) as subscription,
    ):
        await place.publish("0")
        assert await take(subscription, 1) == ["0"]
        proxy.refusing = True
        await proxy.cut()
        for n in range(1, 41):
            await place.publish(f"{n} " + "x" * 40_000)
        while (await history.trim(Policy(max_bytes=400_000), now=0)).more:
            pass
        first = (await history.position()).first
        assert first > 3
        proxy.refusing = False
        got = [await anext(subscription) for _ in range(first, 42)]
        assert [message.id for message in got] == list(range(first, 42))
        assert gaps == [Gap(reconnected=True, forgotten=True)]
        await proxy.cut()
        await place.publish("after")
        assert await take(subscription, 1) == ["after"]
    assert len(gaps) == 1


async def test_a_grant_taken_away_meanwhile_ends_that_subscription_alone(place: Place) -> None:
    await place.publisher.set(["a", "b"], "T")
    await place.publisher.unset(["*"], "T")
    proxy = place.proxies["ws"]
    async with (
        place.connect("ws") as client,
        client.subscribe(["a"]) as gone,
        client.subscribe(["b"]) as kept,
    ):
        proxy.refusing = True
        await proxy.cut()
        await place.publisher.unset(["a"], "T")
        await place.publish("1", tags="a,b")
        proxy.refusing = False
        assert await take(kept, 1) == ["1"]
        with pytest.raises(Revoked):
            await anext(gone)


async def test_a_history_that_cannot_be_read_for_a_while_is_waited_for(
    place: Place, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.server.hub.sequencer is not None
    failures = 0

    async def fail(*args: object, **more: object) -> bool:
        nonlocal failures
        failures += 1
        raise Unavailable("gone")

    gaps: list[Gap] = []
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a"], on_gap=gaps.append) as subscription,
    ):
        await place.publish("1")
        assert await take(subscription, 1) == ["1"]
        with monkeypatch.context() as patch:
            patch.setattr(place.server.hub.sequencer.history, "recovered", fail)
            await place.proxies[dialect].cut()
            await place.publish("2")
            await until(lambda: failures >= 2)
        assert await take(subscription, 1) == ["2"]
    assert gaps == []


async def test_without_the_engine_nothing_is_replayed_that_is_not_given(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror could replay, but where the log ends `last` doesn't know then."""
    sequencer = place.server.hub.sequencer
    assert sequencer is not None
    refused = 0

    async def fail() -> int:
        nonlocal refused
        refused += 1
        raise Unavailable("gone")

    gaps: list[Gap] = []
    await place.publish("1")
    async with place.connect("tcp") as client:
        with monkeypatch.context() as patch:
            patch.setattr(sequencer, "latest", fail)
            with pytest.raises(HistoryUnavailable):
                async with client.subscribe(["a"], since=0):
                    pass
            async with client.subscribe(["a"]) as live:  # which needs no place
                await place.publish("2")
                assert await take(live, 1) == ["2"]
        async with client.subscribe(["a"], since=0, on_gap=gaps.append) as subscription:
            await place.publish("3")
            assert await take(subscription, 3) == ["1", "2", "3"]
            with monkeypatch.context() as patch:
                greeting = True

                async def fail_behind_greetings() -> int:
                    nonlocal greeting
                    greeting = not greeting
                    return await fail() if greeting else sequencer.newest

                patch.setattr(sequencer, "latest", fail_behind_greetings)
                refused = 0
                await place.proxies["tcp"].cut()
                await place.publish("4")
                await until(lambda: refused >= 2)
            await place.publish("5")
            assert await take(subscription, 2) == ["4", "5"]
        assert await client.list() == ()
    assert gaps == []


@pytest.mark.parametrize(
    ("reason", "raised"),
    [(NoRegistry, RegistryUnavailable), (Limited, TooManyRequests)],
)
async def test_what_is_refused_for_a_while_is_waited_for(
    place: Place,
    dialect: str,
    monkeypatch: pytest.MonkeyPatch,
    reason: type[CommandError],
    raised: type[RemoteError],
) -> None:
    failures = 0

    def fail(session: CommandSession) -> None:
        nonlocal failures
        failures += 1
        raise reason

    gaps: list[Gap] = []
    async with (
        place.connect(dialect) as client,
        client.subscribe(["a"], on_gap=gaps.append) as subscription,
    ):
        await place.publish("1")
        assert await take(subscription, 1) == ["1"]
        with monkeypatch.context() as patch:
            patch.setattr(CommandSession, "_check_contact", fail)
            with pytest.raises(raised):
                async with client.subscribe(["b"], since=0):
                    pass
            await place.proxies[dialect].cut()
            await place.publish("2")
            await until(lambda: failures >= 3)
        assert await take(subscription, 1) == ["2"]
    assert gaps == []


@trio_only
async def test_who_was_ahead_of_others_is_told_of_a_gap_where_the_log_is_another_one(
    nursery: trio.Nursery, dialect: str
) -> None:
    """All resume from the lowest position; that it is in the other log says nothing of theirs."""
    fake: Fake = await nursery.start(Fake(dialect).run)
    cut = False

    def ping(connection: int) -> list[str]:
        if cut and connection == 1:
            raise trio.BrokenResourceError if dialect == "tcp" else ConnectionClosed(None)
        return ["pong"] if dialect == "tcp" else ['{"success":true,"command":"ping"}']

    def subscribe(connection: int) -> list[str]:
        found = [] if dialect == "tcp" else [STARTED.replace("E", "EF"[connection - 1])]
        old = fake.deliver(1, "b1", "b")
        return [*found, old] if connection == 1 else [*found, fake.deliver(3, "both", "a,b")]

    frame = '{"command": "%s"' if dialect == "ws" else "%s"
    fake.answers = {
        frame % "ping": ping,
        frame % "subscribe": subscribe,
        "resume": subscribe,
        "last": lambda connection: [f"last {'EF'[connection - 1]} 5"],
    }
    gaps: dict[str, list[Gap]] = {"a": [], "b": []}
    token = "T" if dialect == "ws" else None
    async with (
        connect(fake.url, token=token, backoff_base=0.001) as client,
        client.subscribe(["a"], on_gap=gaps["a"].append) as ahead,
    ):
        await client.ping()
        await fake.push(fake.deliver(6, "a6"))
        assert await take(ahead, 1) == ["a6"]
        cut = True
        async with client.subscribe(["b"], since=0, on_gap=gaps["b"].append) as behind:
            assert await take(behind, 2) == ["b1", "both"]
            assert await take(ahead, 1) == ["both"]
    assert gaps == {"a": [Gap(reconnected=True)], "b": []}


# without a history


async def test_without_a_history_everything_is_as_it_was(tmp_path: Path, dialect: str) -> None:
    gaps: list[Gap] = []
    states = States()
    with trio.fail_after(10):
        async with running(tmp_path) as server, connect(server.urls[0]) as publisher:
            await publisher.register(["*"], "T")
            url = server.urls[DIALECTS.index(dialect)]
            token = "T" if dialect == "ws" else None
            async with trio.open_nursery() as nursery:
                proxy = await nursery.start(Proxy(url.replace("ws", "tcp")).run)
                async with (
                    connect(
                        proxy.url.replace("tcp", dialect),
                        token=token,
                        backoff_base=0.001,
                        on_state=states,
                    ) as client,
                    client.subscribe(["a"], on_gap=gaps.append) as subscription,
                ):
                    await publisher.publish(["a"], "1")
                    message = await anext(subscription)
                    assert (message.text, message.id) == ("1", None)
                    with pytest.raises(HistoryOff):
                        async with client.subscribe(["a"], since=0):
                            pass
                    assert await client.list() == (frozenset("a"),)
                    await proxy.cut()
                    await states.wait(State.CONNECTED, 2)
                    await publisher.publish(["a"], "2")
                    assert await take(subscription, 1) == ["2"]
                nursery.cancel_scope.cancel()
            with pytest.raises(HistoryOff):
                await publisher.store(["a"], "x")
            with pytest.raises(HistoryOff):
                await publisher.last()
    assert gaps == [Gap(reconnected=True)]


async def test_the_synchronous_face_has_it_too(place: Place) -> None:
    def script() -> None:
        with sync.connect(place.server.urls[0]) as client:
            ids = [client.store(["s"], str(n)) for n in range(3)]
            assert client.last().id == ids[-1]
            with client.subscribe(["s"], since=-2, timeout=0.05) as subscription:
                assert [m.id for m in subscription] == ids[1:]
            with client.subscribe(["s"], since=client.last(), timeout=0.05) as subscription:
                client.store(["s"], "new")
                assert [m.text for m in subscription] == ["new"]
            with pytest.raises(Unframable):
                client.store(["s"], "\n")

    await trio.to_thread.run_sync(script)
