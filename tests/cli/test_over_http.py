"""Client commands at an HTTP listener: requests, and a WebSocket to subscribe."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mist.cli.http import HttpError, Site
from tests.processes import Process, dial, environment, mist, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
SECRET = {"MIST_SECRET": "s3cret"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("data"), listen=LISTEN, **SECRET) as process:
        yield process


def run(process: Process, *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    done = mist(*arguments, stdin=stdin, MIST_SERVER=process.urls[1], **SECRET)
    return done.returncode, done.stdout, done.stderr


def test_one_shot_commands_are_requests(process: Process) -> None:
    assert run(process, "ping")[0] == 0
    code, first, error = run(process, "publish", "order,eu", "17", "--store")
    assert (code, error) == (0, "")
    code, second, _ = run(process, "publish", "order,eu", "18", "--store", "--json")
    assert json.loads(second) == {"published": 1, "id": int(first) + 1}
    with dial(process.urls[0]) as sock:
        sock.sendall(b"auth s3cret\nsubscribe http,x\nping\n")
        read = b""
        while b"pong" not in read:
            read += sock.recv(1000)
        assert run(process, "list")[1].split() == ["http", "x"]
        assert json.loads(run(process, "who", "--json")[1])["connected"] == 1
        lines = "1\n2\n"
        assert run(process, "publish", "http,x", "--stdin", "--json", stdin=lines)[1] == (
            '{"published": 2}\n'
        )
        read = b""
        while read.count(b"\n") < 2:
            read += sock.recv(1000)
        assert [line.split()[-1] for line in read.splitlines()] == [b"1", b"2"]


def test_a_message_has_the_audience_it_is_given(process: Process) -> None:
    assert run(process, "publish", "to", "x", "--to", "users=1;2&plan=pro&except=a")[0] == 0
    found = mist("publish", "to", "x", "--to", "clients=b", MIST_SERVER=process.urls[1])
    assert (found.returncode, found.stdout) == (1, "")
    assert "answers 401" in found.stderr


def test_a_token_publishes_what_it_grants(process: Process) -> None:
    made = mist("token", "new", ">mine:*", MIST_SERVER=process.urls[0], **SECRET)
    token = made.stdout.split()[0]
    found = mist("publish", "mine:1", "x", "--store", "--token", token, MIST_SERVER=process.urls[1])
    assert (found.returncode, found.stderr) == (0, "")
    assert int(found.stdout) > 0
    for arguments, answer in (
        (("publish", "other", "x", "--token", token), "answers 403"),
        (("list", "--token", token), "answers 403: this needs the secret, not a token"),
        (("publish", "mine:1", "x", "--token", "nosuch"), "answers 401"),
        (("publish", "mine:1", "x", "--token", "a\nb"), "the token holds what no header can carry"),
    ):
        found = mist(*arguments, MIST_SERVER=process.urls[1])
        assert (found.returncode != 0, found.stdout) == (True, "")
        assert answer in found.stderr


def test_a_listener_that_speaks_no_http_is_asked_about(process: Process) -> None:
    url = process.urls[0].replace("tcp://", "http://")
    found = mist("ping", MIST_SERVER=url)
    name = url.partition("://")[2]
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == f"mist ping: no HTTP answer came; is {name} an http listener of mist?\n"


def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.cli.http._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(HttpError, match=f"can't reach {name}: no answer in 0.1 s"):
            Site.of(f"http://{name}").get("/v1/stats")


@pytest.mark.parametrize(
    ("url", "prefix"),
    [("http://h/a b/größe/", "/a%20b/gr%C3%B6%C3%9Fe"), ("http://h/a%20b/~c", "/a%20b/~c")],
)
def test_what_stands_before_paths_is_sent_as_in_a_browser(url: str, prefix: str) -> None:
    assert Site.of(url).prefix == prefix


def test_a_subscription_is_a_websocket_there(process: Process) -> None:
    made = mist("token", "new", "ws", MIST_SERVER=process.urls[0], **SECRET)
    token = made.stdout.split()[0]
    with subprocess.Popen(
        [sys.executable, "-m", "mist", "subscribe", "ws", "--count", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(MIST_SERVER=process.urls[1], MIST_TOKEN=token),
    ) as popen:
        try:
            give_up = time.monotonic() + 20
            while "ws" not in run(process, "list")[1].split():
                assert time.monotonic() < give_up
            assert run(process, "publish", "ws", "over HTTP")[0] == 0
            assert popen.stdout is not None
            assert json.loads(popen.stdout.readline())["data"] == "over HTTP"
            assert popen.wait(10) == 0
        finally:
            popen.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("token", "tags", "x"), 1, "Token not found"),
        (("publish", "a b", "x"), 2, "Invalid tag 'a b'"),
        (("publish", "a,,b", "x"), 2, "Empty tag"),
        (("ping", "--server", "http://127.0.0.1:1"), 3, "can't reach 127.0.0.1:1"),
        (("ping", "--server", "http://u:geheim@127.0.0.1"), 2, "host, port and path only"),
        (
            ("ping", "--server", "gopher://127.0.0.1"),
            2,
            "one of tcp, tcps, tcp+unix, ws, wss, ws+unix, http,",
        ),
        (("subscribe", "a", "--server", "http://["), 2, "not an HTTP listener"),
        (("subscribe", "a"), 2, "subscribing over HTTP needs a token; tcp:// needs none"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    process: Process, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, error = run(process, *arguments)
    assert (found, out) == (code, "")
    assert words in error
    assert error.count("\n") == 1
    assert "geheim" not in error


def test_a_listener_without_tls_is_asked_about(process: Process) -> None:
    line, http = (each.partition("://")[2] for each in process.urls)
    code, _, error = run(process, "ping", "--server", f"https://{http}")
    expected = f"mist ping: {http}: TLS: wrong version number; is it an https listener?\n"
    assert (code, error) == (3, expected)
    code, _, error = run(process, "ping", "--server", f"tcps://{line}")
    words = f"mist ping: {line}: TLS handshake failed, "
    assert (code, error[: len(words)]) == (3, words)
    assert error.endswith("; is it a listener with TLS?\n")
