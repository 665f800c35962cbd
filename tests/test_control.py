"""The control socket: commands on the same machine reach the server of a data directory."""

import errno
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mist.control import NAME, ControlError, NoServer, ask, serve_control
from mist.errors import StartupError


async def greet() -> Mapping[str, object]:
    return {"hello": "world"}


async def refuse() -> Mapping[str, object]:
    raise StartupError("not today")


async def fail() -> Mapping[str, object]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


COMMANDS = {"greet": greet, "refuse": refuse, "fail": fail}


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, folder, COMMANDS)
        yield
        nursery.cancel_scope.cancel()


async def asked(folder: Path, command: str) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(ask, folder, command, timeout=10))


async def test_a_command_is_answered(tmp_path: Path) -> None:
    async with control(tmp_path):
        assert await asked(tmp_path, "greet") == {"hello": "world"}
        with pytest.raises(ControlError, match="not today"):
            await asked(tmp_path, "refuse")
        with pytest.raises(ControlError, match="no such command"):
            await asked(tmp_path, "dance")


async def test_a_mistake_of_a_command_is_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with control(tmp_path):
        with pytest.raises(ControlError, match="a mistake of the server's; it is logged"):
            await asked(tmp_path, "fail")
        assert await asked(tmp_path, "greet") == {"hello": "world"}
    assert [each.getMessage() for each in caplog.records] == ["a command failed"]


async def test_only_its_owner_may_open_it_and_it_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / NAME
    async with control(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    with pytest.raises(NoServer, match="no server runs on the data directory"):
        await asked(tmp_path, "greet")


async def test_one_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / NAME))
    with pytest.raises(NoServer, match="no server runs"):
        await asked(tmp_path, "greet")
    async with control(tmp_path):
        assert await asked(tmp_path, "greet") == {"hello": "world"}


async def test_a_directory_may_be_deeper_than_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    async with control(folder):
        assert await asked(folder, "greet") == {"hello": "world"}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "request_",
    [b"", b"\n", b"[]\n", b"{}\n", b'{"command":[]}\n', b"\xff\n", b"[" * 100_000 + b"\n"],
    ids=["end", "nothing", "list", "no command", "other command", "no text", "deep"],
)
async def test_what_is_no_request_is_refused(tmp_path: Path, request_: bytes) -> None:
    async with control(tmp_path):
        stream = await trio.open_unix_socket(str(tmp_path / NAME))
        async with stream:
            await stream.send_all(request_)
            await stream.send_eof()
            assert (await stream.receive_some()).startswith(b'{"error": "no such command')


async def test_where_no_file_can_be_opened_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.socket.socket(socket.AF_UNIX) as any_:
        kind = type(any_)
    accept = kind.accept
    failing = [errno.ECONNABORTED, errno.EMFILE, errno.EMFILE]

    async def sometimes(self: trio.socket.SocketType) -> object:
        if failing:
            raise OSError(failing[-1], os.strerror(failing.pop()))
        return await accept(self)

    monkeypatch.setattr(kind, "accept", sometimes)
    monkeypatch.setattr("mist.control._RETRY", 0.0)
    with caplog.at_level(logging.INFO, "mist.control"):
        async with control(tmp_path):
            assert await asked(tmp_path, "greet") == {"hello": "world"}
    told = [(record.levelname, getattr(record, "reason", "")) for record in caplog.records]
    assert told == [
        ("WARNING", "Too many open files"),
        ("WARNING", "Software caused connection abort"),
        ("INFO", ""),
    ]


async def test_where_there_can_be_no_socket_the_server_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).mkdir()
    async with control(tmp_path):
        pass
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
