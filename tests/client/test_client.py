"""The client against a real server, and against a proxy that cuts its connection."""

import contextlib
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from mist.attributes import NO_ATTRIBUTES
from mist.client import (
    AccessDenied,
    Backoff,
    BadArgument,
    Client,
    ClientClosed,
    ConnectError,
    ConnectionLost,
    Gap,
    MessagesLost,
    RemoteError,
    Revoked,
    State,
    Unconfirmed,
    Unframable,
    Unsupported,
    supervisor,
)
from mist.errors import (
    EmptyTag,
    InvalidAudience,
    InvalidTag,
    InvalidToken,
    NotAllowed,
    Unauthorized,
)
from mist.message import Limits
from mist.server import Server
from mist.wire import Batch
from tests.client.loops import connect, trio_only
from tests.servers import running


@pytest.fixture
def tcp(server: Server) -> str:
    return server.urls[0]


@pytest.fixture
def ws(server: Server) -> str:
    return server.urls[1]


@attrs.frozen
class Gate:
    """Keeps one connection waiting, before anything of it is passed on."""

    reached: trio.Event = attrs.field(init=False, factory=trio.Event)
    opened: trio.Event = attrs.field(init=False, factory=trio.Event)


class Proxy:
    """Stands between a client and a server, and cuts what passes through."""

    def __init__(self, url: str) -> None:
        self.lead_to(url)
        self._streams: list[trio.SocketStream] = []
        self.refusing = False
        self.deaf = False  # takes what the client writes, and passes nothing on
        self.gate: Gate | None = None  # that the next connection is kept waiting at
        self.connections = 0
        self.url = ""

    def lead_to(self, url: str) -> None:
        """Have the next connections go there."""
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))

    async def run(self, *, task_status: trio.TaskStatus["Proxy"]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        task_status.started(self)
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        if self.refusing:
            return
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.reached.set()
            await gate.opened.wait()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            onward = await trio.open_tcp_stream(*self._target)
            self._streams += [stream, onward]
            async with onward, trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, stream, onward, True)
                nursery.start_soon(self._copy, onward, stream, False)

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, from_client: bool
    ) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                if not (from_client and self.deaf):
                    await sink.send_all(data)
            await sink.send_eof()

    async def cut(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            await trio.aclose_forcefully(stream)


@pytest.fixture
async def proxy(tcp: str, nursery: trio.Nursery) -> Proxy:
    return await nursery.start(Proxy(tcp).run)


class States(list[State]):
    """Every state seen, and a way to wait for one."""

    def __init__(self) -> None:
        self.changed = trio.Event()

    def __call__(self, state: State) -> None:
        self.append(state)
        self.changed.set()
        self.changed = trio.Event()

    async def wait(self, state: State, times: int = 1) -> None:
        while self.count(state) < times:
            await self.changed.wait()


# publishing and subscribing


async def test_publish_reaches_exactly_the_supersets(tcp: str) -> None:
    async with connect(tcp) as client, client.subscribe(["a", "b"]) as subscription:
        await client.publish(["a"], "no")
        await client.publish(["c", "b", "a"], "yes")
        await client.publish({"a", "b"}, b"\xff \\n\\")
        first = await anext(subscription)
        assert (first.tags, first.text) == (frozenset("abc"), "yes")
        assert (await anext(subscription)).data == b"\xff \\n\\"


async def test_each_local_subscription_gets_its_own_copy(tcp: str) -> None:
    async with (
        connect(tcp) as client,
        client.subscribe(["a"]) as one,
        client.subscribe(["a"]) as same,
        client.subscribe(["a", "b"]) as narrow,
    ):
        await client.publish(["a", "b"], "1")
        await client.publish(["a"], "2")
        await client.flush()
        assert [m.text for m in one.take()] == ["1", "2"]
        assert [m.text for m in same.take()] == ["1", "2"]
        assert [m.text for m in narrow.take()] == ["1"]
        assert await client.list() == (frozenset("a"), frozenset("ab"))


async def test_the_last_of_equal_subscriptions_tells_the_server(tcp: str) -> None:
    async with connect(tcp) as client, client.subscribe(["a"]) as one:
        async with client.subscribe(["a"]):
            pass
        assert await client.list() == (frozenset("a"),)
        await client.publish(["a"], "still")
        assert (await anext(one)).text == "still"
        await client.unsubscribe(["a"])
        assert await client.list() == ()
        assert [message async for message in one] == []


async def test_data_with_a_line_feed_is_delivered_escaped(tcp: str, server: Server) -> None:
    async with connect(tcp) as client, client.subscribe(["a"]) as subscription:
        batch = Batch.of(frozenset("a"), b"x\ny\\\r")
        server.hub.broker.publish(batch, None, lambda error: None)
        server.hub.broker.flush()
        assert (await anext(subscription)).data == b"x\ny\\\r"


async def test_a_bad_argument_is_refused_before_anything_is_sent(tcp: str) -> None:
    async with connect(tcp) as client:
        for tags, data, error in [
            (["a b"], "x", InvalidTag),
            ([], "x", EmptyTag),
            (["a"], b"x\ny", Unframable),
            (["a"], "\n", ValueError),
            (["a"], "\ud800", BadArgument),
            ("ab", "x", TypeError),
        ]:
            with pytest.raises(error):
                await client.publish(tags, data)
        with pytest.raises(InvalidToken):
            await client.register(["a"], "a token")
        with pytest.raises(InvalidTag):
            async with client.subscribe(["a*"]):
                pass
        await client.flush()
        assert client.refused == 0


async def test_a_refused_publish_is_told_by_the_flush_and_by_no_other_call(tcp: str) -> None:
    async with connect(tcp, limits=Limits(message_tags=100)) as client:
        await client.publish([str(n) for n in range(65)], "x")
        await client.register(["a"], "T")
        assert await client.tags("T") == frozenset("a")
        assert client.refused == 1
        with pytest.raises(RemoteError, match="Too many tags"):
            await client.flush()
        await client.flush()


async def test_the_end_of_the_block_flushes(tcp: str) -> None:
    async with connect(tcp) as reader, reader.subscribe(["a"]) as subscription:
        async with connect(tcp) as client:
            for n in range(2000):
                await client.publish(["a"], str(n))
        await reader.ping()
        assert [m.text for m in subscription.take()] == [str(n) for n in range(2000)]
        with pytest.raises(RemoteError, match="Too many tags"):
            async with connect(tcp, limits=Limits(message_tags=100)) as client:
                await client.publish([str(n) for n in range(65)], "x")


async def test_a_full_buffer_makes_publish_wait(tcp: str) -> None:
    async with connect(tcp, buffer=100) as client, client.subscribe(["a"]) as subscription:
        for n in range(200):
            await client.publish(["a"], "x" * 50 + str(n))
        await client.flush()
        assert len(subscription.take()) == 200


async def test_attributes_of_a_token_are_set_shown_and_forgotten(server: Server, tcp: str) -> None:
    async with connect(tcp) as client:
        await client.register(["a"], "T")
        assert await client.attributes("T") == NO_ATTRIBUTES
        given = {"user": 7, "groups": ["ü&;=", "b c"], "plan": "pro", "site": "x"}
        await client.set_attributes(given, "T")
        await client.set_attributes({"plan": None, "site": "y"}, "T")
        record = server.hub.registry.lookup("T")
        assert record is not None
        assert record.tags == {"a"}
        assert record.attributes.text == "groups=b%20c;%C3%BC%26%3B%3D&site=y&user=7"
        assert await client.attributes("T") == record.attributes
        with pytest.raises(RemoteError, match="Token not found"):
            await client.set_attributes({"user": 1}, "unknown")
        with pytest.raises(RemoteError, match="Token not found"):
            await client.attributes("unknown")
        with pytest.raises(RemoteError, match="more than 1000"):
            await client.set_attributes({"groups": list(range(999)), "one": 1}, "T")
        with pytest.raises(BadArgument):
            await client.set_attributes({}, "T")
        wrong: list[dict[str, object]] = [{"groups": []}, {"user": ""}, {"Plan": None}]
        for attributes in wrong:
            with pytest.raises(InvalidAudience):
                await client.set_attributes(attributes, "T")
        assert server.hub.registry.lookup("T") is record


async def test_tokens_and_questions(tcp: str) -> None:
    async with connect(tcp, echo=False) as client:
        await client.register(["a", "room:*"], "T")
        with pytest.raises(RemoteError, match="already exists"):
            await client.register(["a"], "T")
        await client.set(["b"], "T")
        await client.unset(["a"], "T")
        assert await client.tags("T") == {"b", "room:*"}
        await client.unset(["b", "room:*"], "T")
        assert await client.tags("T") == frozenset()
        await client.unregister("T")
        with pytest.raises(RemoteError, match="Token not found"):
            await client.tags("T")
        assert (await client.who()).connected == 1
        async with client.subscribe(["{x}", "y"]) as subscription:
            assert await client.list_all() == {"{x}", "y"}
            assert await client.list() == (frozenset({"{x}", "y"}),)
            await client.publish(["{x}", "y"], "own")
            assert await client.ping() >= 0
            assert subscription.take() == []
        with pytest.raises(Unsupported):
            await client.authenticate("T")


async def test_many_tasks_get_their_own_answers(tcp: str) -> None:
    async with connect(tcp) as client:

        async def work(name: str) -> None:
            for n in range(10):
                await client.publish(["a"], name)
                await client.register([f"{name}{n}"], f"T{name}{n}")
                assert await client.tags(f"T{name}{n}") == {f"{name}{n}"}
                with pytest.raises(RemoteError, match="already exists"):
                    await client.register(["x"], f"T{name}{n}")

        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(work, name)


async def test_a_cancelled_call_leaves_the_connection_in_step(tcp: str) -> None:
    async with connect(tcp) as client:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.who)
                nursery.start_soon(client.tags, "none")
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            with trio.CancelScope() as scope:
                async with client.subscribe(["a"]):
                    scope.cancel()
                    await trio.sleep_forever()
        assert await client.list() == ()
        assert (await client.who()).connected == 1


async def test_a_slow_reader_learns_where_it_lost_how_much(tcp: str) -> None:
    gaps: list[Gap] = []
    async with (
        connect(tcp) as client,
        client.subscribe(["a"], queue=2, on_gap=gaps.append) as told,
        client.subscribe(["a"], queue=2, raise_on_gap=True) as raising,
    ):
        for n in range(5):
            await client.publish(["a"], str(n))
        await client.flush()
        assert told.lost == 3
        assert [m.text for m in told.take()] == ["0", "1"]
        assert gaps == []
        await client.publish(["a"], "later")
        assert (await anext(told)).text == "later"
        assert gaps == [Gap(lost=3)]
        assert [(await anext(raising)).text for _ in "12"] == ["0", "1"]
        with pytest.raises(MessagesLost) as caught:
            await anext(raising)
        assert caught.value.count == 4
        await client.publish(["a"], "on")
        assert (await anext(raising)).text == "on"


@trio_only
async def test_a_reader_that_yields_once_a_message_loses_nothing_of_a_burst(tcp: str) -> None:
    async with connect(tcp) as client, client.subscribe(["a"], queue=2000) as subscription:

        async def read() -> None:
            for _ in range(10_000):
                await anext(subscription)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(10_000):
                await client.publish(["a"], "x" * 200)
        assert subscription.lost == 0


# connecting, losing, reconnecting


async def test_nobody_there_is_a_connect_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="no such file"):
        async with connect(f"tcp+unix://{tmp_path}/none.sock"):
            pass


async def test_wait_keeps_trying(proxy: Proxy, nursery: trio.Nursery) -> None:
    proxy.refusing = True
    with pytest.raises(ConnectError):
        async with connect(proxy.url):
            pass

    async def allow() -> None:
        while proxy.connections < 4:
            await trio.testing.wait_all_tasks_blocked(0.001)
        proxy.refusing = False

    nursery.start_soon(allow)
    async with connect(proxy.url, wait=True, backoff_base=0.001) as client:
        await client.ping()


@pytest.mark.parametrize(
    "url", ["tcp", "tcp://", "tcp://h/x", "http://h", "tcp://u@h", "tcp://h:x"]
)
async def test_a_url_that_can_not_be_meant_is_refused(url: str) -> None:
    with pytest.raises(BadArgument):
        async with connect(url):
            pass


async def test_a_wrong_secret_is_final(tmp_path: Path) -> None:
    with trio.fail_after(10):
        async with running(tmp_path, secret="right") as server:
            for secret in ("wrong", None):
                with pytest.raises(AccessDenied) as caught:
                    async with connect(server.urls[0], secret=secret, wait=True):
                        pass
                assert isinstance(caught.value, Unauthorized)
            async with connect(server.urls[0], secret="right") as client:
                await client.who()


async def test_a_cut_connection_is_made_again_with_its_subscriptions(proxy: Proxy) -> None:
    states = States()
    gaps: list[Gap] = []
    async with (
        connect(proxy.url, backoff_base=0.001, on_state=states) as client,
        client.subscribe(["a"], on_gap=gaps.append) as subscription,
        client.subscribe(["b"]),
    ):
        await client.publish(["a"], "before")
        await client.flush()
        await proxy.cut()
        await states.wait(State.CONNECTED, 2)
        await client.publish(["a"], "after")
        assert [(await anext(subscription)).text for _ in "12"] == ["before", "after"]
        assert subscription.reconnects == 1
        assert gaps == [Gap(reconnected=True)]
        assert set(await client.list()) == {frozenset("a"), frozenset("b")}
    assert [state.value for state in states] == [
        "connected",
        "reconnecting",
        "connected",
        "closed",
    ]


async def test_after_a_connection_that_has_lasted_it_waits_as_at_first(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    states = States()

    def delay(_: Backoff, count: int) -> float:
        failures.append(count)
        return 0.0

    monkeypatch.setattr(Backoff, "delay", delay)
    async with connect(proxy.url, on_state=states):
        for turn in range(1, 5):
            if turn == 4:
                monkeypatch.setattr(supervisor, "_HEALTHY", 0.0)
            await proxy.cut()
            await states.wait(State.CONNECTED, turn + 1)
    assert failures == [1, 2, 3, 1]


async def test_what_is_asked_while_disconnected_waits(proxy: Proxy) -> None:
    states = States()
    heard: list[str] = []
    async with connect(proxy.url, backoff_base=0.001, on_state=states) as client:

        async def listen() -> None:
            async with client.subscribe(["a"]) as subscription:
                heard.append((await anext(subscription)).text)

        proxy.refusing = True
        await proxy.cut()
        await states.wait(State.RECONNECTING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            await client.publish(["a"], "queued")
            nursery.start_soon(client.flush)
            proxy.refusing = False
        assert heard == ["queued"]


async def test_what_was_written_and_not_fenced_is_in_doubt_and_not_repeated(proxy: Proxy) -> None:
    states = States()
    async with (
        connect(proxy.url, backoff_base=0.001, on_state=states) as client,
        client.subscribe(["a"]) as subscription,
    ):
        proxy.deaf = True
        for n in range(3):
            await client.publish(["a"], str(n))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await proxy.cut()
        proxy.deaf = False
        await states.wait(State.CONNECTED, 2)
        with pytest.raises(Unconfirmed) as caught:
            await client.flush()
        assert caught.value.count == 3
        await client.flush()
        assert subscription.take() == []


async def test_a_call_in_flight_is_lost_with_its_connection(proxy: Proxy) -> None:
    async with connect(proxy.url, backoff_base=0.001) as client:

        async def ask() -> None:
            with pytest.raises(ConnectionLost):
                await client.who()

        proxy.deaf = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await proxy.cut()
            proxy.deaf = False
        await client.ping()


async def test_a_silent_connection_is_given_up(proxy: Proxy) -> None:
    states = States()
    async with connect(
        proxy.url, backoff_base=0.001, keepalive_seconds=0.05, on_state=states
    ) as client:
        proxy.deaf = True
        await states.wait(State.RECONNECTING)
        proxy.deaf = False
        await states.wait(State.CONNECTED, 2)
        await client.ping()


async def test_without_reconnecting_everything_raises(proxy: Proxy) -> None:
    async with (
        connect(proxy.url, reconnect=False) as client,
        client.subscribe(["a"]) as subscription,
    ):
        await proxy.cut()
        with pytest.raises(ConnectionLost):
            await anext(subscription)
        with pytest.raises(ConnectionLost):
            await client.publish(["a"], "x")
        assert client.state is State.CLOSED


async def test_the_block_raises_what_it_raised(tcp: str) -> None:
    kept: list[Client] = []

    async def fail() -> None:
        async with connect(tcp) as client:
            kept.append(client)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(ClientClosed):
        await kept[0].publish(["a"], "x")
    with trio.CancelScope() as scope:
        async with connect(tcp):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


# websockets


async def test_a_websocket_subscribes_with_its_token(tcp: str, ws: str) -> None:
    async with connect(tcp) as publisher:
        await publisher.register(["a"], "Tö")
        async with connect(ws, token="Tö") as client, client.subscribe(["a", "b"]) as subscription:
            await publisher.publish(["a", "b", "c"], b"\xff\x00")
            await publisher.publish(["a", "b"], "text")
            assert (await anext(subscription)).data == b"\xff\x00"
            assert (await anext(subscription)).text == "text"
            assert await client.list() == (frozenset("ab"),)
            assert await client.ping() >= 0
            with pytest.raises(RemoteError, match="not granted"):
                async with client.subscribe(["c"]):
                    pass
            for refused in (client.who(), client.register(["a"], "T")):
                with pytest.raises(NotAllowed):
                    await refused


async def test_a_token_swap_revokes_what_it_does_not_allow(tcp: str, ws: str) -> None:
    async with connect(tcp) as admin:
        await admin.register(["a"], "A")
        await admin.register(["b"], "B")
        async with (
            connect(ws, token="A") as client,
            client.subscribe(["a"]) as gone,
            client.subscribe(["a", "b"]) as kept,
        ):
            await client.authenticate("B")
            with pytest.raises(Revoked) as caught:
                await anext(gone)
            assert caught.value.tags == {"a"}
            await admin.publish(["a", "b"], "x")
            assert (await anext(kept)).text == "x"
            assert await client.list() == (frozenset("ab"),)


async def test_a_token_taken_back_ends_the_client(tcp: str, ws: str) -> None:
    async with connect(tcp) as admin:
        await admin.register(["a"], "A")
        async with connect(ws, token="A") as client, client.subscribe(["a"]) as subscription:
            await admin.unregister("A")
            with pytest.raises(AccessDenied, match="revoked"):
                await anext(subscription)
            with pytest.raises(AccessDenied):
                await client.ping()


async def test_a_bad_token_is_final(ws: str) -> None:
    with pytest.raises(AccessDenied):
        async with connect(ws, token="none", wait=True):
            pass
    with pytest.raises(BadArgument):
        async with connect(ws):
            pass
    with pytest.raises(ConnectError, match="404"):
        async with connect(f"{ws}/elsewhere", token="none"):
            pass
