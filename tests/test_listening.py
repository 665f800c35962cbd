"""Accepting connections: few turns of the event loop for many, and none lost in between."""

import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio

from mist.config import Listen
from mist.errors import StartupError
from mist.listening import Listening, bind
from mist.turns import Turns
from tests.waiting import until


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    bound = await bind(Listen("tcp", "127.0.0.1", 0), None)
    yield bound
    bound.close()


def connected(listening: Listening) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listening.listen.port))


class Handler:
    """Keeps the streams that it is given."""

    def __init__(self) -> None:
        self.streams: list[trio.abc.Stream] = []

    async def __call__(self, stream: trio.abc.Stream) -> None:
        self.streams.append(stream)

    async def aclose(self) -> None:
        for stream in self.streams:
            await trio.aclose_forcefully(stream)


@pytest.fixture
async def handler() -> AsyncIterator[Handler]:
    handler = Handler()
    yield handler
    await handler.aclose()


def count_waits(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> list[object]:
    """Each wait for a connection, from now on."""
    waits: list[object] = []
    wait_readable: Callable[[object], Awaitable[None]] = trio.lowlevel.wait_readable

    async def wait(waited: object) -> None:
        if waited is sock:
            waits.append(waited)
        await wait_readable(waited)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait)
    return waits


async def test_many_that_connect_at_once_are_accepted_in_few_turns(
    listening: Listening,
    handler: Handler,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = count_waits(monkeypatch, listening.sock)
    clients = [connected(listening) for _ in range(31)]
    await nursery.start(listening.serve, handler, nursery, Turns())
    await until(lambda: len(handler.streams) == 31)
    assert len(waits) == 7  # for 1 + 2 + 4 + 8 + 8 + 8, and for more
    for client in clients:
        client.close()


class NoTime(Turns):
    """Turns of which each pass has used up its budget."""

    @property
    def over(self) -> bool:
        return True


async def test_where_a_pass_has_no_time_left_one_is_accepted_in_each(
    listening: Listening,
    handler: Handler,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = count_waits(monkeypatch, listening.sock)
    clients = [connected(listening) for _ in range(31)]
    await nursery.start(listening.serve, handler, nursery, NoTime())
    await until(lambda: len(handler.streams) == 31)
    assert len(waits) == 32
    for client in clients:
        client.close()


async def test_nobody_connects_any_more_once_it_is_cancelled(
    listening: Listening, handler: Handler
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(listening.serve, handler, nursery, Turns())
        connected(listening).close()
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefusedError):
        connected(listening)


@pytest.mark.parametrize("turns", [Turns, NoTime])
async def test_where_no_file_can_be_opened_it_is_tried_again(
    listening: Listening,
    handler: Handler,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    turns: Callable[[], Turns],
) -> None:
    accept = socket.socket.accept
    failing = [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE, errno.EMFILE, errno.EMFILE]

    def sometimes(self: socket.socket) -> object:
        if failing:
            raise OSError(failing[-1], os.strerror(failing.pop()))
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", sometimes)
    monkeypatch.setattr("mist.listening._RETRY", 0.0)
    with caplog.at_level(logging.INFO, "mist.listening"), connected(listening):
        await nursery.start(listening.serve, handler, nursery, turns())
        await until(lambda: len(caplog.records) > 2 and handler.streams)
    assert len(handler.streams) == 1
    told = [(record.levelname, getattr(record, "reason", "")) for record in caplog.records]
    assert told == [
        ("WARNING", "too many open files"),
        ("WARNING", "too many open files in system"),
        ("INFO", ""),
    ]


async def test_what_is_accepted_has_a_vanished_peer_noticed(
    listening: Listening, handler: Handler, nursery: trio.Nursery
) -> None:
    await nursery.start(listening.serve, handler, nursery, Turns())
    with connected(listening):
        await until(lambda: handler.streams)
    [stream] = handler.streams
    assert isinstance(stream, trio.SocketStream)
    options = socket.SO_KEEPALIVE, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT
    levels = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_TCP
    found = [
        stream.getsockopt(level, option) for level, option in zip(levels, options, strict=True)
    ]
    assert found == [1, 60, 180_000]


async def test_a_socket_in_the_file_system_goes_with_its_listener(
    tmp_path: Path, handler: Handler
) -> None:
    path = tmp_path / "mist.sock"
    bound = await bind(Listen("tcp+unix", path=str(path)), None)
    async with trio.open_nursery() as nursery:
        await nursery.start(bound.serve, handler, nursery, Turns())
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            await until(lambda: handler.streams)
        nursery.cancel_scope.cancel()
    bound.close()
    assert not path.exists()


async def test_a_socket_in_the_file_system_stays_where_another_server_has_it(
    tmp_path: Path,
) -> None:
    listen = Listen("tcp+unix", path=str(tmp_path / "mist.sock"))
    former = await bind(listen, None)
    former.sock.close()  # as `serve` does at its end; `close` comes when all have left
    later = await bind(listen, None)
    former.close()
    assert Path(listen.path).exists()
    later.close()
    assert not Path(listen.path).exists()


async def test_a_socket_of_a_server_that_accepts_nobody_is_in_use(tmp_path: Path) -> None:
    path = str(tmp_path / "mist.sock")
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as client:
        stuck.bind(path)
        stuck.listen(0)
        client.connect(path)
        with trio.fail_after(5), pytest.raises(StartupError, match="in use"):
            await bind(Listen("tcp+unix", path=path), None)
