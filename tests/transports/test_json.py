"""The JSON dialect over real sockets: TCP as with nc, and WebSockets; beside lines."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from mist.server import Server
from tests.servers import running
from tests.transports.lines import Lines, talk
from tests.transports.websockets import open_websocket

PATH = "/subscribe/websocket"
TOKEN = "t0ken-that-no-log-may-hold"
PING = b'{"command":"ping"}'
PONG = b'{"command":"ping","data":"pong"}\n'
INVALID = b'{"error":"Invalid json"}\n'


async def ask(one: Lines, sent: bytes = b"") -> list[bytes]:
    """Send objects, and return every answer up to the fence behind them."""
    await one.send(sent + PING)
    found = []
    while (line := await one.line()) not in (PONG, b""):
        found.append(line)
    return found


def command(name: str, *tags: str, **fields: str) -> bytes:
    return json.dumps({"command": name} | ({"tags": tags} if tags else {}) | fields).encode()


# TCP


async def test_what_is_published_reaches_all_others_that_asked_and_not_the_sender(
    server: Server,
) -> None:
    async with talk(server) as one, talk(server) as two, talk(server) as three:
        await ask(one, command("subscribe", "a"))
        await ask(two, command("subscribe", "c", "a"))
        await ask(three, command("subscribe", "b"))
        sent = command("publish", "c", "a", data="hi") + command("publish", "c", "a")
        assert await ask(one, sent) == []
        assert await ask(two) == [
            b'{"command":"publish","tags":["a","c"],"data":"hi"}\n',
            b'{"command":"publish","tags":["a","c"]}\n',
        ]
        assert await ask(three) == []


async def test_subscriptions_are_sets(server: Server) -> None:
    async with talk(server) as one:
        twice = command("subscribe", "c") + command("subscribe", "b", "a") * 2
        assert await ask(one, twice + command("list")) == [
            b'{"command":"list","data":"c a,b","subscriptions":[["c"],["a","b"]]}\n'
        ]
        once = command("unsubscribe", "a", "b") + command("unsubscribe", "x")
        assert await ask(one, once + command("list") + command("listall")) == [
            b'{"command":"list","data":"c","subscriptions":[["c"]]}\n',
            b'{"command":"listall","data":"c"}\n',
        ]
        assert await ask(one, command("unsubscribe", "c") * 2 + command("list")) == [
            b'{"command":"list"}\n'
        ]


async def test_who_counts_everyone(server: Server) -> None:
    async with talk(server) as one:
        async with talk(server) as two:
            await ask(two)
        while server.hub.sessions.connected > 1 or server.hub.sessions.lifetime < 2:
            await trio.lowlevel.checkpoint()
        assert await ask(one, command("who")) == [
            b'{"command":"who","data":"Lifetime  connections: 2\\nSubscribers connected: 1"}\n'
        ]


async def test_errors_end_nothing(server: Server) -> None:
    async with talk(server) as one:
        sent = (
            command("bogus", "b", "a", data="<&>")
            + command("publish", data="x")
            + command("publish", "a b")
            + command("publish", "a", "")
            + b'{"command":"publish","tags":"a"}'
        )
        assert await ask(one, sent) == [
            b'{"command":"bogus","tags":["b","a"],"data":"<&>","error":"Unknown Command"}\n',
            b'{"command":"publish","error":"Failed to publish. Missing tags"}\n',
            b'{"command":"publish","error":"Invalid tag"}\n',
            b'{"command":"publish","error":"Empty tag"}\n',
            b'{"command":"publish","error":"tags must be a list of strings"}\n',
        ]


@pytest.mark.parametrize(
    "bad", [b"x", b"[]", b"{bogus\n", b'{"a":"\xff"}', b"{" * 10, b'{"a":' * 100_000]
)
async def test_what_is_not_json_is_told_so_and_closed(server: Server, bad: bytes) -> None:
    async with talk(server) as one, talk(server) as other:
        await ask(other, command("subscribe", "a"))
        await one.send(PING + command("publish", "a") + bad)
        await one.send(command("publish", "a", data="late"))
        assert await one.rest() == PONG + INVALID
        assert await ask(other) == [b'{"command":"publish","tags":["a"]}\n']


async def test_tokens_are_administered_after_auth_and_before_it_are_unknown(
    server: Server,
) -> None:
    async with talk(server) as one:
        unknown = b'{"command":"tags","data":"t","error":"Unknown Command"}\n'
        assert await ask(one, command("tags", data="t")) == [unknown]
        sent = (
            command("auth", data="anything")
            + command("register", "b", "a*", data="t")
            + command("register", "b", data="t")
            + command("tags", data="t")
            + command("set", ">c", data="t")
            + command("unset", "b", data="t")
            + command("tags", data="t")
            + command("unregister", data="t") * 2
        )
        assert await ask(one, sent) == [
            b'{"command":"register","error":"Token already exists\\n"}\n',
            b'{"command":"tags","tags":["a*","b"]}\n',
            b'{"command":"tags","tags":[">c","a*"]}\n',
        ]
        missing = command("set", "a", data="t") + command("tags", data="t")
        assert await ask(one, missing) == [
            b'{"command":"set","error":"Token not found\\n"}\n',
            b'{"command":"tags","error":"Token not found\\n"}\n',
        ]


async def test_the_first_object_brings_the_secret_or_it_is_the_last(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s3cret") as server:
        async with talk(server) as one, talk(server) as two:
            assert await ask(one, command("auth", data="s3cret")) == []
            assert await ask(one, command("register", "a", data="t")) == []
            # Whatever command brings it is handled, too.
            await two.send(command("ping", data="s3cret") + command("tags", data="t"))
            assert await two.line() == PONG
            assert await two.line() == b'{"command":"tags","tags":["a"]}\n'
        wrong = (PING, command("auth", data="wrong"), command("auth"), b"{}", b'{"command":5}')
        answers: dict[bytes, bytes] = {}

        async def try_(first: bytes) -> None:
            async with talk(server) as one:
                await one.send(first + command("register", "a", data="evil"))
                answers[first] = await one.rest()

        async with trio.open_nursery() as nursery:
            for first in wrong:
                nursery.start_soon(try_, first)
        assert answers == dict.fromkeys(wrong, b"")
        assert server.hub.registry.lookup("evil") is None
        assert server.hub.statistics().failed_auths == {"tcp": len(wrong)}


async def test_bad_json_of_an_unauthenticated_peer_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s3cret") as server, talk(server) as one:
        await one.send(b"{bogus")
        assert await one.rest() == INVALID


async def test_an_unauthenticated_peer_is_closed_in_time_in_the_middle_of_an_object(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, secret="s", handshake_seconds=0.1) as server:
        with trio.fail_after(20):
            async with talk(server) as slow:
                await slow.send(b'{"command":"auth","data":"')
                assert await slow.rest() == b""


async def test_objects_may_come_byte_by_byte(server: Server) -> None:
    async with talk(server) as one, talk(server) as two:
        await ask(two, command("subscribe", "a"))
        for byte in command("publish", "a", data='}{\\"ü😀'):
            await one.send(bytes((byte,)))
        assert await ask(one) == []
        written = '{"command":"publish","tags":["a"],"data":"}{\\\\\\"ü😀"}\n'
        assert await ask(two) == [written.encode()]


async def test_an_object_too_long_is_skipped(server: Server) -> None:
    async with talk(server) as one:
        await one.send(b'{"command":"publish","tags":["a"],"data":"')
        for _ in range(40):
            await one.send(b'\\"' * 32_768)
        assert await ask(one, b'"}') == [b'{"error":"Line too long"}\n']


async def test_the_largest_message_passes(server: Server) -> None:
    async with talk(server) as one, talk(server) as two:
        await ask(two, command("subscribe", "a"))
        data = "x" * 1_048_576
        assert await ask(one, command("publish", "a", data=data)) == []
        [line] = await ask(two)
        assert line == b'{"command":"publish","tags":["a"],"data":"%b"}\n' % data.encode()
        assert await ask(one, command("publish", "a", data=data + "x")) == [
            b'{"command":"publish","error":"Data too long"}\n'
        ]


# beside lines


async def test_lines_and_objects_understand_each_other(server: Server) -> None:
    async with talk(server) as lines, talk(server) as objects:
        await lines.ask(b"subscribe a\n")
        await ask(objects, command("subscribe", "a"))
        published = b"publish b,a x <&> \xff\npublish a \n"
        assert await lines.ask(published) == [b"publish a,b x <&> \xff\n", b"publish a \n"]
        assert await ask(objects) == [
            '{"command":"publish","tags":["a","b"],"data":"x <&> \ufffd"}\n'.encode(),
            b'{"command":"publish","tags":["a"]}\n',
        ]
        await ask(objects, command("publish", "b", "a", data="ü") + command("publish", "a"))
        # The line client gets its own, the other doesn't.
        assert await lines.ask(b"publish a own\n") == [
            "publish a,b ü\n".encode(),
            b"publish a \n",
            b"publish a own\n",
        ]
        assert await ask(objects) == [b'{"command":"publish","tags":["a"],"data":"own"}\n']


async def test_data_with_a_line_feed_is_no_line(server: Server) -> None:
    async with talk(server) as lines, talk(server) as escaped, talk(server) as objects:
        async with talk(server) as publisher:
            await lines.ask(b"subscribe a\n")
            await escaped.ask(b"escape on\nsubscribe a\n")
            await ask(objects, command("subscribe", "a"))
            evil = "1\npublish a forged"
            await ask(publisher, command("publish", "a", data=evil) * 2)
            assert await lines.ask(b"") == []
            assert await escaped.ask(b"") == [b"publish a 1\\npublish a forged\n"] * 2
            written = b'{"command":"publish","tags":["a"],"data":"1\\npublish a forged"}\n'
            assert await ask(objects) == [written] * 2


# with a history


async def test_what_objects_publish_is_stored_and_comes_after_it_is(tmp_path: Path) -> None:
    async with running(tmp_path, history="memory://") as server:
        with trio.fail_after(20):
            async with talk(server) as lines, talk(server) as objects, talk(server) as other:
                await ask(other, command("subscribe", "a"))
                await lines.ask(b"ids on\n")
                sent = command("publish", "a", data="1") + command("publish", "a", data="2\n")
                assert await ask(objects, sent) == []
                assert await ask(other) == [
                    b'{"command":"publish","tags":["a"],"data":"1"}\n',
                    b'{"command":"publish","tags":["a"],"data":"2\\n"}\n',
                ]
                found = await lines.ask(b"escape on\nsubscribe a 0\n")
                assert found == [b"message 1 a 1\n", b"message 2 a 2\\n\n"]


# WebSocket


@asynccontextmanager
async def browse(
    server: Server, token: str | None = TOKEN, *, subprotocols: tuple[str, ...] = ("mist.json",)
) -> AsyncIterator[WebSocketConnection]:
    offered = list(subprotocols)
    if token is not None:
        encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        offered.append("mist.token." + encoded)
    async with open_websocket(server, PATH, subprotocols=offered) as page:
        yield page


async def ask_page(page: WebSocketConnection, sent: bytes = b"") -> list[bytes]:
    await page.send_message((sent + PING).decode())
    found = []
    while (message := await page.get_message()) != PONG.decode():
        found.append(str(message).encode())
    return found


async def closed(page: WebSocketConnection) -> tuple[list[str | bytes], int]:
    """What came before the close frame, and its code."""
    found: list[str | bytes] = []
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            found.append(await page.get_message())
    assert caught.value.reason is not None
    return found, caught.value.reason.code


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[Lines]:
    async with talk(server) as admin:
        await admin.ask(f"register a,b,room:*,>room:* {TOKEN}\n".encode())
        yield admin


async def test_a_page_asks_for_it_by_subprotocol(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        assert page.subprotocol == "mist.json"
        assert await ask_page(page) == []
    async with browse(server, subprotocols=("other", "mist.json", "mist.v1")) as page:
        assert page.subprotocol == "mist.json"
    async with browse(server, subprotocols=("mist.v1", "mist.json")) as page:
        assert page.subprotocol == "mist.v1"
        await page.send_message(PING.decode())
        assert json.loads(await page.get_message()) == {"success": True, "command": "ping"}


async def test_a_page_sees_what_its_token_allows(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        sent = command("subscribe", "x", "a") + command("subscribe", "secret")
        assert await ask_page(page, sent) == [
            b'{"command":"subscribe","error":"not granted by the token"}\n'
        ]
        await admin.ask(b"publish a,x yes\npublish secret no\npublish a,x \xff\n")
        assert await page.get_message() == '{"command":"publish","tags":["a","x"],"data":"yes"}\n'
        assert await page.get_message() == (
            '{"command":"publish","tags":["a","x"],"data":"\ufffd"}\n'
        )


async def test_binary_is_as_good_as_text_and_answers_are_text(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        await page.send_message(PING)
        assert await page.get_message() == PONG.decode()


async def test_a_page_publishes_with_the_right_to_and_to_others(
    server: Server, admin: Lines
) -> None:
    async with browse(server) as one, browse(server) as two:
        for page in (one, two):
            assert await ask_page(page, command("subscribe", "room:1")) == []
        await admin.ask(b"subscribe room:1\nsubscribe a\n")
        assert await ask_page(one, command("publish", "room:1", data="hi")) == []
        refused = b'{"command":"publish","error":"not granted by the token"}\n'
        assert await ask_page(one, command("publish", "a", data="no")) == [refused]
        assert await ask_page(one, command("publish", "room:1", "a", data="no")) == [refused]
        assert await ask_page(two) == [b'{"command":"publish","tags":["room:1"],"data":"hi"}\n']
        assert await admin.ask(b"") == [b"publish room:1 hi\n"]


async def test_a_page_without_a_token_brings_it_with_its_first_object(
    server: Server, admin: Lines
) -> None:
    async with browse(server, None) as page:
        assert await ask_page(page, command("auth", data=TOKEN) + command("subscribe", "a")) == []
        await admin.ask(b"publish a x\n")
        assert await ask_page(page) == [b'{"command":"publish","tags":["a"],"data":"x"}\n']
    async with browse(server, None) as page:
        await page.send_message(PING.decode())
        assert await closed(page) == ([], 4401)
    async with browse(server, "wrong") as page:
        assert await closed(page) == ([], 4401)


async def test_an_unknown_subprotocol_is_none(server: Server, admin: Lines) -> None:
    with pytest.raises(ConnectionRejected) as caught:
        async with browse(server, None, subprotocols=("mist.v2",)):
            pass
    assert caught.value.status_code == 401


async def test_tokens_are_nothing_a_page_may_ask_about(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        sent = command("auth", data=TOKEN) + command("tags", data=TOKEN)
        assert await ask_page(page, sent) == [
            f'{{"command":"tags","data":"{TOKEN}","error":"Unknown Command"}}\n'.encode()
        ]


async def test_a_revoked_token_ends_subscriptions_and_the_page(
    server: Server, admin: Lines
) -> None:
    async with browse(server) as page:
        await ask_page(page, command("subscribe", "a") + command("subscribe", "b"))
        await admin.ask(f"unset a {TOKEN}\npublish a no\n".encode())
        assert await ask_page(page, command("list")) == [
            b'{"command":"revoked","tags":["a"],"error":"not granted by the token"}\n',
            b'{"command":"list","data":"b","subscriptions":[["b"]]}\n',
        ]
        await admin.ask(f"unregister {TOKEN}\n".encode())
        assert await closed(page) == ([], 4401)


async def test_a_message_that_is_not_json_closes_the_page(server: Server, admin: Lines) -> None:
    for bad in ("bogus", '{"command":', "[]"):
        async with browse(server) as page:
            await page.send_message(bad)
            assert await closed(page) == ([INVALID.decode()], 4400)


async def test_a_page_that_says_goodbye_is_answered(server: Server, admin: Lines) -> None:
    async with browse(server) as page:
        with trio.fail_after(5):
            await page.aclose()
        assert page.closed is not None
        assert page.closed.code == 1000


async def test_lines_frames_and_objects_over_either_are_one_conversation(
    server: Server, admin: Lines
) -> None:
    async with browse(server) as json_page, browse(server, subprotocols=("mist.v1",)) as page:
        async with talk(server) as objects:
            for each in (page, json_page):
                await each.send_message('{"command":"subscribe","tags":["room:1"]}')
            await page.get_message()
            await ask_page(json_page)
            await ask(objects, command("subscribe", "room:1"))
            await admin.ask(b"subscribe room:1\n")
            for publish in (
                admin.send(b"publish room:1 x\n"),
                objects.send(command("publish", "room:1", data="x")),
                json_page.send_message(command("publish", "room:1", data="x").decode()),
            ):
                await publish
                assert json.loads(await page.get_message()) == {"keys": ["room:1"], "data": "x"}
            written = b'{"command":"publish","tags":["room:1"],"data":"x"}\n'
            assert await ask_page(json_page) == [written] * 2
            assert await ask(objects) == [written] * 2
            assert await admin.ask(b"") == [b"publish room:1 x\n"] * 3


# fuzz


@given(st.lists(st.binary(max_size=100) | st.sampled_from([PING, b"{", b'"', b"}"]), max_size=8))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_bytes_hurt_the_server_or_another_session(
    tmp_path: Path, chunks: list[bytes]
) -> None:
    async with running(tmp_path) as server, talk(server) as healthy, talk(server) as publisher:
        await ask(healthy, command("subscribe", "healthy"))
        async with talk(server) as one:
            try:
                await one.send(b"{")
                for chunk in chunks:
                    await one.send(chunk)
            except trio.BrokenResourceError:
                pass
        await publisher.ask(b"publish healthy x\n")
        assert await ask(healthy) == [b'{"command":"publish","tags":["healthy"],"data":"x"}\n']
