"""guble's clients over real WebSockets: with a history and without, beside other dialects."""

import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from mist.attributes import Attributes
from mist.audience import Audience
from mist.auth import Record
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.config import Listen
from mist.message import Envelope
from mist.server import Server
from tests.servers import listeners, port_of, running
from tests.transports.lines import talk
from tests.transports.test_websocket import encode
from tests.transports.websockets import open_websocket

TOKEN = "t0ken-that-no-log-may-hold"
GRANTS = ("/foo", ">/foo", "/bar", ">/bar")


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"history": "memory://"}


without_history = pytest.mark.parametrize("server_settings", [{}], ids=["live"])


async def register(server: Server, token: str = TOKEN, *tags: str, **attributes: str) -> None:
    registry = server.hub.registry
    (record,) = await registry.execute([Register(token, frozenset(tags or GRANTS))])
    assert isinstance(record, Record)
    if attributes:
        await registry.execute([SetAttributes(token, Attributes.of_json(attributes))])


class Guble:
    """One client."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def send(self, *messages: str | bytes) -> None:
        for message in messages:
            await self.socket.send_message(message)

    async def get(self) -> str:
        message = await self.socket.get_message()
        return message if isinstance(message, str) else message.decode("utf-8", "replace")

    async def ask(self, message: str | bytes) -> str:
        await self.send(message)
        return await self.get()

    async def some(self, count: int) -> list[str]:
        return [await self.get() for _ in range(count)]

    async def closed(self) -> int:
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await self.socket.get_message()
        assert caught.value.reason is not None
        return caught.value.reason.code


@asynccontextmanager
async def dialed(
    server: Server,
    user: str = "marvin",
    token: str | None = TOKEN,
    *,
    subprotocols: Sequence[str] = (),
    path: str | None = None,
) -> AsyncIterator[Guble]:
    """A client that has been told nothing yet."""
    path = f"/stream/user/{user}" if path is None else path
    headers = {} if token is None else {"X-Auth-Token": token}
    async with open_websocket(server, path, subprotocols=subprotocols, headers=headers) as socket:
        yield Guble(socket)


@asynccontextmanager
async def client(server: Server, user: str = "marvin", token: str = TOKEN) -> AsyncIterator[Guble]:
    """A client that has been greeted."""
    async with dialed(server, user, token) as guble:
        assert (await guble.get()).startswith("#connected ")
        yield guble


async def refusal(server: Server, user: str = "marvin", token: str | None = TOKEN) -> int:
    with pytest.raises(ConnectionRejected) as caught:
        async with dialed(server, user, token):
            pass
    return caught.value.status_code


async def shake(server: Server, headers: dict[str, str], index: int = 1) -> int:
    """The status that a handshake at guble's endpoint is answered with."""
    head = {
        "Host": "127.0.0.1",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(server.urls[index]))
    async with stream:
        await stream.send_all(f"GET /stream/user/marvin HTTP/1.1\r\n{lines}\r\n".encode())
        answer = b""
        while b"\r\n" not in answer:
            data = await stream.receive_some(4096)
            assert data, answer
            answer += data
    return int(answer.split()[1])


def without_time(delivery: str) -> str:
    """A delivery whose time is one, without it."""
    head, _, rest = delivery.partition("\n")
    fields, _, time = head.rpartition(",")
    assert re.fullmatch("[0-9]{10}", time)
    return f"{fields}\n{rest}"


# the endpoint


async def test_a_client_is_told_who_it_is(server: Server) -> None:
    await register(server)
    async with dialed(server, "marvin%20%C3%A4") as guble:
        head, _, data = (await guble.get()).partition("\n")
        assert head == "#connected You are connected to the server."
        told = json.loads(data)
        assert list(told) == ["ApplicationId", "UserId", "Time"]
        assert told["UserId"] == "marvin ä"
        assert re.fullmatch("[0-9a-f]{20}", told["ApplicationId"])
        assert datetime.fromisoformat(told["Time"]).utcoffset() is not None
        [session] = server.hub.sessions
        assert session.attributes.client == told["ApplicationId"]
        assert session.attributes.user == ""


async def test_the_user_is_the_tokens_where_it_has_one(server: Server) -> None:
    await register(server, user="marvin", client="phone1")
    assert await refusal(server, "arthur") == 403
    async with dialed(server, "marvin") as guble:
        told = json.loads((await guble.get()).partition("\n")[2])
        assert (told["UserId"], told["ApplicationId"]) == ("marvin", "phone1")


async def test_a_client_may_choose_the_id_of_its_application(server: Server) -> None:
    await register(server)
    async with dialed(server, path="/stream/user/marvin?client=phone1") as guble:
        assert '"ApplicationId": "phone1"' in await guble.get()
        await guble.ask("+ /foo")
        audience = Envelope(audience=Audience.of(clients=["phone1"]))
        await server.hub.store_all([(frozenset({"/foo"}), b"x")], envelopes=[audience])
        assert without_time(await guble.get()) == "/foo,1,,,\n\nx"


@pytest.mark.parametrize("user", ["", "a%2Cb", "a%0Ab", "%FF", "x" * 256])
async def test_nobody_can_be_called_so(server: Server, user: str) -> None:
    await register(server)
    assert await refusal(server, user) == 404


async def test_a_wrong_token_is_refused(server: Server) -> None:
    assert await refusal(server, token="wrong") == 401


async def test_where_there_is_a_secret_a_token_is_needed(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s3cret", history="memory://") as server:
        assert await refusal(server, token=None) == 401
        # Nor is one put off to a first message, of which guble knows none.
        async with dialed(server, token=None, subprotocols=["mist.topics"]) as guble:
            assert await guble.closed() == 4401


async def test_a_service_on_this_machine_needs_no_token_where_there_is_no_secret(
    server: Server,
) -> None:
    async with dialed(server, token=None) as one, dialed(server, "arthur", token=None) as other:
        assert '"UserId": "marvin"' in await one.get()
        await other.get()
        assert await other.ask("+ /any") == "#subscribed-to /any"
        assert (await one.ask("> /any/thing 1\n\n\nhello")).startswith("#send 1\n")
        assert (await other.get()).startswith("/any/thing,1,marvin,")
        assert [session.record for session in server.hub.sessions] == [None, None]
    # mist's own protocol is for clients with a token all the same.
    with pytest.raises(ConnectionRejected) as caught:
        async with dialed(server, token=None, path="/subscribe/websocket"):
            pass
    assert caught.value.status_code == 401


LOCAL_PAGE = {"Origin": "http://localhost:3000"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (LOCAL_PAGE, 101),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({**LOCAL_PAGE, "Host": "localhost:1"}, 101),
        ({"Host": "[::1]:8888"}, 101),
        ({"Host": "attacker.example"}, 401),  # rebound to this machine
        ({"Host": "127.0.0.1.attacker.example:8888"}, 401),
        ({**LOCAL_PAGE, "Host": "attacker.example"}, 401),
        ({"Host": ""}, 401),
        # A proxy on this machine asks for anybody.
        ({"X-Forwarded-For": "198.51.100.1"}, 401),
        ({"X-Real-IP": "198.51.100.1"}, 401),
        ({"Forwarded": "for=198.51.100.1"}, 401),
        ({"Via": "1.1 proxy"}, 401),
        ({"X-Auth-Token": ""}, 401),
    ],
)
@pytest.mark.parametrize("index", [1, 2], ids=["ws", "http"])
@pytest.mark.parametrize("server_settings", [{"listen": listeners("tcp", "ws", "http")}])
async def test_no_foreign_page_and_nothing_behind_a_proxy_is_such_a_service(
    server: Server, headers: dict[str, str], status: int, index: int
) -> None:
    assert await shake(server, headers, index) == status


async def test_two_hosts_are_no_name_of_this_machine(server: Server) -> None:
    assert await shake(server, {"Host": "localhost\r\nHost: localhost"}) in (400, 401)


@pytest.mark.parametrize("name", ["mist.example"])
async def test_a_public_name_of_the_server_is_not_this_machine(tmp_path: Path, name: str) -> None:
    async with running(tmp_path, server_names=(name,)) as server:
        assert await shake(server, {"Host": name}) == 401
        assert await shake(server, {"Host": name, "Origin": f"https://{name}"}) == 401


async def test_on_other_addresses_a_token_is_needed(tmp_path: Path) -> None:
    listen = (Listen("tcp", "127.0.0.1", 0), Listen("ws", "0.0.0.0", 0))
    async with running(tmp_path, listen=listen, insecure=True) as server:
        assert await shake(server, {}) == 401


async def test_a_page_brings_its_token_beside_a_subprotocol(server: Server) -> None:
    await register(server)
    offered = ["mist.v1", "mist.topics", encode(TOKEN)]
    async with dialed(server, token=None, subprotocols=offered) as guble:
        assert guble.socket.subprotocol == "mist.topics"
        assert (await guble.get()).startswith("#connected ")
    path = "/subscribe/websocket"
    async with dialed(server, path=path, subprotocols=["mist.v1"]) as other:
        assert (await other.ask('{"command":"ping"}')) == '{"success":true,"command":"ping"}'


# publishing and subscribing


async def test_a_message_reaches_the_topic_and_all_above_it_once(server: Server) -> None:
    await register(server)
    async with client(server) as one, client(server, "arthur") as other:
        assert await other.ask("+ /foo") == "#subscribed-to /foo"
        assert await other.ask(b"+ /foo/bar") == "#subscribed-to /foo/bar"
        sent = await one.ask('> /foo/bar id1\n{"Key": "value"}\n\nHello\nWorld')
        head, _, data = sent.partition("\n")
        assert head == "#send id1"
        told = json.loads(data)
        assert list(told) == ["sequenceId", "path", "publisherMessageId", "messagePublishingTime"]
        assert (told["sequenceId"], told["path"]) == (1, "/foo/bar")
        assert told["publisherMessageId"] == "id1"
        assert abs(told["messagePublishingTime"] - time.time()) < 60  # Unix seconds
        delivery = await other.get()
        publisher = next(iter(server.hub.sessions)).attributes.client
        assert without_time(delivery) == (
            f'/foo/bar,1,marvin,{publisher},id1\n{{"Key": "value"}}\nHello\nWorld'
        )
        await one.send("> /foo\n\n1", "> /foobar\n\n2", "> /foo/x\n\n3")
        assert without_time(await other.get()).endswith("\n1")
        assert without_time(await other.get()).endswith("\n3")


@without_history
async def test_without_a_history_ids_are_zero_and_everything_else_is_there(server: Server) -> None:
    await register(server)
    async with client(server) as guble:
        assert await guble.ask("+ /foo") == "#subscribed-to /foo"
        await guble.send(b"> /foo 1\n\n\xff", "> /nowhere 2\n\nx")
        delivery, sent, refused = await guble.some(3)
        assert delivery.startswith("/foo,0,marvin,")
        assert sent.startswith('#send 1\n{"sequenceId":0,"path":"/foo"')
        assert refused.startswith("!error-send 2 not granted by the token\n")
        assert await guble.ask("+ /foo 0") == "!error-subscribed-to /foo History is off"
        assert await guble.ask("+ /foo 0 1") == "!error-subscribed-to /foo History is off"
        assert await guble.ask("- /foo") == "#canceled /foo"
        assert (await guble.ask("> /foo 3\n\nx")).startswith("#send 3\n")
        assert await guble.ask("") == "!error-bad-request error parsing command. empty command"


@without_history
async def test_bytes_that_are_no_text_come_in_a_binary_frame(server: Server) -> None:
    await register(server)
    async with client(server) as guble:
        await guble.ask("+ /foo")
        await guble.send(b"> /foo\n\n\xff")
        message = await guble.socket.get_message()
        assert isinstance(message, bytes)
        assert message.endswith(b"\n\n\xff")


async def test_lines_and_topics_hear_of_each_other(server: Server) -> None:
    await register(server)
    async with client(server) as guble, talk(server) as line:
        await guble.ask("+ /foo")
        assert not await line.ask(b"subscribe /foo/bar\n")
        await line.send(b"publish /foo/a,x,/bar from the line\n")
        # The first topic in byte order, whichever was asked for.
        assert without_time(await guble.get()) == "/bar,1,,,\n\nfrom the line"
        await guble.ask("> /foo/bar\n\nfrom guble")
        assert await line.line() == b"publish /foo/bar from guble\n"


async def test_a_publish_needs_the_right_to(server: Server) -> None:
    await register(server, TOKEN, "/foo", ">/foo/mine")
    async with client(server) as guble:
        assert (await guble.ask("> /foo 1\n\nx")).startswith(
            '!error-send 1 not granted by the token\n{"sequenceId":0,"path":"/foo"'
        )
        assert (await guble.ask("> /foo/mine/too 2")).startswith("#send 2\n")
        assert await guble.ask("+ /bar") == "!error-subscribed-to /bar not granted by the token"
        assert await guble.ask("+ /") == "!error-subscribed-to / not granted by the token"
        assert await guble.ask("+ /bar 0 5") == "!error-subscribed-to /bar not granted by the token"


async def test_what_a_token_loses_ends_at_once(server: Server) -> None:
    await register(server)
    registry = server.hub.registry
    async with client(server) as guble:
        await guble.ask("+ /foo")
        await guble.ask("+ /bar")
        await registry.execute([RemoveTags(TOKEN, frozenset({"/foo", ">/bar"}))])
        assert await guble.get() == "!error-subscribed-to /foo not granted by the token"
        await guble.send("> /foo\n\nnobody", "> /bar 2\n\nx")
        assert (await guble.get()).startswith("#send\n")
        assert (await guble.get()).startswith("!error-send 2 ")
        await registry.execute([AddTags(TOKEN, frozenset({"/foo"}))])
        assert await guble.ask("+ /foo") == "#subscribed-to /foo"
        await registry.execute([SetAttributes(TOKEN, Attributes(user="zaphod"))])
        await guble.send("> /foo\n\nx")
        assert (await guble.get()).startswith("/foo,2,zaphod,")
        await registry.execute([Unregister(TOKEN)])
        assert await guble.closed() == 4401


# what was


async def publish(server: Server, *messages: str) -> None:
    async with talk(server) as line:
        assert not await line.ask("".join(f"publish {each}\n" for each in messages).encode())


def bodies(messages: list[str]) -> list[str]:
    return [each.rpartition("\n")[2] for each in messages]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("0", [1, 3, 4]),
        ("1", [1, 3, 4]),
        ("2", [3, 4]),
        ("3", [3, 4]),
        ("4", [4]),
        ("6", []),
        ("1000", []),
        ("-1", [4]),
        ("-2", [3, 4]),
        ("-99", [1, 3, 4]),
    ],
)
async def test_a_start_is_inclusive_or_counts_from_the_end(
    server: Server, asked: str, expected: list[int]
) -> None:
    await register(server)
    await publish(server, "/foo 1", "/bar 2", "/foo/x 3", "/foo 4", "/foobar 5")
    async with client(server) as guble:
        await guble.send(f"+ /foo {asked}")
        start, *was, done, live = await guble.some(len(expected) + 3)
        assert start == f"#fetch-start /foo {len(expected)}"
        assert [int(each.split(",")[1]) for each in was] == expected
        assert bodies(was) == [str(each) for each in expected]
        assert (done, live) == ("#fetch-done /foo", "#subscribed-to /foo")
        await publish(server, "/foo/y 6")
        assert without_time(await guble.get()) == "/foo/y,6,,,\n\n6"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("0 2", [1, 3]), ("2 1", [3]), ("-2 9", [3, 4]), ("-3 1", [1]), ("0 0", []), ("9 9", [])],
)
async def test_with_a_max_what_was_comes_and_nothing_after_it(
    server: Server, asked: str, expected: list[int]
) -> None:
    await register(server)
    await publish(server, "/foo 1", "/bar 2", "/foo/x 3", "/foo 4")
    async with client(server) as guble:
        await guble.send(f"+ /foo {asked}", "XXXX")
        start, *was, done, fence = await guble.some(len(expected) + 3)
        assert start == f"#fetch-start /foo {len(expected)}"
        assert bodies(was) == [str(each) for each in expected]
        assert done == "#fetch-done /foo"
        assert fence == "!error-bad-request unknown command XXXX"
        await publish(server, "/foo 5")
        assert await guble.ask("- /foo") == "#canceled /foo"


async def test_a_replay_tells_of_a_message_what_was_told_when_it_was_live(server: Server) -> None:
    await register(server)
    async with client(server) as guble:
        await guble.ask("+ /foo")
        await guble.send('> /foo id1\n{"a":1}\n\nx')
        live, _ = await guble.some(2)
        await guble.send("+ /foo 0 9")
        _, was, _ = await guble.some(3)
        assert without_time(was) == without_time(live)


async def test_a_targeted_message_reaches_its_recipients_only_live_and_later(
    server: Server,
) -> None:
    await register(server, "m", "/foo", user="marvin")
    await register(server, "a", "/foo", user="arthur")
    audience = Audience.of(users=["marvin"])
    envelope = Envelope(audience=audience)
    foo = frozenset({"/foo"})
    async with client(server, "marvin", "m") as marvin, client(server, "arthur", "a") as arthur:
        await marvin.ask("+ /foo")
        await arthur.ask("+ /foo")
        await server.hub.store_all([(foo, b"for marvin")], envelopes=[envelope])
        await server.hub.store_all([(foo, b"for all")])
        assert bodies(await marvin.some(2)) == ["for marvin", "for all"]
        assert bodies([await arthur.get()]) == ["for all"]
        await arthur.send("+ /foo 0 9")
        assert (await arthur.some(3))[0] == "#fetch-start /foo 1"
        await marvin.send("+ /foo 0")
        assert (await marvin.some(5))[0] == "#fetch-start /foo 2"
        # Nor does the id that stands in a path make anybody a user.
        await register(server, "n", "/foo")
        async with client(server, "marvin", "n") as nobody:
            await nobody.send("+ /foo 0 9")
            assert (await nobody.some(3))[0] == "#fetch-start /foo 1"


# slow readers


@pytest.mark.parametrize("start", ["", " 0"])
async def test_a_slow_reader_misses_nothing_and_is_told_of_each_fetch(
    tmp_path: Path, start: str
) -> None:
    settings = {"history": "memory://", "outbox_bytes": 100_000}
    async with running(tmp_path, **settings) as server:
        with trio.fail_after(120):
            await register(server)
            async with client(server) as guble:
                await guble.send(f"+ /foo{start}")
                while not (await guble.get()).startswith("#subscribed-to"):
                    pass
                count = 2_000
                async with talk(server) as line:
                    for first in range(0, count, 100):
                        lines = b"".join(
                            b"publish /foo %d %b\n" % (n, b"x" * 10_000)
                            for n in range(first, first + 100)
                        )
                        assert not await line.ask(lines)
                ids: list[int] = []
                fetches: list[list[int]] = []  # of each how many it said, and how many came
                fetching = False
                while len(ids) < count or fetching:
                    message = await guble.get()
                    if message.startswith("#fetch-start /foo "):
                        assert not fetching
                        fetching = True
                        fetches.append([int(message.rpartition(" ")[2]), 0])
                    elif message == "#fetch-done /foo":
                        assert fetching
                        fetching = False
                    else:
                        ids.append(int(message.split(",")[1]))
                        if fetching:
                            fetches[-1][1] += 1
                assert ids == list(range(1, count + 1))
                assert fetches
                assert all(said == came for said, came in fetches)
                await publish(server, "/foo live")
                assert (await guble.get()).endswith("\nlive")


async def test_what_is_too_long_ends_it_and_nobody_else(server: Server) -> None:
    await register(server)
    async with client(server) as one, client(server) as other:
        await one.send(b"> /foo\n\n" + b"x" * 200_000)
        assert await one.closed() == 1009
        assert await other.ask("+ /foo") == "#subscribed-to /foo"
