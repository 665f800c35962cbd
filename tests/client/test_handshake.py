"""A server, or what stands before it, that does not let a handshake come to its end.

On real sockets. Nothing here may take as long as `connect_seconds`: each is noticed at once.
"""

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from mist.client import AccessDenied, ConnectError, Gap, Rejected, State
from tests.client.loops import connect
from tests.client.test_client import Proxy, States
from tests.client.test_history import until
from tests.servers import running

LONG = 60.0  # seconds; far beyond what a test may take


async def hang_up(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def stay(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def talk_on(stream: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(b"x" * 65_536)


CloseReason = Callable[[trio.SocketStream], Awaitable[None]]


class Rude(Proxy):
    """Answers the first connections with some bytes and an ending, and passes on the rest."""

    def __init__(
        self, url: str, answer: bytes, ending: CloseReason, times: int = 1_000_000
    ) -> None:
        super().__init__(url)
        self.answer, self.ending, self.times = answer, ending, times

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self.times <= 0:
            await super()._serve(stream)
            return
        self.times -= 1
        self.connections += 1
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.receive_some()
            if self.answer:
                await stream.send_all(self.answer)
            await self.ending(stream)


SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\n"
UPGRADE = SWITCHING + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\n"

CUT_SHORT = [
    (b"", hang_up, "connection lost"),
    (b"", reset, "connection lost"),
    (UPGRADE, hang_up, "connection lost"),
    (UPGRADE, reset, "connection lost"),
]
REFUSED = [
    (BAD_GATEWAY + b"Content-Length: 0\r\n\r\n", stay, "HTTP 502"),
    (BAD_GATEWAY + b"Content-Length: 5\r\n\r\nsorry", stay, "HTTP 502"),
    (BAD_GATEWAY + b"Content-Length: 5000\r\n\r\n<html>", hang_up, "HTTP 502"),
    (BAD_GATEWAY + b"Content-Length: 5000\r\n\r\n<html>", reset, "HTTP 502"),
    (UNAVAILABLE + b"\r\n", stay, "HTTP 503"),
    (UNAVAILABLE + b"Connection: close\r\n\r\n<html>", hang_up, "HTTP 503"),
    (UNAVAILABLE + b"Transfer-Encoding: chunked\r\n\r\n", talk_on, "HTTP 503"),
    (b"HTTP/1.0 503 no\r\n\r\n", talk_on, "HTTP 503"),
    (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", stay, "HTTP 302"),
]
NO_WEBSOCKET = [
    (b"220 mail.example ESMTP\r\n", stay, "not speak WebSocket"),
    (b"\x00\xff" * 50, stay, "not speak WebSocket"),
    (b"HTTP/1.1 101 x\r\n\r\n", stay, "not speak WebSocket"),
    (UPGRADE + b"Sec-WebSocket-Accept: AAAA\r\n\r\n", stay, "not speak WebSocket"),
    (UPGRADE + b"Sec-WebSocket-Protocol: \xff\r\n\r\n", stay, "not speak WebSocket"),
    (SWITCHING + b"X: ", talk_on, "not speak WebSocket"),
]


@pytest.mark.parametrize(("answer", "ending", "text"), CUT_SHORT + REFUSED + NO_WEBSOCKET)
async def test_a_handshake_that_fails_is_told_at_once(
    answer: bytes, ending: CloseReason, text: str, nursery: trio.Nursery
) -> None:
    rude = await nursery.start(Rude("tcp://127.0.0.1:1", answer, ending).run)
    with trio.fail_after(5), pytest.raises(ConnectError, match=text) as caught:
        async with connect(rude.url.replace("tcp", "ws"), token="T", connect_seconds=LONG):
            pass
    assert not isinstance(caught.value, Rejected)


@pytest.mark.parametrize(("status", "error"), [(400, Rejected), (401, AccessDenied)])
async def test_a_status_that_will_stay_is_final(
    status: int, error: type[ConnectError], nursery: trio.Nursery
) -> None:
    answer = b"HTTP/1.1 %d no\r\nContent-Length: 9\r\n\r\n" % status
    rude = await nursery.start(Rude("tcp://127.0.0.1:1", answer, stay).run)
    with trio.fail_after(5), pytest.raises(error, match=str(status)):
        async with connect(rude.url.replace("tcp", "ws"), token="T", wait=True):
            pass
    assert rude.connections == 1


@pytest.mark.parametrize(("answer", "ending", "text"), [CUT_SHORT[0], CUT_SHORT[1], REFUSED[2]])
async def test_a_handshake_that_fails_is_tried_again(
    answer: bytes, ending: CloseReason, text: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    states, gaps = States(), list[Gap]()
    with trio.fail_after(10):
        async with (
            running(tmp_path, history="memory://") as server,
            connect(server.urls[0]) as publisher,
        ):
            await publisher.register(["a"], "T")
            url = server.urls[1].replace("ws", "tcp")
            rude = await nursery.start(Rude(url, answer, ending, times=2).run)
            async with (
                connect(
                    rude.url.replace("tcp", "ws"),
                    token="T",
                    wait=True,
                    backoff_base=0.001,
                    connect_seconds=LONG,
                    on_state=states,
                ) as client,
                client.subscribe(["a"], on_gap=gaps.append) as subscription,
            ):
                assert rude.connections == 3
                rude.times = 2
                await rude.cut()
                await publisher.publish(["a"], "meanwhile")
                assert (await anext(subscription)).text == "meanwhile"
                assert rude.connections == 6
            assert gaps == []
            assert states == [
                State.CONNECTED,
                State.RECONNECTING,
                State.CONNECTED,
                State.CLOSED,
            ]


@pytest.mark.parametrize("scheme", ["tcps", "wss"])
@pytest.mark.parametrize("answer", [b"", b"\x16\x03\x03", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@pytest.mark.parametrize("ending", [hang_up, reset])
async def test_a_tls_handshake_cut_short_is_told_at_once(
    scheme: str, answer: bytes, ending: CloseReason, nursery: trio.Nursery
) -> None:
    rude = await nursery.start(Rude("tcp://127.0.0.1:1", answer, ending).run)
    token = "T" if scheme == "wss" else None
    url = rude.url.replace("tcp", scheme)
    with trio.fail_after(5), pytest.raises(ConnectError, match="TLS handshake failed") as caught:
        async with connect(url, token=token, connect_seconds=LONG):
            pass
    assert not isinstance(caught.value, Rejected)
    before = rude.connections
    async with trio.open_nursery() as waiting:

        async def wait() -> None:
            async with connect(
                url, token=token, connect_seconds=LONG, wait=True, backoff_base=0.02
            ):
                pass

        waiting.start_soon(wait)
        with trio.fail_after(5):
            await until(lambda: rude.connections >= before + 3)
        waiting.cancel_scope.cancel()


async def read_and_stay(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"error Unknown command\n", "TLS: wrong version number"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS: tlsv1 alert protocol version"),
    ],
)
async def test_it_is_told_why_a_tls_handshake_failed(
    answer: bytes, words: str, nursery: trio.Nursery
) -> None:
    rude = await nursery.start(Rude("tcp://127.0.0.1:1", answer, read_and_stay).run)
    expected = f"TLS handshake failed, {words}; is it a listener with TLS"
    with trio.fail_after(5), pytest.raises(ConnectError, match=expected) as caught:
        async with connect(rude.url.replace("tcp", "tcps"), connect_seconds=LONG):
            pass
    assert not isinstance(caught.value, Rejected)
