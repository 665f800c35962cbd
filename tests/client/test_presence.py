"""Presence through the client, over TCP and WebSockets, and across reconnects."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import mist.broker.presence_view
import mist.client.postponed
import mist.client.sync
import mist.sessions.presence
from mist.client import RemoteError, Revoked, TooManyRequests
from mist.client.dialect import PresenceTold
from mist.client.home import Home
from mist.client.postponed import Postponed
from mist.client.presence import PresenceTable, PresenceWatch
from mist.client.presence_codec import read_presence_frame, read_presence_line
from mist.commands import RemoveTags
from mist.errors import ProtocolViolation
from mist.errors import TooManyRequests as Limited
from mist.replies import Attendee, PresenceChanged, Present
from mist.server import Server
from mist.sessions.close_reason import DISCONNECTED
from tests.client.loops import connect, trio_only
from tests.processes import serving
from tests.servers import listeners
from tests.sessions.test_presence import GONE, give, present, service
from tests.waiting import until

LISTEN = listeners("tcp", "ws", "http")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mist.broker.presence_view, "LINGER", GONE)
    monkeypatch.setattr(mist.sessions.presence, "_ROUND", 0.01)


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"listen": LISTEN, "presence": ("room:*",)}


@pytest.fixture
async def tokens(server: Server) -> None:
    for user in "abc":
        await give(server, f"token-{user}", "room:*", user=user)
    await give(server, "asks", "x", "@room:*")


def url(server: Server, index: int) -> str:
    return server.urls[index].rstrip("/") + ("/subscribe/websocket" if index else "")


def users(listed: Any) -> list[str]:
    return [each.user for each in listed]


@pytest.mark.parametrize("index", [0, 1])
async def test_a_list_then_who_joins_and_leaves(server: Server, tokens: None, index: int) -> None:
    options = {"token": "asks"} if index else {}
    async with connect(url(server, index), **options) as client, present(server, "token-a"):
        async with client.presence(["room:7"]) as room:
            assert room.tags == {"room:7"}
            assert (users(room.attendees), room.count) == (["a"], 1)
            async with present(server, "token-b"):
                change = await anext(room)
                assert isinstance(change, PresenceChanged)
                assert (users(change.joined), change.left) == (["b"], [])
                assert (users(room.attendees), room.count) == (["a", "b"], 2)
            change = await anext(room)
            assert isinstance(change, PresenceChanged)
            assert (change.joined, users(change.left)) == ([], ["b"])
            assert users(room.attendees) == ["a"]
        assert users((await client.present(["room:7"])).attendees) == ["a"]
        await client.ping()
        assert service(server).watches == 0


@pytest.mark.parametrize("index", [0, 1])
async def test_what_is_refused(server: Server, tokens: None, index: int) -> None:
    options = {"token": "token-a"} if index else {}
    async with connect(url(server, index), **options) as client:
        with pytest.raises(RemoteError, match="off for these tags" if not index else "not granted"):
            async with client.presence(["lobby" if not index else "room:7"]):
                pass
        await client.ping()


async def test_a_right_that_is_taken(server: Server, tokens: None) -> None:
    async with connect(url(server, 1), token="asks") as client:
        async with client.presence(["room:7"]) as room:
            await server.hub.registry.execute([RemoveTags("asks", frozenset({"@room:*"}))])
            with pytest.raises(Revoked):
                await anext(room)


async def test_two_watch_the_same(server: Server, tokens: None) -> None:
    async with connect(url(server, 0)) as client:
        async with client.presence(["room:7"]) as one:
            async with client.presence(["room:7"]) as two:
                async with present(server, "token-a"):
                    for each in (one, two):
                        assert users((await anext(each)).joined) == ["a"]  # type: ignore[union-attr]
            assert service(server).watches == 1
            await anext(one)


async def test_after_a_reconnect_the_difference_is_told(server: Server, tokens: None) -> None:
    async with connect(url(server, 0)) as client, present(server, "token-a"):
        async with client.presence(["room:7"]) as room, AsyncExitStack() as stack:
            for session in server.hub.sessions:
                if session.transport == "tcp":
                    session.end(DISCONNECTED)
            await stack.enter_async_context(present(server, "token-b"))
            change = await anext(room)
            assert isinstance(change, PresenceChanged)
            assert users(change.joined) == ["b"]
            assert users(room.attendees) == ["a", "b"]
            assert service(server).watches == 1


@pytest.mark.parametrize("index", [0, 1])
async def test_what_is_refused_for_a_while_after_a_reconnect_is_asked_for_again(
    server: Server, tokens: None, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mist.client.postponed, "_RETRY", 0.01)
    failures = 0

    async def fail(*_: object) -> Present:
        nonlocal failures
        failures += 1
        raise Limited

    options = {"token": "asks"} if index else {}
    async with connect(url(server, index), backoff_base=0.001, **options) as client:
        async with client.presence(["room:7"]) as room, AsyncExitStack() as stack:
            with monkeypatch.context() as patch:
                patch.setattr(type(service(server)), "watch", fail)
                for session in list(server.hub.sessions):
                    session.end(DISCONNECTED)
                await until(lambda: failures >= 3)
                with pytest.raises(TooManyRequests):
                    await client.present(["room:7"])
            await stack.enter_async_context(present(server, "token-b"))
            change = await anext(room)
            assert isinstance(change, PresenceChanged)
            assert users(change.joined) == ["b"]
            assert service(server).watches == 1


def test_a_script(serving_presence: str) -> None:
    with mist.client.sync.connect(serving_presence) as client:
        assert client.present(["room:7"]) == Present(frozenset({"room:7"}), 0, [])


@pytest.fixture
def serving_presence(tmp_path: Path) -> Any:
    options = ("--history", "none", "--presence", "room:*")
    with serving(tmp_path / "data", *options, listen=("--listen", "tcp://127.0.0.1:0")) as process:
        yield process.urls[0]


# what is read

A = Attendee("7", "tab", 1.5)


def test_lines() -> None:
    assert read_presence_line(b"present", b"a,b 1 client=tab&since=1.5&user=7") == Present(
        frozenset("ab"), 1, [A]
    )
    assert read_presence_line(b"crowded", b"a 2345") == Present(frozenset("a"), 2345, None)
    assert read_presence_line(b"left", b"a 0 since=3") == PresenceChanged(
        frozenset("a"), [], [Attendee("", "", 3.0)], 0
    )


@pytest.mark.parametrize(
    "rest", [b"", b"a", b"a x", b"a -1", b"a 1 user=7", b"a 1 since=x", b"a 1 since=1;2"]
)
def test_lines_that_are_none(rest: bytes) -> None:
    with pytest.raises((ProtocolViolation, KeyError)):
        read_presence_line(b"present", rest)


def test_frames() -> None:
    entry = {"user": "7", "client": "tab", "since": 1.5}
    frame = {"tags": ["a"], "count": 1, "listed": True, "present": [entry]}
    assert read_presence_frame(frame) == Present(frozenset("a"), 1, [A])
    assert read_presence_frame({"tags": ["a"], "count": 9, "listed": False}).count == 9
    changed = {"tags": ["a"], "count": 1, "joined": [entry], "left": []}
    assert read_presence_frame(changed) == PresenceChanged(frozenset("a"), [A], [], 1)
    with pytest.raises(ProtocolViolation):
        read_presence_frame(frame | {"count": "1"})


@trio_only
async def test_a_slow_reader_is_given_what_it_comes_to() -> None:
    watch = PresenceWatch(frozenset("a"), Home())
    watch.take(Present(frozenset("a"), 0, []))
    for number in range(1_500):
        each = Attendee(f"{number}", "", 1.0)
        watch.take(PresenceChanged(frozenset("a"), [each], [], number + 1))
    first = await anext(watch)
    assert isinstance(first, Present)
    assert first.count == 1_001
    assert watch.count == 1_500


@trio_only
async def test_the_first_list_is_no_change_where_another_watch_is_told_of_one() -> None:
    tags = frozenset("a")
    table = PresenceTable(lambda request: None, Postponed(lambda request: None))
    one, two = PresenceWatch(tags, Home()), PresenceWatch(tags, Home())
    table.add(one)
    table.told(PresenceTold(Present(tags, 0, [])))
    table.add(two)
    joined = PresenceTold(PresenceChanged(tags, [A], [], 1))
    table.told(joined)
    table.told(PresenceTold(Present(tags, 1, [A])))  # the reply to the second
    left = PresenceTold(PresenceChanged(tags, [], [A], 0))
    table.told(left)
    assert [await anext(one), await anext(one)] == [joined.told, left.told]
    assert await anext(two) == left.told
    assert two.attendees == []


@trio_only
async def test_nameless_ones_of_the_same_time_are_several() -> None:
    tags, nameless = frozenset("a"), Attendee("", "", 1.0)
    watch = PresenceWatch(tags, Home())
    watch.take(Present(tags, 2, [nameless, nameless]))
    assert watch.attendees == [nameless] * 2
    # One of them gets another token, and is somebody else, who was there as long.
    watch.take(PresenceChanged(tags, [nameless], [], 3))
    assert watch.attendees == [nameless] * 3
    watch.take(PresenceChanged(tags, [], [nameless], 2))
    assert watch.attendees == [nameless] * 2
    for _ in range(2):
        await anext(watch)
    watch.take(Present(tags, 1, [nameless]))
    assert await anext(watch) == PresenceChanged(tags, [], [nameless], 1)
    assert watch.attendees == [nameless]
