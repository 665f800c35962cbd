"""Half-open peers: machines that vanish without a word are noticed, and cost others nothing.

A peer vanishes by a socket filter that passes nothing: its kernel drops all that comes for that
socket, unanswered, as if the cable was pulled. For this no right is needed, nor another network.
"""

import ctypes
import socket
import struct
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import attrs
import pytest
import trio

from mist import listening
from mist.http import bus
from mist.protocols.subjects import SubjectProtocol
from tests.endpoints import LISTEN
from tests.processes import serving
from tests.servers import Served, running
from tests.system.test_churn import assert_nothing_is_left
from tests.transports.lines import talk

TOKEN = "half-open-token"
_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>
_ESTABLISHED = "01"  # in /proc/net/tcp
HEADERS = f"Host: localhost\r\nX-Auth-Token: {TOKEN}\r\n"
UPGRADE = (
    "GET {path} HTTP/1.1\r\n" + HEADERS + "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}\r\n"
)
POLL = (
    f"POST /message-bus/half/poll HTTP/1.1\r\n{HEADERS}Content-Type: application/json\r\n"
    'Content-Length: 9\r\n\r\n{{"/a":-1}}'
)

# What the kernel is told in the short version: 3 seconds.
SHORT = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3_000}


@attrs.frozen
class Times:
    """How long a server waits for its peers, in seconds; by default as it does by default.

    Attributes:
        keepalive: until the kernel takes an idle peer for gone, or one that acknowledges nothing.
        ping, idle: of WebSockets.
        request: for a request to come.
        pulse: between pings of NATS.
        poll: that a poll waits.
        slack: beyond what is documented.
    """

    keepalive: float = 180.0
    ping: float = 25.0
    idle: float = 60.0
    request: float = 10.0
    pulse: float = 120.0
    poll: float = 25.0
    slack: float = 20.0


@attrs.frozen
class Peer:
    """One kind of peer.

    Attributes:
        index: of the listener that it connects to.
        says: until it is subscribed, or has sent what it ever will.
        told: what it gets for that in the end; empty for nothing.
        within: seconds in which it is noticed that it has gone.
    """

    index: int
    says: str
    told: bytes
    within: float


def frame(text: str) -> str:
    """A text frame, masked with zeros."""
    return chr(0x81) + chr(0x80 | len(text)) + "\0\0\0\0" + text


def peers(times: Times) -> dict[str, Peer]:
    """Every kind, and when it is noticed."""
    ping = frame('{"command":"ping"}')
    subscribed = frame('{"command":"subscribe","tags":["a"]}')
    websocket = UPGRADE.format(path="/subscribe/websocket", more="")
    objects = UPGRADE.format(
        path="/subscribe/websocket", more="Sec-WebSocket-Protocol: mist.json\r\n"
    )
    topics = UPGRADE.format(path="/stream/user/u", more="")
    connect = f'CONNECT {{"verbose":false,"auth_token":"{TOKEN}"}}\r\n'
    gone = times.keepalive
    return {
        "line, idle": Peer(0, "subscribe quiet\nping\n", b"pong\n", gone),
        "line, with deliveries": Peer(0, "subscribe a\nping\n", b"pong\n", gone + 1),
        "json": Peer(
            0,
            '{"command":"subscribe","tags":["a"]}{"command":"ping"}',
            b'"pong"}\n',
            gone + 1,
        ),
        "frames": Peer(1, f"{websocket}|{subscribed}", b'"subscribe"}', times.idle + 5),
        "json frames": Peer(1, f"{objects}|{subscribed}{ping}", b'"pong"}\n', times.idle + 5),
        "topics": Peer(1, f"{topics}|{frame('+ /a')}", b"#subscribed-to /a", times.idle + 5),
        "events": Peer(2, f"GET /v1/stream?tags=a HTTP/1.1\r\n{HEADERS}\r\n", b"\n\r\n", gone + 15),
        "poll": Peer(
            2,
            f"GET /v1/poll?tags=quiet&timeout={times.poll:g} HTTP/1.1\r\n{HEADERS}\r\n",
            b"",
            times.poll + times.request,
        ),
        "channels": Peer(2, POLL.format(), b"|\r\n\r\n", gone + times.poll + times.request),
        "subjects": Peer(
            3,
            f"{connect}SUB quiet 1\r\nPING\r\n",
            b"PONG\r\n",
            min(gone, 2 * times.pulse) + times.pulse,
        ),
        "request, done": Peer(
            2, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"}", times.request + 1
        ),
        "request, begun": Peer(2, "GET /healthz HTTP/1.1\r\nHost:", b"", times.request + 1),
        "handshake, begun": Peer(1, "GET /subscribe/websock", b"", times.request + 1),
        "connect, begun": Peer(3, "CONN", b"", times.request + 1),
    }


def vanish(sock: socket.socket) -> None:
    """Have nothing come to a socket any more, not even to be acknowledged."""
    passes_nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(passes_nothing))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def held_by_the_server(port: int) -> set[int]:
    """The far ports of the connections that are established at a port, as the kernel has it."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
            found.add(int(remote.rpartition(":")[2], 16))
    return found


async def connected(server: Served, peer: Peer) -> socket.socket:
    """A peer that has got so far."""
    sock = trio.socket.socket()
    await sock.connect(("127.0.0.1", port_at(server, peer)))
    *first, last = peer.says.split("|")
    for part, wanted in (*((each, b"\r\n\r\n") for each in first), (last, peer.told)):
        await sock.send(part.encode("latin-1"))
        got = b""
        while wanted not in got:
            data = await sock.recv(65_536)
            assert data, (peer, got)
            got += data
    return socket.socket(fileno=sock.detach())


def port_at(server: Served, peer: Peer) -> int:
    return int(server.urls[peer.index].split(":")[2].partition("/")[0])


async def talk_meanwhile(server: Served, every: float) -> None:
    """Two others, who notice nothing: each message comes, in order, before the next is sent."""
    async with talk(server) as publisher, talk(server) as subscriber:
        await subscriber.ask(b"subscribe a\n")
        for n in count():
            await publisher.send(b"publish a %d\n" % n)
            with trio.fail_after(30):
                assert await subscriber.line() == b"publish a %d\n" % n
            await trio.sleep(every)


async def watch(server: Served, times: Times) -> dict[str, float]:
    """Have a peer of each kind vanish. After how many seconds the server let go of it."""
    kinds = peers(times)
    gone: dict[str, float] = {}
    with ExitStack() as stack:
        far_ports = {}
        for name, peer in kinds.items():
            sock = stack.enter_context(await connected(server, peer))
            far_ports[name] = sock.getsockname()[1]
            vanish(sock)
        began = trio.current_time()
        end = began + max(peer.within for peer in kinds.values()) + times.slack
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk_meanwhile, server, times.ping / 50)
            while len(gone) < len(kinds) and trio.current_time() < end:
                there = {
                    n: held_by_the_server(n) for n in {port_at(server, p) for p in kinds.values()}
                }
                for name, peer in kinds.items():
                    if name not in gone and far_ports[name] not in there[port_at(server, peer)]:
                        gone[name] = trio.current_time() - began
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    return gone


async def check(server: Served, times: Times) -> None:
    """All are noticed in time, and nothing of theirs is left."""
    gone = await watch(server, times)
    for name, peer in peers(times).items():
        seconds = gone.get(name)
        told = "never" if seconds is None else f"{seconds:.1f} s"
        print(f"{name:24} {told:>8}, documented {peer.within:g} s")
    for name, peer in peers(times).items():
        assert name in gone, name
        assert gone[name] <= peer.within + times.slack, name
    await unregister(server)
    await assert_nothing_is_left(server)


async def register(server: Served) -> None:
    async with talk(server) as peer:
        assert await peer.ask(f"register *,/,.> {TOKEN}\n".encode()) == []


async def unregister(server: Served) -> None:
    async with talk(server) as peer:
        assert await peer.ask(f"unregister {TOKEN}\n".encode()) == []


async def test_peers_that_vanish_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times(keepalive=3.0, ping=0.5, idle=1.5, request=1.0, pulse=0.5, poll=1.0, slack=10.0)
    options = [(name, SHORT[name]) for name, _ in listening._KEEPALIVE]
    monkeypatch.setattr(listening, "_KEEPALIVE", options)
    monkeypatch.setattr(bus, "_MAX_SECONDS", times.poll)
    monkeypatch.setattr(SubjectProtocol, "pulse", times.pulse)
    async with running(
        tmp_path,
        listen=LISTEN,
        history="memory://",
        ping_seconds=times.ping,
        idle_seconds=times.idle,
        handshake_seconds=times.request,
    ) as server:
        server._endpoints.streams._heartbeat_seconds = 0.5
        await register(server)
        await check(server, times)


@pytest.mark.slow
async def test_peers_that_vanish_are_noticed_in_the_times_that_are_documented(
    tmp_path: Path,
) -> None:
    listen = [part for each in LISTEN for part in ("--listen", f"{each.scheme}://127.0.0.1:0")]
    with serving(tmp_path, "--log-level", "error", listen=listen) as process:
        await register(process)
        await check(process, Times())
        assert process.stop() == 0
