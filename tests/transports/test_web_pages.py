"""What a web page can make its browser send to a port of ours, and what comes of it: nothing.

A page chooses the address, and a part of what is sent: the body of an HTTP request, and with a
server of its own the session ticket of a TLS handshake, which a browser gives back to whatever
answers under that name later (DNS rebinding). Lines in either must never be commands.
"""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest
import trio

from mist.server import Server
from tests.servers import listeners
from tests.transports.lines import Lines, talk

LINES: Final = b"\r\nregister * evil\npublish a evil\npublish-to users=1 a evil\n"
OBJECTS: Final = (
    b'\n{"command":"register","tags":["*"],"data":"evil"}\n{"command":"publish","tags":["a"]}\n'
)
SUBJECTS: Final = b'\r\nCONNECT {"verbose":false}\r\nPUB a 4\r\nevil\r\n'


def client_hello(ticket: bytes) -> bytes:
    """The first record of TLS 1.2 with a session ticket in it (RFC 5077, section 3.2)."""
    extension = struct.pack(">HH", 35, len(ticket)) + ticket
    body = b"".join(
        (
            b"\x03\x03",
            bytes(range(32)),
            b"\x00",  # no session id
            struct.pack(">HH", 2, 0xC02F),
            b"\x01\x00",  # no compression
            struct.pack(">H", len(extension)),
            extension,
        )
    )
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(handshake)) + handshake


def post(body: bytes) -> bytes:
    """A form that a page sends without asking anybody."""
    return (
        b"POST / HTTP/1.1\r\nHost: rebound.example\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def stun(name: bytes) -> bytes:
    """A binding request as WebRTC sends it over TCP (RFC 4571): the page chooses the user name."""
    attribute = struct.pack(">HH", 6, len(name)) + name
    request = struct.pack(">HHI", 1, len(attribute), 0x2112A442) + bytes(12) + attribute
    return struct.pack(">H", len(request)) + request


async def said(page: Lines, sent: bytes, size: int | None = None) -> bytes:
    """All that a peer is answered that sends this and ends its side.

    Args:
        size: bytes at a time; None for all at once.
    """
    assert isinstance(page.stream, trio.SocketStream)
    with suppress(trio.BrokenResourceError):
        for start in range(0, len(sent), size or len(sent)):
            await page.send(sent[start : start + (size or len(sent))])
        await page.stream.send_eof()
    return await page.rest()


@pytest.fixture
def server_settings() -> dict[str, object]:
    return {"listen": listeners("tcp", "nats")}


@pytest.mark.parametrize("written", [client_hello, post, stun], ids=["tls", "http", "stun"])
@pytest.mark.parametrize("commands", [LINES, OBJECTS, SUBJECTS], ids=["lines", "json", "nats"])
@pytest.mark.parametrize("listener", [0, 1], ids=["tcp", "nats"])
async def test_a_web_page_commands_nothing(
    server: Server, listener: int, commands: bytes, written: Callable[[bytes], bytes]
) -> None:
    for size in (None, 1):
        async with talk(server, listener) as page:
            told = await said(page, written(commands), size)
            assert told.count(b"\n") == listener  # the greeting of NATS
    assert server.hub.registry.lookup("evil") is None
    assert server.hub.broker.statistics().published == 0


@pytest.mark.parametrize("listener", [0, 1], ids=["tcp", "nats"])
async def test_only_what_may_begin_a_command_is_read_on(server: Server, listener: int) -> None:
    for code in range(256):
        first = bytes((code,))
        if first.isalpha() or first.isspace() or first in b"{+":
            continue
        async with talk(server, listener) as one:
            told = await said(one, first + b"\nping\n")
            assert told.count(b"\n") == listener


@pytest.mark.parametrize("blank", [b"", b"\n\r\n", b" ", b"\r\n\t "], ids=repr)
async def test_blank_lines_before_do_not_hide_it(server: Server, blank: bytes) -> None:
    for listener in (0, 1):
        async with talk(server, listener) as one:
            await said(one, blank + client_hello(LINES + SUBJECTS))
    assert server.hub.registry.lookup("evil") is None
    assert server.hub.broker.statistics().published == 0
