"""`mist connections`, as a process against a real server."""

import json
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.processes import Process, dial, mist, serving

LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
SECRET = {"MIST_SECRET": "s3cret"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("data"), listen=LISTEN, **SECRET) as process:
        yield process


def run(process: Process, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return mist("connections", *arguments, MIST_SERVER=process.urls[1], **SECRET)


def subscribed(url: str, *lists: bytes) -> socket.socket:
    """A connection, to which the server has said that it is subscribed."""
    sock = dial(url)
    lines = b"".join(b"subscribe %b\n" % each for each in lists)
    sock.sendall(b"auth s3cret\n" + lines + b"ping\n")
    read = b""
    while b"pong" not in read:
        read += sock.recv(1000)
    return sock


def test_connections_are_listed_shown_and_ended(process: Process) -> None:
    url = process.urls[0]
    # The second comes when the first is known: two that come at once have no order.
    with subscribed(url, b"a") as one, subscribed(url, b"a", b"b,c") as other:
        listed = run(process, "list", "--sort", "subscriptions")
        assert (listed.returncode, listed.stderr) == (0, "")
        heading, first, second = listed.stdout.splitlines()
        assert heading.split()[:4] == ["NAME", "NODE", "PEER", "SINCE"]
        assert ("127.0.0.1" in first, "127.0.0.1" in second) == (True, True)
        found = [json.loads(line) for line in run(process, "list", "--json").stdout.splitlines()]
        assert [each["subscriptions"] for each in found] == [1, 2]
        name = found[1]["name"]
        assert first.split()[0] == name
        less = run(process, "list", "--limit", "1")
        assert (len(less.stdout.splitlines()), less.stderr) == (
            2,
            "1 of 2: see --limit and --search\n",
        )
        searched = run(process, "list", "--search", "nothing", "--json")
        assert (searched.returncode, searched.stdout) == (0, "")

        shown = run(process, "show", name).stdout
        assert "peer        127.0.0.1\n" in shown
        assert shown.endswith("subscribed  a\nsubscribed  b,c\n")
        assert json.loads(run(process, "show", name, "--json").stdout)["name"] == name

        ended = run(process, "end", name)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        assert other.recv(1000) == b"error Session ended by an operator\n"
        assert other.recv(1000) == b""
        again = run(process, "end", name)
        assert again.returncode == 1
        assert "there is no such connection" in again.stderr
        one.sendall(b"ping\n")
        assert one.recv(1000) == b"pong\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "../tokens"], 1, "not found"),
        (["show", "tcp-0"], 1, "no such connection"),
        (["end", "tcp-1", "--node", "n2"], 1, "no node of this name"),
        (["list", "--sort", "name"], 2, "is not one of"),
        (["list", "--limit", "0"], 2, "not in the range"),
        (["list", "--server", "tcp://127.0.0.1:1"], 2, "not an HTTP listener"),
        (["list", "--server", "http://127.0.0.1:1"], 3, "can't reach"),
        (["list", "--secret", "wrong"], 1, "that is not the secret"),
        (["list", "--secret", "\udcff"], 2, "the secret holds what no header can carry"),
        (["list", "--server", "http://\udcff/"], 2, "not an HTTP listener"),
        (["list", "--server", "http://127.0.0.1/\udcff"], 2, "not an HTTP listener"),
        (["list", "--search", "\udcff"], 1, "the query can't be understood"),
        (["show", "\udcff"], 1, "no such connection"),
        (["end", "tcp-1", "--node", "\udcff"], 1, "the query can't be understood"),
    ],
)
def test_what_cannot_be_done_is_told(
    process: Process, arguments: list[str], code: int, words: str
) -> None:
    done = run(process, *arguments)
    assert (done.returncode, done.stdout.count("\n") <= 1) == (code, True)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
