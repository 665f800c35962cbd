"""What a peer sent is shown as text, and can't be taken for a log line or a terminal's command."""

import json
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.log_files import logging_to
from tests.processes import Process, dial

FORGED = "2026-01-01T00:00:00.000000Z [error    ] forged"
HOSTILE = (
    "a\x1b[2J\x1b]0;title\x07",
    f"a\n{FORGED}",
    f"a\r{FORGED}",
    "a\x00b",
    "a\x7fb",
    "a\x9b2Jb",
    "a\u2028b\u202eb\u200b",
)


@pytest.fixture(params=["console", "json"])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The file to which this process logs as `mist serve --log-level debug` does."""
    with logging_to(tmp_path / "log", request.param) as path:
        yield path


def only_printable(path: Path) -> list[str]:
    """The lines of a log, after a look at every character."""
    [*found, last] = path.read_bytes().decode().split("\n")
    assert last == ""
    assert all(line.isprintable() for line in found)
    return found


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_field_of_a_record_writes_more_than_its_text(lines: Path, text: str) -> None:
    log = logging.getLogger("mist.test")
    log.warning(text)
    log.warning("%s", text)
    log.warning("event", extra={"field": text})
    log.warning("event", extra={"field": [text, {text: text.encode("utf-8", "replace")}]})
    log.warning("event", extra={"field": Named(text)})
    logging.getLogger("library").warning(text)
    assert len(only_printable(lines)) == 6


class Named:
    """An object whose `repr` is what a peer called it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_line_of_a_traceback_looks_like_a_record(lines: Path, text: str) -> None:
    log = logging.getLogger("mist.test")
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
    log.warning("event", stack_info=True)
    found = only_printable(lines)
    assert sum("Traceback" in line for line in found) == 1
    assert len([line for line in found if not line.startswith(" ")]) == 2


def test_what_needs_no_escape_is_written_as_it_is(lines: Path) -> None:
    logging.getLogger("mist.test").info("Grüße", extra={"path": "/var/ü", "seconds": 0.5, "n": 3})
    [line] = only_printable(lines)
    if line.startswith("{"):
        found = json.loads(line)
        assert (found["event"], found["path"]) == ("Grüße", "/var/ü")
        assert (found["seconds"], found["n"]) == (0.5, 3)
    else:
        assert "Grüße" in line
        assert line.endswith("n=3 path=/var/ü seconds=0.5")


REQUESTS = (
    b"GET /%1b[2J%0a2026-01-01T00:00:00.000000Z%20[error%20%20%20%20]%20forged%00 HTTP/1.1\r\n",
    b"GET /x%20status=200%20peer=10.0.0.1 HTTP/1.1\r\n",
    b"GET /%c2%9b%e2%80%ae%ff HTTP/1.1\r\n",
    b"DELETE /v1/tokens/a-token-by-mistake HTTP/1.1\r\n",
    b"POST /v1/tokens/a-token-by-mistake/x HTTP/1.1\r\nContent-Type: application/json\r\n",
)


class TestRequests:
    """In a server that logs every request."""

    @pytest.fixture(params=["console", "json"])
    def serve_options(self, request: pytest.FixtureRequest) -> Sequence[str]:
        listen = ("--listen", "http://127.0.0.1:0")
        return (*listen, "--log-level", "debug", "--log-format", request.param)

    def test_are_one_line_each_with_their_paths_as_sent(self, own_process: Process) -> None:
        [url] = own_process.urls
        for request in REQUESTS:
            with dial(url) as sock:
                sock.sendall(request + b"Host: localhost\r\n\r\n")
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65_536):
                    pass
        own_process.stop()
        assert own_process.popen.stderr is not None
        found = own_process.popen.stderr.read()
        assert all(line.isprintable() for line in found.splitlines())
        requests = [line for line in found.splitlines() if " /" in line]
        assert len(requests) == len(REQUESTS)
        assert "forged" in requests[0]
        assert all(line.count("status") == 1 for line in requests[:1] + requests[2:])
        assert "/x%20status=200%20peer=10.0.0.1" in requests[1]
        assert "mistake" not in found
