"""The commands for people, as processes against a real server."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from mist.index import COMPILED
from mist.version import __version__
from tests.processes import Process, environment, mist, serving


def run(
    process: Process, *arguments: str, stdin: str | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    variables.setdefault("MIST_HOST", process.urls[0])
    return mist(*arguments, stdin=stdin, **variables)


def printing(process: Process, command: str, to: "int | IO[str]") -> tuple[int, str]:
    """The exit code and standard error of a command whose output goes to a file."""
    done = subprocess.run(
        [sys.executable, "-m", "mist", *command.split()],
        stdout=to,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(MIST_HOST=process.urls[0]),
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr


class Subscriber:
    """`mist subscribe` in a pipe, ready once the server knows it."""

    def __init__(self, process: Process, *arguments: str, **variables: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "mist", "subscribe", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**{"MIST_HOST": process.urls[0], **variables}),
        )
        wanted = {tag for each in arguments[:1] for tag in each.split(",")}
        for _ in range(200):
            if wanted <= set(run(process, "list").stdout.split()):
                return
        raise AssertionError("it never subscribed")

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *args: object) -> None:
        self.popen.kill()
        self.popen.communicate()

    def lines(self, count: int) -> list[dict[str, object]]:
        """The next messages, without their ids, which depend on what ran before."""
        assert self.popen.stdout is not None
        found = [json.loads(self.popen.stdout.readline()) for _ in range(count)]
        ids = [each.pop("id") for each in found]
        assert ids == sorted(set(ids))
        return found


def test_what_is_published_arrives_as_json_lines_in_a_pipe(process: Process) -> None:
    with Subscriber(process, "pipe,x", "pipe,y", "--count", "3") as subscriber:
        assert run(process, "publish", "x,pipe", "one").returncode == 0
        assert run(process, "publish", "pipe", "not this").returncode == 0
        assert run(process, "publish", "y,x,pipe", "both, once").returncode == 0
        assert run(process, "publish", "y,pipe", 'quo"te').returncode == 0
        assert subscriber.lines(3) == [
            {"tags": ["pipe", "x"], "data": "one"},
            {"tags": ["pipe", "x", "y"], "data": "both, once"},
            {"tags": ["pipe", "y"], "data": 'quo"te'},
        ]
        assert subscriber.popen.wait(10) == 0


def test_ten_thousand_lines_arrive_in_order(process: Process) -> None:
    with Subscriber(process, "many", "--count", "10000") as subscriber:
        lines = "".join(f"{n}\n" for n in range(10_000))
        done = run(process, "publish", "many", "--stdin", stdin=lines)
        assert done.returncode == 0
        assert "10,000 messages published" in done.stderr
        assert [line["data"] for line in subscriber.lines(10_000)] == lines.split()


def test_lines_are_told_apart_wherever_a_read_ends(process: Process) -> None:
    sent = ["", "x" * 200_000, "crlf\r", "", "without an end"]
    with Subscriber(process, "apart", "--count", "5") as subscriber:
        done = run(process, "publish", "apart", "--stdin", stdin="\n".join(sent))
        assert done.returncode == 0
        assert [line["data"] for line in subscriber.lines(5)] == sent


@pytest.mark.parametrize("more", [[], ["--store"]])
def test_an_argument_that_is_not_utf_8_is_published_as_it_is(
    process: Process, more: list[str]
) -> None:
    with Subscriber(process, "bytes", "--count", "1") as subscriber:
        done = run(process, "publish", "bytes", "\udcff\udcfe", *more)  # the bytes FF FE
        assert done.returncode == 0, done.stderr
        assert subscriber.lines(1) == [{"tags": ["bytes"], "data64": "//4="}]


@contextmanager
def waiting_publisher(process: Process) -> Iterator["subprocess.Popen[str]"]:
    """`mist publish --stdin` that has published one line, and waits for the next."""
    with Subscriber(process, "waiting", "--count", "1") as subscriber:
        popen = subprocess.Popen(
            [sys.executable, "-m", "mist", "publish", "waiting", "--stdin"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(MIST_HOST=process.urls[0]),
        )
        try:
            assert popen.stdin is not None
            popen.stdin.write("one\n")
            popen.stdin.flush()
            assert subscriber.lines(1) == [{"tags": ["waiting"], "data": "one"}]
            yield popen
        finally:
            popen.kill()
            popen.communicate()


def test_ctrl_c_ends_a_publisher_that_waits_for_a_line(process: Process) -> None:
    with waiting_publisher(process) as popen:
        popen.send_signal(signal.SIGINT)
        assert popen.wait(10) == 130
        assert popen.stderr is not None
        assert popen.stderr.read() == ""


def test_a_publisher_that_waits_for_a_line_notices_that_its_server_has_gone(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as process, waiting_publisher(process) as popen:
        process.stop()
        assert popen.wait(10) == 3
        assert popen.stderr is not None
        assert "connection lost" in popen.stderr.read()


def test_a_standard_input_that_is_closed_is_told_of(process: Process) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m mist publish a --stdin <&-"],
        capture_output=True,
        text=True,
        env=environment(MIST_HOST=process.urls[0]),
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Error: --stdin: standard input is closed\n")


def test_a_token_can_be_made_and_used_by_a_browser_like_subscriber(process: Process) -> None:
    token = run(process, "token", "new", "browser:*").stdout.strip()
    assert len(token) == 32
    with Subscriber(
        process, "browser:1", "--count", "1", MIST_HOST=process.urls[1], MIST_TOKEN=token
    ) as subscriber:
        run(process, "publish", "browser:1", "hello")
        assert subscriber.lines(1) == [{"tags": ["browser:1"], "data": "hello"}]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("publsh a x", "Error: No such command 'publsh'. Did you mean 'publish'?"),
        ("tokens new a", "Error: No such command 'tokens'. Did you mean 'token'?"),
        ("token unregistr x", "'unregister'"),
        ("xyzzy", "Error: No such command 'xyzzy'."),
        ("--publish", "No such option"),
    ],
)
def test_a_mistyped_command_is_told_what_may_be_meant(command: str, words: str) -> None:
    done = mist(*command.split())
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]


def test_errors_name_their_cause(process: Process) -> None:
    for arguments, code, words in (
        (["ping", "--host", "127.0.0.1:1"], 3, "connection refused; is `mist serve` running?"),
        (["publish", "good,a b", "x"], 2, "Invalid tag 'a b': a tag has no spaces and no commas"),
        (["subscribe", "a*"], 2, "Invalid tag 'a*': only a token's tag may end in *"),
        (["publish", "a,,b", "x"], 2, "Empty tag: a tag has at least one character"),
        (["token", "register", "a", "two words"], 2, "Invalid token: a token is 1 to 255 bytes"),
        (["ping", "--host", "gopher://127.0.0.1:1"], 2, "a server's URL begins with one of tcp,"),
        (["token", "list", "--server", "tcp://127.0.0.1:1"], 3, "connection refused"),
        (["connections", "list", "--server", "http://127.0.0.1:1"], 3, "can't reach 127.0.0.1:1"),
        (["nodes", "--server", "http://127.0.0.1:1"], 3, "can't reach 127.0.0.1:1"),
    ):
        done = run(process, *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        [line] = done.stderr.splitlines()
        assert line.startswith(f"mist {arguments[0]}")
        assert words in line


def test_a_message_that_the_server_refuses_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-data", "10") as process:
        done = run(process, "publish", "a", "x" * 11)
        assert (done.returncode, done.stderr) == (1, "mist publish: Line too long\n")
        done = run(process, "publish", "a", "--stdin", stdin="x" * 11)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "the server refused a message: Line too long",
            "mist publish: Line too long",
        ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "command",
    ["ping", "publish full x --store", "subscribe full --since 0", "config show", "--help"],
)
def test_a_full_disk_is_one_line(process: Process, command: str) -> None:
    run(process, "publish", "full", "x")
    with open("/dev/full", "w") as full:
        done = printing(process, command, full)
    assert done == (1, "mist: can't write: No space left on device\n")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("<&-", "Error: -: standard input is closed"),
        ("< latin-1", "mist token revoke: Invalid token: a token is 1 to 255 bytes of UTF-8"),
    ],
)
def test_a_token_that_standard_input_does_not_have_is_told_of(
    process: Process, tmp_path: Path, given: str, words: str
) -> None:
    (tmp_path / "latin-1").write_bytes(b"k\xf6nig\n")
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m mist token revoke - {given}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(MIST_HOST=process.urls[0], PYTHONIOENCODING="utf-8:strict"),
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(words)


@pytest.mark.parametrize("command", ["config show", "config show --json", "completion zsh", "list"])
def test_a_reader_that_has_enough_is_no_failure(process: Process, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = printing(process, command, writer)
    os.close(writer)
    assert done == (0, "")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_path_that_is_no_utf_8_is_printed_as_json_has_it(tmp_path: Path, errors: str) -> None:
    variables = {"MIST_DATA": "k\udcff", "PYTHONIOENCODING": f"utf-8:{errors}"}
    done = mist("config", "show", "--json", cwd=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    settings = {each["name"]: each["value"] for each in json.loads(done.stdout)["settings"]}
    assert settings["data"] == "k\udcff"


def test_a_path_that_is_no_utf_8_is_printed(tmp_path: Path) -> None:
    variables = {"MIST_DATA": "k\udcff", "PYTHONIOENCODING": "utf-8:strict"}
    done = mist("config", "show", cwd=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "k\\udcff" in done.stdout


def test_a_revoked_subscriber_ends_with_a_word(process: Process) -> None:
    token = run(process, "token", "new", "revoked").stdout.strip()
    variables = {"MIST_HOST": process.urls[1], "MIST_TOKEN": token}
    with Subscriber(process, "revoked", **variables) as subscriber:
        assert run(process, "token", "unregister", "-", stdin=token).returncode == 0
        assert subscriber.popen.wait(10) == 1
        assert subscriber.popen.stderr is not None
        assert "token revoked" in subscriber.popen.stderr.read()


def test_ping_list_and_who_answer(process: Process) -> None:
    assert run(process, "ping", "-c", "2").stdout.count("pong from") == 2
    assert "connected" in run(process, "who").stdout
    assert run(process, "list").returncode == 0


def test_the_server_is_named_by_one_variable_and_by_its_older_ones(process: Process) -> None:
    tcp, elsewhere = process.urls[0], "tcp://127.0.0.1:1"
    assert mist("ping", MIST_SERVER=tcp).returncode == 0
    assert mist("ping", MIST_SERVER=tcp, MIST_HOST=elsewhere).returncode == 0
    assert mist("ping", MIST_HOST=tcp, MIST_SERVER="nats://mist.example").returncode == 0
    assert mist("ping", "--server", tcp, MIST_SERVER=elsewhere).returncode == 0
    assert mist("ping", "--host", tcp, MIST_SERVER=elsewhere).returncode == 0
    assert mist("ping", "--server", elsewhere, MIST_SERVER=tcp).returncode == 3
    both = mist("ping", "--server", tcp, "--host", tcp)
    assert both.returncode == 2
    assert "--server and --host are the same: give --server" in both.stderr


def test_what_is_printed_is_json_where_asked(process: Process) -> None:
    found = [
        json.loads(line) for line in run(process, "ping", "-c2", "--json").stdout.split("\n")[:2]
    ]
    assert [each["server"] for each in found] == [process.urls[0]] * 2
    assert all(0 < each["seconds"] < 10 for each in found)
    with Subscriber(process, "json,x"):
        assert {"json", "x"} <= set(json.loads(run(process, "list", "--json").stdout)["tags"])
        who = json.loads(run(process, "who", "--json").stdout)
        assert who["connected"] >= 2
        assert who["lifetime"] >= who["connected"]
    stored = json.loads(run(process, "publish", "json", "1", "--store", "--json").stdout)
    assert stored["published"] == 1
    assert run(process, "publish", "json", "1", "--store").stdout == f"{stored['id'] + 1}\n"
    done = run(process, "publish", "json", "--stdin", "--json", stdin="1\n2\n")
    assert (done.stdout, done.stderr) == ('{"published": 2}\n', "")


def test_nobody_there_is_code_3() -> None:
    done = mist("ping", "--host", "127.0.0.1:1")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "a*", "x"],
        ["publish", "", "x"],
        ["publish", "a", "x\ny"],
        ["publish", "a"],
        ["publish", "a", "x", "--stdin"],
        ["subscribe"],
        ["subscribe", "a,"],
        ["token", "new", "..x"],
        ["token", "tags", "a b"],
        ["token", "set-attr", "t"],
        ["token", "set-attr", "t", "user"],
        ["token", "set-attr", "t", "user="],
        ["token", "set-attr", "t", "=1"],
        ["token", "set-attr", "t", "users=1"],
        ["token", "set-attr", "t", "groups=a,,b"],
        ["token", "set-attr", "t", "user=1", "user=2"],
        ["token", "set-attr", "t", "user=1", "--unset", "user"],
        ["token", "set-attr", "t", "--unset", "Plan"],
        ["token", "set-attr", "a b", "user=1"],
        ["ping", "--host", "gopher://127.0.0.1"],
        ["ping", "--host", "tcp://127.0.0.1:port"],
        ["bogus"],
    ],
)
def test_bad_usage_is_code_2_without_a_traceback(process: Process, arguments: list[str]) -> None:
    done = run(process, *arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_a_secret_is_needed_where_there_is_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    with serving(tmp_path / "data", "--secret-file", str(secret)) as process:
        assert run(process, "ping", MIST_SECRET="s3cret").returncode == 0
        assert run(process, "ping", "--secret-file", str(secret)).returncode == 0
        assert run(process, "ping", MIST_SECRET_FILE=str(secret)).returncode == 0
        in_file = {"MIST_SECRET": "wrong", "MIST_SECRET_FILE": str(secret)}
        assert run(process, "ping", **in_file).returncode == 0
        assert run(process, "ping", "--secret", "wrong", **in_file).returncode == 1
        for done in (run(process, "ping"), run(process, "ping", MIST_SECRET="wrong")):
            assert done.returncode == 1
            assert "secret" in done.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(process: Process) -> None:
    with Subscriber(process, "head") as subscriber:
        assert subscriber.popen.stdout is not None
        subscriber.popen.stdout.close()
        for _ in range(50):
            if subscriber.popen.poll() is not None:
                break
            run(process, "publish", "head", "x")
        assert subscriber.popen.wait(10) == 0
        assert subscriber.popen.stderr is not None
        assert subscriber.popen.stderr.read() == ""
        subscriber.popen.stderr.close()
        subscriber.popen.stdout = subscriber.popen.stderr = None


def test_help_has_examples_and_exit_codes() -> None:
    text = mist("--help").stdout
    assert "Examples:" in text
    assert "Exit codes:" in text
    for command in ("publish", "subscribe", "serve", "token"):
        assert "Examples:" in mist(command, "--help").stdout


def test_the_version_is_the_packages() -> None:
    code = "compiled" if COMPILED else "pure Python"
    assert mist("--version").stdout == f"mist, version {__version__} ({code})\n"


def test_a_key_of_shared_tokens_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token.key"
    done = mist("token", "key", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    key = path.read_bytes()
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    done = mist("token", "key", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mist token key: {path}: there is a file, which is left as it is\n"
    assert path.read_bytes() == key
    done = mist("token", "key", str(tmp_path / "none" / "token.key"))
    assert done.returncode == 2
    assert done.stderr.endswith("No such file or directory\n")
    assert done.stderr.count("\n") == 1


def test_lines_that_are_typed_are_not_drawn_over(process: Process) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "mist", "publish", "typed", "--stdin"]
    variables = environment(MIST_HOST=process.urls[0], TERM="xterm")
    try:
        with subprocess.Popen(
            command, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave, env=variables
        ) as popen:
            os.write(master, b"one\ntwo\n\x04")
            assert popen.wait(30) == 0
        seen = os.read(master, 1 << 16)
        seen = seen.replace(b"\r\n", b"\n").replace(b"^D\b\b", b"")  # as some systems echo it
        assert seen == b"one\ntwo\n2 messages published\n"
    finally:
        os.close(master)
        os.close(slave)
