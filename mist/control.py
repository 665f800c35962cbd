"""The control socket: how commands on the same machine reach the server of a data directory.

A unix socket in the data directory, `control.sock`. A request is one line of JSON with a
`command`, the answer is another: its result, or `{"error": "one line"}`. Who may open it can read
the data directory, and is the user of the server or root: no other credential is asked for.

A file system without sockets, as some network mounts, costs these commands and nothing else.
"""

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio

from mist.errors import MistError
from mist.outage import Outage

__all__ = ["NAME", "ControlError", "NoServer", "ask", "serve_control"]

log = logging.getLogger("mist.control")

NAME: Final = "control.sock"

_MOST: Final = 1 << 20  # bytes of a request or an answer
_REQUEST_SECONDS: Final = 10.0
_RETRY: Final = 0.1  # seconds until another connection is accepted where that failed
_SHORT: Final = 100  # bytes of a path that any system takes

Answer = Mapping[str, object]
Commands = Mapping[str, Callable[[], Awaitable[Answer]]]
"""What the server does, by the name of the command."""


class NoServer(MistError):
    """No server runs on a data directory, or it can't be reached."""

    code = "no_server"


class ControlError(MistError):
    """The server has refused a command; the text says why."""

    code = "refused"


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's path, short enough for one: a directory may be deeper than a socket can be."""
    path = str(folder / NAME)
    if len(os.fsencode(path)) <= _SHORT or sys.platform != "linux":
        yield path
        return
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)


# the server


async def serve_control(
    folder: Path,
    commands: Commands,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands until cancelled. The caller has the data directory locked.

    Started once commands can be sent.
    """
    try:
        sock = _bind(folder)
    except OSError as error:
        log.warning(
            "no control socket: `mist reload` and `mist backup` can't reach this server",
            extra={"reason": error.strerror or str(error)},
        )
        task_status.started()
        return
    try:
        with sock:
            task_status.started()
            async with trio.open_nursery() as nursery:
                outage = Outage(
                    log, "no command can be taken for now", "commands can be taken again"
                )
                while True:
                    nursery.start_soon(_serve, await _accept(sock, outage), commands)
    finally:
        with suppress(OSError):
            (folder / NAME).unlink()


def _bind(folder: Path) -> trio.socket.SocketType:
    with suppress(FileNotFoundError):
        (folder / NAME).unlink()  # of a server that was killed
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            sock.bind(address)
            os.chmod(address, 0o600)
        sock.listen(8)
    except BaseException:
        sock.close()
        raise
    return trio.socket.from_stdlib_socket(sock)


async def _accept(sock: trio.socket.SocketType, outage: Outage) -> trio.SocketStream:
    """The next who connects.

    Where accept(2) fails, mostly no file descriptor is left. There will be one again, and all who
    are served otherwise have nothing to do with it.
    """
    while True:
        try:
            accepted, _ = await sock.accept()
        except OSError as error:
            outage.note(error.strerror or str(error))
            await trio.sleep(_RETRY)
        else:
            outage.end()
            return trio.SocketStream(accepted)


async def _serve(stream: trio.SocketStream, commands: Commands) -> None:
    async with stream:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if not _may_ask(stream.socket):
                return
            answer = await _answer(await _read_line(stream), commands)
            await stream.send_all(json.dumps(answer).encode() + b"\n")


def _may_ask(sock: trio.socket.SocketType) -> bool:
    """Whether the peer is the user of this server, or root, where the system can tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", found)[1] in (0, os.geteuid())


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = b""
    with trio.move_on_after(_REQUEST_SECONDS):
        while not line.endswith(b"\n") and len(line) < _MOST:
            data = await stream.receive_some(_MOST)
            if not data:
                break
            line += data
    return line


async def _answer(line: bytes, commands: Commands) -> Answer:
    try:
        request = json.loads(line)
        command = commands[request["command"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"error": "no such command; is this mist of another version than the server?"}
    try:
        return await command()
    except MistError as error:
        return {"error": str(error)}
    except Exception:  # costs this command, and not all that the server does
        log.exception("a command failed")
        return {"error": "a mistake of the server's; it is logged"}


# those who ask


def ask(folder: Path, command: str, *, timeout: float = 30.0) -> dict[str, Any]:
    """Have the server of a data directory do something. Blocks.

    Args:
        timeout: seconds.

    Raises:
        NoServer: there is none.
        ControlError: it refuses.
    """
    try:
        with _address(folder) as address, socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout)
            sock.connect(address)
            sock.sendall(json.dumps({"command": command}).encode() + b"\n")
            with sock.makefile("rb") as file:
                line = file.readline(_MOST)
        answer = json.loads(line)
    except TimeoutError:
        raise NoServer(f"the server of {folder} has not answered in {timeout:g} s") from None
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoServer(f"no server runs on the data directory {folder}") from None
    except OSError as error:
        raise NoServer(f"data directory {folder}: {error.strerror or error}") from error
    except ValueError:
        raise NoServer(f"the server of {folder} has ended, or you are not its user") from None
    if not isinstance(answer, dict):
        raise NoServer(f"the server of {folder} has answered something else")
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer
