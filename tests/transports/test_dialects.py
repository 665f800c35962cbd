"""Protocol detection: a TCP connection's dialect is told by its first bytes alone, once."""

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mist.message import Limits
from mist.protocols.json import JsonProtocol
from mist.protocols.line import LineProtocol
from mist.server import Server
from mist.transports.dialects import line_or_json
from tests.servers import running
from tests.transports.lines import talk
from tests.waiting import until

PONG = b'{"command":"ping","data":"pong"}\n'


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (b"", None),
        (b" \t\r\n", None),
        (b" " * 4_096, None),
        (b"{", JsonProtocol),
        (b"\r\n\t {x", JsonProtocol),
        (b" " * 4_095 + b"{", JsonProtocol),
        (b" " * 4_097, LineProtocol),
        (b"p", LineProtocol),
        (b"\n[{}]", LineProtocol),
        (b"\x00{", LineProtocol),
        (b"\x0b", LineProtocol),
        (b"\xef\xbb\xbf{", LineProtocol),
        (b"GET {", LineProtocol),
    ],
)
def test_the_first_byte_that_is_not_white_space_decides(
    first: bytes, found: type[JsonProtocol | LineProtocol] | None
) -> None:
    protocol = line_or_json(first, Limits(), False)
    assert protocol is None if found is None else type(protocol) is found


@given(st.binary(max_size=20), st.booleans())
def test_more_bytes_change_no_mind(first: bytes, unauthenticated: bool) -> None:
    found = [
        type(line_or_json(first[:n], Limits(), unauthenticated)) for n in range(len(first) + 1)
    ]
    decided = [each for each in found if each is not type(None)]
    assert len(set(decided)) <= 1
    assert found == [type(None)] * (len(found) - len(decided)) + decided


async def test_both_dialects_are_spoken_on_one_port_whatever_the_white_space(
    server: Server,
) -> None:
    for blank in (b"", b"\n", b"\r\n\r\n"):
        async with talk(server) as lines, talk(server) as objects:
            await lines.send(blank + b"ping\n")
            await objects.send(blank + b'{"command":"ping"}')
            assert await lines.line() == b"pong\n"
            assert await objects.line() == PONG


async def test_white_space_and_words_may_come_byte_by_byte(server: Server) -> None:
    for sent, answer in (
        (b'\r\n \t{"command":"ping"}', PONG),
        (b"\r\n\nping\n", b"pong\n"),
        (b"\n \nping\n", b"error Unknown command '[ ]'\n"),
    ):
        async with talk(server) as one:
            for n in range(len(sent)):
                await one.send(sent[n : n + 1])
                await trio.testing.wait_all_tasks_blocked(0.001)
            assert await one.line() == answer


async def test_who_has_said_nothing_yet_is_connected_all_the_same(server: Server) -> None:
    async with talk(server) as one, talk(server):
        while server.hub.sessions.connected < 2:
            await trio.lowlevel.checkpoint()
        assert await one.ask(b"who\n") == [b"who 2 2\n"]


async def test_who_goes_before_a_word_leaves_nothing_behind(server: Server) -> None:
    for sent in (b"", b"\n", b" "):
        async with talk(server) as one:
            await one.send(sent)
            assert isinstance(one.stream, trio.SocketStream)
            await one.stream.send_eof()
            assert await one.rest() == b""
    while server.hub.sessions.connected:
        await trio.lowlevel.checkpoint()


async def test_who_keeps_silent_is_cut_in_time_white_space_or_not(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s", handshake_seconds=0.1) as server:
        with trio.fail_after(20):
            async with talk(server) as silent, talk(server) as blank:
                await blank.send(b" \n\n")
                assert await silent.rest() == b""
                assert await blank.rest() == b""
        assert server.hub.sessions.close_codes[4408] == 2


async def test_a_draining_server_ends_who_has_said_nothing(server: Server) -> None:
    async with talk(server) as silent:
        await until(lambda: server.hub.sessions.connected)
        server.drain()
        with trio.fail_after(5):
            assert await silent.rest() == b""


async def test_http_is_hung_up_on_as_ever(server: Server) -> None:
    for sent in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\nPOST /{ HTTP/1.1\r\n\r\n{}"):
        async with talk(server) as one:
            await one.send(sent + b'{"command":"register","tags":["*"],"data":"evil"}\n')
            assert await one.rest() == b""
    assert server.hub.registry.lookup("evil") is None


async def test_white_space_without_end_is_lines(server: Server) -> None:
    async with talk(server) as one:
        await one.send(b"\n" * 5_000 + b"ping\n")
        assert await one.line() == b"pong\n"
