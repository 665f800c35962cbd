"""The watchdog of the service manager, which restarts a server that it no longer hears of."""

from pathlib import Path

from tests.processes import serving
from tests.service_manager import notify_socket


def test_a_server_says_that_it_is_ready_and_then_again_and_again_that_it_lives(
    tmp_path: Path,
) -> None:
    with (
        notify_socket(tmp_path) as manager,
        serving(tmp_path / "data", NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="400000"),
    ):
        manager.wait_for("READY=1")
        assert "WATCHDOG=1" not in manager.lines  # from when it is ready on
        manager.wait_for("WATCHDOG=1")
        manager.wait_for("WATCHDOG=1")
        assert "STATUS=ready; 0 connections" in manager.lines
