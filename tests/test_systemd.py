"""The service manager: what it is told, and the sockets that it passes."""

import logging
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
import trio

from mist.config import Listen
from mist.errors import StartupError
from mist.listening import bind
from mist.systemd import Notifier, PassedSockets
from mist.turns import Turns
from tests.service_manager import bound_sockets, notify_socket
from tests.waiting import until


def test_a_service_says_when_it_is_ready_reloads_and_stops(tmp_path: Path) -> None:
    with notify_socket(tmp_path) as manager:
        notifier = Notifier.of({"NOTIFY_SOCKET": manager.address})
        notifier.ready()
        with notifier.reloading():
            pass
        notifier.stopping()
        manager.wait_for("STOPPING=1")
        usec = manager.lines.pop(2)
        assert manager.lines == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
        assert int(usec.removeprefix("MONOTONIC_USEC=")) > 0


def test_an_abstract_name_begins_with_an_at() -> None:
    name = f"mist-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        Notifier(f"@{name}").ready()
        assert sock.recv(100) == b"READY=1"


def test_without_a_manager_nothing_is_sent_and_nothing_runs() -> None:
    notifier = Notifier.of({})
    notifier.ready()
    trio.run(notifier.run, lambda: pytest.fail("nobody asks for a status"))


async def test_the_watchdog_hears_three_times_in_its_time(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    with notify_socket(tmp_path) as manager:
        variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "6000000"}
        notifier = Notifier.of({**variables, "WATCHDOG_PID": str(os.getpid())})
        with trio.move_on_after(5.9):
            await notifier.run(lambda: "ready")
        for _ in range(3):
            manager.wait_for("STATUS=ready")
        assert manager.lines == ["WATCHDOG=1", "STATUS=ready"] * 3


async def test_the_watchdog_of_another_process_is_not_ours(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    with notify_socket(tmp_path) as manager:
        variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "6000000"}
        with trio.move_on_after(15):
            await Notifier.of({**variables, "WATCHDOG_PID": "1"}).run(lambda: "ready")
        manager.wait_for("STATUS")
        manager.wait_for("STATUS")
        assert manager.lines == ["STATUS=ready"] * 2


async def test_a_manager_that_is_gone_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    notifier.ready()
    notifier.ready()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


async def test_a_listener_takes_the_socket_with_its_address() -> None:
    with bound_sockets(2) as sockets:
        port = sockets[1].getsockname()[1]
        passed = PassedSockets([each.dup() for each in sockets])
        listening = await bind(Listen("tcp", "127.0.0.1", port), None, passed)
        assert (listening.is_passed, listening.listen.port) == (True, port)
        other = sockets[0].getsockname()[1]
        with pytest.raises(StartupError, match=f"no --listen has .* 127.0.0.1:{other}$"):
            passed.check_all_taken()
        listening.close()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass  # the manager's own is open still


async def test_the_file_of_a_passed_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        listening = await bind(
            Listen("tcp+unix", path=str(path)), None, PassedSockets([sock.dup()])
        )
        listening.close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


async def test_a_passed_socket_is_served() -> None:
    served: list[trio.abc.Stream] = []

    async def handle(stream: trio.abc.Stream) -> None:
        served.append(stream)
        await stream.aclose()

    with bound_sockets(1) as sockets:
        address = sockets[0].getsockname()
        passed = PassedSockets([sockets[0].dup()])
        listening = await bind(Listen("tcp", *address), None, passed)
        passed.check_all_taken()
        async with trio.open_nursery() as nursery:
            await nursery.start(listening.serve, handle, nursery, Turns())
            with closing(socket.create_connection(address, timeout=5)):
                await until(lambda: served)
            nursery.cancel_scope.cancel()


def test_sockets_of_another_process_are_not_ours() -> None:
    PassedSockets.of({"LISTEN_PID": "1", "LISTEN_FDS": "3"}).check_all_taken()
    PassedSockets.of({"LISTEN_FDS": "3"}).check_all_taken()
    PassedSockets.of({}).check_all_taken()
