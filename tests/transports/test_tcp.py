"""The line protocol over real sockets: every command, every bad peer."""

import random
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mist.config import Listen
from mist.errors import StartupError
from mist.server import Server
from tests.servers import listeners, port_of, running
from tests.transports.lines import Lines, talk


async def test_ping_is_answered(server: Server) -> None:
    async with talk(server) as one:
        await one.send(b"ping\r\n")
        assert await one.line() == b"pong\n"


async def test_a_message_reaches_who_asked_for_its_tags_and_the_sender_too(
    server: Server,
) -> None:
    async with talk(server) as one, talk(server) as two, talk(server) as three:
        await one.ask(b"subscribe b,a\n")
        await two.ask(b"subscribe a\nsubscribe b\nsubscribe a,b\n")
        await three.ask(b"subscribe c\nsubscribe a,c\n")
        assert await one.ask(b"publish b,a,a x y \r\n") == [b"publish a,b x y \r\n"]
        assert await two.ask(b"") == [b"publish a,b x y \r\n"]
        assert await three.ask(b"") == []


async def test_what_crashed_the_original_works(server: Server) -> None:
    async with talk(server) as one:
        commands = b"subscribe a\nsubscribe b\nunsubscribe a\nlist\n"
        assert await one.ask(commands) == [b"list b\n"]
        assert await one.ask(b"subscribe a,a\npublish a x\n") == [b"publish a x\n"]


async def test_a_subscription_made_twice_needs_two_to_undo(server: Server) -> None:
    async with talk(server) as one:
        twice = b"subscribe a,b\nsubscribe c\nsubscribe b,a\nlist\n"
        assert await one.ask(twice) == [b"list a,b c\n"]
        assert await one.ask(b"unsubscribe b,a\nlist\n") == [b"list a,b c\n"]
        assert await one.ask(b"unsubscribe a,b\nlist\n") == [b"list c\n"]
        assert await one.ask(b"unsubscribe a,b\nunsubscribe c\nlist\n") == [b"list \n"]


async def test_replies_and_deliveries_keep_their_order(server: Server) -> None:
    async with talk(server) as one:
        await one.ask(b"subscribe a\n")
        found = await one.ask(b"publish a 1\nlist\npublish a 2\nbogus\npublish a, 3\npublish a 4\n")
        assert found == [
            b"publish a 1\n",
            b"list a\n",
            b"publish a 2\n",
            b"error Unknown command '[bogus]'\n",
            b"error Empty tag\n",
            b"publish a 4\n",
        ]


async def test_echo_off_leaves_out_the_publisher_only(server: Server) -> None:
    async with talk(server) as one, talk(server) as two:
        await two.ask(b"subscribe a\n")
        assert await one.ask(b"subscribe a\necho off\npublish a 1\n") == []
        assert await one.ask(b"echo on\npublish a 2\n") == [b"publish a 2\n"]
        assert await two.ask(b"") == [b"publish a 1\n", b"publish a 2\n"]


async def test_escape_on_carries_line_feeds(server: Server) -> None:
    async with talk(server) as one, talk(server) as two:
        await one.ask(b"subscribe a\n")
        await two.ask(b"subscribe a\nescape on\n")
        server.hub.publish(frozenset("a"), b"x\n\\")
        assert await one.ask(b"") == []
        assert await two.ask(b"") == [b"publish a x\\n\\\\\n"]
        assert server.hub.statistics().broker.dropped == {"unframable": 1}


async def test_who_and_listall_count_everyone(server: Server) -> None:
    async with talk(server) as one:
        async with talk(server) as two:
            await two.ask(b"subscribe b,a\nsubscribe c\n")
            assert await one.ask(b"who\nlistall\n") == [b"who 2 2\n", b"listall a b c\n"]
        while server.hub.sessions.connected > 1:
            await trio.lowlevel.checkpoint()  # until the server has seen it go
        assert await one.ask(b"who\nlistall\n") == [b"who 1 2\n", b"listall \n"]


async def test_tokens_are_administered(server: Server) -> None:
    async with talk(server) as one:
        assert await one.ask(b"register b,a t\ntags t\n") == [b"tags t a,b\n"]
        assert await one.ask(b"register c t\n") == [b"error already exists\n"]
        assert await one.ask(b"set room:*,a t\nunset b t\ntags t\n") == [b"tags t a,room:*\n"]
        assert await one.ask(b"unset a,room:* t\ntags t\n") == [b"tags t \n"]
        assert await one.ask(b"unregister t\nunregister t\n") == []
        missing = [b"error Token not found\n"] * 3
        assert await one.ask(b"set a t\nunset a t\ntags t\n") == missing


async def test_a_thousand_tokens_in_one_write_are_a_few_transactions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tokens.db"
    async with running(tmp_path / "data", tokens=url) as server, talk(server) as one:
        lines = b"".join(b"register a,b t%d\n" % n for n in range(1000))
        assert await one.ask(lines) == []
        assert await one.ask(b"tags t0\ntags t999\n") == [b"tags t0 a,b\n", b"tags t999 a,b\n"]


async def test_a_token_gets_no_more_than_a_thousand_tags(server: Server) -> None:
    async with talk(server) as one:
        await one.ask(b"register a t\n")
        for start in range(0, 960, 60):
            tags = b",".join(b"t%d" % n for n in range(start, start + 60))
            assert await one.ask(b"set %b t\n" % tags) == []
        tags = b",".join(b"u%d" % n for n in range(60))
        assert await one.ask(b"set %b t\n" % tags) == [b"error Too many tags\n"]


async def test_a_half_closed_peer_still_gets_its_answers(server: Server) -> None:
    async with talk(server) as one:
        await one.send(b"subscribe a\npublish a x\nping\nlast line without end")
        assert isinstance(one.stream, trio.SocketStream)
        await one.stream.send_eof()
        assert await one.rest() == b"publish a x\npong\n"


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\nping\n", b"ping\nHost: x\nping\n"]
)
async def test_a_web_page_cannot_drive_this_port(server: Server, request_: bytes) -> None:
    async with talk(server) as one:
        await one.send(request_ + b"register * evil\n")
        assert (await one.rest()).count(b"pong") == request_.startswith(b"ping")
    assert server.hub.registry.lookup("evil") is None


async def test_a_reset_ends_one_session_and_no_other(server: Server) -> None:
    async with talk(server) as healthy:
        await healthy.ask(b"subscribe a\n")
        for _ in range(10):
            async with talk(server) as one:
                await one.ask(b"subscribe a\n")
                assert isinstance(one.stream, trio.SocketStream)
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                one.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert await healthy.ask(b"publish a x\n") == [b"publish a x\n"]


# secrets


async def test_nothing_but_ping_works_before_the_secret(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s3cret") as server:
        async with talk(server) as one:
            assert await one.ask(b"") == []
            assert await one.ask(b"auth s3cret\nregister a t\ntags t\n") == [b"tags t a\n"]
            assert await one.ask(b"auth s3cret\n") == []
        for wrong in (b"publish a x\n", b"auth wrong\n", b"auth a b\n", b"bogus\n", b"list\n"):
            async with talk(server) as one:
                await one.send(wrong + b"register a evil\nping\n")
                assert await one.rest() == b"error Unauthorized\n"
        assert server.hub.registry.lookup("evil") is None
        assert server.hub.statistics().failed_auths == {"tcp": 5}


async def test_without_a_secret_auth_changes_nothing(server: Server) -> None:
    async with talk(server) as one:
        assert await one.ask(b"auth whatever\nlist\n") == [b"list \n"]


async def test_who_does_not_authenticate_in_time_is_cut(tmp_path: Path) -> None:
    async with running(tmp_path, secret="s", handshake_seconds=0.05) as server:
        async with talk(server) as silent, talk(server) as known:
            await known.ask(b"auth s\n")
            assert await silent.rest() == b""
            assert await known.ask(b"") == []


# limits


async def test_connections_are_limited_in_all(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=2) as server:
        async with talk(server) as one, talk(server) as two:
            await one.ask(b"")
            await two.ask(b"")
            async with talk(server) as three:
                assert await three.rest() == b"error Too many connections\n"
            assert await one.ask(b"") == []


async def test_subscriptions_are_limited(tmp_path: Path) -> None:
    async with running(tmp_path, max_subscriptions=2) as server, talk(server) as one:
        found = await one.ask(b"subscribe a\nsubscribe b\nsubscribe c\nsubscribe a\nlist\n")
        assert found == [b"error Too many subscriptions\n", b"list a b\n"]


async def test_a_line_that_never_ends_costs_no_memory_and_no_connection(server: Server) -> None:
    async with talk(server) as one:
        for _ in range(64):
            await one.send(b"x" * 65_536)
        await one.send(b"\nping\n")
        assert await one.line() == b"error Line too long\n"
        assert await one.line() == b"pong\n"


async def test_the_largest_message_passes(server: Server) -> None:
    async with talk(server) as one:
        await one.ask(b"subscribe a\n")
        line = b"publish a " + b"x" * 1_048_576 + b"\n"
        assert await one.ask(line) == [line]
        assert await one.ask(line.replace(b"a x", b"a xx")) == [b"error Line too long\n"]


# slow consumers


async def test_who_does_not_read_costs_nine_hundred_and_ninety_nine_others_nothing(
    tmp_path: Path,
) -> None:
    outbox = 256 * 1024
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(tmp_path, outbox_bytes=outbox))
        with trio.fail_after(60):
            stalled = await stack.enter_async_context(talk(server))
            assert isinstance(stalled.stream, trio.SocketStream)
            stalled.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await stalled.ask(b"subscribe a\nsubscribe full\n")
            [stalled_session] = server.hub.sessions
            healthy = [await stack.enter_async_context(talk(server)) for _ in range(999)]
            for each in healthy:
                await each.send(b"subscribe a\nping\n")
            for each in healthy:
                assert await each.line() == b"pong\n"
            publisher = await stack.enter_async_context(talk(server))
            # Until it can take no more, neither in its outbox nor in the system's buffers.
            await publisher.ask(b"publish full %b\n" % (b"x" * 10_000) * 600)
            before = stalled_session.outbox.statistics().dropped_full
            assert before > 0
            lines = [b"publish a %06d%b\n" % (n, b"x" * 10_000) for n in range(100)]
            # In steps that the healthy ones keep up with: what is shown here is that the
            # stalled one takes nothing from them, not how fast this machine is.
            for start in range(0, len(lines), 10):
                step = lines[start : start + 10]
                await publisher.send(b"".join(step))
                for each in healthy:
                    assert [await each.line() for _ in step] == step
            statistics = stalled_session.outbox.statistics()
            assert statistics.queued_bytes <= outbox
            assert statistics.dropped_full == before + 100
            assert server.hub.statistics().broker.dropped == {"full": statistics.dropped_full}
            others = [s for s in server.hub.sessions if s is not stalled_session]
            assert all(s.outbox.statistics().dropped_full == 0 for s in others)


async def test_the_disconnect_policy_ends_who_is_too_slow(tmp_path: Path) -> None:
    settings = {"outbox_bytes": 2 << 20, "slow_consumer": "disconnect"}
    async with running(tmp_path, **settings) as server:
        async with talk(server) as slow, talk(server) as publisher:
            await slow.ask(b"subscribe a\n")
            for _ in range(64):
                await publisher.ask(b"publish a " + b"x" * 1_000_000 + b"\n")
                if server.hub.sessions.connected == 1:
                    break
            with trio.fail_after(10):
                received = len(await slow.rest())
            assert 0 < received < 64_000_000


async def test_who_asks_and_never_reads_is_cut(tmp_path: Path) -> None:
    async with running(tmp_path, outbox_bytes=1 << 20) as server, talk(server) as one:
        await one.ask(b"".join(b"subscribe %b%d\n" % (b"t" * 200, n) for n in range(500)))
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(20):
            while True:
                await one.send(b"list\n" * 100)


# fuzz


@given(st.lists(st.binary(max_size=200), max_size=10))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_bytes_hurt_the_server_or_another_session(
    tmp_path: Path, chunks: list[bytes]
) -> None:
    async with running(tmp_path) as server, talk(server) as healthy:
        await healthy.ask(b"subscribe healthy\n")
        async with talk(server) as one:
            try:
                for chunk in chunks:
                    await one.send(chunk)
            except trio.BrokenResourceError:
                pass
        assert await healthy.ask(b"publish healthy x\n") == [b"publish healthy x\n"]


async def test_byte_soup_from_many_at_once_ends_nothing(server: Server) -> None:
    rng = random.Random(11)
    words = [b"publish ", b"subscribe ", b"a,b ", b"\n", b"\r\n", b"list\n", b"\xff", b"Host:"]

    async def soup(seed: int) -> None:
        try:
            async with talk(server) as one:
                for _ in range(20):
                    await one.send(b"".join(rng.choices(words, k=50)) + rng.randbytes(100))
        except trio.BrokenResourceError:
            return

    async with talk(server) as healthy:
        await healthy.ask(b"subscribe healthy\n")
        async with trio.open_nursery() as nursery:
            for seed in range(64):
                nursery.start_soon(soup, seed)
        assert await healthy.ask(b"publish healthy x\n") == [b"publish healthy x\n"]


# TLS and unix sockets


def certificate(folder: Path) -> tuple[trustme.CA, dict[str, Path]]:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "pem"))
    return authority, {"tls_cert": folder / "pem", "tls_key": folder / "pem"}


async def test_tls_carries_the_protocol_and_says_goodbye(tmp_path: Path) -> None:
    authority, files = certificate(tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    listen = listeners("tcps")
    async with running(tmp_path / "data", listen=listen, **files) as server:
        port = port_of(server.urls[0])
        with trio.fail_after(20):
            stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
            one = Lines(stream)
            line = b"publish a " + b"x" * 300_000 + b"\n"
            assert await one.ask(b"subscribe a\n" + line) == [line]
            server.drain()
            assert await stream.receive_some() == b""
            await stream.aclose()


async def test_garbage_and_silence_instead_of_a_tls_handshake_end_alone(tmp_path: Path) -> None:
    authority, files = certificate(tmp_path)
    listen = listeners("tcps")
    settings = {"listen": listen, "handshake_seconds": 0.1, **files}
    async with running(tmp_path / "data", **settings) as server:
        with trio.fail_after(20):
            async with talk(server) as garbage, talk(server) as silent:
                await garbage.send(b"ping\n" * 100)
                await garbage.rest()
                await silent.rest()
            context = ssl.create_default_context()
            authority.configure_trust(context)
            port = port_of(server.urls[0])
            stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context)
            assert await Lines(stream).ask(b"") == []
            await trio.aclose_forcefully(stream)


async def test_a_unix_socket_is_made_replaced_when_stale_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    listen = (Listen.parse(f"tcp+unix://{path}"),)
    async with running(tmp_path / "data", listen=listen):
        async with await trio.open_unix_socket(str(path)) as stream:
            assert await Lines(stream).ask(b"list\n") == [b"list \n"]
        with pytest.raises(StartupError, match="in use"):
            async with running(tmp_path / "other", listen=listen):
                pass
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(StartupError, match="in use"):
        async with running(tmp_path / "data", listen=listen):
            pass
    assert path.read_text() == "precious"
