"""`mist serve` as a process."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mist.broker.projection import COMPILED
from tests.processes import LISTEN, dial, environment, mist, serving


def ask(sock: socket.socket, text: bytes) -> bytes:
    sock.sendall(text)
    return sock.recv(65_536)


def test_it_announces_each_listener_once_it_listens(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.urls[0].startswith("tcp://127.0.0.1:")
        assert server.urls[1].startswith("ws://127.0.0.1:")
        assert not any(url.endswith(":0") for url in server.urls)
        with dial(server.urls[0]) as sock:
            assert ask(sock, b"ping\n") == b"pong\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_it_serves_where_it_can_announce_nothing(tmp_path: Path) -> None:
    url = f"tcp+unix://{tmp_path}/socket"
    options = ["--listen", url, "--data", str(tmp_path / "data")]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            [sys.executable, "-m", "mist", "serve", *options],
            stdout=full,
            stderr=subprocess.DEVNULL,
            env=environment(),
        ) as popen,
    ):
        try:
            give_up = time.monotonic() + 20
            while mist("ping", MIST_SERVER=url).returncode:
                assert popen.poll() is None
                assert time.monotonic() < give_up
        finally:
            popen.kill()


HTTP = ("--listen", "http://127.0.0.1:0")

# What is imported is a good part of an idle server's memory, and of its start (docs/figures.md).
OF_OTHER_COMMANDS = (
    "rich.console",
    "pygments",
    "mist.client",
    "trio_websocket",
    "mist.cli.options",
)
NOT_AT_FIRST = (
    "pyarrow",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "starlette.applications",
    "hiredis",
    "psycopg",
    "httpx",
    "joserfc",
    "mist.archive.sealer",
    "mist.auth.callout",
    "mist.auth.jwt.claims",
    "mist.auth.shared",
    "mist.backup.making",
    "mist.broker.presence",
    "mist.broker.usage",
    "mist.engine.contract",
    "mist.history.latest.index",
    "mist.history.mirroring",
    "mist.history.memory",
    "mist.protocols.subjects",
    "mist.sessions.events",
    "mist.sessions.nodes",
    "mist.sessions.presence",
    "mist.transports.nats",
)


def imported(folder: Path, *options: str) -> set[str]:
    """The modules that a server has imported until it ended."""
    program = ("-X", "importtime", "-m", "mist")
    with serving(folder, *options, listen=(*LISTEN, *HTTP), program=program) as server:
        server.popen.terminate()
        _, said = server.popen.communicate(timeout=20)
    return {line.rpartition("|")[2].strip() for line in said.splitlines()}


def test_it_imports_nothing_that_others_need(tmp_path: Path) -> None:
    found = imported(tmp_path)
    assert {"mist.server", "mist.http.app", "mist.history.sqlite"} <= found
    assert found.isdisjoint(OF_OTHER_COMMANDS)
    assert found.isdisjoint(NOT_AT_FIRST)


def test_it_imports_what_is_on(tmp_path: Path) -> None:
    on = ("--engine", "memory://", "--presence", "room:*", "--events", "--latest", "x:*")
    found = imported(tmp_path, *on, "--listen", "nats://127.0.0.1:0")
    assert {
        "mist.sessions.nodes",
        "mist.sessions.presence",
        "mist.sessions.events",
        "mist.history.latest.index",
        "mist.transports.nats",
    } <= found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it_and_it_exits_with_0(tmp_path: Path, number: int) -> None:
    with serving(tmp_path) as server, dial(server.urls[0]) as sock:
        data = b"x" * 200_000
        sock.sendall(b"subscribe a\n" + b"publish a " + data + b"\n")
        assert sock.recv(1) == b"p"
        server.popen.send_signal(number)
        rest = b""
        while chunk := sock.recv(1 << 20):
            rest += chunk
        assert rest == b"ublish a " + data + b"\n"
        sock.close()
        assert server.popen.wait(20) == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-seconds", "60") as server, dial(server.urls[0]) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"subscribe a\n" + (b"publish a " + b"x" * 60_000 + b"\n") * 100)
        assert sock.recv(1) == b"p"  # and then reads no more, so that draining takes its time
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.stderr is not None
        while "draining" not in server.popen.stderr.readline():
            pass
        assert server.stop() == 0


def test_a_signal_ends_it_that_its_parent_has_blocked(tmp_path: Path) -> None:
    url = f"tcp+unix://{tmp_path}/socket"
    options = ["--listen", url, "--data", str(tmp_path / "data"), "--log-level", "error"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", "mist", "serve", *options],
            stdout=subprocess.PIPE,
            env=environment(),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with popen:
        try:
            assert popen.stdout is not None
            assert popen.stdout.readline()
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(20) == 0
        finally:
            popen.kill()


def test_tokens_outlive_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        token = mist("token", "new", "a,b", "--host", server.urls[0]).stdout.strip()
        assert server.stop() == 0
    with serving(tmp_path) as server:
        assert mist("token", "tags", token, "--host", server.urls[0]).stdout == "a,b\n"


def test_tokens_outlive_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        token = mist("token", "new", "a", "--host", server.urls[0]).stdout.strip()
        server.stop(signal.SIGKILL)
    with serving(tmp_path) as server:
        assert mist("token", "tags", token, "--host", server.urls[0]).returncode == 0


def refused(*arguments: str, **variables: str) -> str:
    done = mist("serve", *arguments, **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_stands_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("secretive = 1\n")
    listen = "tcp://127.0.0.1:0"
    assert "not a folder" in refused("--data", str(file / "x"), "--listen", listen)
    assert "port" in refused("--listen", "tcp://127.0.0.1:99999")
    assert "--outbox-bytes" in refused("--outbox-bytes", "many")
    assert "secret" in refused("--config", str(file))
    assert "MIST_LISTN" in refused(MIST_LISTN=listen)
    assert "secret" in refused("--listen", "tcp://0.0.0.0:0", "--data", str(tmp_path / "d"))
    pem = str(file)
    tls = ("--listen", "tcps://127.0.0.1:0", "--tls-cert", pem, "--tls-key", pem)
    assert "no usable certificate" in refused("--data", str(tmp_path / "d"), *tls)
    assert "no such file" in refused(
        "--data", str(tmp_path / "d"), *tls[:3], f"{pem}.none", "--tls-key", pem
    )


def test_a_port_and_a_folder_in_use_are_told(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as server:
        taken = ("--listen", server.urls[0])
        assert "the address is in use" in refused(*taken, "--data", str(tmp_path / "two"))
        assert "another server uses it" in refused(
            "--listen", "tcp://127.0.0.1:0", "--data", str(tmp_path / "one")
        )


def test_an_unknown_flag_is_an_error_of_usage() -> None:
    assert mist("serve", "--bogus").returncode == 2


def test_settings_come_from_the_environment_and_a_file(tmp_path: Path) -> None:
    config = tmp_path / "mist.toml"
    config.write_text('secret = "s3cret"\nlog_format = "json"\n')
    with serving(tmp_path / "data", MIST_CONFIG=str(config), MIST_MAX_MESSAGE_TAGS="1") as server:
        with dial(server.urls[0]) as sock:
            assert ask(sock, b"auth s3cret\npublish a,b x\n") == b"error Too many tags\n"
        assert server.stop() == 0
        assert server.popen.stderr is not None
        lines = server.popen.stderr.read().splitlines()
        assert [json.loads(line)["event"] for line in lines] == ["started", "draining"]
        assert json.loads(lines[0])["compiled"] is COMPILED


def test_a_secret_on_the_command_line_is_warned_of_and_never_logged(tmp_path: Path) -> None:
    with serving(tmp_path, "--secret", "s3cret", listen=LISTEN) as server:
        assert server.stop() == 0
        assert server.popen.stderr is not None
        log = server.popen.stderr.read()
    assert "warning" in log
    assert "s3cret" not in log
