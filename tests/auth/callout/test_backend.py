"""Questions over real connections: what is sent, which answers are refused, whose turn it is."""

import base64
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trustme

from mist.auth.callout import backend as module
from mist.auth.callout.backend import Backend
from mist.auth.web import WebError
from mist.turns import Account, Turns
from tests.auth.jwt.issuer import Site, huge, site

ASKER = "192.0.2.7"
QUESTION = b'{"credential": "hush"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Noting(Turns):
    """Notes how often a turn was asked for; waits where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.last = 1 << 30

    async def begin(self, account: Account | None = None, *, late: bool = False) -> float:
        assert not late
        assert account is self.account(f"callout {ASKER}")
        self.asked += 1
        if self.asked > self.last:
            await trio.sleep_forever()
        return 0.0


@asynccontextmanager
async def answering(
    serve: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server of a few lines."""

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await serve(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/auth?a=%20b"
        nursery.cancel_scope.cancel()


async def question_of(stream: trio.abc.Stream) -> bool:
    """Read a question; whether there is one."""
    read = bytearray()
    while not read.endswith(QUESTION):
        chunk = await stream.receive_some()
        if not chunk:
            return False
        read += chunk
    return True


async def test_a_question_has_what_a_server_needs() -> None:
    with site(b'{"tags": []}') as it:
        url = it.url.replace("://", "://me%40example:p%C3%A4ss@") + "?a=%20b"
        async with Backend(url, Turns()) as backend:
            for _ in range(2):
                assert await backend.post(QUESTION, {"mist-signature": "t=1"}, ASKER) == (
                    200,
                    b'{"tags": []}',
                )
    assert it.asked == [QUESTION, QUESTION]
    host = it.url.split("/")[2]
    login = base64.b64encode("me@example:p\xe4ss".encode()).decode()
    for seen in it.seen:
        assert seen == {
            "host": host,
            "accept": "application/json",
            "accept-encoding": "identity",
            "authorization": f"Basic {login}",
            "content-type": "application/json",
            "content-length": str(len(QUESTION)),
            "mist-signature": "t=1",
            "user-agent": "mist",
        }


async def test_what_an_answer_sets_is_not_sent_with_the_next_question() -> None:
    with site(b"{}") as it:
        it.headers["set-cookie"] = "who=marvin"
        async with Backend(it.url, Turns()) as backend:
            await backend.post(QUESTION, {}, ASKER)
            await backend.post(QUESTION, {}, ASKER)
    assert "cookie" not in it.seen[1]


async def test_a_redirect_is_an_answer() -> None:
    with site(b"") as it:
        it.status, it.headers["location"] = 302, it.url
        async with Backend(it.url, Turns()) as backend:
            assert await backend.post(QUESTION, {}, ASKER) == (302, b"")
    assert len(it.asked) == 1


def compressed(it: Site) -> None:
    it.headers["content-encoding"] = "gzip"


@pytest.mark.parametrize("damage", [compressed, huge])
async def test_an_answer_that_is_too_long_or_might_be_is_refused(
    damage: Callable[[Site], None],
) -> None:
    with site(b"{}") as it:
        damage(it)
        async with Backend(it.url, Turns()) as backend:
            with pytest.raises(WebError) as caught:
                await backend.post(QUESTION, {}, ASKER)
            assert caught.value.reason == "size"
            it.headers.clear()
            it.body = b"{}"
            assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[::1]:1/", "http://\xe4.invalid/"])
async def test_a_server_that_is_not_there_is_no_mistake_of_ours(url: str) -> None:
    async with Backend(url, Turns()) as backend:
        with pytest.raises(WebError, match="ConnectError"):
            await backend.post(QUESTION, {}, ASKER)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", ANSWER[:-1], b"HTTP/1.1 200 OK\r\n"])
async def test_what_is_no_answer_is_no_mistake_of_ours(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await question_of(stream)
        await stream.send_all(answer)

    async with answering(serve) as url, Backend(url, Turns()) as backend:
        with pytest.raises(WebError, match="Error") as caught:
            await backend.post(QUESTION, {}, ASKER)
        assert caught.value.reason == "connection"
        assert "hush" not in str(caught.value)


async def test_an_answer_that_was_there_before_its_question_is_refused() -> None:
    """Else who asks behind a server's mistake would be told what another one may."""
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        times = 2 if connections == 1 else 1
        while await question_of(stream):
            await stream.send_all(ANSWER * times)

    async with answering(serve) as url, Backend(url, Turns()) as backend:
        assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")
        with pytest.raises(WebError, match="before its question"):
            await backend.post(QUESTION, {}, ASKER)
        assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")
    assert connections == 2


async def test_its_certificate_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)

    async def serve(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, server, server_side=True, https_compatible=True)
        while await question_of(secure):
            await secure.send_all(ANSWER)

    async with answering(serve) as url:
        url = url.replace("http://", "https://")
        async with Backend(url, Turns()) as backend:
            with pytest.raises(WebError, match="ConnectError"):
                await backend.post(QUESTION, {}, ASKER)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        monkeypatch.setattr(module.ssl, "create_default_context", lambda: client)
        turns = Noting()
        async with Backend(url, turns) as backend:
            assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")
            first = turns.asked
            assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")
    assert first == 4  # begun, connected, secure, read
    assert turns.asked - first == 2


async def test_each_step_takes_a_turn_and_one_that_is_given_up_leaves_nothing() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        while await question_of(stream):
            await stream.send_all(ANSWER)

    async with answering(serve) as url:
        turns = Noting()
        async with Backend(url, turns) as backend:
            await backend.post(QUESTION, {}, ASKER)
        assert turns.asked == 3  # begun, connected, read
        for last in range(3):
            turns.asked, turns.last = 0, last
            async with Backend(url, turns) as backend:
                with trio.move_on_after(0.05) as scope:
                    await backend.post(QUESTION, {}, ASKER)
                assert scope.cancelled_caught
                turns.last = 1 << 30
                with trio.fail_after(10):
                    assert await backend.post(QUESTION, {}, ASKER) == (200, b"{}")
        gc.collect()  # a connection left open would be warned of
