"""The listener for NATS clients, byte by byte over real sockets and memory streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from mist.auth.opening import open_registry
from mist.protocols.subjects import PULSE, SubjectProtocol
from mist.protocols.subjects.info import ServerInfo
from mist.server import Server
from mist.sessions.hub import Hub
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.nats import NatsTransport
from tests.passes import counted
from tests.servers import listeners, port_of, running
from tests.transports.lines import Lines, talk
from tests.waiting import until

LISTEN = listeners("nats", "tcp")
QUIET = b'CONNECT {"verbose":false,"headers":true}\r\n'
NATS = b'CONNECT {"lang":"go","version":"1.2.3"}\r\n'


class Peer:
    """A client on a raw socket."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    async def send(self, data: bytes) -> None:
        await self.lines.send(data)

    async def ask(self, data: bytes) -> bytes:
        """Send, and return all that comes up to the fence behind it."""
        await self.send(data + b"PING\r\n")
        found = b""
        while (line := await self.lines.line()) != b"PONG\r\n":
            assert line, found
            found += line
        return found

    async def rest(self) -> bytes:
        return await self.lines.rest()


def deliveries(wire: bytes) -> list[bytes]:
    """What was delivered, sorted; no data in it may hold a line's beginning as here."""
    assert wire.startswith(b"MSG ")
    assert wire.endswith(b"\r\n")
    return sorted(b"MSG " + each for each in wire[4:-2].split(b"\r\nMSG "))


@asynccontextmanager
async def peer(server: Server, connect: bytes = QUIET) -> AsyncIterator[Peer]:
    async with talk(server) as lines:
        assert (await lines.line()).startswith(b"INFO {")
        await lines.send(connect)
        yield Peer(lines)


@pytest.fixture(params=["none", "memory://"], ids=["live", "history"])
def server_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"listen": LISTEN, "history": request.param}


async def test_the_server_speaks_first(server: Server) -> None:
    ids = []
    for _ in range(2):
        async with talk(server) as lines:
            line = await lines.line()
            assert line.startswith(b"INFO ")
            assert line.endswith(b"\r\n")
            info = msgspec.json.decode(line[5:])
            ids.append(info.pop("client_id"))
            port = port_of(server.urls[0])
            assert info.pop("server_id")
            assert info.pop("version")
            assert info == {
                "server_name": "mist",
                "proto": 1,
                "host": "127.0.0.1",
                "port": port,
                "headers": True,
                "max_payload": 1_048_576,
                "client_ip": "127.0.0.1",
            }
    assert ids == [1, 2]


async def test_each_subscription_gets_its_own_copy(server: Server) -> None:
    async with peer(server) as one, peer(server) as two:
        await one.ask(b"SUB foo 1\r\nSUB foo.* 2\r\nSUB > 3\r\nSUB foo.> 4\r\nSUB foo 1\r\n")
        await two.ask(b"PUB foo 1\r\na\r\nPUB foo.bar 1\r\nb\r\n")
        assert deliveries(await one.ask(b"")) == [
            *[b"MSG foo %d 1\r\na" % sid for sid in (1, 3)],
            *[b"MSG foo.bar %d 1\r\nb" % sid for sid in (2, 3, 4)],
        ]
        await one.ask(b"UNSUB 2\r\nUNSUB 3\r\nUNSUB 4\r\n")
        await two.ask(b"PUB foo 1\r\na\r\nPUB foo.bar 1\r\nb\r\n")
        assert await one.ask(b"") == b"MSG foo 1 1\r\na\r\n"


async def test_a_thousand_pipelined_behind_connect_arrive(server: Server) -> None:
    async with peer(server) as one, talk(server) as two:
        await one.ask(b"SUB foo 1\r\n")
        data = b"".join(b"PUB foo 5\r\n%05d\r\n" % n for n in range(1000))
        await two.send(QUIET + data)
        for n in range(1000):
            assert await one.lines.line() == b"MSG foo 1 5\r\n"
            assert await one.lines.line() == b"%05d\r\n" % n


async def test_byte_by_byte_is_the_same(server: Server) -> None:
    async with peer(server) as one:
        for byte in b"SUB foo q 1\r\nPUB foo r 3\r\na\nb\r\n":
            await one.send(bytes((byte,)))
        assert await one.ask(b"") == b"MSG foo 1 r 3\r\na\nb\r\n"


async def test_a_verbose_client_gets_its_answers_behind_what_they_caused(server: Server) -> None:
    async with peer(server, b'CONNECT {"verbose":true}\r\n') as one:
        found = await one.ask(b"SUB foo 1\r\nPUB foo 1\r\nx\r\nPUB * 1\r\nx\r\nUNSUB foo\r\n")
        assert found == (
            b"+OK\r\n+OK\r\nMSG foo 1 1\r\nx\r\n+OK\r\n"
            b"-ERR 'PUB command: invalid subject: wildcards are not allowed'\r\n+OK\r\n"
        )
        assert await one.ask(b"PUB foo 1\r\nx\r\n") == b"+OK\r\n"


async def test_a_second_unsub_is_an_error_for_clients_of_rtmb_and_nothing_for_those_of_nats(
    server: Server,
) -> None:
    unsub = b"UNSUB foo\r\nUNSUB foo\r\nUNSUB 1\r\n"
    async with peer(server, b"CONNECT {}\r\n") as one, peer(server, NATS) as two:
        assert await one.ask(b"SUB foo 1\r\n" + unsub) == (
            b"+OK\r\n+OK\r\n"
            b"-ERR 'subject foo not found in you subscriptions'\r\n"
            b"-ERR 'subject 1 not found in you subscriptions'\r\n"
        )
        assert await two.ask(b"SUB foo 1\r\n" + unsub) == b"+OK\r\n" * 4
        # Nor is there one any more that has ended by itself.
        ended = b"SUB foo 1\r\nUNSUB 1 1\r\nPUB foo 1\r\nx\r\nUNSUB 1\r\n"
        delivered = b"+OK\r\n+OK\r\nMSG foo 1 1\r\nx\r\n+OK\r\n"
        assert await two.ask(ended) == delivered + b"+OK\r\n"
        error = b"-ERR 'subject 1 not found in you subscriptions'\r\n"
        assert await one.ask(ended) == delivered + error


async def test_a_wildcard_inside_a_token_is_a_letter(server: Server) -> None:
    async with peer(server) as one, peer(server) as two:
        await one.ask(b"SUB a*b 1\r\nSUB a*b.* 2\r\nSUB >a 3\r\n")
        await two.ask(b"".join(b"PUB %b 0\r\n\r\n" % each for each in (b"a*b", b"axb", b"ab")))
        await two.ask(b"PUB a*b.c* 0\r\n\r\nPUB >a 0\r\n\r\nPUB a.b 0\r\n\r\n")
        assert await one.ask(b"") == (
            b"MSG a*b 1 0\r\n\r\nMSG a*b.c* 2 0\r\n\r\nMSG >a 3 0\r\n\r\n"
        )


async def test_a_subscription_ends_by_itself_within_one_read(server: Server) -> None:
    async with peer(server) as one, peer(server) as two:
        await one.ask(b"SUB foo 1\r\nUNSUB 1 3\r\nSUB foo 2\r\nUNSUB 2 1\r\n")
        await two.ask(b"".join(b"PUB foo 1\r\n%d\r\n" % n for n in range(9)))
        found = await one.ask(b"")
        assert found.count(b"MSG foo 1 1\r\n") == 3
        assert found.count(b"MSG foo 2 1\r\n0\r\n") == 1
        assert found.count(b"MSG") == 4
        # The name is free again.
        await one.ask(b"SUB foo 1\r\n")
        await two.ask(b"PUB foo 1\r\nx\r\n")
        assert await one.ask(b"") == b"MSG foo 1 1\r\nx\r\n"


async def test_a_queue_is_of_its_subject_and_name(server: Server) -> None:
    async with peer(server) as one, peer(server) as two:
        await one.ask(b"SUB foo a 1\r\nSUB foo b 2\r\nSUB * a 3\r\n")
        await two.ask(b"SUB foo a 4\r\n")
        found = await one.ask(b"PUB foo 1\r\nx\r\n" * 100) + await two.ask(b"")
        counts = [found.count(b"MSG foo %d 1\r\nx\r\n" % sid) for sid in (1, 2, 3, 4)]
        assert counts[0] + counts[3] == counts[1] == counts[2] == 100
        assert min(counts) > 0


async def test_who_asks_nobody_hears_so(server: Server) -> None:
    connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
    async with peer(server, connect) as one, peer(server) as two:
        request = b"PUB a i.1 1\r\nx\r\n"
        told = b"HMSG i.1 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
        assert await one.ask(b"SUB i.* 7\r\n" + request) == told
        await two.ask(b"SUB a 1\r\n")
        assert await one.ask(request) == b""
        assert await two.ask(b"UNSUB 1\r\n") == b"MSG a 1 i.1 1\r\nx\r\n"
        assert await one.ask(request) == told


async def test_who_gets_nothing_of_its_own_hears_that_only_it_listens(server: Server) -> None:
    options = b'{"verbose":false,"headers":true,"no_responders":true,"echo":false}'
    async with peer(server, b"CONNECT %b\r\n" % options) as one, peer(server) as two:
        request = b"SUB i.* 7\r\nSUB a 8\r\nPUB a i.1 1\r\nx\r\n"
        assert await one.ask(request) == b"HMSG i.1 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
        await two.ask(b"SUB a 1\r\n")
        assert await one.ask(request) == b""


async def test_a_web_page_cannot_drive_this_port(server: Server) -> None:
    body = QUIET + b"PUB foo 4\r\nevil\r\n"
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with peer(server) as one, talk(server) as two:
        await one.ask(b"SUB > 1\r\n")
        await two.line()
        await two.send(request + body)
        assert await two.rest() == b""
        assert await one.ask(b"") == b""


# bad peers


async def test_what_an_unauthenticated_peer_announces_is_not_waited_for(server: Server) -> None:
    async with talk(server) as unauthenticated:
        await unauthenticated.line()
        await unauthenticated.send(b"PUB foo 1048576\r\n")
        assert await unauthenticated.rest() == b"-ERR 'Authorization Violation'\r\n"


async def test_what_is_too_large_ends_the_session_with_a_word(server: Server) -> None:
    async with peer(server) as one, peer(server) as two:
        await one.send(b"PUB foo 1048577\r\n")
        text = b"-ERR 'PUB command: message length 1048577 out of bounds'\r\n"
        assert await one.rest() == text
        await two.send(b"SUB " + b"x" * 5000)
        assert await two.rest() == b"-ERR 'maximum control line exceeded'\r\n"


# unauthenticated peers, silence, and the end


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    registry = await open_registry("memory://")
    yield Hub(registry)
    await registry.aclose()


@asynccontextmanager
async def alone(hub: Hub, **options: float) -> AsyncIterator[tuple[Lines, NatsTransport]]:
    """A peer on a memory stream, whose time is a mock's."""
    ours, theirs = memory_stream_pair()
    transport = NatsTransport(hub, ConnectionLimiter(), ServerInfo("ID", "1"), **options)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.handle, theirs, nursery)
        nursery.start_soon(transport.sweep)
        lines = Lines(ours)
        assert (await lines.line()).startswith(b"INFO ")
        yield lines, transport
        nursery.cancel_scope.cancel()


async def test_who_does_not_connect_in_time_is_sent_away(
    hub: Hub, autojump_clock: MockClock
) -> None:
    async with alone(hub) as (lines, _):
        before = trio.current_time()
        await lines.send(b"PING\r\n")
        assert await lines.line() == b"PONG\r\n"
        assert await lines.rest() == b"-ERR 'Authentication Timeout'\r\n"
        assert 10 <= trio.current_time() - before < 11
    assert hub.sessions.close_codes[4408] == 1


async def test_the_silent_are_asked_twice_and_then_given_up(
    hub: Hub, autojump_clock: MockClock
) -> None:
    async with alone(hub) as (lines, _):
        before = trio.current_time()
        await lines.send(QUIET)
        assert await lines.rest() == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
        assert 3 * PULSE <= trio.current_time() - before <= 3.2 * PULSE


async def test_any_sign_of_life_will_do(hub: Hub, autojump_clock: MockClock) -> None:
    async with alone(hub) as (lines, _):
        await lines.send(QUIET)
        for sign in (b"PONG\r\n", b"PUB a 3\r\nx", b"yz\r\n", b"\r\n") * 2:
            assert await lines.line() == b"PING\r\n"
            assert await lines.line() == b"PING\r\n"
            await lines.send(sign)
        assert hub.sessions.connected == 1


async def test_many_are_asked_in_turns(
    hub: Hub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = NatsTransport(hub, ConnectionLimiter(), ServerInfo("ID", "1"))
    asked: list[int] = []
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(transport.handle, theirs, nursery)
            await ours.send_all(QUIET)
        await until(lambda: hub.sessions.connected == 5)
        passes = counted(monkeypatch)
        beat = SubjectProtocol.beat

        def noted(protocol: SubjectProtocol) -> bytes | None:
            asked.append(passes.count)
            return beat(protocol)

        monkeypatch.setattr(SubjectProtocol, "beat", noted)
        nursery.start_soon(transport.sweep)
        await trio.sleep(1.1 * PULSE)
        nursery.cancel_scope.cancel()
    assert len(asked) == len(set(asked)) == 5


async def test_a_full_server_says_so(hub: Hub) -> None:
    ours, theirs = memory_stream_pair()
    transport = NatsTransport(hub, ConnectionLimiter(most=0), ServerInfo("ID", "1"))
    async with trio.open_nursery() as nursery:
        await transport.handle(theirs, nursery)
    assert await Lines(ours).rest() == b"-ERR 'maximum connections exceeded'\r\n"
    assert hub.sessions.refused["nats"] == 1


async def test_with_a_secret_the_greeting_asks_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        with trio.fail_after(30):
            async with talk(server) as lines:
                assert b'"auth_required":true' in await lines.line()
                await lines.send(b"CONNECT {}\r\nPING\r\n")
                assert await lines.rest() == b"-ERR 'Authorization Violation'\r\n"
            async with peer(server, b'CONNECT {"auth_token":"s3cret"}\r\n') as one:
                assert await one.ask(b"SUB > 1\r\n") == b"+OK\r\n"
            # A service, but not one that looks after tokens: this protocol has no words for it.
            assert server.hub.failed_auths["nats"] == 1


async def test_a_revoked_token_ends_the_session_with_a_word(tmp_path: Path) -> None:
    async with running(tmp_path, listen=LISTEN, secret="s3cret") as server:
        with trio.fail_after(30):
            async with talk(server, 1) as admin:
                await admin.ask(b"auth s3cret\nregister .a,>.a t\n")
                async with peer(server, b'CONNECT {"verbose":false,"pass":"t"}\r\n') as one:
                    assert await one.ask(b"SUB a 1\r\nPUB a 1\r\nx\r\n") == b"MSG a 1 1\r\nx\r\n"
                    # Whatever came in one read: what is allowed is published, the rest is not.
                    mixed = b"PUB a 1\r\n1\r\nPUB b 1\r\n2\r\nPUB a 1\r\n3\r\n"
                    assert await one.ask(mixed * 5) == 5 * (
                        b"MSG a 1 1\r\n1\r\n"
                        b"-ERR 'Permissions Violation for Publish to \"b\"'\r\n"
                        b"MSG a 1 1\r\n3\r\n"
                    )
                    await admin.ask(b"unregister t\n")
                    assert await one.rest() == b"-ERR 'User Authentication Revoked'\r\n"
