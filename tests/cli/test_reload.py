"""`mist reload` and SIGHUP, at a server in a process of its own."""

import json
import signal
from pathlib import Path

from tests.processes import Process, dial, mist, serving
from tests.service_manager import notify_socket


def line_of(server: Process, start: str) -> str:
    """The next line of the log that has `start` in it."""
    assert server.popen.stderr is not None
    while start not in (line := server.popen.stderr.readline()):
        assert line, "the server has ended"
    return line


def test_a_server_takes_its_settings_again(tmp_path: Path) -> None:
    file, data = tmp_path / "mist.toml", tmp_path / "data"
    file.write_text('log_level = "info"\nsecret = "the-first-secret"\n')
    with (
        notify_socket(tmp_path) as manager,
        serving(data, "--config", str(file), NOTIFY_SOCKET=manager.address) as server,
        dial(server.urls[0]) as sock,
    ):
        sock.sendall(b"auth the-first-secret\nping\n")
        assert sock.recv(100) == b"pong\n"
        manager.wait_for("READY=1")

        file.write_text('log_level = "debug"\nsecret = "another-secret"\ndurability = "process"\n')
        server.popen.send_signal(signal.SIGHUP)
        line = line_of(server, "settings are reloaded")
        assert "'secret', 'log_level'" in line
        assert "another-secret" not in line
        assert "durability" in line_of(server, "need a restart")
        manager.wait_for("RELOADING=1")
        manager.wait_for("READY=1")

        done = mist("reload", "--data", str(data))
        assert (done.returncode, done.stdout) == (
            0,
            "changed: nothing\nneeds a restart: durability\n",
        )

        done = mist("reload", "--data", str(data), "--json")
        assert json.loads(done.stdout) == {"changed": [], "needs_restart": ["durability"]}

        file.write_text("max_dada = 7\n")
        done = mist("reload", "--data", str(data))
        assert done.returncode == 1
        assert done.stderr == (
            f"mist reload: nothing was changed: {file}: 'max_dada': unknown key; "
            "did you mean max_data?\n"
        )
        sock.sendall(b"list\n")
        assert sock.recv(100) == b"list \n"
        assert server.stop() == 0


def test_without_a_server_there_is_nothing_to_reload(tmp_path: Path) -> None:
    done = mist("reload", "--data", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        3,
        f"mist reload: no server runs on the data directory {tmp_path}\n",
    )
