"""The parts below the client: backoff, addresses, JSON frames, TLS."""

import ssl
from pathlib import Path

import msgspec
import pytest
import trio
import trustme

from mist.client import Backoff, Rejected, connect
from mist.client.address import Address
from mist.client.dialect import Request, Response, SubscriptionRevoked
from mist.client.frames import FrameDialect
from mist.commands import Ping, Subscribe
from mist.config import Listen
from mist.errors import ProtocolViolation
from mist.message import Message
from mist.replies import Done, Failed
from tests.servers import listeners, running

AB = frozenset("ab")


def test_backoff_doubles_up_to_its_cap_and_draws_from_zero() -> None:
    backoff = Backoff(base=0.5, cap=3.0)
    assert [backoff.delay(n, lambda: 1.0) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.delay(5, lambda: 0.0) == 0.0
    assert backoff.delay(100_000, lambda: 1.0) == 3.0


def test_an_address_fills_in_what_a_url_leaves_out() -> None:
    assert Address.parse("tcp://h") == Address("tcp", host="h", port=1445)
    assert Address.parse("tcps://[::1]:5").authority == "[::1]:5"
    assert Address.parse("ws://h").resource == "/subscribe/websocket"
    assert Address.parse("wss://h/x?ticket=1") == Address(
        "ws", tls=True, host="h", port=8888, resource="/x?ticket=1"
    )
    assert Address.parse("tcp+unix:///a%20b").path == "/a b"
    assert "ticket" not in repr(Address.parse("ws://h/?ticket=1"))


def test_frames_match_replies_by_their_ref_in_any_order() -> None:
    dialect = FrameDialect()
    subscribe, ping = Request(Subscribe(AB)), Request(Ping())
    frames = [msgspec.json.decode(frame) for frame in dialect.write([subscribe, ping])]
    assert frames == [
        {"command": "subscribe", "tags": ["a", "b"], "ref": 1},
        {"command": "ping", "ref": 2},
    ]
    assert dialect.receive(b'{"success":true,"command":"ping","ref":2}') == [Response(ping, Done())]
    [answer] = dialect.receive(b'{"success":false,"command":"subscribe","error":"no","ref":1}')
    assert isinstance(answer, Response)
    assert answer.request is subscribe
    assert isinstance(answer.reply, Failed)


def test_frames_nobody_asked_for() -> None:
    dialect = FrameDialect()
    assert dialect.receive(b'{"keys":["a","b"],"data":"x","id":7}') == [Message(AB, b"x", 7)]
    assert dialect.receive(b'{"keys":["a","b"],"data64":"/wA="}') == [Message(AB, b"\xff\x00")]
    revoked = b'{"success":false,"command":"revoked","tags":["a","b"]}'
    assert dialect.receive(revoked) == [SubscriptionRevoked(AB)]
    assert dialect.receive(b'{"success":false,"error":"Invalid json"}') == []


@pytest.mark.parametrize("frame", [b"", b"[]", b"1", b'{"keys":1}', b'{"keys":["a"],"data":1}'])
def test_a_frame_that_is_none_ends_the_connection(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        FrameDialect().receive(frame)


async def test_tls_carries_both_and_checks_the_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    listen = listeners("tcps", "wss")
    with trio.fail_after(10):
        async with running(tmp_path / "data", listen=listen, tls_cert=cert, tls_key=key) as server:
            tcps, wss = server.urls
            async with connect(tcps, ssl_context=trusting) as client:
                await client.register(["a"], "T")
                async with (
                    connect(wss, token="T", ssl_context=trusting) as browser,
                    browser.subscribe(["a"]) as subscription,
                ):
                    await client.publish(["a"], "x")
                    assert (await anext(subscription)).text == "x"
            with pytest.raises(Rejected, match="certificate"):
                async with connect(tcps, wait=True):
                    pass


async def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    path = str(tmp_path / "mist.sock")
    with trio.fail_after(10):
        async with (
            running(tmp_path, listen=(Listen("tcp+unix", path=path),)),
            connect(f"tcp+unix://{path}") as client,
        ):
            await client.ping()
