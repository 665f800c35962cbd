"""Each example, run as the documentation says, against a real server."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from mist.client.sync import connect
from tests.processes import Process, environment, mist

EXAMPLES = Path(__file__).parents[2] / "examples"
DPKG_LOG = Path("/var/log/dpkg.log")


def run(name: str, *arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**variables),
        check=False,
    )


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_service_publishes_its_events(process: Process) -> None:
    url = process.urls[0]
    with connect(url) as client, client.subscribe(["order", "order:3"]) as messages:
        done = run("events_service.py", "--host", url, "--count", "3", "--interval", "0")
        assert done.stdout == "3 events published\n"
        assert json.loads(next(iter(messages)).data)["order"] == 3


def test_the_admin_script_registers_updates_and_leaves_alone(
    process: Process, tmp_path: Path
) -> None:
    url = process.urls[0]
    file = tmp_path / "tokens.txt"
    file.write_text("# browsers\nt0ken-one a,b\n\nt0ken-two room:*\n")
    done = run("register_tokens.py", file, "--host", url)
    assert done.stdout.count("registered") == 2
    assert "t0ken" not in done.stdout
    file.write_text("t0ken-one b,c\nt0ken-two room:*\n")
    again = run("register_tokens.py", file, "--host", url).stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in again] == ["updated", "unchanged"]
    assert mist("token", "tags", "t0ken-one", "--host", url).stdout == "b,c\n"


def test_the_admin_script_tells_what_is_wrong(process: Process, tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("only-a-token\n")
    done = run("register_tokens.py", file, "--host", process.urls[0])
    assert (done.returncode, "expected TOKEN TAGS" in done.stderr) == (1, True)
    file.write_text("t a\n")
    done = run("register_tokens.py", file, "--host", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_the_log_shipper_takes_tags_from_lines() -> None:
    tags_of = load("log_shipper").tags_of
    line = "2026-10-16 23:04:01 status installed libc-bin:amd64 2.36-9"
    assert tags_of(line, "dpkg") == {
        "log:dpkg",
        "action:status",
        "state:installed",
        "package:libc-bin",
        "arch:amd64",
    }
    line = "2026-10-16 23:04:01 install nginx:all <none> 1.22.1-9"
    assert tags_of(line, "dpkg") == {"log:dpkg", "action:install", "package:nginx", "arch:all"}
    assert tags_of("2026-10-16 23:04:01 startup archives unpack", "dpkg") == {"log:dpkg"}
    assert tags_of("Oct 16 WARN disk, nearly full", "syslog") == {"log:syslog", "level:warning"}


def test_the_log_shipper_ships_a_real_log(process: Process, tmp_path: Path) -> None:
    if DPKG_LOG.exists():
        log = DPKG_LOG
    else:
        log = tmp_path / "dpkg.log"
        log.write_text("2026-10-16 23:04:01 install nginx:all <none> 1.22.1-9\n" * 50)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line]
    url = process.urls[0]
    with connect(url) as client, client.subscribe(["log:dpkg"], queue=100_000) as messages:
        done = run("log_shipper.py", "--host", url, "--file", log, "--from-start", "--once")
        assert done.stdout == f"{len(lines)} lines published\n", done.stderr
        got = [next(iter(messages)).text for _ in lines]
    assert got == lines


def test_the_log_shipper_follows_growth_rotation_and_truncation(
    process: Process, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    log.write_text("old\n")
    url = process.urls[0]
    with (
        connect(url) as client,
        client.subscribe(["log:app"], timeout=20) as messages,
        subprocess.Popen(
            [sys.executable, EXAMPLES / "log_shipper.py", "--host", url, "--file", log,
             "--from-start"],
            env=environment(),
        ) as process,
    ):  # fmt: skip
        try:
            assert next(messages).text == "old"
            with log.open("a") as file:
                file.write("grown\nhalf")
            assert next(messages).text == "grown"
            with log.open("a") as file:
                file.write(" a line\n")
            assert next(messages).text == "half a line"
            log.rename(tmp_path / "app.log.1")
            log.write_text("rotated, ERROR\n")
            message = next(messages)
            assert message.text == "rotated, ERROR"
            assert message.tags == {"log:app", "level:error"}
            log.write_text("cut\n")
            assert next(messages).text == "cut"
        finally:
            process.kill()


def test_mist_runs_inside_another_program() -> None:
    done = run("embedded.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[1:] == [
        line for number in "321" for line in (f"in process: {number}", f"over TCP:   {number}")
    ] + [""]
